"""The ensemble that `regraft fit` makes: a weighted blend of classifiers, as one Classifier."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.base import (
    Classifier,
    ExportFormat,
    load_classifier,
    register_classifier,
    single_texts,
)
from regraft.classifiers.base_table import FoldedModel
from regraft.classifiers.chunks import Chunks
from regraft.classifiers.contributions import Parts
from regraft.classifiers.logistic import RegressionModel, cut_and_asked
from regraft.classifiers.weights import adjusted, blended
from regraft.config import DataSettings, Settings
from regraft.data import Content, Tokenizer, load_tokenizer
from regraft.errors import RunFolderError
from regraft.runtime import SILENT, Progress
from regraft.training import (
    MEMBERS_NAME,
    RunFolder,
    RunInfo,
    check_run_files,
    read_info,
    read_settings,
)

# Weights are stored with all digits; their sum is not exactly 1.
_WEIGHT_TOLERANCE = 1e-6
# Calibration never comes near it.
_MOST_TEMPERATURE = 1000.0


@register_classifier("blend")
@dataclass(frozen=True)
class Blend(Classifier):
    """Classifiers by name, and how much each counts; `settings` are those of the bases."""

    info: RunInfo
    settings: Settings
    tokenizer: Tokenizer
    by_name: Mapping[str, Classifier]

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `predict_proba`."""
        return self.info.labels

    @property
    def data(self) -> DataSettings:
        """How the files it learned from were read."""
        return self.settings.data

    @property
    def members(self) -> Mapping[str, Classifier]:
        """Classifiers by name; one of weight 0 is there only if `fit --update` needs its table."""
        return self.by_name

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of every member that was fitted, kept or not; they add up to 1."""
        weights: Mapping[str, float] = self.info.result["weights"]
        return weights

    @property
    def temperature(self) -> float:
        """Above 1 the blend is less confident than the weighted mean of its members."""
        return float(self.info.result["temperature"])

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Chosen by `regraft fit` on held-out examples, if a text may have several labels."""
        return tuple(self.info.result["thresholds"])

    @property
    def abstain_below(self) -> float | None:
        """What `regraft fit` was asked for, or chose for a target accuracy."""
        below: float | None = self.info.result["abstain_below"]
        return below

    @property
    def active_members(self) -> dict[str, Classifier]:
        """Members with non-zero weight."""
        return {name: member for name, member in self.by_name.items() if self.weights[name] > 0}

    def predict_proba(
        self, contents: Sequence[Content], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C calibrated probabilities."""
        cutting = self._cutting_members
        chances = {
            name: member.predict_proba(contents, progress=progress)
            for name, member in self.active_members.items()
            if name not in cutting
        }
        if cutting:
            cut = cut_and_asked(
                list(cutting.values()),
                single_texts(contents),
                chunks=self._chunks,
                progress=progress,
            )
            chances.update(zip(cutting, cut, strict=True))
        return self.combined(chances)

    @property
    def _cutting_members(self) -> dict[str, RegressionModel]:
        """Active members that read texts chunk by chunk."""
        return {
            name: member
            for name, member in self.active_members.items()
            if isinstance(member, RegressionModel) and member.tables
        }

    @cached_property
    def _chunks(self) -> Chunks:
        tables = [member.tables for member in self._cutting_members.values()]
        return Chunks(*itertools.chain.from_iterable(tables))

    def combined(self, probabilities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """The probabilities of the blend, given those of its active members."""
        names = list(self.active_members)
        combined_NC: NDArray[np.float64] = blended(
            np.stack([probabilities[name] for name in names]),
            np.array([self.weights[name] for name in names]),
            temperature=self.temperature,
            has_label_sets=self.task.has_label_sets,
        )
        return adjusted(combined_NC, self.priors_C)

    @property
    def held_out_scores(self) -> Mapping[str, Any]:
        """The scores of all members, and of all together as `blend`."""
        scores: Mapping[str, Any] = self.info.result.get("scores", {})
        return scores

    @property
    def priors_C(self) -> NDArray[np.float64] | None:  # noqa: N802
        """Class weights: what `regraft fit` counted."""
        priors = self.info.result["priors"]
        return np.array(priors) if priors else None

    @property
    def computed_by(self) -> Literal["numpy", "torch"]:
        """torch, if an active member needs it."""
        libraries = {member.computed_by for member in self.active_members.values()}
        return "torch" if "torch" in libraries else "numpy"

    @property
    def export_formats(self) -> tuple[ExportFormat, ...]:
        """A folder that numpy reads, if all active members can be one."""
        members = self.active_members.values()
        return ("numpy",) if all("numpy" in each.export_formats for each in members) else ()

    @property
    def is_additive(self) -> bool:
        """Yes, if all active members are."""
        return all(member.is_additive for member in self.active_members.values())

    def score_parts(self, text: str) -> list[Parts]:
        """The parts of the active members, weighted; class weights belong to no word."""
        parts = [
            parts.scaled(self.weights[name] / self.temperature)
            for name, member in self.active_members.items()
            for parts in member.score_parts(text)
        ]
        if self.priors_C is not None:
            nowhere = np.zeros(1, dtype=np.int64)
            parts.append(Parts(nowhere, nowhere, -np.log(self.priors_C)[None]))
        return parts

    def renamed(self, labels: Sequence[str]) -> "Blend":
        """The same blend with other names for its labels."""
        result = {**self.info.result, "labels": list(labels)}
        return replace(
            self,
            info=replace(self.info, labels=tuple(labels), result=result),
            by_name={name: member.renamed(labels) for name, member in self.by_name.items()},
        )

    def save(self, run_dir: Path) -> None:
        """Write a run folder as `regraft fit` does."""
        folder = RunFolder(run_dir)
        info = replace(self.info, status="training", result={})
        folder.start(info, settings=self.settings, tokenizer=self.tokenizer, resume=False)
        for name, member in self.by_name.items():
            member.save(member_dir(run_dir, name))
        folder.complete({**self.info.result, "run_dir": str(run_dir)})

    @classmethod
    def load(cls, run_dir: Path) -> "Blend":
        """Read the run folder of `regraft fit`."""
        info = read_info(run_dir)
        if info.kind != "blend" or info.status != "complete":
            raise RunFolderError(
                f"{run_dir} holds no finished classifier of `regraft fit`.",
                remedy="Repeat the command that started it with --resume, or use another folder.",
            )
        weights = _checked_weights(run_dir, info)
        names = [
            name for name, part in weights.items() if part > 0 or member_dir(run_dir, name).exists()
        ]
        members = [f"{MEMBERS_NAME}/{name}" for name in names]
        check_run_files(run_dir, info, needed=["config.json", "tokenizer.json", *members])
        by_name = {name: load_classifier(member_dir(run_dir, name)) for name in names}
        # A folded member has read it already.
        spaces = [member.space for member in by_name.values() if isinstance(member, FoldedModel)]
        blend = cls(
            info=info,
            settings=read_settings(run_dir),
            tokenizer=spaces[0].tokenizer if spaces else load_tokenizer(run_dir / "tokenizer.json"),
            by_name=by_name,
        )
        for name, member in by_name.items():
            if member.labels != info.labels:
                raise RunFolderError(
                    f"{member_dir(run_dir, name)} has other labels than {run_dir / 'run.json'}.",
                    "All members of a blend have the labels of the blend, in the same order.",
                    remedy="Restore the folder from a copy, or fit again.",
                )
        return blend


def _checked_weights(run_dir: Path, info: RunInfo) -> dict[str, float]:
    """The weight of each member in run.json; RunFolderError if they are not weights."""
    try:
        weights = {str(name): float(weight) for name, weight in info.result["weights"].items()}
        temperature, priors = info.result["temperature"], info.result["priors"]
        is_right = (
            type(temperature) in (int, float)
            and 1 / _MOST_TEMPERATURE <= temperature <= _MOST_TEMPERATURE
            and isinstance(priors, list)
            and len(priors) in (0, len(info.labels))
            and all(0 < prior < math.inf for prior in priors)
            and all(0 <= weight <= 1 for weight in weights.values())
            and abs(sum(weights.values()) - 1) < _WEIGHT_TOLERANCE
            and all(name.isidentifier() for name in weights)  # a name is a folder here
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        is_right = False
    if not is_right:
        raise RunFolderError(
            f"{run_dir / 'run.json'} holds no weights of a blend.",
            "Weights are 0 or more and add up to 1; the temperature is between 0.001 and 1,000.",
            remedy="Restore the folder from a copy, or fit again.",
        )
    return weights


def member_dir(run_dir: Path, name: str) -> Path:
    """The folder of a member."""
    return run_dir / MEMBERS_NAME / name


def baselines_dir(run_dir: Path) -> Path:
    """The folders of members that nothing reads but `fit --test`, which removes them."""
    return run_dir / "baselines"
