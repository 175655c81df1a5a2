"""TF-IDF with the terms and values of scikit-learn's vectorisers, counted chunk by chunk.

The words of a chunk, and its character n-grams, are looked up in a table of chunks (chunks.py); the
rest is sparse arithmetic. Letters: N texts, V terms, W words, A words of all terms, P pairs,
T words of all texts, S places where an n-gram starts, O its characters.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from regraft.classifiers.chunks import Chunks, Cut, Keys, Numbers, Ragged, starts

if TYPE_CHECKING:
    import scipy.sparse

Analyzer = Literal["word", "char_wb"]
# scikit-learn's own pattern drops words of one letter: "a", "y", "I", all of Chinese.
WORD = re.compile(r"\w+")
# In characters or words: more is a damaged file, and every place of a text has room for as many.
_LONGEST_TERM = 100
# No character has a larger code.
_CODE_BITS = 21
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
        if {type(fewest), type(most)} != {int} or not 1 <= fewest <= most <= _LONGEST_TERM:
            raise ValueError(f"there are no terms of {fewest} to {most} {self.analyzer}s")
        if self.analyzer == "word" and (fewest, most) != (1, 2):
            raise ValueError(f"word terms are of 1 to 2 words, not of {fewest} to {most}")
        if self.idf_V is not None and self.idf_V.shape != (len(self.terms),):
            raise ValueError(f"{len(self.idf_V)} frequencies do not fit {len(self.terms)} terms")

    def __getstate__(self) -> dict[str, Any]:
        """Its fields: what it computed from them, and a lock, stay in this process."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @functools.cached_property
    def columns(self) -> dict[str, int]:
        """The column of each term."""
        return {term: column for column, term in enumerate(self.terms)}

    @functools.cached_property
    def _counter(self) -> "_WordCounter | _CharacterCounter":
        if self.analyzer == "word":
            return _WordCounter(self.terms)
        return _CharacterCounter(self.terms, most=self.ngram_range[1])

    @functools.cached_property
    def _chunks(self) -> Chunks:
        return Chunks(self.items_of)

    def items_of(self, chunks: Sequence[str]) -> Ragged:
        """What it counts in chunks of texts."""
        return self._counter.items_of(list(map(str.lower, chunks)))

    def transform(self, texts: Iterable[str]) -> "scipy.sparse.csr_matrix":
        """One row per text."""
        return self.rows(self._chunks.cut(texts))

    def rows(self, cut: Cut, *, table: int = 0) -> "scipy.sparse.csr_matrix":
        """One row per text, for texts that were cut with `items_of`."""
        return self.values(self._counter.counts(cut, table=table, num_terms=len(self.terms)))

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
    counter = _NewWords() if analyzer == "word" else _NewCharacters(ngram_range)
    chunks = Chunks(lambda chunks: counter.items_of(list(map(str.lower, chunks))))
    counts, term_of = counter.counts(chunks.cut(texts))
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


class _Beginnings:
    """Numbers the beginnings of character n-grams: the first character, the first two, and so on.

    The key of a beginning is the number of the one that is a character shorter, and that character.
    """

    def __init__(self) -> None:
        self.keys = np.zeros(0, dtype=np.int64)

    def add(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers for keys of which none was added before."""
        distinct, places = np.unique(keys, return_inverse=True)
        numbers: NDArray[np.int64] = len(self.keys) + places
        self.keys = np.concatenate([self.keys, distinct])
        return numbers

    def text(self, number: int) -> str:
        """The characters of a beginning."""
        characters = []
        while number >= 0:
            shorter, code = divmod(int(self.keys[number]), 1 << _CODE_BITS)
            characters.append(chr(code))
            number = shorter - 1
        return "".join(reversed(characters))


def _numbered(
    codes: NDArray[np.int64],
    places_S: NDArray[np.int64],
    sizes_S: NDArray[np.int64],
    *,
    most: int,
    number_of: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> Int[np.ndarray, "S O"]:
    """The number of each beginning at these places in a row of characters; -1 where none is known.

    It has at most `most` characters, and at most `sizes_S`.
    """
    numbers_SO = np.full((len(places_S), most), -1, dtype=np.int32)
    open_A, numbers_A = np.arange(len(places_S)), np.full(len(places_S), -1)
    for order in range(most):
        goes_on = sizes_S[open_A] > order
        open_A, shorter_numbers_A = open_A[goes_on], numbers_A[goes_on].astype(np.int64)
        last_codes_A = codes[places_S[open_A] + order]
        numbers_A = number_of(((shorter_numbers_A + 1) << _CODE_BITS) + last_codes_A)
        is_known = numbers_A >= 0
        open_A, numbers_A = open_A[is_known], numbers_A[is_known]
        numbers_SO[open_A, order] = numbers_A
    return numbers_SO


def _codes(text: str) -> NDArray[np.int64]:
    """The code of each character."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)


class _Framed:
    """Chunks with a blank between them, which belongs to both; n-grams start everywhere.

    `sizes_S` is how many characters of a chunk follow each place, itself included.
    """

    def __init__(self, chunks: Sequence[str]) -> None:
        self.codes = _codes(f" {' '.join(chunks)} ")
        steps = 1 + np.fromiter(map(len, chunks), dtype=np.int64, count=len(chunks))
        self.bounds = starts(steps)
        self.places_S = np.arange(self.bounds[-1])
        self.sizes_S = np.repeat(self.bounds[1:] + 1, steps) - self.places_S

    def numbers(
        self, most: int, number_of: Callable[[NDArray[np.int64]], NDArray[Any]]
    ) -> Int[np.ndarray, "S O"]:
        """The number of each beginning of up to `most` characters; -1 where none is known."""
        return _numbered(self.codes, self.places_S, self.sizes_S, most=most, number_of=number_of)

    def by_chunk(self, items_SO: Int[np.ndarray, "S O"], is_item_SO: NDArray[np.bool_]) -> Ragged:
        """The items of each chunk."""
        num_before = starts(is_item_SO.sum(axis=1))
        return Ragged(items_SO[is_item_SO], np.diff(num_before[self.bounds]))


class _CharacterCounter:
    """Counts character n-grams of up to `most` characters."""

    def __init__(self, terms: Sequence[str], *, most: int) -> None:
        sizes_V = np.fromiter(map(len, terms), dtype=np.int64, count=len(terms))
        beginnings, places_V = _Beginnings(), starts(sizes_V)[:-1]
        numbers_VO = _numbered(
            _codes("".join(terms)), places_V, sizes_V, most=most, number_of=beginnings.add
        )
        columns = np.flatnonzero((sizes_V > 0) & (sizes_V <= most))
        # The column of each beginning; -1 if it is no term, as the last one.
        self._columns = np.full(len(beginnings.keys) + 1, -1, dtype=np.int32)
        self._columns[numbers_VO[columns, sizes_V[columns] - 1]] = columns
        self._keys, self._most = Keys(beginnings.keys), most

    def items_of(self, chunks: Sequence[str]) -> Ragged:
        """The columns of the n-grams of each chunk."""
        framed = _Framed(chunks)
        columns_SO = self._columns[framed.numbers(self._most, self._keys.places)]
        return framed.by_chunk(columns_SO, columns_SO >= 0)

    def counts(self, cut: Cut, *, table: int, num_terms: int) -> "scipy.sparse.csr_matrix":
        """N x V."""
        return _summed(cut, table=table, num_items=num_terms)


class _NewCharacters:
    """Counts all character n-grams of some texts, which are cut at once."""

    def __init__(self, ngram_range: tuple[int, int]) -> None:
        self._fewest, self._most = ngram_range
        self._beginnings = _Beginnings()

    def items_of(self, chunks: Sequence[str]) -> Ragged:
        """Numbers of the n-grams of each chunk; a chunk shorter than all of them is one."""
        framed = _Framed(chunks)
        numbers_SO = framed.numbers(self._most, self._beginnings.add)
        orders_O = np.arange(1, self._most + 1)
        is_first_S = np.isin(framed.places_S, framed.bounds)
        is_whole_SO = is_first_S[:, None] & (orders_O == framed.sizes_S[:, None])
        return framed.by_chunk(
            numbers_SO, (numbers_SO >= 0) & ((orders_O >= self._fewest) | is_whole_SO)
        )

    def counts(self, cut: Cut) -> "tuple[scipy.sparse.csr_matrix, Callable[[int], str]]":
        """N x V, and the term of each column."""
        num_items = len(self._beginnings.keys)
        return _summed(cut, table=0, num_items=num_items), self._beginnings.text


def _summed(cut: Cut, *, table: int, num_items: int) -> "scipy.sparse.csr_matrix":
    """How often each text has each item: texts x chunks times chunks x items."""
    import scipy.sparse

    items_I, chunk_ends = cut.tables[table].items_I, cut.tables[table].chunk_ends
    num_chunks = len(chunk_ends) - 1
    # What occurs twice is there twice, and is added.
    texts = scipy.sparse.csr_matrix(
        (_ones(len(cut.chunks_L)), cut.chunks_L, cut.text_ends), shape=(cut.num_texts, num_chunks)
    )
    chunks = scipy.sparse.csr_matrix(
        (_ones(len(items_I)), items_I, chunk_ends), shape=(num_chunks, num_items)
    )
    return texts @ chunks


def _ones(count: int) -> NDArray[np.int32]:
    return _many_ones(count.bit_length())[:count]


@functools.lru_cache(maxsize=2)
def _many_ones(num_bits: int) -> NDArray[np.int32]:
    """The items of all chunks are counted in every batch, and there are millions."""
    return np.ones(1 << num_bits, dtype=np.int32)


class _WordCounter:
    """Counts words and pairs of neighbours. Columns are -1 for what is no term, as the last one."""

    def __init__(self, terms: Sequence[str]) -> None:
        all_words = " ".join(terms).split(" ")
        self._numbers = numbers = dict(zip(dict.fromkeys(all_words), itertools.count()))
        numbers_A = np.fromiter(map(numbers.__getitem__, all_words), np.int64, len(all_words))
        blanks_V = np.fromiter(map(str.count, terms, itertools.repeat(" ")), np.int64, len(terms))
        firsts_V = starts(blanks_V + 1)[:-1]
        words, pairs = np.flatnonzero(blanks_V == 0), np.flatnonzero(blanks_V == 1)
        self._word_columns = np.full(len(numbers) + 1, -1, dtype=np.int32)
        self._word_columns[numbers_A[firsts_V[words]]] = words
        first_P, second_P = numbers_A[firsts_V[pairs]], numbers_A[firsts_V[pairs] + 1]
        self._pairs = Keys(first_P * len(numbers) + second_P)
        self._pair_columns = np.append(pairs, -1).astype(np.int32)

    def items_of(self, chunks: Sequence[str]) -> Ragged:
        """The numbers of the words of each chunk, -1 for one that is in no term."""
        number_of, unknown = self._numbers.get, itertools.repeat(-1)
        return Ragged.of([list(map(number_of, WORD.findall(chunk), unknown)) for chunk in chunks])

    def counts(self, cut: Cut, *, table: int, num_terms: int) -> "scipy.sparse.csr_matrix":
        """N x V."""
        words = cut.items(table)
        first_T, keys = _pairs(words, num_words=len(self._numbers))
        # Two places for every word: its own term, and the pair it begins.
        columns_2T = np.full(2 * len(words.values_T), -1, dtype=np.int32)
        columns_2T[0::2] = self._word_columns[words.values_T]
        columns_2T[2 * first_T + 1] = self._pair_columns[self._pairs.places(keys)]
        return _counted(Ragged(columns_2T, 2 * words.lengths_N), num_terms=num_terms)


class _NewWords:
    """Counts all words and pairs of neighbours of some texts."""

    def __init__(self) -> None:
        self._numbers = Numbers()

    def items_of(self, chunks: Sequence[str]) -> Ragged:
        """The numbers of the words of each chunk."""
        number_of = self._numbers.__getitem__
        return Ragged.of([list(map(number_of, WORD.findall(chunk))) for chunk in chunks])

    def counts(self, cut: Cut) -> "tuple[scipy.sparse.csr_matrix, Callable[[int], str]]":
        """N x V, and the term of each column."""
        words, names = cut.items(0), list(self._numbers)
        first_T, keys = _pairs(words, num_words=len(names))
        pairs, places = np.unique(keys, return_inverse=True)
        columns_2T = np.full(2 * len(words.values_T), -1)
        columns_2T[0::2] = words.values_T
        columns_2T[2 * first_T + 1] = places + len(names)

        def term_of(column: int) -> str:
            if column < len(names):
                return names[column]
            first, second = divmod(int(pairs[column - len(names)]), len(names))
            return f"{names[first]} {names[second]}"

        columns = Ragged(columns_2T, 2 * words.lengths_N)
        return _counted(columns, num_terms=len(names) + len(pairs)), term_of


def _pairs(words: Ragged, *, num_words: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where a pair of known words begins, and one number for each pair."""
    is_pair_T: NDArray[np.bool_] = words.values_T >= 0
    is_pair_T[:-1] &= is_pair_T[1:]
    is_pair_T[np.cumsum(words.lengths_N)[words.lengths_N > 0] - 1] = False
    first_T = np.flatnonzero(is_pair_T)
    keys = words.values_T[first_T].astype(np.int64) * num_words + words.values_T[first_T + 1]
    return first_T, keys


def _counted(columns: Ragged, *, num_terms: int) -> "scipy.sparse.csr_matrix":
    """How often each column occurs in each text; -1 is none."""
    import scipy.sparse

    is_there = columns.values_T >= 0
    ends = starts(is_there)[starts(columns.lengths_N)]
    ones = np.ones(ends[-1], dtype=np.int32)
    counts = scipy.sparse.csr_matrix(
        (ones, columns.values_T[is_there], ends), shape=(len(columns.lengths_N), num_terms)
    )
    counts.sum_duplicates()
    return counts


def _damped(counts: NDArray[np.int32]) -> NDArray[np.float64]:
    if counts.max(initial=0) < len(_DAMPED):
        return _DAMPED[counts]
    damped: NDArray[np.float64] = 1 + np.log(counts)
    return damped


def _like(counts: "scipy.sparse.csr_matrix", values: NDArray[Any]) -> "scipy.sparse.csr_matrix":
    """The same places with other values."""
    import scipy.sparse

    return scipy.sparse.csr_matrix((values, counts.indices, counts.indptr), shape=counts.shape)
