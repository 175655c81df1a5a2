"""What a comparison found, as plain values: scores, label curve, tests, checks, how it was made.

findings.py fills these in, verdict.py concludes from them, report.py tells them, and report.json
holds them. Every number is decided before it gets here. Knows no model, no file, no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from regraft.metrics import ConfidenceBin as ConfidenceBin
from regraft.metrics import Interval
from regraft.metrics import LengthBin as LengthBin
from regraft.presets import NETWORKS
from regraft.statistics import SIGNIFICANCE as SIGNIFICANCE
from regraft.statistics import holm

REPORT_NAME = "report.json"
OUTCOMES_NAME = "outcomes.json"

Outcome = Literal["better", "worse", "unclear"]

_Values = TypeVar("_Values")
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


def kind_of(arm: str) -> str:
    """What an arm is, whatever base it is made with."""
    return arm.partition(":")[0]


def base_name(arm: str) -> str:
    """The name of the base that an arm is made with; empty for the one given first."""
    return arm.partition(":")[2]


def uses_base(arm: str) -> bool:
    """Is there anything of a pre-trained base in this arm?"""
    return kind_of(arm) in ("pretrained", "frozen", "embedding")


def is_network(arm: str) -> bool:
    """Does luck of its own, a random start or the order of batches, move this arm?"""
    return kind_of(arm) in NETWORKS


def is_rival(arm: str) -> bool:
    """Is this what one could have without a base? Scratch is a control and no rival."""
    return not uses_base(arm) and kind_of(arm) != "scratch"


def scratch_of(arm: str) -> str:
    """The arm that differs from this one in its random weights alone; none for other kinds."""
    return arm.replace("pretrained", "scratch", 1) if kind_of(arm) == "pretrained" else ""


def questions(arms: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """What a comparison asks, each question as the pairs that answer it; the base arm is first.

    Did pre-training help it? Is each use of a base better than the best rival? Is this base better
    than another? Where no base takes part: is the first arm better than each other?
    """
    first, *others = arms
    if not uses_base(first):
        return tuple(((first, other),) for other in others)
    rivals = [name for name in others if is_rival(name)]
    asked: list[tuple[tuple[str, str], ...]] = []
    asked += [((first, name),) for name in others if name == scratch_of(first)]
    if rivals:
        uses = [name for name in arms if uses_base(name)]
        asked += [tuple((use, rival) for rival in rivals) for use in uses]
    return (*asked, *(((first, name),) for name in others if kind_of(name) == kind_of(first)))


@dataclass(frozen=True)
class ArmSummary:
    """What an arm reached over its seeds, with the largest number of labels."""

    name: str
    description: str
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
    # What the grid chose on valid, one entry a seed; empty where nothing was to choose.
    chosen: tuple[dict[str, Any], ...] = ()
    macro_f1_without_leaks: float | None = None

    @property
    def deciding(self) -> Interval:
        """Of the test examples that decide."""
        return self.test_accuracy_without_leaks or self.test_accuracy


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
    # The same of the test examples that decide, where these are not all.
    accuracy_without_leaks: Interval | None = None
    macro_f1_without_leaks: Interval | None = None

    @property
    def deciding(self) -> Interval:
        """Of the test examples that decide."""
        return self.accuracy_without_leaks or self.accuracy

    @property
    def deciding_macro_f1(self) -> Interval:
        """The macro-F1 of the test examples that decide."""
        return self.macro_f1_without_leaks or self.macro_f1


@dataclass(frozen=True)
class PairedTest:
    """First less second, on the same test examples."""

    first: str
    second: str
    difference: Interval
    p_permutation: float
    p_mcnemar: float
    # Over new seeds and new examples, where the two above take the runs as they are; None where the
    # luck of a single run was not seen.
    p_difference: float | None = None
    # Corrected for all that was asked at once (Holm 1979); None where it belongs to no question.
    p_holm: float | None = None
    # The gap that the next two arms like these would show four times in five.
    smallest_difference: float | None = None
    # The interval at the level of the correction: it leaves out zero exactly if the gap counts.
    corrected: Interval | None = None
    # One of the arms has a single run whose luck was not seen: this is about runs, not methods.
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


def nearest_rival(tests: Sequence[PairedTest]) -> PairedTest | None:
    """Of one arm's tests that with the strongest rival that wins, else ties, else is beaten."""
    order: tuple[Outcome, ...] = ("worse", "unclear", "better")
    own = [test for test in tests if is_rival(test.second)]
    return min(
        own, key=lambda test: (order.index(test.outcome), test.difference.mean), default=None
    )


def with_holm(tests: Sequence[PairedTest]) -> tuple[PairedTest, ...]:
    """The same tests with the larger of their two p-values, corrected for being several."""
    worst = [max(test.p_permutation, test.p_difference or 0.0) for test in tests]
    adjusted = holm(worst)
    return tuple(replace(test, p_holm=p) for test, p in zip(tests, adjusted, strict=True))


@dataclass(frozen=True)
class LabelWorth:
    """How many labels more `rival`, the best other arm, needs to score as `arm` does.

    `extra` is None where no gain was found; `is_bound` says that the rival never got there, so
    that `extra` is only a lower bound, and `is_high_bound` the same of the end of its interval.
    """

    arm: str
    rival: str
    num_labels: int
    extra: Interval | None
    is_bound: bool
    sentence: str
    is_high_bound: bool = False
    # Of a single run each, whose luck is not in the interval.
    is_of_runs: bool = False


@dataclass(frozen=True)
class Mistake:
    """A test example that the base arm gets wrong with confidence."""

    text: str
    label: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class LabelDoubt:
    """A test example whose label every run contradicts with confidence: perhaps mislabelled."""

    row: int
    text: str
    label: str
    predicted: str
    probability: float
    num_runs: int
    # Whose runs they are.
    arms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """What a split holds: examples by class, rows cut, texts with contradicting labels."""

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
    """One run: a character for each test example in the order of the file, 1 where it was right."""

    arm: str
    num_labels: int
    seed: int
    right: str


@dataclass(frozen=True)
class Outcomes:
    """Which test examples every run answered rightly: enough to redo each interval and each test.

    Strings hold a character for each test example in the order of the file, 1 for yes: those that
    decide; those also in train or valid; in the text without labels, if there was one to search;
    those whose text stands earlier in the file. `test` is the file's fingerprint.
    """

    test: str
    num_test: int
    decides: str
    in_labelled: str
    in_text: str | None
    repeats: str
    runs: tuple[RunOutcomes, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Outcomes":
        """The outcomes again from their file; a ValueError names the first bad place."""
        return _from_dict(cls, values)


@dataclass(frozen=True)
class Comparison:
    """Everything a report tells."""

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
    # The same of every other arm that uses a base: another base, or this one used otherwise.
    more_worths: tuple[LabelWorth, ...] = ()
    # The gap that another comparison of this size would show four times in five.
    smallest_difference: float | None = None
    num_text_leaks: int | None = None
    label_doubts: tuple[LabelDoubt, ...] = ()
    splits: tuple[Split, ...] = ()
    openings: tuple[Opening, ...] = ()
    # Everything `compare --from` needs to run it again: files by name, arms, seeds, labels.
    request: dict[str, Any] | None = None
    # Test examples that decide: seen nowhere before, each text once. None: all, as it once was.
    num_deciding: int | None = None
    # Too much for report.json: lies beside it.
    outcomes: Outcomes | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Comparison":
        """The comparison again from its report.json; a ValueError names the first bad place."""
        return _from_dict(cls, values)


def _from_dict(kind: type[_Values], values: Mapping[str, Any]) -> _Values:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg'].lower()}") from error


def in_percent(share: float) -> str:
    """`82.0 %`."""
    return f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """A difference of shares in points, with its sign."""
    # Adding zero makes a zero of what rounds to minus zero.
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "\N{MINUS SIGN}")


def about(number: float) -> str:
    """Two digits that count, the rest zeros: no curve of three points knows more."""
    digits = max(len(f"{max(number, 1):.0f}") - 2, 0)
    return f"{max(round(number, -digits), 1):,.0f}"
