"""What `regraft fit` made, and what its held-out examples say of it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regraft.classifiers.held_out import MemberScore
from regraft.classifiers.learning_curve import LabelPoint
from regraft.runtime import Plain, counted, duration, in_percent_with_ends
from regraft.stats import CoveragePoint, Interval
from regraft.training import read_info


@dataclass(frozen=True, kw_only=True)
class Judged(Plain):
    """What the held-out examples say of a blend and its members."""

    labels: tuple[str, ...]
    num_train: int
    num_valid: int
    scores: dict[str, MemberScore]
    weights: dict[str, float]
    temperature: float
    # The probability from which each label is assigned, if a text may have several.
    thresholds: tuple[float, ...]
    # How frequent the classes are, if the blend decides as if they were equally frequent.
    priors: tuple[float, ...]
    # Rows of label_issues.csv, which are about the examples that were held out.
    num_label_issues: int
    # Below this confidence `predict` does not answer.
    abstain_below: float | None
    # On held-out examples, by confidence.
    coverage: tuple[CoveragePoint, ...]
    # Accuracy by the number of labels, measured on parts of the folds, and forecasts.
    label_curve: tuple[LabelPoint, ...]


@dataclass(frozen=True)
class ScoreChange:
    """The accuracy before and after an update, on the same texts; neither had seen them.

    Before the update, texts of a new class could not be right.
    """

    texts: str
    num_texts: int
    before: Interval
    after: Interval
    # After minus before.
    difference: Interval


@dataclass(frozen=True)
class Update:
    """What `regraft fit --update` added to an earlier run, and how its score changed."""

    run_dir: str
    num_added: int
    num_relabelled: int
    new_labels: tuple[str, ...]
    changes: tuple[ScoreChange, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class FitResult(Judged):
    """What `regraft fit` made, and its scores on held-out labels."""

    run_dir: str
    num_documents: int
    num_tokens: int
    num_bases: int
    # How often each base has seen the text.
    passes: list[float]
    # The time budget; None if the number of bases was given.
    minutes: float | None
    seconds: float
    # Documents like the labelled ones, where they are only a part of the text.
    num_alike: int | None = None
    # The files it was made from: `text`, `train` and `valid`.
    files: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    # What changed since the run that it updates.
    update: Update | None = None

    def __repr__(self) -> str:
        """The scores, a line each, as a notebook shows them."""
        judged = f"{self.num_valid:,} valid examples" if self.num_valid else "cross-validation"
        lines = [f"{self.measure} by {judged} of {counted(self.num_train, 'labelled text')}"]
        for name, score in self.scores.items():
            found = score.accuracy
            shown = in_percent_with_ends(found.mean, found.low, found.high)
            weight = "" if score.weight is None else f", weight {score.weight:.2f}"
            lines.append(f"  {name}: {shown}{weight}")
        if self.num_label_issues:
            lines.append(f"{counted(self.num_label_issues, 'label')} may be wrong: label_issues_")
        return "\n".join(lines)

    @property
    def measure(self) -> Literal["accuracy", "micro-F1"]:
        """What `scores` are."""
        return "micro-F1" if self.thresholds else "accuracy"

    @property
    def judged_files(self) -> list[str]:
        """The files of the examples that were held out, which label_issues.csv is about."""
        return self.files.get("valid") or self.files.get("train") or []

    @property
    def time_taken(self) -> str:
        """In words, with the time budget if there was one."""
        budget = "" if self.minutes is None else f" (budget {duration(60 * self.minutes)})"
        return f"{duration(self.seconds)}{budget}"


def read_finished(run_dir: Path) -> FitResult | None:
    """The result of a finished `regraft fit` in this folder."""
    info = read_info(run_dir)
    is_done = info.kind == "blend" and info.status == "complete"
    return FitResult.from_dict(info.result) if is_done else None
