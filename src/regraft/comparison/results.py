"""The results of a comparison as plain values: scores, label curve, tests, checks, provenance.

analysis.py fills these in, verdict.py concludes from them, and report.json stores them. Knows no
model, no file and no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from regraft.runtime import Plain
from regraft.stats import SIGNIFICANCE, ConfidenceBin, Interval, LengthBin

REPORT_NAME = "report.json"
OUTCOMES_NAME = "outcomes.json"

Outcome = Literal["better", "worse", "unclear"]
# A base arm uses something pre-trained, a control is that arm without its pre-training, and a rival
# is what one could have without any.
Role = Literal["base", "control", "rival"]

VerdictKind = Literal[
    "pays",
    "pays-otherwise",
    "loses-to-linear",
    "ties-with-linear",
    "loses-to-rival",
    "ties-with-rival",
    "no-gain",
    "hurts",
    "one-seed",
    "no-base",
]


@dataclass(frozen=True)
class ArmInfo:
    """What the analysis has to know of an arm; `name` is `KIND` or `KIND:BASE`.

    `title` names the arm in a sentence. `is_random` says that a seed decides more than the subset
    of the labels: initial weights, or the order of batches. `control` is the name of the arm that
    differs from this one in its initial weights only.
    """

    name: str
    title: str
    description: str
    role: Role
    is_random: bool
    control: str = ""

    @property
    def kind(self) -> str:
        """The registered name of the arm, whichever base it uses."""
        return self.name.partition(":")[0]


def questions(arms: Sequence[ArmInfo]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The questions of a comparison, each as the pairs that answer it; the base arm comes first.

    Did pre-training help it? Is each use of a base better than the best rival? Is this base better
    than another? Without a base: is the first arm better than each other arm?
    """
    first, *others = arms
    if first.role != "base":
        return tuple(((first.name, other.name),) for other in others)
    rivals = [arm.name for arm in others if arm.role == "rival"]
    found: list[tuple[tuple[str, str], ...]] = []
    found += [((first.name, arm.name),) for arm in others if arm.name == first.control]
    if rivals:
        uses = [arm.name for arm in arms if arm.role == "base"]
        found += [tuple((use, rival) for rival in rivals) for use in uses]
    return (*found, *(((first.name, arm.name),) for arm in others if arm.kind == first.kind))


@dataclass(frozen=True, kw_only=True)
class ArmSummary(ArmInfo):
    """The scores of an arm over its seeds, with the largest number of labels."""

    num_seeds: int
    valid_accuracy: Interval
    test_accuracy: Interval
    test_accuracy_without_leaks: Interval | None
    macro_f1: float
    calibration_error: float
    seconds: float
    num_collapsed: int
    valid_curves: tuple[tuple[float, ...], ...]
    confusion: list[list[int]]
    # The means over seeds of the temperature fitted on valid, and of the error it leaves.
    temperature: float | None = None
    calibrated_error: float | None = None
    reliability: tuple[ConfidenceBin, ...] = ()
    by_length: tuple[LengthBin, ...] = ()
    # What was chosen on valid, one entry per seed; empty where there was no choice.
    chosen: tuple[dict[str, Any], ...] = ()
    macro_f1_without_leaks: float | None = None

    @property
    def deciding(self) -> Interval:
        """Accuracy on the test examples that decide."""
        return self.test_accuracy_without_leaks or self.test_accuracy

    @property
    def deciding_macro_f1(self) -> float:
        """Macro-F1 on the test examples that decide."""
        clean = self.macro_f1_without_leaks
        return self.macro_f1 if clean is None else clean


@dataclass(frozen=True)
class CurvePoint:
    """One arm with one number of labels, over its seeds."""

    arm: str
    num_labels: int
    num_seeds: int
    accuracy: Interval
    macro_f1: Interval
    seconds: float
    num_collapsed: int
    # On the test examples that decide, where these are not all of them.
    accuracy_without_leaks: Interval | None = None
    macro_f1_without_leaks: Interval | None = None

    @property
    def deciding(self) -> Interval:
        """Accuracy on the test examples that decide."""
        return self.accuracy_without_leaks or self.accuracy

    @property
    def deciding_macro_f1(self) -> Interval:
        """Macro-F1 on the test examples that decide."""
        return self.macro_f1_without_leaks or self.macro_f1


@dataclass(frozen=True)
class PairedTest:
    """First minus second, on the same test examples."""

    first: str
    second: str
    difference: Interval
    p_permutation: float
    p_mcnemar: float
    # Over new seeds and new examples, where the two above take the runs as given; None where an arm
    # with random weights has a single run.
    p_difference: float | None = None
    # Corrected for the number of questions (Holm 1979); None where it answers none of them.
    p_holm: float | None = None
    # The gap that a repetition would detect with 80 % power.
    smallest_difference: float | None = None
    # The interval at the corrected level: it excludes zero exactly if the gap is significant.
    corrected: Interval | None = None
    # An arm with random weights has a single run: the test is about runs, not about methods.
    is_of_runs: bool = False

    @property
    def decided_by(self) -> Interval:
        """The interval that belongs to the decision."""
        return self.difference if self.corrected is None else self.corrected

    @property
    def p(self) -> float:
        """The p that belongs to the decision."""
        if self.p_holm is not None:
            return self.p_holm
        return self.p_permutation if self.p_difference is None else self.p_difference

    @property
    def is_significant(self) -> bool:
        """Both the test and the interval must say so."""
        gap = self.decided_by
        return self.p < SIGNIFICANCE and (gap.low > 0 or gap.high < 0)

    @property
    def outcome(self) -> Outcome:
        """Is the first arm better, worse, or is it unclear?"""
        if not self.is_significant:
            return "unclear"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True)
class LabelWorth:
    """How many more labels `rival`, the best other arm, needs to match `arm`.

    `extra` is None where no gain was found. With `is_bound` the rival never got there, so `extra`
    is only a lower bound; `is_high_bound` is the same for the upper end of the interval.
    """

    arm: str
    rival: str
    num_labels: int
    extra: Interval | None
    is_bound: bool
    sentence: str
    is_high_bound: bool = False
    # From single runs, so the interval does not include the variance between seeds.
    is_of_runs: bool = False


@dataclass(frozen=True)
class Mistake:
    """A test example that the base arm gets wrong with confidence; a row of 0 is not known."""

    text: str
    label: str
    predicted: str
    probability: float
    row: int = 0


@dataclass(frozen=True)
class LabelDoubt:
    """A test example whose label every run contradicts with confidence: perhaps mislabelled."""

    row: int
    text: str
    label: str
    predicted: str
    probability: float
    num_runs: int
    # The arms of these runs.
    arms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """A split: examples by class, share of truncated texts, texts with contradicting labels."""

    name: str
    num_examples: int
    counts: dict[str, int]
    cut_share: float
    num_contradictions: int


@dataclass(frozen=True)
class Opening:
    """One reading of the sealed test labels: which file, by its hash, when, and by what command."""

    test: str
    fingerprint: str
    when: str
    command: str


@dataclass(frozen=True)
class RunOutcomes:
    """One run: a character per test example in file order, 1 where the prediction is right."""

    arm: str
    num_labels: int
    seed: int
    right: str


@dataclass(frozen=True)
class Outcomes(Plain):
    """Which test examples every run got right: enough to redo each interval and each test.

    Strings hold a character per test example in file order, 1 for yes: those that decide; those
    also in train or valid; in the unlabelled text, if there was one to search; those that repeat an
    earlier text of the file. `test` is the fingerprint of the file.
    """

    test: str
    num_test: int
    decides: str
    in_labelled: str
    in_text: str | None
    repeats: str
    runs: tuple[RunOutcomes, ...]


@dataclass(frozen=True)
class Comparison(Plain):
    """Everything in a report."""

    verdict: str
    verdict_kind: VerdictKind
    arms: tuple[ArmSummary, ...]
    tests: tuple[PairedTest, ...]
    labels: tuple[str, ...]
    num_train: int
    num_valid: int
    num_test: int
    num_test_leaks: int
    cut_share: float
    settings: dict[str, Any]
    environment: dict[str, str]
    fingerprints: dict[str, str]
    command: str
    created: str
    base: dict[str, Any]
    mistakes: tuple[Mistake, ...]
    warnings: tuple[str, ...]
    curve: tuple[CurvePoint, ...] = ()
    worth: LabelWorth | None = None
    # For every other arm with a base: another base, or another use of this one.
    more_worths: tuple[LabelWorth, ...] = ()
    # The gap that a comparison of this size detects with 80 % power.
    smallest_difference: float | None = None
    num_text_leaks: int | None = None
    label_doubts: tuple[LabelDoubt, ...] = ()
    splits: tuple[Split, ...] = ()
    openings: tuple[Opening, ...] = ()
    # Everything `compare --from` needs to repeat it: files by name, arms, seeds, labels. None for
    # a comparison with a classifier that was trained before, as by `fit --test` and the demo.
    request: dict[str, Any] | None = None
    # Test examples that decide: not seen before, each text once.
    num_deciding: int | None = None
    # What the arms were tuned on.
    tuned_on: Literal["valid", "cross-validation"] = "valid"
    # Stored in its own file: too large for report.json.
    outcomes: Outcomes | None = field(default=None, compare=False)

    @property
    def ranked_arms(self) -> list[ArmSummary]:
        """The best on test first."""
        return sorted(self.arms, key=lambda arm: -arm.deciding.mean)


def about(number: float) -> str:
    """Two significant digits: a curve of a few points supports no more."""
    digits = max(len(f"{max(number, 1):.0f}") - 2, 0)
    return f"{max(round(number, -digits), 1):,.0f}"
