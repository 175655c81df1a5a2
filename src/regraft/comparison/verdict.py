"""The verdict: what may be concluded from a comparison, by fixed rules, in a few sentences.

The first sentence is short and complete by itself. Whether one gap counts, a `PairedTest` answers
itself (`is_significant` and `outcome` in results.py). docs/concepts/evidence.md explains the rules;
tests apply them to simulated comparisons whose truth is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from regraft.comparison.results import ArmSummary, Outcome, PairedTest, VerdictKind
from regraft.runtime import in_percent, in_points

# Claims about pre-training, and about two single runs.
_CLAIMS: dict[Outcome, str] = {
    "better": "Pre-training helped",
    "worse": "Pre-training hurt",
    "unclear": "No gain from pre-training was found",
}
_CLAIMS_OF_RUNS: dict[Outcome, str] = {
    "better": "The pre-trained run is better",
    "worse": "The pre-trained run is worse",
    "unclear": "No difference between the two runs was found",
}
_VERBS: dict[Outcome, str] = {
    "better": "beats",
    "worse": "loses to",
    "unclear": "is not distinguishable from",
}
_NO_BASE = "No arm with a base took part, so there is no verdict on one."
_NO_RIVAL = (
    "The base was compared neither with scratch nor with any rival without a base, so there is no "
    "verdict."
)


def judge(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> tuple[VerdictKind, str]:
    """The verdict on the base of the first test's first arm, by fixed rules.

    A gap counts if its paired test is significant. The gap to scratch shows whether pre-training
    helped; among rivals, the one that the base does worst against counts. A better use of a base
    than this one is named.
    """
    if not any(arm.role == "base" for arm in arms):
        return "no-base", _NO_BASE
    case = _case(arms, tests)
    if case is None:
        return "no-base", _NO_RIVAL
    sentences = [_headline(case), *_numbers(case), *_limits(case), *_collapses(case)]
    return _kind(case), " ".join(sentences)


def easily_missed(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> float | None:
    """The gap that a comparison of this size detects with 80 % power."""
    case = _case(arms, tests)
    if case is None:
        return None
    gaps = [test.smallest_difference for test in (case.scratch, case.ours.nearest) if test]
    return max((gap for gap in gaps if gap is not None), default=None)


def nearest_rival(tests: Sequence[PairedTest]) -> PairedTest | None:
    """The test against the strongest rival that wins, else ties, else is beaten."""
    order: tuple[Outcome, ...] = ("worse", "unclear", "better")
    return min(
        tests, key=lambda test: (order.index(test.outcome), test.difference.mean), default=None
    )


@dataclass(frozen=True)
class _Use:
    """An arm with a base, and its tests against rivals."""

    arm: ArmSummary
    tests: tuple[PairedTest, ...]
    # The test against the strongest rival that wins, else that ties, else that is beaten.
    nearest: PairedTest | None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.nearest is None else self.nearest.outcome

    @property
    def is_of_runs(self) -> bool:
        """Does the claim rest on a single run of an arm with random weights?"""
        if self.nearest is None:
            return False
        rests_on = self.tests if self.outcome == "better" else (self.nearest,)
        return any(test.is_of_runs for test in rests_on)

    @property
    def pays(self) -> bool:
        return self.outcome == "better" and not self.is_of_runs


@dataclass(frozen=True)
class _Case:
    """Everything that the verdict depends on."""

    by_name: dict[str, ArmSummary]
    ours: _Use
    # Against the same network without pre-training, and against other bases.
    scratch: PairedTest | None
    others: tuple[PairedTest, ...]
    # Better uses of a base: the one that beats all rivals, and the one with the best score.
    better_uses: tuple[_Use, ...]

    @property
    def mentioned(self) -> list[PairedTest]:
        nearest = (use.nearest for use in (self.ours, *self.better_uses))
        return [test for test in (self.scratch, *nearest, *self.others) if test is not None]


def _case(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> _Case | None:
    """None where nothing can be concluded about a base."""
    by_name = {arm.name: arm for arm in arms}
    first = next((test.first for test in tests if by_name[test.first].role == "base"), None)
    if first is None:
        return None
    uses = [_use(arm, tests, by_name) for arm in arms if arm.role == "base"]
    ours = next(use for use in uses if use.arm.name == first)
    against = {test.second: test for test in tests if test.first == first}
    scratch = against.get(ours.arm.control)
    if scratch is None and ours.nearest is None:
        return None
    ahead = sorted(
        (use for use in uses if use.nearest is not None and _score(use) > _score(ours)),
        key=_score,
        reverse=True,
    )
    paying = [] if ours.pays else [use for use in ahead if use.pays]
    return _Case(
        by_name,
        ours,
        scratch,
        # Bases are compared with each other only where they are used in the same way.
        others=tuple(test for name, test in against.items() if by_name[name].kind == ours.arm.kind),
        better_uses=tuple({use.arm.name: use for use in (*paying[:1], *ahead[:1])}.values()),
    )


def _use(arm: ArmSummary, tests: Sequence[PairedTest], by_name: dict[str, ArmSummary]) -> _Use:
    own = tuple(
        test for test in tests if test.first == arm.name and by_name[test.second].role == "rival"
    )
    return _Use(arm, own, nearest_rival(own))


def _score(use: _Use) -> float:
    return use.arm.test_accuracy.mean


def _kind(case: _Case) -> VerdictKind:
    main = _kind_of_ours(case)
    is_paid_otherwise = any(use.pays for use in case.better_uses)
    return "pays-otherwise" if main != "pays" and is_paid_otherwise else main


def _kind_of_ours(case: _Case) -> VerdictKind:
    scratch, ours = case.scratch, case.ours
    if ours.is_of_runs or (scratch is not None and scratch.is_of_runs):
        return "one-seed"
    gain = "better" if scratch is None else scratch.outcome
    if gain != "better":
        return "hurts" if gain == "worse" else "no-gain"
    rival = ours.nearest
    if rival is None or ours.outcome == "better":
        return "pays"
    if rival.second == "linear":
        return "loses-to-linear" if ours.outcome == "worse" else "ties-with-linear"
    return "loses-to-rival" if ours.outcome == "worse" else "ties-with-rival"


def _headline(case: _Case) -> str:
    """One sentence without numbers; a use that pays is in it, rather than one that does not."""
    ours = _against_rivals(case, case.ours)
    paying = next((use for use in case.better_uses if use.pays), None)
    if case.scratch is None:
        head, is_good = ours[0].upper() + ours[1:], case.ours.pays
        clause = "" if paying is None else _against_rivals(case, paying)
    else:
        gain = case.scratch.outcome
        head = (_CLAIMS_OF_RUNS if case.scratch.is_of_runs else _CLAIMS)[gain]
        is_good = (gain == "better") == ((paying or case.ours).outcome == "better")
        clause = ours
        if paying is not None:
            head, clause = f"{head} in fine-tuning", _against_rivals(case, paying)
    return f"{head}, {'and' if is_good else 'but'} {clause}." if clause else f"{head}."


def _against_rivals(case: _Case, use: _Use) -> str:
    """`the fine-tuned base beats every rival`; empty without rivals."""
    if use.nearest is None or use.outcome is None:
        return ""
    subject = use.arm.title
    if use.nearest.is_of_runs and _is_one_run(use.arm):
        subject = f"this run of {subject}"
    if use.pays and len(use.tests) > 1:
        return f"{subject} beats every rival"
    return f"{subject} {_VERBS[use.outcome]} {_named(case, use.nearest)}"


def _numbers(case: _Case) -> list[str]:
    """Scores and gaps."""
    ours = case.ours
    reached = f"{ours.arm.title} reaches {in_percent(_score(ours))}"
    gaps = [
        f"{_gap(test)} against {_named(case, test)} ({_reached(case, test)})"
        for test in (case.scratch, ours.nearest)
        if test is not None
    ]
    sentences = [f"{reached[0].upper()}{reached[1:]}: {', '.join(gaps)}."]
    for test in case.others:
        sentences.append(
            f"It {_VERBS[test.outcome]} {_named(case, test)} "
            f"({_reached(case, test)}, {_gap(test)})."
        )
    for use in case.better_uses:
        assert use.nearest is not None
        title = use.arm.title
        sentences.append(
            f"{title[0].upper()}{title[1:]} reaches {in_percent(_score(use))}: it "
            f"{_VERBS[use.nearest.outcome]} {_named(case, use.nearest)} "
            f"({_reached(case, use.nearest)}, {_gap(use.nearest)})."
        )
    if any(test.decided_by != test.difference for test in case.mentioned):
        sentences.append("Intervals are widened for the number of questions.")
    return sentences


def _limits(case: _Case) -> list[str]:
    """The power of the comparison, and what one seed cannot show."""
    limits = []
    missed = [test.smallest_difference for test in case.mentioned if test.outcome == "unclear"]
    largest = max((gap for gap in missed if gap is not None), default=None)
    if largest is not None and largest >= 1:
        limits.append("A comparison of this size can hardly detect any gap: use more seeds.")
    elif largest is not None:
        limits.append(
            f"A comparison of this size detects a true gap of {100 * largest:.1f} points in four "
            "cases out of five, and smaller ones less often."
        )
    if any(test.is_of_runs for test in case.mentioned) or case.ours.is_of_runs:
        limits.append(
            "With one seed the verdict is about these runs, not about the methods: repeat it with "
            "three seeds or more."
        )
    return limits


def _collapses(case: _Case) -> list[str]:
    names = dict.fromkeys(
        [
            case.ours.arm.name,
            *(name for test in case.mentioned for name in (test.first, test.second)),
        ]
    )
    collapsed = [
        f"{arm.num_collapsed} of {arm.num_seeds} runs of {arm.name}"
        for arm in map(case.by_name.__getitem__, names)
        if arm.num_collapsed
    ]
    if not collapsed:
        return []
    return [f"Failed runs are included: {', '.join(collapsed)} collapsed."]


def _named(case: _Case, test: PairedTest) -> str:
    """The second arm of a test."""
    arm = case.by_name[test.second]
    is_one_run = arm.role == "rival" and test.is_of_runs and _is_one_run(arm)
    return f"one run of {arm.title}" if is_one_run else arm.title


def _is_one_run(arm: ArmSummary) -> bool:
    """Is its variance between seeds unknown? A regression on all labels has none."""
    return arm.num_seeds == 1 and arm.is_random


def _reached(case: _Case, test: PairedTest) -> str:
    return in_percent(case.by_name[test.second].test_accuracy.mean)


def _gap(test: PairedTest) -> str:
    """With the interval that belongs to the claim."""
    ends = test.decided_by
    reach = f"{in_points(ends.low)} to {in_points(ends.high)}"
    return f"{in_points(test.difference.mean)} points ({reach})"
