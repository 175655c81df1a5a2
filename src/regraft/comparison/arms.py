"""The registry of arms, and the built-in ones.

`register_arm` is public: `compare` finds arms from outside like its own.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from regraft.classifiers import (
    FitLimit,
    LatentSpace,
    TunedRegression,
    document_vectors,
    fit_examples,
    fit_linear,
    fit_naive_bayes,
    fit_regression,
    fit_space,
    load_classifier,
    unit_length,
    without_base,
)
from regraft.comparison.arm import Arm, ArmData, ArmModel, Fitted, Prepared
from regraft.comparison.network_arms import NetworkArm, RivalArm
from regraft.comparison.plan import Setup
from regraft.config import ARMS, Registry, Settings, learns_documents, replace, resolve
from regraft.data import read_documents
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress, read_object, scratch_folder, write_json, write_whole
from regraft.training import LoadedRun

_VECTORS_NAME, _COST_NAME, _SPACE_NAME = "vectors.safetensors", "cost.json", "space"

ARM_KINDS: Registry[type[Arm]] = Registry("arm")
_Kind = TypeVar("_Kind", bound=type[Arm])


def register_arm(name: str) -> Callable[[_Kind], _Kind]:
    """Register a subclass of `Arm` under a name that `compare` accepts."""

    def add(kind: _Kind) -> _Kind:
        ARM_KINDS.register(name)(kind)
        kind.kind = name
        return kind

    return add


def parse_arms(
    names: Sequence[str], *, bases: Sequence[str] = (), has_text: bool = True
) -> tuple[Arm, ...]:
    """Arms by name, `KIND` or `KIND:BASE`; `bases` are the names of all bases after the first."""
    if not names:
        raise ConfigError(
            "There are no arms to compare.",
            f"Known: {', '.join(ARM_KINDS)}.",
            remedy="Name them with --arms.",
        )
    repeated = next((name for name in names if list(names).count(name) > 1), None)
    if repeated is not None:
        raise ConfigError(
            f"The arm {repeated!r} is named twice.",
            "Every arm takes part once.",
            remedy="Remove one of them from --arms.",
        )
    arms = [_parse_arm(name, bases=bases) for name in names]
    for arm in arms:
        arm.check(has_text=has_text)
    return tuple(arms)


def _parse_arm(name: str, *, bases: Sequence[str]) -> Arm:
    kind, colon, base = name.partition(":")
    arm = ARM_KINDS[kind]
    if colon and not arm.takes_base:
        of_a_base = [each for each in ARM_KINDS if ARM_KINDS[each].takes_base]
        raise ConfigError(
            f"The arm {name!r} names a base, but {kind} uses none.",
            f"Arms of a base are {', '.join(of_a_base)}.",
            remedy=f"Use {kind!r}.",
        )
    if colon and base not in bases:
        raise ConfigError(
            f"The arm {name!r} names a base that was not given.",
            f"Named bases are {', '.join(bases) or 'none'}.",
            remedy="Add --base NAME=PATH, or fix --arms.",
        )
    return arm(name, base)


@register_arm("pretrained")
class PretrainedArm(NetworkArm):
    """Plain fine-tuning of the base."""

    title, description = "the fine-tuned base", ARMS["pretrained"]
    role = "base"
    starts_from_base = True

    def own_settings(self, settings: Settings) -> Settings:
        """All of them."""
        return settings

    @property
    def control(self) -> str:
        """The same network with random weights."""
        return self.name.replace("pretrained", "scratch", 1)


@register_arm("scratch")
class ScratchArm(NetworkArm):
    """The network of the base with random weights."""

    title, description = "scratch", ARMS["scratch"]
    role = "control"


@register_arm("frozen")
class FrozenArm(NetworkArm):
    """A new head on the frozen base."""

    title, description = "the frozen base", ARMS["frozen"]
    role = "base"
    starts_from_base = is_frozen = True

    def own_settings(self, settings: Settings) -> Settings:
        """The methods of the head only: where it starts, and how fast it moves from there."""
        settings_of_head = replace(without_base(settings), "head", start=settings.head.start)
        return replace(settings_of_head, "train", base_rate=settings.train.base_rate)


def _fitted(model: ArmModel, tuned: TunedRegression) -> Fitted:
    assert tuned.valid_accuracy is not None, "valid has examples"
    return Fitted(
        model,
        valid_accuracy=(tuned.valid_accuracy,),
        seconds=tuned.seconds,
        chosen={"strength": tuned.regularisation},
    )


@register_arm("linear")
class LinearArm(Arm):
    """TF-IDF and logistic regression."""

    title, description = "TF-IDF + logistic regression", ARMS["linear"]

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """The strength of regularisation is chosen on valid."""
        model = fit_linear(data.train, data.valid, labels=data.labels)
        return _fitted(model, model.tuned)


@register_arm("nbsvm")
class NaiveBayesArm(Arm):
    """Naive Bayes ratios and logistic regression (Wang and Manning 2012)."""

    title, description = "NB-SVM", ARMS["nbsvm"]

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """The strength of regularisation is chosen on valid."""
        model = fit_naive_bayes(data.train, data.valid, labels=data.labels)
        return _fitted(model, model.tuned)


@dataclass(frozen=True)
class VectorModel:
    """A regression on vectors."""

    tuned: TunedRegression

    def predict_proba(self, inputs: Float[np.ndarray, "N D"], /) -> NDArray[np.float64]:
        """The probabilities of vectors."""
        return np.asarray(self.tuned.probabilities(unit_length(inputs)))

    def save(self, folder: Path, /) -> None:
        """JSON and safetensors."""
        self.tuned.save(folder)


class VectorArm(Arm):
    """Logistic regression on vectors of texts, which are made once for all runs."""

    @property
    def reads(self) -> str:
        """Its own vectors."""
        return f"vectors:{self.name}"

    def prepare(self, setup: Setup, *, shared_dir: Path, progress: Progress = SILENT) -> Prepared:
        """The vectors in `shared_dir` if they are intact, else new ones, which are kept there."""
        try:
            arrays = load_file(shared_dir / _VECTORS_NAME)
            cost = read_object(shared_dir / _COST_NAME)
            return Prepared(arrays["train"], arrays["valid"], cost["fixed"], cost["text"])
        except (OSError, ValueError, KeyError, SafetensorError):
            pass
        start = time.perf_counter()
        self.learn_space(setup, shared_dir=shared_dir, progress=progress)
        fixed_seconds = time.perf_counter() - start
        start = time.perf_counter()
        texts = [example.text for example in (*setup.train, *setup.valid)]
        vectors_ND = self.encode(texts, setup=setup, shared_dir=shared_dir, progress=progress)
        text_seconds = (time.perf_counter() - start) / len(texts)
        num_train = len(setup.train)
        parts = {"train": vectors_ND[:num_train], "valid": vectors_ND[num_train:]}
        data = save({name: np.ascontiguousarray(part) for name, part in parts.items()})
        write_json(shared_dir / _COST_NAME, {"fixed": fixed_seconds, "text": text_seconds})
        write_whole(shared_dir / _VECTORS_NAME, lambda file: file.write(data))
        return Prepared(parts["train"], parts["valid"], fixed_seconds, text_seconds)

    def learn_space(self, setup: Setup, *, shared_dir: Path, progress: Progress) -> None:
        """What has to be learned from texts before there are vectors."""

    def subset(
        self, inputs: Float[np.ndarray, "N D"], numbers: NDArray[np.int64]
    ) -> Float[np.ndarray, "M D"]:
        """Some of the vectors."""
        return inputs[numbers]

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """The strength of regularisation is chosen on valid."""
        tuned = fit_regression(
            data.inputs,
            data.labels.targets(data.train),
            labels=data.labels,
            valid=(data.valid_inputs, data.labels.targets(data.valid)),
        )
        return _fitted(VectorModel(tuned), tuned)

    def load(self, folder: Path, *, setup: Setup, num_threads: int) -> ArmModel:
        """From JSON and safetensors."""
        return VectorModel(TunedRegression.load(folder))


@register_arm("latent")
class LatentArm(VectorArm):
    """Latent semantic analysis of all text and logistic regression."""

    title, description = "TF-IDF + SVD + logistic regression", ARMS["latent"]

    def describe(self, setup: Setup | None) -> str:
        """Without unlabelled text, the space is learned from the training texts."""
        if setup is None or setup.text_paths:
            return self.description
        return self.description.replace("unlabelled text", "the training texts")

    def learn_space(self, setup: Setup, *, shared_dir: Path, progress: Progress) -> None:
        """TF-IDF and SVD of the unlabelled text and the training texts."""
        documents = read_documents(setup.text_paths, data=setup.start.settings.data)
        texts = (document.text for document in documents)
        train_texts = (example.text for example in setup.train)
        space = fit_space(itertools.chain(texts, train_texts), progress=progress)
        space.save(shared_dir / _SPACE_NAME)

    def encode(
        self, texts: Sequence[str], *, setup: Setup, shared_dir: Path, progress: Progress = SILENT
    ) -> Float[np.ndarray, "N D"]:
        """Vectors in the latent space."""
        return LatentSpace.load(shared_dir / _SPACE_NAME).vectors(texts)


@register_arm("embedding")
class EmbeddingArm(VectorArm):
    """Vectors of the frozen base and logistic regression."""

    title, description = "the base as vectors", ARMS["embedding"]
    role = "base"
    takes_base = True

    def encode(
        self, texts: Sequence[str], *, setup: Setup, shared_dir: Path, progress: Progress = SILENT
    ) -> Float[np.ndarray, "N D"]:
        """Unit vectors, one per text."""
        base = setup.starts[self.base].base
        assert base is not None, "an arm of a base has one"
        return document_vectors([as_trained(base)], texts, progress=progress)


def as_trained(base: LoadedRun) -> LoadedRun:
    """The base, read by the vector that a stage of documents trained, else by the mean vector.

    Without labels, no other vector is worth reading.
    """
    if learns_documents(base.settings.objective) and base.settings.head.pooling != "attention":
        return base
    return dataclasses.replace(base, settings=replace(base.settings, "head", pooling="mean"))


@register_arm("lstm")
class LstmArm(RivalArm):
    """A bidirectional LSTM."""

    title, description = "the bidirectional LSTM", ARMS["lstm"]


@register_arm("cnn")
class ConvolutionArm(RivalArm):
    """A convolution over tokens (Kim 2014)."""

    title, description = "the convolution", ARMS["cnn"]


@register_arm("fit")
class FitArm(Arm):
    """The blend of `regraft fit`, with bases that it pre-trains on the unlabelled text."""

    title, description = "the blend of `regraft fit`", ARMS["fit"]
    role = "base"
    is_random = runs_alone = True

    def check(self, *, has_text: bool) -> None:
        """It pre-trains on unlabelled text."""
        if not has_text:
            raise ConfigError(
                "The fit arm needs unlabelled text.",
                "It pre-trains its own bases.",
                remedy="Add --text FILE, or remove fit from --arms.",
            )

    def trainer(self, setup: Setup, *, num_threads: int) -> "BlendTrainer":
        """The recipe with the preset of `regraft fit`, reading files as the others do."""
        settings = resolve("fit", preset="bag")
        data = setup.start.settings.data
        data = dataclasses.replace(data, max_length=settings.data.max_length, windows=None)
        settings = dataclasses.replace(settings, data=data)
        return BlendTrainer(setup.text_paths, settings, setup.fit_minutes)

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """The recipe needs its setup: see `trainer`."""
        raise NotImplementedError

    def fit_seconds(self, setup: Setup, *, num_labels: int) -> float:
        """The time budget."""
        return 60 * setup.fit_minutes


@dataclass(frozen=True)
class BlendTrainer:
    """Runs the recipe of `regraft fit` in a temporary folder."""

    texts: tuple[Path, ...]
    settings: Settings
    minutes: float

    def fit(self, data: ArmData, *, seed: int, progress: Progress) -> Fitted:
        """Pre-train, fit the members and blend them."""
        settings = replace(self.settings, "train", seed=seed)
        with scratch_folder("fit") as folder:
            labelled = folder / "train.jsonl"
            lines = [
                json.dumps({settings.data.text_column: example.text}) for example in data.train
            ]
            labelled.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            result = fit_examples(
                data.train,
                valid_examples=data.valid,
                texts=self.texts,
                labelled=labelled,
                out=folder / "run",
                settings=settings,
                limit=FitLimit.of(minutes=self.minutes),
                progress=progress,
            )
            model = load_classifier(folder / "run")
        weights = {f"weight of {name}": round(share, 3) for name, share in result.weights.items()}
        return Fitted(model, seconds=result.seconds, chosen=weights)
