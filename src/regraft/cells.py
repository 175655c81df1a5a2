"""One training of one arm, and its answers: each is a job that any process or machine can do.

Comes in: a job that holds all it needs. Goes out: a `Result` with the weights or the member, or the
probabilities of texts; nothing is written here. Labels of the test file are in no job.
"""

import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from regraft.arms import Cell, TrainedCell
from regraft.baselines import LinearModel, NaiveBayesModel, fit_linear, fit_naive_bayes
from regraft.batches import ExampleRows
from regraft.config import replace
from regraft.errors import DivergedError, RunFolderError
from regraft.evaluate import class_probabilities
from regraft.finetune import EpochRecord, Start, best_epoch, train_classifier
from regraft.heads import Model
from regraft.regression import VectorModel, fit_regression
from regraft.rivals import RIVALS, build_rival
from regraft.runtime import SILENT, Progress, seeded
from regraft.start import without_base
from regraft.text import Example, Labels

WordModel = LinearModel | NaiveBayesModel
# Seeds go through torch's global generator, and a worker of a cluster may have several threads.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Result:
    """What came of a training: facts, and the weights or the member."""

    run: TrainedCell
    weights: bytes | None = None
    member: WordModel | VectorModel | None = None


@dataclass(frozen=True)
class Answers:
    """What a cell says of valid and of test: N x C probabilities each."""

    cell: Cell
    valid: NDArray[np.float64]
    test: NDArray[np.float64]
    wall_seconds: float


@dataclass(frozen=True)
class NeuralJob:
    """A network on its subset: with each rate in turn, of which the best on valid is kept.

    `start` carries no base where none is wanted; `kind` tells what is built and what is frozen.
    """

    cell: Cell
    kind: str
    start: Start
    num_classes: int
    rows: ExampleRows
    valid_rows: ExampleRows
    rates: tuple[float, ...]
    num_threads: int

    def run(self, *, progress: Progress = SILENT) -> Result:
        """Train, and give back the weights."""
        wall_start = time.perf_counter()
        best: tuple[EpochRecord, float, Model, list[EpochRecord]] | None = None
        seconds = 0.0
        for place, rate in enumerate(self.rates):
            try:
                model, records = self._train(rate, progress=progress)
            except DivergedError:
                # One rate of a grid may be too large, and loses; but somebody has to win.
                if best is None and place == len(self.rates) - 1:
                    raise
                continue
            seconds += records[-1].seconds
            kept = records[self._kept_epoch(records)]
            if best is None or kept.valid_accuracy > best[0].valid_accuracy:
                best = kept, rate, model, records
        assert best is not None, "there is at least one rate"
        kept, rate, model, records = best
        chosen: dict[str, float] = {"learning rate": rate} if len(self.rates) > 1 else {}
        if self.start.settings.train.patience is not None:
            chosen["epoch"] = kept.epoch
        run = TrainedCell(
            cell=self.cell,
            valid_accuracy=tuple(record.valid_accuracy for record in records),
            seconds=seconds,
            wall_seconds=time.perf_counter() - wall_start,
            chosen=chosen,
        )
        weights = save({name: t.contiguous().cpu() for name, t in model.state_dict().items()})
        return Result(run, weights=weights)

    def _kept_epoch(self, records: Sequence[EpochRecord]) -> int:
        """The place of the epoch whose weights the model has: the last, or the best on valid."""
        patience = self.start.settings.train.patience
        best = None if patience is None else best_epoch(records)
        return len(records) - 1 if best is None else best

    def _train(self, rate: float, *, progress: Progress) -> tuple[Model, list[EpochRecord]]:
        seed, is_frozen, start = self.cell.seed, self.kind == "frozen", self.start
        if self.kind != "pretrained":  # there is no base to spare or to go on with
            start = dataclasses.replace(start, settings=without_base(start.settings))
        settings = replace(
            start.settings,
            "train",
            seed=seed,
            lr=rate,
            freeze_base=is_frozen,
            threads=self.num_threads,
        )
        with _ONE_AT_A_TIME:
            model = build_network(self.kind, start, num_classes=self.num_classes, seed=seed)
            records = train_classifier(
                model,
                rows=self.rows,
                valid_rows=self.valid_rows,
                settings=settings,
                auxiliary=start.auxiliary(),
                progress=progress,
            )
            return model, list(records)


def build_network(kind: str, start: Start, *, num_classes: int, seed: int) -> Model:
    """The network of a neural arm before its training. Equal seeds give equal heads."""
    if kind in RIVALS:
        with seeded(seed, stream="weights"):
            return build_rival(kind, vocab_size=start.tokenizer.vocab_size, num_classes=num_classes)
    model, _ = start.build_model(num_classes=num_classes, seed=seed)
    return model


@dataclass(frozen=True)
class WordJob:
    """A model of words on its subset, its strength chosen on valid."""

    cell: Cell
    kind: str
    train: Sequence[Example]
    valid: Sequence[Example]
    labels: Labels

    def run(self, *, progress: Progress = SILENT) -> Result:
        """Fit, and give back the member."""
        fit = fit_linear if self.kind == "linear" else fit_naive_bayes
        member: WordModel = fit(self.train, self.valid, labels=self.labels)
        return Result(_shallow_run(self.cell, member, seconds=member.seconds), member=member)


@dataclass(frozen=True)
class VectorJob:
    """A regression on vectors of its subset, its strength chosen on valid.

    `shared_seconds` is what the vectors cost: an arm that reads them pays for them.
    """

    cell: Cell
    vectors: Float[np.ndarray, "N D"]
    targets: Int[np.ndarray, " N"]
    valid: tuple[Float[np.ndarray, "V D"], Int[np.ndarray, " V"]]
    labels: Labels
    shared_seconds: float

    def run(self, *, progress: Progress = SILENT) -> Result:
        """Fit, and give back the member."""
        member = fit_regression(self.vectors, self.targets, labels=self.labels, valid=self.valid)
        seconds = member.seconds + self.shared_seconds
        return Result(_shallow_run(self.cell, member, seconds=seconds), member=member)


def _shallow_run(cell: Cell, member: WordModel | VectorModel, *, seconds: float) -> TrainedCell:
    assert member.valid_accuracy is not None, "valid has examples"
    return TrainedCell(
        cell=cell,
        valid_accuracy=(member.valid_accuracy,),
        seconds=seconds,
        wall_seconds=member.seconds,
        chosen={"strength": member.regularisation},
    )


@dataclass(frozen=True)
class NeuralAnswers:
    """The weights of a neural cell, and the rows it is asked about."""

    cell: Cell
    kind: str
    start: Start
    num_classes: int
    weights: bytes
    weights_path: Path
    valid_rows: ExampleRows
    test_rows: ExampleRows
    num_threads: int

    def run(self, *, progress: Progress = SILENT) -> Answers:
        """Its probabilities; refuses weights that are not its own."""
        wall_start = time.perf_counter()
        with _ONE_AT_A_TIME:
            torch.set_num_threads(self.num_threads)
            model = build_network(self.kind, self.start, num_classes=self.num_classes, seed=0)
            try:
                model.load_state_dict(load(self.weights))
            except (SafetensorError, RuntimeError) as error:
                raise RunFolderError(
                    f"{self.weights_path} is damaged: {str(error).splitlines()[0]}.",
                    remedy="Remove the file and repeat the command.",
                ) from error
            valid_NC = class_probabilities(model, self.valid_rows)
            test_NC = class_probabilities(model, self.test_rows)
        return Answers(self.cell, valid_NC, test_NC, time.perf_counter() - wall_start)


@dataclass(frozen=True)
class WordAnswers:
    """A model of words, and the texts it is asked about."""

    cell: Cell
    member: WordModel
    valid: Sequence[str]
    test: Sequence[str]

    def run(self, *, progress: Progress = SILENT) -> Answers:
        """Its probabilities."""
        wall_start = time.perf_counter()
        valid_NC, test_NC = (self.member.probabilities(texts) for texts in (self.valid, self.test))
        return Answers(self.cell, valid_NC, test_NC, time.perf_counter() - wall_start)


@dataclass(frozen=True)
class VectorAnswers:
    """A regression, and the vectors of the texts it is asked about."""

    cell: Cell
    member: VectorModel
    valid: Float[np.ndarray, "V D"]
    test: Float[np.ndarray, "N D"]

    def run(self, *, progress: Progress = SILENT) -> Answers:
        """Its probabilities."""
        wall_start = time.perf_counter()
        valid_NC = self.member.vector_probabilities(self.valid)
        test_NC = self.member.vector_probabilities(self.test)
        return Answers(self.cell, valid_NC, test_NC, time.perf_counter() - wall_start)


TrainJob = NeuralJob | WordJob | VectorJob
AnswerJob = NeuralAnswers | WordAnswers | VectorAnswers
