"""Folds the bases of a fit into one compact table: reduced, quantised, without unread rows.

Why, and what it costs: docs/concepts/recipe.md. Letters: N documents, R rows of the table,
D width of a base, K dimensions kept.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Int8

from regraft.classifiers.base_table import FoldedSpace, RowIndex, row_index
from regraft.classifiers.chunks import Ragged
from regraft.classifiers.logistic import one_thread, unit_length
from regraft.data import Tokenizer, TokenStore
from regraft.models import BagBackbone
from regraft.runtime import SILENT, Progress
from regraft.training import load_run

# Dimensions kept; docs/concepts/recipe.md compares others.
NUM_DIMENSIONS = 256
# Documents that decide which dimensions are kept.
NUM_DOCUMENTS = 8_192
_POWER_ITERATIONS = 4
_LARGEST = 127  # of a signed byte


def fold_bases(
    run_dirs: Sequence[Path],
    *,
    store: TokenStore,
    tokenizer: Tokenizer,
    max_length: int,
    num_dimensions: int = NUM_DIMENSIONS,
    progress: Progress = SILENT,
) -> FoldedSpace:
    """One space of bags that learned from the documents of this store and share its tokenizer.

    The vectors of a token in all bases are concatenated and projected on the directions in which
    documents are longest: a PCA without centring, so that the space stays linear. Bases have equal
    weight: a document has the same mean square length in each.
    """
    bags = [_load_bag(run_dir) for run_dir in run_dirs]
    index = _index(bags, store=store, tokenizer=tokenizer, max_length=max_length)
    weights_NR = index.weights(Ragged.of(_documents(store)))
    progress.start("fold the bases", total=2 * len(bags))
    parts, scales = [], []
    for bag in bags:
        vectors_ND = weights_NR @ _rows(bag, index)
        scales.append(1 / np.sqrt(np.square(vectors_ND).sum(axis=1).mean()))
        parts.append(vectors_ND * scales[-1])
        progress.advance()
    axes = np.split(_axes(np.concatenate(parts, axis=1), num_dimensions), len(bags))
    folded_RK = np.zeros((index.num_rows, axes[0].shape[1]), dtype=np.float32)
    for bag, axes_DK, scale in zip(bags, axes, scales, strict=True):
        folded_RK += _rows(bag, index) @ (axes_DK * scale)
        progress.advance()
    progress.finish()
    return FoldedSpace(tokenizer, index, *quantised(folded_RK))


def quantised(
    rows_RK: Float32[np.ndarray, "R K"],
) -> tuple[Int8[np.ndarray, "R K"], Float32[np.ndarray, " R"]]:
    """Rows as bytes, and what to multiply each by."""
    scales_R = np.abs(rows_RK).max(axis=1) / np.float32(_LARGEST)
    steps_RK = rows_RK / np.where(scales_R == 0, 1, scales_R)[:, None]
    return np.rint(steps_RK).astype(np.int8), scales_R


def _load_bag(run_dir: Path) -> BagBackbone:
    """In half precision, as on disk: all bases of a fit are in memory at once."""
    backbone = load_run(run_dir).model.backbone.half()
    assert isinstance(backbone, BagBackbone), "the rows of other families do not add up"
    return backbone


def _index(
    bags: Sequence[BagBackbone], *, store: TokenStore, tokenizer: Tokenizer, max_length: int
) -> RowIndex:
    """Rows for what a text can read and a base has learned: all others are dropped.

    A token that is not in the store still has the random vector it started with. Special tokens
    other than those around a text, and pairs with them, occur in no text.
    """
    is_read_V = store.counts(vocab_size=tokenizer.vocab_size) > 0
    is_read_V[list(tokenizer.special_ids - {tokenizer.unknown_id})] = False
    is_read_V[[*tokenizer.prefix_ids, *tokenizer.suffix_ids]] = True
    # Each base has chosen among equally frequent pairs by the documents it learned from.
    keys_P = np.unique(np.concatenate([bag.known_pair_keys.numpy() for bag in bags]))
    is_read_P = is_read_V[keys_P >> 32] & is_read_V[keys_P & 0xFFFFFFFF]
    return row_index(
        tokenizer,
        token_ids=np.flatnonzero(is_read_V).astype(np.int32),
        pair_keys=keys_P[is_read_P],
        max_length=max_length,
    )


def _rows(bag: BagBackbone, index: RowIndex) -> Float32[np.ndarray, "R D"]:
    """The vectors of a base in the order of the index; zeros for a pair that it does not know."""
    tokens_VD = bag.embedding.weight.detach().numpy()
    pairs_PD = bag.neighbours.weight.detach().numpy()
    rows_RD = np.zeros((index.num_rows, tokens_VD.shape[1]), dtype=np.float32)
    num_tokens = len(index.token_ids)
    rows_RD[:num_tokens] = tokens_VD[index.token_ids]
    known = bag.known_pair_keys.numpy()
    _, places, here = np.intersect1d(
        index.pair_keys, known, assume_unique=True, return_indices=True
    )
    rows_RD[num_tokens + places] = pairs_PD[here]
    return rows_RD


def _documents(store: TokenStore) -> list[list[int]]:
    """Documents spread evenly over the store, without their start and end."""
    stride = -(-store.num_documents // NUM_DOCUMENTS)
    bounds = zip(store.offsets[:-1:stride].tolist(), store.offsets[1::stride].tolist(), strict=True)
    return [store.read(start, stop)[1:-1].tolist() for start, stop in bounds]


def _axes(vectors_ND: Float32[np.ndarray, "N D"], num_dimensions: int) -> Float[np.ndarray, "D K"]:
    """Orthogonal directions that keep most of these vectors, each scaled to length 1."""
    from sklearn.utils.extmath import randomized_svd

    width = vectors_ND.shape[1]
    if num_dimensions >= width:
        return np.eye(width, dtype=np.float32)
    with one_thread():
        _, _, axes_KD = randomized_svd(
            unit_length(vectors_ND).astype(np.float32),
            min(num_dimensions, len(vectors_ND)),
            n_iter=_POWER_ITERATIONS,
            random_state=0,
        )
    axes_DK: Float[np.ndarray, "D K"] = axes_KD.T
    return axes_DK
