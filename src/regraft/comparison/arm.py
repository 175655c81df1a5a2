"""What an arm of a comparison is: a way to get a classifier from the same examples as all others.

An arm fits a model on what it reads of the examples (texts, rows of tokens or vectors) and loads it
again. What is compared with what, and how, is decided elsewhere.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers import load_classifier
from regraft.comparison.plan import FIRST, Setup
from regraft.comparison.results import ArmInfo, Role
from regraft.config import SINGLE_LABEL, Task
from regraft.data import Example, Labels
from regraft.runtime import SILENT, Progress

# Guesses in seconds, for the remaining time only: fitting and reading one text by a shallow model.
_SHALLOW_SECONDS, _SHALLOW_READING_SECONDS = 0.01, 0.001


@runtime_checkable
class ArmModel(Protocol):
    """A fitted arm: a Classifier, or anything that reads what the arm reads."""

    def predict_proba(self, inputs: Any, /) -> NDArray[np.float64]:
        """N x C probabilities for what the arm reads of N texts."""

    def save(self, folder: Path, /) -> None:
        """Write the model into a new folder."""


@dataclass(frozen=True)
class ArmData:
    """The examples of one run, and what the arm reads of them."""

    train: Sequence[Example]
    valid: Sequence[Example]
    labels: Labels
    inputs: Any
    valid_inputs: Any


@dataclass(frozen=True)
class Fitted:
    """The model of one run, and what is known about its training.

    Where accuracy on valid (one value per epoch) or the training time is None, it is measured.
    `chosen` are hyperparameters that were chosen on valid.
    """

    model: ArmModel
    valid_accuracy: tuple[float, ...] | None = None
    seconds: float | None = None
    chosen: dict[str, Any] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Trainer(Protocol):
    """The part of an arm that is sent to another process."""

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """Fit one model."""


@dataclass(frozen=True)
class Prepared:
    """What an arm reads of train and valid, and the time it took: once, and per text."""

    train: Any
    valid: Any
    fixed_seconds: float = 0.0
    text_seconds: float = 0.0


class Arm(ABC):
    """One arm: `name` is `KIND` or `KIND:BASE`. Subclasses implement `fit`."""

    kind: ClassVar[str] = ""
    # In a sentence; `base` in it is followed by the name of the base, where it has one.
    title: ClassVar[str]
    description: ClassVar[str]
    role: ClassVar[Role] = "rival"
    # Does a seed decide more than the subset of the labels?
    is_random: ClassVar[bool] = False
    takes_base: ClassVar[bool] = False
    # Runs that are limited by time would be cheated by others at the same time.
    runs_alone: ClassVar[bool] = False

    def __init__(self, name: str, base: str = FIRST) -> None:
        self.name = name
        self.base = base

    def info(self, setup: Setup | None = None) -> ArmInfo:
        """What the analysis has to know of it."""
        ending = f"; the base is {self.base}" if self.base else ""
        title = self.title.replace("base", f"base {self.base}") if self.base else self.title
        return ArmInfo(
            name=self.name,
            title=title,
            description=self.describe(setup) + ending,
            role=self.role,
            is_random=self.is_random,
            control=self.control,
        )

    def describe(self, setup: Setup | None) -> str:
        """One line for the report."""
        return self.description

    @property
    def control(self) -> str:
        """The name of the arm that differs from this one in its initial weights only."""
        return ""

    def supports(self, task: Task) -> bool:
        """Can it learn such examples? Comparisons score one label per text so far."""
        return task == SINGLE_LABEL

    def check(self, *, has_text: bool) -> None:
        """Raise a ConfigError if the arm cannot take part."""
        return

    @property
    def reads(self) -> str:
        """Arms that read the same share one encoding of the texts."""
        return "texts"

    def prepare(self, setup: Setup, *, shared_dir: Path, progress: Progress = SILENT) -> Prepared:
        """What it reads of train and valid; `shared_dir` keeps what is expensive."""
        return Prepared(
            [example.text for example in setup.train], [example.text for example in setup.valid]
        )

    def encode(
        self, texts: Sequence[str], *, setup: Setup, shared_dir: Path, progress: Progress = SILENT
    ) -> Any:
        """What it reads of further texts, after `prepare`."""
        return texts

    def subset(self, inputs: Any, numbers: NDArray[np.int64]) -> Any:
        """Some of its inputs, in this order."""
        return [inputs[number] for number in numbers]

    def trainer(self, setup: Setup, *, num_threads: int) -> Trainer:
        """What a job in another process needs: by default the arm itself."""
        return self

    @abstractmethod
    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """Fit one model."""

    def load(self, folder: Path, *, setup: Setup, num_threads: int) -> ArmModel:
        """The model that was saved in a folder: by default any registered Classifier."""
        return load_classifier(folder)

    def fit_seconds(self, setup: Setup, *, num_labels: int) -> float:
        """A guess: only the ratio between arms has to be about right."""
        return _SHALLOW_SECONDS * (num_labels + len(setup.valid))

    def read_seconds(self, setup: Setup, *, num_texts: int) -> float:
        """A guess of the time to predict."""
        return _SHALLOW_READING_SECONDS * num_texts
