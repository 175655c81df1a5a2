"""Texts as vectors in one compact table, and the classifier of `regraft fit` that reads them.

All bases of a fit are folded into the table (base_table_making.py; these are no folds of
cross-validation). A text is counted once, and its vector is a sum of rows: numpy and scipy do it,
torch is not needed. Letters: N texts, W windows, T positions, R rows of the table, K dimensions,
U rows that a batch reads, C classes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Int, Int8
from numpy.typing import NDArray

from regraft.classifiers.base import ExportFormat, register_classifier
from regraft.classifiers.chunks import Chunks, Cut, ItemsOf, Keys, Ragged, read_in_batches, starts
from regraft.classifiers.contributions import Parts, by_class, with_intercepts
from regraft.classifiers.logistic import Matrix, RegressionModel, rebuilt_regression, unit_length
from regraft.classifiers.storage import Stored, save_member
from regraft.data import Tokenizer, load_tokenizer, pair_key
from regraft.errors import RunFolderError
from regraft.runtime import SILENT, Progress, file_sha256

if TYPE_CHECKING:
    import scipy.sparse

# Of a longer text only the first windows are read; the rest costs time and adds little.
MOST_WINDOWS = 8
# Of a window, in tokens: more is a damaged file.
_MOST_LENGTH = 10**9


@dataclass(frozen=True)
class Places:
    """Tokens of texts in windows. A window is as long as a base reads, start token included.

    `rows_2T` holds two rows of the table for every token: its own, and that of the pair it makes
    with the token before. -1 is none.
    """

    rows_2T: Int[np.ndarray, " places"]
    window_starts_W: Int[np.ndarray, " windows_and_one"]
    first_windows_N: Int[np.ndarray, " texts_and_one"]


@dataclass(frozen=True)
class RowIndex:
    """Which tokens and pairs of neighbouring tokens have a row, in this order.

    A pair has one key (see `pair_key`), and keys are sorted.
    """

    token_ids: Int[np.ndarray, " tokens"]
    pair_keys: Int[np.ndarray, " pairs"]
    vocab_size: int
    max_length: int
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return len(self.token_ids) + len(self.pair_keys)

    @cached_property
    def _row_of_token(self) -> NDArray[np.int32]:
        rows_V = np.full(self.vocab_size, -1, dtype=np.int32)
        rows_V[self.token_ids] = np.arange(len(self.token_ids), dtype=np.int32)
        return rows_V

    @cached_property
    def _places_of_pairs(self) -> Keys:
        return Keys(self.pair_keys)

    def places(self, tokens: Ragged) -> Places:
        """The rows that the tokens of texts read."""
        num_before, num_framing = len(self.prefix_ids), len(self.prefix_ids + self.suffix_ids)
        room = self.max_length - num_framing
        tokens = tokens.truncated(MOST_WINDOWS * room)
        lengths_N = tokens.lengths_N
        # An empty text has a window, too.
        first_windows_N = starts(np.maximum(-(-lengths_N // room), 1))
        lengths_W = np.full(first_windows_N[-1], room)
        lengths_W[first_windows_N[1:] - 1] = lengths_N - room * (np.diff(first_windows_N) - 1)
        starts_W = starts(lengths_W + num_framing)
        ids_T = np.empty(starts_W[-1], dtype=np.int64)
        shifts_W = num_before + num_framing * np.arange(len(lengths_W))
        inside = np.arange(lengths_W.sum()) + np.repeat(shifts_W, lengths_W)
        ids_T[inside] = tokens.values_T
        for place, token in enumerate(self.prefix_ids):
            ids_T[starts_W[:-1] + place] = token
        for place, token in enumerate(reversed(self.suffix_ids), start=1):
            ids_T[starts_W[1:] - place] = token
        rows_2T = np.empty(2 * len(ids_T), dtype=np.int32)
        rows_2T[0::2] = self._row_of_token[ids_T]
        rows_2T[1::2] = self._pair_rows(ids_T)
        rows_2T[2 * starts_W[:-1] + 1] = -1  # the first token of a window ends no pair
        return Places(rows_2T, starts_W, first_windows_N)

    def _pair_rows(self, ids_T: NDArray[np.int64]) -> NDArray[np.int32]:
        """For every token the row of the pair it ends; -1 for the first, and for unknown pairs."""
        places = self._places_of_pairs.places(pair_key(ids_T[:-1], ids_T[1:]))
        rows_T = np.full(len(ids_T), -1, dtype=np.int32)
        rows_T[1:] = np.where(places < 0, -1, len(self.token_ids) + places)
        return rows_T

    def weights(self, tokens: Ragged) -> "scipy.sparse.csr_array":
        """How much each row counts in each text, N x R.

        n occurrences in a window weigh 1 + log n together (TF-IDF). A row has one entry for every
        window that reads it.
        """
        import scipy.sparse

        places = self.places(tokens)
        is_read_2T = places.rows_2T >= 0
        num_before = starts(is_read_2T)
        rows = places.rows_2T[is_read_2T]
        shape = (len(places.window_starts_W) - 1, self.num_rows)
        ends_W = num_before[2 * places.window_starts_W].astype(np.int32)
        counts = scipy.sparse.csr_array((np.ones(len(rows), np.float32), rows, ends_W), shape=shape)
        counts.sum_duplicates()
        # Windows of one text follow each other: their entries together are those of the text.
        ends_N = counts.indptr[places.first_windows_N]
        return scipy.sparse.csr_array(
            (1 + np.log(counts.data), counts.indices, ends_N),
            shape=(len(ends_N) - 1, self.num_rows),
        )


@dataclass(frozen=True)
class FoldedSpace:
    """The space of all bases of a fit in one table of bytes: row r is `scales_R[r] * table_RK[r]`.

    The space is linear: before it is scaled to length 1, the vector of a text is the sum of those
    of its tokens and pairs.
    """

    tokenizer: Tokenizer
    index: RowIndex
    table_RK: Int8[np.ndarray, "R K"] = field(repr=False)
    scales_R: Float32[np.ndarray, " R"] = field(repr=False)

    def vectors(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> Float[np.ndarray, "N K"]:
        """One vector of length 1 per text; zeros for a text that reads no row."""
        parts = [np.zeros((0, self.table_RK.shape[1]), dtype=np.float32)]
        read = read_in_batches(
            texts, lambda batch: self.sums(self.tokens(batch)), progress=progress
        )
        parts += [unit_length(sums_NK).astype(np.float32) for sums_NK in read]
        return np.concatenate(parts)

    def ids_of_chunks(self, chunks: Sequence[str]) -> Ragged:
        """The ids of each chunk, if the tokenizer splits at blanks."""
        return Ragged.of(self.tokenizer.encode_chunks(chunks))

    @cached_property
    def _chunks(self) -> Chunks:
        return Chunks(self.ids_of_chunks)

    def tokens(self, texts: Sequence[str]) -> Ragged:
        """The ids of texts, looked up chunk by chunk if the tokenizer allows it."""
        if self.tokenizer.splits_at_blanks:
            return self._chunks.cut(texts).items(0)
        return Ragged.of(self.tokenizer.encode_batch(texts))

    def sums(self, tokens: Ragged) -> Float32[np.ndarray, "N K"]:
        """The weighted sum of each text's rows."""
        import scipy.sparse

        weights_NR = self.index.weights(tokens)
        is_read_R = np.zeros(self.index.num_rows, dtype=bool)
        is_read_R[weights_NR.indices] = True
        rows_U = np.flatnonzero(is_read_R)
        places = (np.cumsum(is_read_R, dtype=np.int32) - 1)[weights_NR.indices]
        scaled = weights_NR.data * self.scales_R[weights_NR.indices]
        weights_NU = scipy.sparse.csr_array(
            (scaled, places, weights_NR.indptr), shape=(weights_NR.shape[0], len(rows_U))
        )
        sums_NK: NDArray[np.float32] = weights_NU @ self.table_RK[rows_U].astype(np.float32)
        return sums_NK

    def stored(self) -> Stored:
        """Its parts but the tokenizer, ready for disk."""
        facts = {"max_length": self.index.max_length}
        arrays = {
            "token_ids": self.index.token_ids,
            "pair_keys": self.index.pair_keys,
            "table": self.table_RK,
            "scales": self.scales_R,
        }
        return Stored(facts, arrays)

    @classmethod
    def rebuilt(cls, stored: Stored, *, tokenizer: Tokenizer) -> "FoldedSpace":
        """The same space from its parts; ValueError or KeyError if they do not fit."""
        arrays = stored.arrays
        index = row_index(
            tokenizer,
            token_ids=arrays["token_ids"],
            pair_keys=arrays["pair_keys"],
            max_length=int(stored.facts["max_length"]),
        )
        table_RK, scales_R = arrays["table"], arrays["scales"]
        if table_RK.ndim != 2 or table_RK.dtype != np.int8:
            raise ValueError(f"table is {table_RK.dtype} of shape {table_RK.shape}")
        if not len(table_RK) == len(scales_R) == index.num_rows:
            raise ValueError(f"table has {len(table_RK)} rows, not {index.num_rows}")
        return cls(tokenizer, index, table_RK, scales_R)


def row_index(
    tokenizer: Tokenizer,
    *,
    token_ids: Int[np.ndarray, " tokens"],
    pair_keys: Int[np.ndarray, " pairs"],
    max_length: int,
) -> RowIndex:
    """Rows for these tokens and pairs; ValueError if the tokenizer does not know them."""
    vocab_size = tokenizer.vocab_size
    if not tokenizer.num_framing < max_length <= _MOST_LENGTH:
        raise ValueError(f"max_length is {max_length}")
    if len(token_ids) and not 0 <= token_ids.min() <= token_ids.max() < vocab_size:
        raise ValueError(f"token_ids are not of a vocabulary of {vocab_size}")
    if (np.diff(pair_keys, prepend=-1) <= 0).any():
        raise ValueError("pair_keys are not sorted, or negative")
    return RowIndex(
        token_ids, pair_keys, vocab_size, max_length, tokenizer.prefix_ids, tokenizer.suffix_ids
    )


@register_classifier("folded")
@dataclass(frozen=True)
class FoldedModel(RegressionModel):
    """Logistic regression on the vectors of a folded space, which is part of the classifier."""

    space: FoldedSpace = field(repr=False)

    @property
    def export_formats(self) -> tuple[ExportFormat, ...]:
        """A folder that numpy reads, if its tokens are whole words."""
        return ("numpy",) if self.space.tokenizer.splits_at_blanks else ()

    def portable(self) -> Stored:
        """What decides, and how it reads a text."""
        stored, index, tokenizer = super().portable(), self.space.index, self.space.tokenizer
        reading = {
            "vocabulary": dict(sorted(tokenizer.vocabulary.items())),  # the library shuffles them
            "unknown": tokenizer.unknown_id,
            "before": list(index.prefix_ids),
            "behind": list(index.suffix_ids),
            "max_length": index.max_length,
            "most_windows": MOST_WINDOWS,
        }
        return replace(stored, facts={**stored.facts, **reading})

    def matrix(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Matrix:
        """The vectors of texts."""
        return unit_length(self.space.vectors(texts, progress=progress))

    @property
    def tables(self) -> tuple[ItemsOf, ...]:
        """Ids, if tokens never cross a blank."""
        return (self.space.ids_of_chunks,) if self.space.tokenizer.splits_at_blanks else ()

    def cut_products(self, cut: Cut) -> Float[np.ndarray, "N R"]:
        """The products of the vectors with the coefficients."""
        return np.asarray(unit_length(self.space.sums(cut.items(0))) @ self.tuned.fitted.coef_.T)

    def score_parts(self, text: str) -> list[Parts]:
        """Tokens; what a pair of neighbours adds is divided equally between them."""
        space, regression, num_classes = self.space, self.tuned.fitted, len(self.labels)
        features_K = self.matrix([text])[0]
        places = space.index.places(space.tokens([text]))
        num_T = len(places.rows_2T) // 2
        occurrences = np.flatnonzero(places.rows_2T >= 0)
        rows, token_places = places.rows_2T[occurrences], occurrences // 2
        windows = np.searchsorted(places.window_starts_W, token_places, side="right")
        _, same, counts = np.unique(
            windows * space.index.num_rows + rows, return_inverse=True, return_counts=True
        )
        # All occurrences in a window share the weight of 1 + log n equally.
        weights = ((1 + np.log(counts)) / counts)[same] * space.scales_R[rows]
        rows_U, row_places = np.unique(rows, return_inverse=True)
        table_UK = space.table_RK[rows_U].astype(np.float64)
        total_K = np.bincount(row_places, weights=weights, minlength=len(rows_U)) @ table_UK
        weights /= max(float(np.linalg.norm(total_K)), float(np.finfo(np.float64).tiny))
        by_row_UC = by_class(regression.coef_ @ table_UK.T, regression, num_classes)
        added = np.column_stack([by_row_UC, table_UK @ features_K])[row_places] * weights[:, None]
        is_pair = occurrences % 2 == 1
        added[is_pair] /= 2
        values_TX = np.zeros((num_T, added.shape[1]))
        np.add.at(values_TX, token_places, added)
        np.add.at(values_TX, token_places[is_pair] - 1, added[is_pair])
        starts_T, stops_T = self._spans(text, places)
        part = Parts(starts_T, stops_T, values_TX[:, :-1])
        return with_intercepts(
            features_K, [(part, values_TX[:, -1])], regression=regression, num_classes=num_classes
        )

    def _spans(self, text: str, places: Places) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where tokens start and stop; the tokens around a window have no place in the text."""
        index = self.space.index
        starts_T, stops_T = np.zeros((2, len(places.rows_2T) // 2), dtype=np.int64)
        spans = iter(self.space.tokenizer.spans(text))
        for first, stop in itertools.pairwise(places.window_starts_W.tolist()):
            for place in range(first + len(index.prefix_ids), stop - len(index.suffix_ids)):
                starts_T[place], stops_T[place] = next(spans)
        return starts_T, stops_T

    def features_stored(self) -> Stored:
        """The space."""
        return self.space.stored()

    def save(self, run_dir: Path) -> None:
        """Write the regression and the space; the tokenizer, too, if a blend has not done so."""
        path = _tokenizer_path(run_dir)
        if path.parent == run_dir:
            self.space.tokenizer.save(path)
        stored = self.stored()
        facts = {**stored.facts, "tokenizer_sha256": file_sha256(path)}
        save_member(run_dir, replace(stored, facts=facts), kind=self.kind)

    @classmethod
    def rebuilt(cls, stored: Stored, *, folder: Path) -> "FoldedModel":
        """From its regression, the space and the tokenizer."""
        path = _tokenizer_path(folder)
        tokenizer = load_tokenizer(path)
        if file_sha256(path) != stored.facts.get("tokenizer_sha256"):
            raise RunFolderError(
                f"{path} is not the tokenizer that {folder} was made with.",
                "Its ids are the rows of the table.",
                remedy="Restore the folder from a copy, or fit again.",
            )
        space = FoldedSpace.rebuilt(stored, tokenizer=tokenizer)
        return cls(rebuilt_regression(stored, num_features=space.table_RK.shape[1]), space)


def _tokenizer_path(run_dir: Path) -> Path:
    """A member of a blend reads the tokenizer in the folder of the blend."""
    owner = run_dir.parent.parent if run_dir.parent.name == "members" else run_dir
    return owner / "tokenizer.json"
