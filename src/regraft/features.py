"""A text as one vector: what pre-trained bases make of it, for a simple model to read.

Comes in: bases and texts of any length. Goes out: N x D, vectors of length 1. Long texts are read
in windows. Nothing is trained here, and no label is known.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from regraft.batches import Batch, padded
from regraft.evaluate import pooled_vectors
from regraft.heads import Pooling
from regraft.runfolder import LoadedRun
from regraft.runtime import SILENT, Progress
from regraft.tokenizer import Tokenizer

# Of a longer text the first so many windows are read; the rest would cost and hardly tell more.
MOST_WINDOWS = 8


class WindowRows:
    """Texts cut into windows of the length that a base reads; `text_numbers` says whose each is."""

    def __init__(self, texts: Sequence[str], *, tokenizer: Tokenizer, max_length: int) -> None:
        room = max_length - tokenizer.num_framing
        self._pad_id = tokenizer.pad_id
        self._ids: list[NDArray[np.int64]] = []
        numbers = []
        for number, ids in enumerate(tokenizer.encode_batch(texts)):
            for start in range(0, max(min(len(ids), MOST_WINDOWS * room), 1), room):
                window = tokenizer.framed(ids[start : start + room], max_length=max_length)
                self._ids.append(np.array(window, dtype=np.int64))
                numbers.append(number)
        self.text_numbers = np.array(numbers)
        self.lengths = np.array([len(ids) for ids in self._ids], dtype=np.int64)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Windows padded to the longest of them, without targets."""
        ids_BT, real_BT = padded([self._ids[number] for number in numbers], pad_id=self._pad_id)
        return Batch(ids_BT, real_BT, ids_BT.new_zeros(len(numbers)))


def document_vectors(
    bases: Sequence[LoadedRun], texts: Sequence[str], *, progress: Progress = SILENT
) -> Float[np.ndarray, "N D"]:
    """Vectors of all bases side by side: each base has the same say, whatever its scale."""
    parts = []
    for number, base in enumerate(bases, start=1):
        which = f", base {number} of {len(bases)}" if len(bases) > 1 else ""
        parts.append(
            _vectors(base, texts, what=f"read {len(texts):,} texts{which}", progress=progress)
        )
    side_by_side: NDArray[np.float32] = np.concatenate(parts, axis=1)
    scaled: NDArray[np.float32] = side_by_side / np.float32(np.sqrt(len(parts)))
    return scaled


def _vectors(
    base: LoadedRun, texts: Sequence[str], *, what: str, progress: Progress
) -> NDArray[np.float32]:
    pooling: Pooling = base.settings.head.pooling
    rows = WindowRows(texts, tokenizer=base.tokenizer, max_length=base.settings.data.max_length)
    progress.start(what, total=len(rows.lengths))
    windows = pooled_vectors(base.model.backbone, rows, pooling=pooling, on_batch=progress.advance)
    progress.finish()
    # A window counts as many tokens as it has.
    vectors_ND = np.zeros((len(texts), windows.shape[1]), dtype=np.float32)
    np.add.at(vectors_ND, rows.text_numbers, windows * rows.lengths[:, None])
    norms = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = vectors_ND / np.maximum(norms, np.finfo(np.float32).tiny)
    return scaled
