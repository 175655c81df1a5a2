"""Arms that are networks: the base with a new head, the same from scratch, an LSTM, a convolution.

One run may train several networks, one for each learning rate of the grid.
"""

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from regraft.classifiers import EpochRecord, Start, kept_epoch, train_classifier, without_base
from regraft.comparison.arm import Arm, ArmData, Fitted, Prepared
from regraft.comparison.plan import Setup
from regraft.config import Settings, replace
from regraft.data import ExampleRows
from regraft.errors import DivergedError, RunFolderError
from regraft.models import BASELINE_LEARNING_RATE, Model, build_baseline
from regraft.runtime import GUESSED_FLOPS, SILENT, Progress, seeded, write_whole
from regraft.training import class_probabilities, num_epochs

# The rate of the settings, and one on either side: half an order of magnitude each.
RATE_FACTORS = {"none": (1.0,), "small": (1.0, 1 / 3, 3.0)}
_WEIGHTS_NAME = "weights.safetensors"
# Seeds go through torch's global generator, and a cluster worker may have several threads.
_ONE_AT_A_TIME = threading.Lock()


class NetworkArm(Arm):
    """A network trained by gradients; the learning rate is chosen on valid if the grid has any."""

    is_random = True
    takes_base = True
    starts_from_base: ClassVar[bool] = False
    is_frozen: ClassVar[bool] = False

    @property
    def reads(self) -> str:
        """The tokens of its base."""
        return f"rows:{self.base}"

    def rates(self, setup: Setup) -> tuple[float, ...]:
        """The learning rates to try; the first wins a tie."""
        rate = self.base_rate(setup.starts[self.base].settings)
        return tuple(rate * factor for factor in RATE_FACTORS[setup.grid])

    def base_rate(self, settings: Settings) -> float:
        """The rate in the middle of the grid."""
        return settings.train.lr

    def own_settings(self, settings: Settings) -> Settings:
        """Without the methods that change how a base is used."""
        return without_base(settings)

    def build(self, start: Start, *, num_classes: int, seed: int) -> Model:
        """The network before its training. Equal seeds give equal heads."""
        model, _ = start.build_model(num_classes=num_classes, seed=seed)
        return model

    def prepare(self, setup: Setup, *, shared_dir: Path, progress: Progress = SILENT) -> Prepared:
        """The rows of the setup."""
        return Prepared(*setup.rows[self.base])

    def encode(
        self, texts: Sequence[str], *, setup: Setup, shared_dir: Path, progress: Progress = SILENT
    ) -> ExampleRows:
        """Rows of further texts."""
        return setup.rows_of(texts, base=self.base)

    def subset(self, inputs: ExampleRows, numbers: NDArray[np.int64]) -> ExampleRows:
        """Some of the rows."""
        return inputs.subset(numbers)

    def trainer(self, setup: Setup, *, num_threads: int) -> "NetworkTrainer":
        """The network with its base, if it starts from one."""
        start = setup.starts[self.base]
        if not self.starts_from_base:
            start = dataclasses.replace(start, base=None)
        return NetworkTrainer(
            self, start, len(setup.labels), rates=self.rates(setup), num_threads=num_threads
        )

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """A network needs its setup: see `trainer`."""
        raise NotImplementedError

    def load(self, folder: Path, *, setup: Setup, num_threads: int) -> "NetworkModel":
        """The weights, not yet in a network."""
        path = folder / _WEIGHTS_NAME
        try:
            weights = path.read_bytes()
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be read: {error.strerror}.",
                remedy=f"Remove the folder {folder} and repeat the command.",
            ) from error
        start = dataclasses.replace(setup.starts[self.base], base=None)
        return NetworkModel(self, start, len(setup.labels), weights, str(path), num_threads)

    def fit_seconds(self, setup: Setup, *, num_labels: int) -> float:
        """A pass forward costs one, backward two; valid is read before the first epoch, too."""
        train = setup.starts[self.base].settings.train
        if train.epochs is not None:
            passes = float(num_epochs(num_labels, settings=train))
        else:
            passes = max((train.steps or 1) * train.batch_size / num_labels, 1)
        num_read = passes * num_labels * (1 if self.is_frozen else 3)
        num_read += (passes + 1) * len(setup.valid)
        return len(self.rates(setup)) * num_read * self._text_seconds(setup)

    def read_seconds(self, setup: Setup, *, num_texts: int) -> float:
        """One pass forward."""
        return num_texts * self._text_seconds(setup)

    def _text_seconds(self, setup: Setup) -> float:
        """A text of usual length: two operations per token and weight of the layers."""
        model = setup.starts[self.base].settings.model
        num_tokens = float(setup.rows[self.base][0].lengths.mean())
        return 2 * 12 * max(model.num_layers, 1) * model.width**2 * num_tokens / GUESSED_FLOPS


class RivalArm(NetworkArm):
    """A network from before transformers, on the tokens of the base."""

    takes_base = False

    def base_rate(self, settings: Settings) -> float:
        """The usual rate of Adam: that of the settings may be made for pre-trained weights."""
        return BASELINE_LEARNING_RATE

    def build(self, start: Start, *, num_classes: int, seed: int) -> Model:
        """All weights are random."""
        vocab_size = start.tokenizer.vocab_size
        with seeded(seed, stream="weights"):
            return build_baseline(self.kind, vocab_size=vocab_size, num_classes=num_classes)


@dataclass(frozen=True)
class NetworkTrainer:
    """Trains a network with each rate in turn and keeps the best on valid."""

    arm: NetworkArm
    start: Start
    num_classes: int
    rates: tuple[float, ...]
    num_threads: int

    @property
    def num_trainings(self) -> int:
        """How many trainings one run consists of."""
        return len(self.rates)

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """Train, and keep the weights."""
        best: tuple[EpochRecord, float, Model, list[EpochRecord]] | None = None
        seconds = 0.0
        for place, rate in enumerate(self.rates):
            try:
                model, records = self._train(data, rate, seed=seed, progress=progress)
            except DivergedError:
                # One rate of a grid may be too large, and loses; but one has to win.
                if best is None and place == len(self.rates) - 1:
                    raise
                continue
            seconds += records[-1].seconds
            kept = records[self._kept_epoch(records)]
            if best is None or kept.valid_accuracy > best[0].valid_accuracy:
                best = kept, rate, model, records
        assert best is not None, "there is at least one rate"
        kept, rate, model, records = best
        chosen: dict[str, Any] = {"learning rate": rate} if len(self.rates) > 1 else {}
        if kept_epoch(records, settings=self._settings) is not None:
            chosen["epoch"] = kept.epoch
        weights = save({name: t.contiguous().cpu() for name, t in model.state_dict().items()})
        bare = dataclasses.replace(self.start, base=None)
        return Fitted(
            NetworkModel(self.arm, bare, self.num_classes, weights, "", self.num_threads),
            valid_accuracy=tuple(record.valid_accuracy for record in records),
            seconds=seconds,
            chosen=chosen,
        )

    def _kept_epoch(self, records: Sequence[EpochRecord]) -> int:
        """The place of the epoch whose weights the model has: the last, or the best on valid."""
        best = kept_epoch(records, settings=self._settings)
        return len(records) - 1 if best is None else best

    @property
    def _settings(self) -> Settings:
        """The settings of the start, without the methods that this arm does not use."""
        return self.arm.own_settings(self.start.settings)

    def _train(
        self, data: ArmData, rate: float, *, seed: int, progress: Progress
    ) -> tuple[Model, list[EpochRecord]]:
        start = dataclasses.replace(self.start, settings=self._settings)
        settings = replace(
            start.settings,
            "train",
            seed=seed,
            lr=rate,
            freeze_base=self.arm.is_frozen,
            threads=self.num_threads,
        )
        with _ONE_AT_A_TIME:
            model = self.arm.build(start, num_classes=self.num_classes, seed=seed)
            records = train_classifier(
                model,
                rows=data.inputs,
                valid_rows=data.valid_inputs,
                settings=settings,
                auxiliary=start.auxiliary(),
                progress=progress,
            )
            return model, list(records)


@dataclass(frozen=True)
class NetworkModel:
    """A trained network as the bytes of its weights; `path` is where they were read."""

    arm: NetworkArm
    start: Start
    num_classes: int
    weights: bytes
    path: str
    num_threads: int

    def predict_proba(self, inputs: ExampleRows, /) -> NDArray[np.float64]:
        """The probabilities of rows; refuses weights that do not fit."""
        with _ONE_AT_A_TIME:
            torch.set_num_threads(self.num_threads)
            model = self.arm.build(self.start, num_classes=self.num_classes, seed=0)
            try:
                model.load_state_dict(load(self.weights))
            except (SafetensorError, RuntimeError) as error:
                raise RunFolderError(
                    f"{self.path} is damaged: {str(error).splitlines()[0]}.",
                    remedy=f"Remove the folder {Path(self.path).parent} and repeat the command.",
                ) from error
            return class_probabilities(model, inputs)

    def save(self, folder: Path, /) -> None:
        """The weights as one file."""
        write_whole(folder / _WEIGHTS_NAME, lambda file: file.write(self.weights))
