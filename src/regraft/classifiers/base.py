"""The Classifier: what predict, evaluate, explain, serve, export and compare know of one.

A kind of classifier registers itself by name and is imported when a folder names it, so that
loading a classifier and asking it imports no training code.
"""

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.contributions import Parts, contributions
from regraft.classifiers.explanation import Attribution, Method
from regraft.classifiers.inputs import checked_contents
from regraft.classifiers.storage import Stored
from regraft.config import DataSettings, Registry, Task
from regraft.data import Content, Span
from regraft.errors import DataError, RunFolderError
from regraft.runtime import SILENT, Progress, fingerprint, optional

if TYPE_CHECKING:
    from regraft.training import LoadedRun

ExportFormat = Literal["hf", "onnx", "numpy"]


class Classifier(ABC):
    """Texts in, a probability of every label out.

    A subclass defines `labels`, `predict_proba`, `renamed`, `save` and `load`; everything else has
    a default for a classifier of single texts with one label each.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the columns of `predict_proba`."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels as an array, as scikit-learn names them."""
        return np.array(self.labels)

    @property
    def data(self) -> DataSettings:
        """How the files it learned from were read: columns, encoding, length."""
        return DataSettings()

    @property
    def task(self) -> Task:
        """What it was trained for."""
        return Task.of(self.data)

    @property
    def supported_tasks(self) -> tuple[Task, ...]:
        """All tasks it can do."""
        return (self.task,)

    def supports(self, task: Task) -> bool:
        """Whether it can do this task."""
        return task in self.supported_tasks

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The probability from which each label is assigned; empty if a text has one label."""
        return ()

    @property
    def abstain_below(self) -> float | None:
        """The confidence below which `prediction` gives no label; None if it always gives one."""
        return None

    @property
    def temperature(self) -> float | None:
        """What scores are divided by to calibrate the probabilities; None if they are not."""
        return None

    @property
    def is_calibrated(self) -> bool:
        """Whether a temperature was fitted on held-out examples."""
        return self.temperature is not None

    @property
    def members(self) -> "Mapping[str, Classifier]":
        """The classifiers an ensemble consists of, by name."""
        return {}

    @property
    def active_members(self) -> "Mapping[str, Classifier]":
        """The members that are asked; a classifier that is no ensemble asks itself."""
        return {self.kind: self}

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each member in the answer."""
        return {self.kind: 1.0}

    @property
    def priors_C(self) -> NDArray[np.float64] | None:  # noqa: N802
        """How frequent the classes were, if it decides as if they were equally frequent."""
        return None

    @property
    def held_out_scores(self) -> Mapping[str, Any]:
        """Scores on held-out examples, by the name of the member and of the whole, where kept."""
        return {}

    @property
    def network(self) -> "LoadedRun | None":
        """The neural network with its tokenizer and settings, if the classifier is one network."""
        return None

    @property
    def computed_by(self) -> Literal["numpy", "torch"]:
        """The library that computes its probabilities."""
        return "numpy"

    @property
    def export_formats(self) -> tuple[ExportFormat, ...]:
        """The formats `regraft export` can write it in."""
        return ()

    def portable(self) -> Stored:
        """The parts of a member from which numpy alone can answer, if it is an export format."""
        raise NotImplementedError

    @abstractmethod
    def predict_proba(
        self, contents: Sequence[Content], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C probabilities; rows sum to 1 unless a text may have several labels."""

    def predict(self, contents: Sequence[Content], *, progress: Progress = SILENT) -> NDArray[Any]:
        """The most probable label of each text; for label sets, N x C of 0 and 1."""
        probabilities_NC = self.predict_proba(contents, progress=progress)
        if self.thresholds:
            return (probabilities_NC >= np.array(self.thresholds)).astype(np.int64)
        predicted: NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return predicted

    def cut_share(self, contents: Sequence[Content]) -> float:
        """The share of texts that are too long to be read to their end."""
        return 0.0

    @property
    def is_additive(self) -> bool:
        """Whether `score_parts` can take its scores apart."""
        return False

    def score_parts(self, text: str) -> list[Parts]:
        """The class scores of a text as a sum over places in it, if it `is_additive`."""
        raise NotImplementedError

    def attribution_methods(self, text: str) -> tuple[Method, ...]:
        """The methods that can explain a decision about this text, best first."""
        return ("contributions", "leave-one-out") if self.is_additive else ("leave-one-out",)

    def attributions(
        self, text: str, spans: Sequence[Span], *, target: int, method: Method
    ) -> Attribution:
        """The score of each word at `spans` for the label number `target`."""
        from regraft.classifiers.attribution import leave_one_out

        if method == "contributions":
            return contributions(
                self.score_parts(text),
                spans,
                target=target,
                has_label_sets=self.task.has_label_sets,
            )
        return leave_one_out(self, text, spans, target=target)

    def num_words_read(self, text: str, spans: Sequence[Span]) -> int:
        """The number of words before the text is cut."""
        return len(spans)

    @abstractmethod
    def renamed(self, labels: Sequence[str]) -> "Classifier":
        """The same classifier with other names for its labels."""

    @abstractmethod
    def save(self, run_dir: Path) -> None:
        """Write a folder that `load_classifier` reads."""

    @classmethod
    @abstractmethod
    def load(cls, run_dir: Path) -> "Classifier":
        """Read the folder that `save` wrote."""


_Kind = TypeVar("_Kind", bound=type[Classifier])

# Kinds that come with regraft, and the modules that register them when they are first needed.
_BUILT_IN = {
    "classifier": "regraft.classifiers.neural",
    "blend": "regraft.classifiers.blend",
    "linear": "regraft.classifiers.tfidf",
    "nbsvm": "regraft.classifiers.tfidf",
    "latent": "regraft.classifiers.tfidf",
    "embedding": "regraft.classifiers.embeddings",
    "folded": "regraft.classifiers.base_table",
    "huggingface": "regraft.classifiers.huggingface",
}
_KINDS: Registry[type[Classifier]] = Registry("kind of classifier")


def register_classifier(kind: str) -> Callable[[_Kind], _Kind]:
    """Register a class for folders whose run.json or member.json names this kind."""

    def register(cls: _Kind) -> _Kind:
        if cls.__module__ != _BUILT_IN.get(kind, cls.__module__):
            importlib.import_module(_BUILT_IN[kind])  # its own class has the name already
        _KINDS.register(kind)(cls)
        cls.kind = kind
        return cls

    return register


def classifier_kinds() -> tuple[str, ...]:
    """The kinds of classifiers that can be loaded."""
    return tuple(sorted({*_BUILT_IN, *_KINDS}))


def classifier_class(kind: str, *, source: str | Path) -> type[Classifier]:
    """The class registered for a kind; RunFolderError, naming the source, if there is none."""
    if kind not in _KINDS and kind in _BUILT_IN:
        with optional(f"The classifier of kind {kind} in {source}", extra="train"):
            importlib.import_module(_BUILT_IN[kind])
    if kind not in _KINDS:
        raise RunFolderError(
            f"{source} holds a classifier of kind {kind!r}, which this regraft does not know.",
            f"It knows {', '.join(classifier_kinds())}.",
            remedy="Upgrade regraft, or import the module that registers this kind first.",
        )
    return _KINDS[kind]


def load_classifier(run_dir: str | Path) -> Classifier:
    """The classifier in a folder: of `regraft finetune` or `fit`, one of its members, or a Hugging
    Face folder with a classification head."""
    folder = Path(run_dir)
    return classifier_class(read_kind(folder), source=folder).load(folder)


def read_kind(folder: Path) -> str:
    """The kind of classifier in a folder; RunFolderError if it holds something else."""
    from regraft.classifiers.storage import FACTS_NAME, read_member_kind
    from regraft.models import has_classification_head
    from regraft.training import check_run_folder, read_info

    if not os.path.isfile(folder / "run.json"):
        if os.path.isfile(folder / FACTS_NAME):
            return read_member_kind(folder)
        if has_classification_head(folder):
            return "huggingface"
        check_run_folder(
            folder,
            expected="It has no classification head, so there are no labels.",
            remedy=f"Run `regraft finetune --base {folder} --train FILE --out RUN` and use RUN.",
        )
    info = read_info(folder)
    if not info.is_classifier:
        raise RunFolderError(
            f"{folder} holds a {info.kind}, not a classifier: it has no labels.",
            remedy=f"Run `regraft finetune --base {folder} --train FILE --out RUN` and use RUN.",
        )
    return info.kind


def run_fingerprint(folder: Path) -> str:
    """A hash that changes whenever the run or classifier in a folder is written again."""
    from regraft.training import read_info

    if os.path.isfile(folder / "run.json") or not folder.is_dir():
        return fingerprint([repr(read_info(folder))])
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return fingerprint(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)


def single_texts(contents: Sequence[Content]) -> list[str]:
    """The contents as single texts; DataError if one of them is a pair."""
    items = checked_contents(contents)
    texts = [content for content in items if isinstance(content, str)]
    if len(texts) < len(items):
        raise DataError(
            "The texts are pairs, and this classifier was trained on single texts.",
            remedy="Pass what it was trained on.",
        )
    return texts


def prediction(
    labels: Sequence[str],
    probabilities: Sequence[float],
    *,
    thresholds: Sequence[float] = (),
    abstain_below: float | None = None,
    top_k: int | None = None,
) -> dict[str, Any]:
    """The prediction for one text as plain values: its label and all probabilities, to six digits.

    With thresholds, the label is the list of all labels that reach theirs. A label less probable
    than `abstain_below` is not given: it is None, or missing in the list. With `top_k`, only so
    many probabilities are given, the highest first.
    """
    rounded = [round(probability, 6) for probability in probabilities]
    by_label = dict(zip(labels, rounded, strict=True))
    if top_k is not None:
        ranked = sorted(range(len(labels)), key=probabilities.__getitem__, reverse=True)
        by_label = {labels[place]: rounded[place] for place in ranked[:top_k]}
    least = 0.0 if abstain_below is None else abstain_below
    if thresholds:
        reached = zip(labels, probabilities, thresholds, strict=True)
        return {
            "label": [label for label, chance, needed in reached if chance >= max(needed, least)],
            "probabilities": by_label,
        }
    best = max(range(len(labels)), key=probabilities.__getitem__)
    is_answered = probabilities[best] >= least
    return {
        "label": labels[best] if is_answered else None,
        "probability": rounded[best],
        "probabilities": by_label,
    }
