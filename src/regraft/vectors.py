"""Vectors that all cells of an arm read: made once, kept on disk, made again for the test texts.

Comes in: an arm that reads vectors (latent, embedding) and the task. Goes out: the vectors of train
and valid with what they cost, and those of any texts later. Knows no label.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from regraft.arms import Arm, ArmsFolder, Task
from regraft.baselines import LatentSpace, fit_space
from regraft.config import replace
from regraft.features import document_vectors
from regraft.runtime import SILENT, Progress, write_json, write_whole
from regraft.text import read_documents

VECTOR_ARMS = ("latent", "embedding")
_VECTORS, _COST, _SPACE = "vectors.safetensors", "cost.json", "space"


@dataclass(frozen=True)
class TextVectors:
    """The vectors of train and valid in the order of the examples.

    `fixed_seconds` were spent whatever the number of labels, `text_seconds` on each text.
    """

    train: Float[np.ndarray, "N D"]
    valid: Float[np.ndarray, "V D"]
    fixed_seconds: float
    text_seconds: float

    def seconds(self, num_labels: int) -> float:
        """What they cost an arm that has so many labels."""
        return self.fixed_seconds + self.text_seconds * (num_labels + len(self.valid))


def make_vectors(
    arm: Arm, task: Task, *, folder: ArmsFolder, progress: Progress = SILENT
) -> TextVectors:
    """Those in the folder if they are sound, else new ones, which are left there."""
    path = folder.shared_path(arm.name)
    try:
        arrays = load_file(path / _VECTORS)
        cost = json.loads((path / _COST).read_text(encoding="utf-8"))
        return TextVectors(arrays["train"], arrays["valid"], cost["fixed"], cost["text"])
    except (OSError, ValueError, KeyError, SafetensorError):
        pass
    start = time.perf_counter()
    if arm.kind == "latent":
        documents = read_documents(task.text_paths, data=task.start.settings.data)
        texts = (document.text for document in documents)
        train_texts = (example.text for example in task.train)
        fit_space(itertools.chain(texts, train_texts), progress=progress).save(path / _SPACE)
    fixed_seconds = time.perf_counter() - start
    start = time.perf_counter()
    both = [example.text for example in (*task.train, *task.valid)]
    vectors_ND = text_vectors(arm, task, both, folder=folder, progress=progress)
    text_seconds = (time.perf_counter() - start) / len(both)
    train_ND, valid_ND = vectors_ND[: len(task.train)], vectors_ND[len(task.train) :]
    data = save({"train": np.ascontiguousarray(train_ND), "valid": np.ascontiguousarray(valid_ND)})
    write_json(path / _COST, {"fixed": fixed_seconds, "text": text_seconds})
    write_whole(path / _VECTORS, lambda file: file.write(data))
    return TextVectors(train_ND, valid_ND, fixed_seconds, text_seconds)


def text_vectors(
    arm: Arm, task: Task, texts: Sequence[str], *, folder: ArmsFolder, progress: Progress = SILENT
) -> Float[np.ndarray, "N D"]:
    """The vectors of any texts; `make_vectors` comes first."""
    if arm.kind == "latent":
        return LatentSpace.load(folder.shared_path(arm.name) / _SPACE).vectors(texts)
    base = task.starts[arm.base].base
    assert base is not None, "an arm of a base has one"
    # The mean, whatever its own head would read: a base without labels has learned no other.
    settings = replace(base.settings, "head", pooling="mean")
    averaged = dataclasses.replace(base, settings=settings)
    return document_vectors([averaged], texts, progress=progress)
