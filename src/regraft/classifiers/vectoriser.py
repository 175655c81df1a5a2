"""TF-IDF with the terms and values of scikit-learn's vectorisers, counted chunk by chunk.

The words of a chunk, and its character n-grams, are looked up in a table of chunks (chunks.py); the
rest is sparse arithmetic. Letters: N texts, V terms, W words, P pairs, T words of all texts.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from regraft.classifiers.chunks import Chunks, Cut, Numbers, starts

if TYPE_CHECKING:
    import scipy.sparse

Analyzer = Literal["word", "char_wb"]
# scikit-learn's own pattern drops words of one letter: "a", "y", "I", all of Chinese.
WORD = re.compile(r"\w+")
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

    @cached_property
    def _chunks(self) -> Chunks:
        return Chunks(self.items_of)

    def items_of(self, chunks: Sequence[str]) -> list[list[int]]:
        """What it counts in chunks of lower-cased texts."""
        return [self._counter.items_in(chunk) for chunk in chunks]

    def transform(self, texts: Iterable[str]) -> "scipy.sparse.csr_matrix":
        """One row per text."""
        return self.rows(self._chunks.cut(map(str.lower, texts)))

    def rows(self, cut: Cut, *, table: int = 0) -> "scipy.sparse.csr_matrix":
        """One row per text, for lower-cased texts that were cut with `items_of`."""
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
    names = Numbers()
    counter = (
        _WordCounter(names.__getitem__)
        if analyzer == "word"
        else _CharacterCounter(names.__getitem__, ngram_range)
    )
    cut = Chunks(lambda chunks: map(counter.items_in, chunks)).cut(map(str.lower, texts))
    counts, term_of = counter.all_counts(cut, names)
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


class _CharacterCounter:
    """Counts character n-grams; `column_of` gives None for one that is not a term."""

    def __init__(
        self, column_of: Callable[[str], int | None], ngram_range: tuple[int, int]
    ) -> None:
        self._column_of, self._ngram_range = column_of, ngram_range
        self._ones = np.ones(0, dtype=np.int32)

    def items_in(self, chunk: str) -> list[int]:
        """The columns of its n-grams."""
        column_of = self._column_of
        terms = character_terms(chunk, self._ngram_range)
        return [column for term in terms if (column := column_of(term)) is not None]

    def counts(self, cut: Cut, *, table: int = 0, num_terms: int) -> "scipy.sparse.csr_matrix":
        """Texts x chunks times chunks x terms: what occurs twice is there twice, and is added."""
        import scipy.sparse

        items_I, chunk_ends = cut.tables[table].items_I, cut.tables[table].chunk_ends
        num_chunks, num_ones = len(chunk_ends) - 1, max(len(items_I), len(cut.chunks_L))
        if len(self._ones) < num_ones:
            self._ones = np.ones(2 * num_ones, dtype=np.int32)
        ones = self._ones
        texts = scipy.sparse.csr_matrix(
            (ones[: len(cut.chunks_L)], cut.chunks_L, cut.text_ends),
            shape=(cut.num_texts, num_chunks),
        )
        chunks = scipy.sparse.csr_matrix(
            (ones[: len(items_I)], items_I, chunk_ends), shape=(num_chunks, num_terms)
        )
        return texts @ chunks

    def all_counts(
        self, cut: Cut, names: Numbers
    ) -> "tuple[scipy.sparse.csr_matrix, Callable[[int], str]]":
        """Counts of all terms that occur, which `column_of` has numbered, and their names."""
        return self.counts(cut, num_terms=len(names)), list(names).__getitem__


class _WordCounter:
    """Counts words and pairs of neighbours; `number_of` gives None for a word that is in no term.

    `columns_W` is the column of each word, -1 if it is no term itself. `pairs_P` are pairs of
    numbers of words as one number each, sorted, and `pair_columns_P` their columns; the last pair
    is none.
    """

    def __init__(self, number_of: Callable[[str], int | None]) -> None:
        self._number_of = number_of
        self.columns_W = np.full(1, -1)
        self.pairs_P, self.pair_columns_P = np.full((2, 1), _NO_PAIR)

    @classmethod
    def of_terms(cls, terms: Sequence[str]) -> "_WordCounter":
        """A counter of these terms."""
        numbers = Numbers()
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

    def items_in(self, chunk: str) -> list[int]:
        """The numbers of its words, -1 for one without."""
        numbers = map(self._number_of, WORD.findall(chunk))
        return [-1 if number is None else number for number in numbers]

    def counts(self, cut: Cut, *, table: int = 0, num_terms: int) -> "scipy.sparse.csr_matrix":
        """N x V."""
        words_T, num_words_N = cut.items(table)
        is_known_T = words_T >= 0
        # Two places for every word: its own term, and the pair it begins.
        columns_2T = np.full(2 * len(words_T), -1)
        columns_2T[0::2] = np.where(is_known_T, self.columns_W[words_T], -1)
        first_T = np.flatnonzero(_pairs(is_known_T, num_words_N))
        keys = words_T[first_T].astype(np.int64) * len(self.columns_W) + words_T[first_T + 1]
        places = np.searchsorted(self.pairs_P, keys)
        is_found = self.pairs_P[places] == keys
        columns_2T[2 * first_T[is_found] + 1] = self.pair_columns_P[places[is_found]]
        return _counted(columns_2T, 2 * num_words_N, num_terms=num_terms)

    def all_counts(
        self, cut: Cut, names: Numbers
    ) -> "tuple[scipy.sparse.csr_matrix, Callable[[int], str]]":
        """Counts of all terms that occur, which `number_of` has numbered, and their names."""
        words_T, num_words_N = cut.items(0)
        num_words, by_number = len(names), list(names)
        first_T = np.flatnonzero(_pairs(np.ones(len(words_T), dtype=bool), num_words_N))
        keys = words_T[first_T].astype(np.int64) * num_words + words_T[first_T + 1]
        pairs_P, places = np.unique(keys, return_inverse=True)

        def term_of(column: int) -> str:
            if column < num_words:
                return by_number[column]
            first, second = divmod(int(pairs_P[column - num_words]), num_words)
            return f"{by_number[first]} {by_number[second]}"

        columns_2T = np.full(2 * len(words_T), -1)
        columns_2T[0::2] = words_T
        columns_2T[2 * first_T + 1] = places + num_words
        counts = _counted(columns_2T, 2 * num_words_N, num_terms=num_words + len(pairs_P))
        return counts, term_of


def _pairs(is_known_T: NDArray[np.bool_], num_words_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each word and the next one of its text are both known."""
    is_pair_T: NDArray[np.bool_] = is_known_T.copy()
    is_pair_T[:-1] &= is_known_T[1:]
    is_pair_T[np.cumsum(num_words_N)[num_words_N > 0] - 1] = False
    return is_pair_T


def _counted(
    columns: NDArray[np.int64], num_columns_N: NDArray[np.int64], *, num_terms: int
) -> "scipy.sparse.csr_matrix":
    """How often each column occurs in each text, given those of all texts; -1 is none."""
    import scipy.sparse

    is_there = columns >= 0
    ends = starts(is_there)[starts(num_columns_N)]
    ones = np.ones(ends[-1], dtype=np.int32)
    counts = scipy.sparse.csr_matrix(
        (ones, columns[is_there], ends), shape=(len(num_columns_N), num_terms)
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
