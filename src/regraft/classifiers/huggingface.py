"""A Hugging Face folder with a classification head as a Classifier, run by transformers.

To fine-tune such a folder, use it as a base: then its head is replaced.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.classifiers.base import Classifier, register_classifier
from regraft.config import DataSettings, Task
from regraft.data import Content
from regraft.models import load_sequence_classifier
from regraft.runtime import SILENT, Progress

_BATCH_SIZE = 32
# transformers stores no thresholds: a label is assigned if it is more probable than not.
_THRESHOLD = 0.5
_SEPARATOR = "|"


@register_classifier("huggingface")
@dataclass(frozen=True)
class HuggingFaceClassifier(Classifier):
    """A model of transformers' AutoModelForSequenceClassification with its own tokenizer."""

    folder: Path
    names: tuple[str, ...]
    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    max_length: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `predict_proba`."""
        return self.names

    @property
    def _has_label_sets(self) -> bool:
        return bool(self.model.config.problem_type == "multi_label_classification")

    @property
    def data(self) -> DataSettings:
        """Default columns; the length is the model's."""
        separator = _SEPARATOR if self._has_label_sets else None
        return DataSettings(max_length=self.max_length, label_separator=separator)

    @property
    def supported_tasks(self) -> tuple[Task, ...]:
        """Its tokenizer encodes single texts as well as pairs."""
        return tuple(Task(has_pairs, self._has_label_sets) for has_pairs in (False, True))

    @property
    def computed_by(self) -> Literal["numpy", "torch"]:
        """torch."""
        return "torch"

    @property
    def thresholds(self) -> tuple[float, ...]:
        """One half for each label, if a text may have several."""
        return (_THRESHOLD,) * len(self.names) if self._has_label_sets else ()

    @torch.no_grad()
    def predict_proba(
        self, contents: Sequence[Content], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities; texts are cut to the length of the model."""
        probabilities_NC = np.zeros((len(contents), len(self.names)))
        order = sorted(range(len(contents)), key=lambda number: len("".join(contents[number])))
        progress.start("predict", total=len(contents))
        for start in range(0, len(order), _BATCH_SIZE):
            numbers = order[start : start + _BATCH_SIZE]
            batch = self._encoded([contents[number] for number in numbers], padding=True)
            scores_BC = self.model(**batch).logits.double()
            as_sets = self._has_label_sets
            chances_BC = scores_BC.sigmoid() if as_sets else scores_BC.softmax(dim=1)
            probabilities_NC[numbers] = chances_BC.numpy()
            progress.advance(len(numbers))
        progress.finish()
        return probabilities_NC

    def cut_share(self, contents: Sequence[Content]) -> float:
        """The share of texts that are longer than the model reads."""
        lengths = [len(self._encoded([content], cut=False).input_ids[0]) for content in contents]
        return float(np.mean([length > self.max_length for length in lengths])) if lengths else 0.0

    def _encoded(
        self, contents: Sequence[Content], *, padding: bool = False, cut: bool = True
    ) -> Any:
        columns = [
            [content if isinstance(content, str) else content[place] for content in contents]
            for place in range(1 if all(isinstance(c, str) for c in contents) else 2)
        ]
        return self.tokenizer(
            *columns,
            truncation=cut,
            max_length=self.max_length if cut else None,
            padding=padding,
            return_tensors="pt" if padding else None,
        )

    def renamed(self, labels: Sequence[str]) -> "HuggingFaceClassifier":
        """The same model with other names for its labels."""
        return replace(self, names=tuple(labels))

    def save(self, run_dir: Path) -> None:
        """Copy the folder; names of labels are those in its config.json."""
        shutil.copytree(self.folder, run_dir, dirs_exist_ok=True)

    @classmethod
    def load(cls, run_dir: Path) -> "HuggingFaceClassifier":
        """Read a folder that save_pretrained wrote, without running code from it."""
        model, tokenizer, max_length = load_sequence_classifier(run_dir)
        names = tuple(str(name) for _, name in sorted(model.config.id2label.items()))
        return cls(run_dir, names, model, tokenizer, max_length)
