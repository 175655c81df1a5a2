"""Texts as vectors of pre-trained bases, and the classifier that reads these vectors.

Long texts are read in windows. Nothing is pre-trained here.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from regraft.classifiers.base import register_classifier
from regraft.classifiers.base_table import MOST_WINDOWS
from regraft.classifiers.logistic import Matrix, RegressionModel, rebuilt_regression, unit_length
from regraft.classifiers.storage import FACTS_NAME, Stored, load_member, rebuilding, save_member
from regraft.data import Tokenizer, WindowRows
from regraft.models import Model, NoHead
from regraft.runtime import SILENT, Progress, sha256
from regraft.training import LoadedRun, RunFolder, load_run, pooled_vectors

_VECTORS_KIND = "vectors"


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


@dataclass(frozen=True)
class KeptVectors:
    """A space whose vectors are kept in a folder: each text is read once, whoever asks again.

    A resumed `fit` asks again, and so does `fit --update`.
    """

    space: BaseSpace
    folder: Path

    def vectors(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> Float[np.ndarray, "N D"]:
        """One vector of length 1 per text."""
        which = "".join(base.fingerprint for base in self.space.bases)
        keys = [sha256([which.encode(), text.encode("utf-8", "surrogatepass")]) for text in texts]
        kept = self._read()
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in kept}
        if new:
            vectors_ND = self.space.vectors(list(new.values()), progress=progress)
            kept |= dict(zip(new, vectors_ND, strict=True))
            stored = Stored({"keys": list(kept)}, {"vectors": np.stack(list(kept.values()))})
            save_member(self.folder, stored, kind=_VECTORS_KIND)
        return np.stack([kept[key] for key in keys])

    def _read(self) -> dict[str, NDArray[np.float32]]:
        if not (self.folder / FACTS_NAME).exists():
            return {}
        stored = load_member(self.folder, kind=_VECTORS_KIND)
        with rebuilding(self.folder, kind=_VECTORS_KIND):
            return dict(zip(stored.facts["keys"], stored.arrays["vectors"], strict=True))


@register_classifier("embedding")
@dataclass(frozen=True)
class EmbeddingModel(RegressionModel):
    """Logistic regression on the vectors of bases, which are part of the classifier."""

    space: BaseSpace = field(repr=False)

    @property
    def computed_by(self) -> Literal["numpy", "torch"]:
        """torch."""
        return "torch"

    @property
    def is_additive(self) -> bool:
        """No: layers mix tokens. Bags, which do not, are folded instead (base_table_making.py)."""
        return False

    def matrix(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Matrix:
        """The vectors of texts."""
        return unit_length(self.space.vectors(texts, progress=progress))

    def features_stored(self) -> Stored:
        """The number of bases; each is saved as a run folder."""
        return Stored(facts={"num_bases": len(self.space.bases)}, arrays={})

    def save(self, run_dir: Path) -> None:
        """Write the regression, and the bases without their heads."""
        for number, base in enumerate(self.space.bases):
            folder = RunFolder(base_dir(run_dir, number))
            info = dataclasses.replace(base.info, kind="base", status="training")
            info = folder.start(info, settings=base.settings, tokenizer=base.tokenizer, resume=True)
            folder.finish(info, model=Model(base.model.backbone, NoHead()))
        super().save(run_dir)

    @classmethod
    def rebuilt(cls, stored: Stored, *, folder: Path) -> "EmbeddingModel":
        """From its regression and the bases."""
        numbers = range(int(stored.facts["num_bases"]))
        bases = [load_run(base_dir(folder, number), kind="base") for number in numbers]
        width = sum(base.settings.model.width for base in bases)
        return cls(rebuilt_regression(stored, num_features=width), BaseSpace(bases))


def bases_dir(run_dir: Path) -> Path:
    """The bases of an embedding classifier, or of a blend while it is made."""
    return run_dir / "bases"


def base_dir(run_dir: Path, number: int) -> Path:
    """The run folder of one base."""
    return bases_dir(run_dir) / str(number)
