"""TF-IDF with the terms and values of scikit-learn's vectorisers, counted chunk by chunk.

A chunk is what lies between two blanks. Its words, and its character n-grams, depend on nothing
else: they are looked up in a table of all chunks seen so far. So strings are cut once per distinct
chunk, and the rest is sparse arithmetic. Letters: N texts, V terms, L chunks of all texts, I
items of all distinct chunks, W words, P pairs.
"""

import re
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

if TYPE_CHECKING:
    import scipy.sparse

Analyzer = Literal["word", "char_wb"]
# scikit-learn's own pattern drops words of one letter: "a", "y", "I", all of Chinese.
WORD = re.compile(r"\w+")
# Then the table of chunks starts again, so that a server does not grow without limit.
_MOST_CHUNKS = 500_000
# Larger than the number of any pair of words.
_NO_PAIR = np.iinfo(np.int64).max
# 1 + log(count) of the counts that occur in practice.
_DAMPED = np.concatenate([[0.0], 1 + np.log(np.arange(1, 4096))])


@dataclass(frozen=True)
class Vectoriser:
    """Terms in the order of their columns: words and pairs of words, or characters of words.

    The n-grams of `char_wb` do not cross blanks, and a blank on either side belongs to a word.
    Texts are lower-cased. With `idf_V`, values are (1 + log count) * idf, and rows have length 1;
    without, a term that occurs is 1.
    """

    analyzer: Analyzer
    ngram_range: tuple[int, int]
    terms: Sequence[str] = field(repr=False)
    idf_V: Float[np.ndarray, " V"] | None = field(repr=False, default=None)

    def __post_init__(self) -> None:
        fewest, most = self.ngram_range
        if not 1 <= fewest <= most:
            raise ValueError(f"there are no terms of {fewest} to {most} {self.analyzer}s")
        if self.analyzer == "word" and (fewest, most) != (1, 2):
            raise ValueError(f"word terms are of 1 to 2 words, not of {fewest} to {most}")
        if self.idf_V is not None and self.idf_V.shape != (len(self.terms),):
            raise ValueError(f"{len(self.idf_V)} frequencies do not fit {len(self.terms)} terms")

    def __getstate__(self) -> dict[str, Any]:
        """Its fields: what it computed from them, and a lock, stay in this process."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def columns(self) -> dict[str, int]:
        """The column of each term."""
        return {term: column for column, term in enumerate(self.terms)}

    @cached_property
    def _counter(self) -> "_WordCounter | _CharacterCounter":
        if self.analyzer == "word":
            return _WordCounter.of_terms(self.terms)
        return _CharacterCounter(self.columns.get, self.ngram_range)

    def transform(self, texts: Iterable[str]) -> "scipy.sparse.csr_matrix":
        """One row per text."""
        return self.values(self._counter.counts(texts, num_terms=len(self.terms)))

    def values(self, counts: "scipy.sparse.csr_matrix") -> "scipy.sparse.csr_matrix":
        """The values of counted terms."""
        if self.idf_V is None:
            return _like(counts, np.ones(counts.nnz))
        values = _damped(counts.data).astype(self.idf_V.dtype, copy=False)
        values *= self.idf_V[counts.indices]
        squares_N = _like(counts, np.square(values)) @ np.ones(counts.shape[1], values.dtype)
        lengths_N = np.sqrt(np.where(squares_N == 0, 1, squares_N))
        values /= np.repeat(lengths_N, np.diff(counts.indptr))
        return _like(counts, values)


def fit_vectoriser(
    texts: Iterable[str],
    *,
    analyzer: Analyzer,
    ngram_range: tuple[int, int],
    min_df: int = 1,
    max_df: float = 1.0,
    max_terms: int | None = None,
    is_binary: bool = False,
    dtype: type[np.floating[Any]] = np.float64,
) -> tuple[Vectoriser, "scipy.sparse.csr_matrix"]:
    """A vectoriser of the terms in texts, and the rows of these texts; ValueError without terms.

    Terms of fewer than `min_df` texts or of a larger share than `max_df` are dropped, then all but
    the `max_terms` most frequent.
    """
    names = _Numbers()
    counter = (
        _WordCounter(names.__getitem__)
        if analyzer == "word"
        else _CharacterCounter(names.__getitem__, ngram_range)
    )
    counts, term_of = counter.all_counts(texts, names)
    num_texts, num_terms = counts.shape
    num_with_V = np.bincount(counts.indices, minlength=num_terms)
    kept_V = np.flatnonzero((num_with_V >= min_df) & (num_with_V <= max_df * num_texts))
    if max_terms is not None and len(kept_V) > max_terms:
        totals_V = np.asarray(counts.sum(axis=0)).ravel()[kept_V]
        kept_V = kept_V[np.argsort(-totals_V, kind="stable")[:max_terms]]
    if not len(kept_V):
        raise ValueError("there are no terms")
    named = sorted((term_of(column), column) for column in kept_V.tolist())
    kept_V = np.array([column for _, column in named])
    idf_V = None
    if not is_binary:
        idf_V = np.log((1 + num_texts) / (1 + num_with_V[kept_V]).astype(dtype)) + dtype(1)
    vectoriser = Vectoriser(analyzer, ngram_range, [term for term, _ in named], idf_V)
    return vectoriser, vectoriser.values(counts[:, kept_V])


def character_terms(chunk: str, ngram_range: tuple[int, int]) -> list[str]:
    """The character n-grams of a chunk between two blanks, by length; a short chunk is one."""
    framed, (fewest, most) = f" {chunk} ", ngram_range
    size = len(framed)
    if size <= fewest:
        return [framed]
    return [
        framed[first : first + num]
        for num in range(fewest, min(most, size) + 1)
        for first in range(size - num + 1)
    ]


class _Numbers(dict[str, int]):
    """Numbers strings when they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class _Growing:
    """An array of integers that grows; what was read from it before stays as it is."""

    def __init__(self, first: Sequence[int] = ()) -> None:
        self._room = np.array([*first, 0], dtype=np.int32)
        self._size = len(first)

    def extend(self, numbers: Sequence[int]) -> None:
        size = self._size + len(numbers)
        if size > len(self._room):
            room = np.empty(2 * size, dtype=np.int32)
            room[: self._size] = self.now
            self._room = room
        self._room[self._size : size] = numbers
        self._size = size

    @property
    def now(self) -> NDArray[np.int32]:
        return self._room[: self._size]


@dataclass(frozen=True)
class _Cut:
    """Texts as chunks, and the items of each distinct chunk."""

    chunks_L: Int[np.ndarray, " L"]
    text_ends: NDArray[np.int32]
    items_I: Int[np.ndarray, " I"]
    chunk_ends: NDArray[np.int32]


class _Chunks:
    """The chunks seen so far with their items: numbers, -1 for what has none."""

    def __init__(self, items_of: Callable[[str], Iterable[int]]) -> None:
        self._items_of = items_of
        self._lock = threading.Lock()
        self._numbers, self._items, self._ends = _Numbers(), _Growing(), _Growing([0])

    def cut(self, texts: Iterable[str]) -> _Cut:
        """Cut texts, one thread at a time, and extend the table by chunks that are new."""
        chunks_L, text_ends = array("i"), array("i", [0])
        with self._lock:
            if len(self._numbers) > _MOST_CHUNKS:
                self._numbers, self._items, self._ends = _Numbers(), _Growing(), _Growing([0])
            number_of = self._numbers.__getitem__
            for text in texts:
                chunks_L.extend(map(number_of, text.lower().split()))
                text_ends.append(len(chunks_L))
            items: list[int] = []
            ends, before = [], len(self._items.now)
            for chunk in self._numbers.new:
                items.extend(self._items_of(chunk))
                ends.append(before + len(items))
            self._numbers.new.clear()
            self._items.extend(items)
            self._ends.extend(ends)
            return _Cut(
                np.array(chunks_L, dtype=np.int32),
                np.array(text_ends, dtype=np.int32),
                self._items.now,
                self._ends.now,
            )


class _CharacterCounter:
    """Counts character n-grams; `column_of` gives None for one that is not a term."""

    def __init__(
        self, column_of: Callable[[str], int | None], ngram_range: tuple[int, int]
    ) -> None:
        self._column_of, self._ngram_range = column_of, ngram_range
        self._chunks = _Chunks(self._columns_in)
        self._ones = np.ones(0, dtype=np.int32)

    def _columns_in(self, chunk: str) -> list[int]:
        columns = map(self._column_of, character_terms(chunk, self._ngram_range))
        return [column for column in columns if column is not None]

    def counts(self, texts: Iterable[str], *, num_terms: int) -> "scipy.sparse.csr_matrix":
        """N x V."""
        return self._product(self._chunks.cut(texts), num_terms=num_terms)

    def all_counts(
        self, texts: Iterable[str], names: _Numbers
    ) -> "tuple[scipy.sparse.csr_matrix, Callable[[int], str]]":
        """Counts of all terms that occur, which `column_of` has numbered, and their names."""
        cut = self._chunks.cut(texts)
        return self._product(cut, num_terms=len(names)), list(names).__getitem__

    def _product(self, cut: _Cut, *, num_terms: int) -> "scipy.sparse.csr_matrix":
        """Texts x chunks times chunks x terms: what occurs twice is there twice, and is added."""
        import scipy.sparse

        num_texts, num_chunks = len(cut.text_ends) - 1, len(cut.chunk_ends) - 1
        num_ones = max(len(cut.items_I), len(cut.chunks_L))
        if len(self._ones) < num_ones:
            self._ones = np.ones(2 * num_ones, dtype=np.int32)
        ones = self._ones
        texts = scipy.sparse.csr_matrix(
            (ones[: len(cut.chunks_L)], cut.chunks_L, cut.text_ends), shape=(num_texts, num_chunks)
        )
        table = scipy.sparse.csr_matrix(
            (ones[: len(cut.items_I)], cut.items_I, cut.chunk_ends), shape=(num_chunks, num_terms)
        )
        return texts @ table


class _WordCounter:
    """Counts words and pairs of neighbours; `number_of` gives None for a word that is in no term.

    `columns_W` is the column of each word, -1 if it is no term itself. `pairs_P` are pairs of
    numbers of words as one number each, sorted, and `pair_columns_P` their columns; the last pair
    is none.
    """

    def __init__(self, number_of: Callable[[str], int | None]) -> None:
        self._number_of = number_of
        self._chunks = _Chunks(self._words_in)
        self.columns_W = np.full(1, -1)
        self.pairs_P, self.pair_columns_P = np.full((2, 1), _NO_PAIR)

    @classmethod
    def of_terms(cls, terms: Sequence[str]) -> "_WordCounter":
        """A counter of these terms."""
        numbers = _Numbers()
        words = [[numbers[word] for word in term.split(" ")] for term in terms]
        counter = cls(numbers.get)
        counter.columns_W = np.full(max(len(numbers), 1), -1)
        pairs = {_NO_PAIR: -1}
        for column, (first, *second) in enumerate(words):
            if second:
                pairs[first * len(counter.columns_W) + second[0]] = column
            else:
                counter.columns_W[first] = column
        counter.pairs_P = np.array(sorted(pairs))
        counter.pair_columns_P = np.array([pairs[pair] for pair in counter.pairs_P.tolist()])
        return counter

    def _words_in(self, chunk: str) -> list[int]:
        numbers = map(self._number_of, WORD.findall(chunk))
        return [-1 if number is None else number for number in numbers]

    def counts(self, texts: Iterable[str], *, num_terms: int) -> "scipy.sparse.csr_matrix":
        """N x V."""
        words, owners, num_texts = self._words(texts)
        is_known = words >= 0
        columns = np.where(is_known, self.columns_W[words], -1)
        is_pair = is_known[:-1] & is_known[1:] & (owners[:-1] == owners[1:])
        keys = words[:-1][is_pair] * len(self.columns_W) + words[1:][is_pair]
        places = np.searchsorted(self.pairs_P, keys)
        is_found = self.pairs_P[places] == keys
        rows = owners[columns >= 0], owners[:-1][is_pair][is_found]
        found = columns[columns >= 0], self.pair_columns_P[places[is_found]]
        return _counted(np.concatenate(rows), np.concatenate(found), (num_texts, num_terms))

    def all_counts(
        self, texts: Iterable[str], names: _Numbers
    ) -> "tuple[scipy.sparse.csr_matrix, Callable[[int], str]]":
        """Counts of all terms that occur, which `number_of` has numbered, and their names."""
        words, owners, num_texts = self._words(texts)
        num_words, by_number = len(names), list(names)
        is_pair = owners[:-1] == owners[1:]
        keys = words[:-1][is_pair] * num_words + words[1:][is_pair]
        pairs_P, places = np.unique(keys, return_inverse=True)

        def term_of(column: int) -> str:
            if column < num_words:
                return by_number[column]
            first, second = divmod(int(pairs_P[column - num_words]), num_words)
            return f"{by_number[first]} {by_number[second]}"

        counts = _counted(
            np.concatenate([owners, owners[:-1][is_pair]]),
            np.concatenate([words, places + num_words]),
            (num_texts, num_words + len(pairs_P)),
        )
        return counts, term_of

    def _words(self, texts: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """The words of all texts, the text of each, and the number of texts."""
        cut = self._chunks.cut(texts)
        num_words_L = np.diff(cut.chunk_ends)[cut.chunks_L]
        behind_L = np.cumsum(num_words_L)
        shifts_L = cut.chunk_ends[cut.chunks_L] - (behind_L - num_words_L)
        places = np.arange(behind_L[-1] if len(behind_L) else 0) + np.repeat(shifts_L, num_words_L)
        num_texts = len(cut.text_ends) - 1
        owners_L = np.repeat(np.arange(num_texts), np.diff(cut.text_ends))
        words = cut.items_I[places].astype(np.int64)
        return words, np.repeat(owners_L, num_words_L), num_texts


def _counted(
    rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]
) -> "scipy.sparse.csr_matrix":
    import scipy.sparse

    ones = np.ones(len(rows), dtype=np.int32)
    return scipy.sparse.coo_matrix((ones, (rows, columns)), shape=shape).tocsr()


def _damped(counts: NDArray[np.int32]) -> NDArray[np.float64]:
    if counts.max(initial=0) < len(_DAMPED):
        return _DAMPED[counts]
    damped: NDArray[np.float64] = 1 + np.log(counts)
    return damped


def _like(counts: "scipy.sparse.csr_matrix", values: NDArray[Any]) -> "scipy.sparse.csr_matrix":
    """The same places with other values."""
    import scipy.sparse

    return scipy.sparse.csr_matrix((values, counts.indices, counts.indptr), shape=counts.shape)
