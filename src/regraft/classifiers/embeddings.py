"""Texts as vectors of pre-trained bases, and the classifier that reads these vectors.

Long texts are read in windows. Nothing is pre-trained here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from regraft.classifiers.base import register_classifier
from regraft.classifiers.contributions import Parts, by_class, with_intercepts
from regraft.classifiers.logistic import (
    Matrix,
    RegressionModel,
    rebuilt_regression,
    unit_length,
)
from regraft.classifiers.storage import Stored, load_member, rebuilding
from regraft.data import Tokenizer, WindowRows
from regraft.models import repeats_weight
from regraft.runtime import SILENT, Progress
from regraft.training import LoadedRun, RunFolder, load_run, pooled_vectors

# Of a longer text only the first windows are read; the rest costs time and adds little.
MOST_WINDOWS = 8


def text_windows(texts: Sequence[str], *, tokenizer: Tokenizer, max_length: int) -> WindowRows:
    """Texts cut into windows of the length that a base reads."""
    room = max_length - tokenizer.num_framing
    windows = [
        [
            np.array(tokenizer.framed(ids[start : start + room], max_length=max_length))
            for start in range(0, max(min(len(ids), MOST_WINDOWS * room), 1), room)
        ]
        for ids in tokenizer.encode_batch(texts)
    ]
    return WindowRows(windows, pad_id=tokenizer.pad_id)


def document_vectors(
    bases: Sequence[LoadedRun], texts: Sequence[str], *, progress: Progress = SILENT
) -> Float[np.ndarray, "N D"]:
    """The vectors of all bases, concatenated; each base has equal weight, whatever its scale."""
    parts = []
    for number, base in enumerate(bases, start=1):
        which = f", base {number} of {len(bases)}" if len(bases) > 1 else ""
        name = f"read {len(texts):,} texts{which}"
        parts.append(_base_vectors(base, texts, name=name, progress=progress))
    vectors_ND: NDArray[np.float32] = np.concatenate(parts, axis=1)
    scaled_ND: NDArray[np.float32] = vectors_ND / np.float32(np.sqrt(len(parts)))
    return scaled_ND


def _base_vectors(
    base: LoadedRun, texts: Sequence[str], *, name: str, progress: Progress
) -> NDArray[np.float32]:
    pooling = base.settings.head.pooling
    rows = text_windows(texts, tokenizer=base.tokenizer, max_length=base.settings.data.max_length)
    progress.start(name, total=len(rows.lengths))
    windows = pooled_vectors(base.model.backbone, rows, pooling=pooling, on_batch=progress.advance)
    progress.finish()
    # A window is weighted by its number of tokens.
    vectors_ND = np.zeros((len(texts), windows.shape[1]), dtype=np.float32)
    np.add.at(vectors_ND, rows.text_numbers, windows * rows.lengths[:, None])
    norms_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    scaled_ND: NDArray[np.float32] = vectors_ND / np.maximum(norms_N1, np.finfo(np.float32).tiny)
    return scaled_ND


@dataclass(frozen=True)
class BaseSpace:
    """The space that pre-trained bases span together."""

    bases: Sequence[LoadedRun]

    def vectors(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> Float[np.ndarray, "N D"]:
        """One vector of length 1 per text."""
        return document_vectors(self.bases, texts, progress=progress)


@register_classifier("embedding")
@dataclass(frozen=True)
class EmbeddingModel(RegressionModel):
    """Logistic regression on the vectors of bases, which are part of the classifier."""

    space: BaseSpace = field(repr=False)

    @property
    def is_additive(self) -> bool:
        """Yes, if all bases only add up vectors of tokens."""
        return all(
            base.settings.model.num_layers == 0 and base.settings.head.pooling == "mean"
            for base in self.space.bases
        )

    def matrix(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Matrix:
        """The vectors of texts."""
        return unit_length(self.space.vectors(texts, progress=progress))

    def score_parts(self, text: str) -> list[Parts]:
        """Tokens of every base."""
        bases, regression, num_classes = self.space.bases, self.tuned.fitted, len(self.labels)
        features_D = self.matrix([text])[0]
        parts, first = [], 0
        for base in bases:
            starts_O, stops_O, vectors_OK = _token_vectors(base, text)
            here = slice(first, first + vectors_OK.shape[1])
            # Of length 1 in each base, then of length 1 over all bases.
            length = float(np.linalg.norm(vectors_OK.sum(axis=0))) * np.sqrt(len(bases))
            vectors_OK = vectors_OK / max(length, float(np.finfo(np.float64).tiny))
            values_OC = by_class(regression.coef_[:, here] @ vectors_OK.T, regression, num_classes)
            parts.append((Parts(starts_O, stops_O, values_OC), vectors_OK @ features_D[here]))
            first = here.stop
        return with_intercepts(features_D, parts, regression=regression, num_classes=num_classes)

    def features_stored(self) -> Stored:
        """The number of bases; they are saved in run folders of their own."""
        return Stored(facts={"num_bases": len(self.space.bases)}, arrays={})

    def save(self, run_dir: Path) -> None:
        """Write the regression, and the bases that are not in their place already."""
        for number, base in enumerate(self.space.bases):
            folder = RunFolder(base_dir(_owner(run_dir), number))
            if not folder.exists:
                folder.start(
                    base.info, settings=base.settings, tokenizer=base.tokenizer, resume=False
                )
                folder.finish(base.info, model=base.model)
                folder.keep_half_precision()
        super().save(run_dir)

    @classmethod
    def load(cls, run_dir: Path) -> "EmbeddingModel":
        """Read what `save` wrote."""
        stored = load_member(run_dir, kind=cls.kind)
        with rebuilding(run_dir, kind=cls.kind):
            numbers = range(int(stored.facts["num_bases"]))
        bases = [load_embedding_base(base_dir(_owner(run_dir), number)) for number in numbers]
        with rebuilding(run_dir, kind=cls.kind):
            width = sum(base.settings.model.width for base in bases)
            return cls(rebuilt_regression(stored, num_features=width), BaseSpace(bases))


def base_dir(run_dir: Path, number: int) -> Path:
    """The run folder of a base of an embedding classifier or of a blend."""
    return run_dir / "bases" / str(number)


def _owner(run_dir: Path) -> Path:
    """The folder with the bases: a member of a blend leaves them in the folder of the blend."""
    return run_dir.parent.parent if run_dir.parent.name == "members" else run_dir


def load_embedding_base(run_dir: Path) -> LoadedRun:
    """A base; a bag stays in half precision as on disk, for sums are of single precision anyway."""
    base = load_run(run_dir)
    if base.settings.model.num_layers == 0:
        base.model.half()
    return base


@torch.no_grad()
def _token_vectors(
    base: LoadedRun, text: str
) -> tuple[Int[np.ndarray, " O"], Int[np.ndarray, " O"], Float[np.ndarray, "O K"]]:
    """Tokens of all windows that a bag reads: where they start and stop, and what each adds.

    The vector of a pair of neighbours is divided equally between them.
    """
    tokenizer, max_length = base.tokenizer, base.settings.data.max_length
    rows = text_windows([text], tokenizer=tokenizer, max_length=max_length)
    batch = rows.batch(np.arange(len(rows.lengths)))
    backbone, real_BT = base.model.backbone.eval(), batch.real_BT
    hidden_BTD = backbone(batch.ids_BT, real_BT=real_BT)
    weights_BT = repeats_weight(batch.ids_BT, is_counted_BT=real_BT)
    alone_BTD = backbone.embedding(batch.ids_BT) * weights_BT.unsqueeze(2)
    pairs_BTD = hidden_BTD - alone_BTD
    shared_BTD = alone_BTD + pairs_BTD / 2
    shared_BTD[:, :-1] += pairs_BTD[:, 1:] / 2
    # The special tokens around a window have no place in the text.
    starts_BT, stops_BT = np.zeros((2, *real_BT.shape), dtype=np.int64)
    spans = iter(tokenizer.spans(text))
    for window, length in enumerate(rows.lengths):
        for place in range(len(tokenizer.prefix_ids), length - len(tokenizer.suffix_ids)):
            starts_BT[window, place], stops_BT[window, place] = next(spans)
    kept = real_BT.numpy()
    return starts_BT[kept], stops_BT[kept], shared_BTD[real_BT].double().numpy()
