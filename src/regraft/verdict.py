"""The verdict: what may be concluded from a comparison, by fixed rules, in a few sentences.

Comes in: summaries of arms and paired tests. Goes out: a kind and the sentences, of which the first
is short and stands by itself. The rules stand in docs/concepts/evidence.md and are tested on
simulated comparisons of which the truth is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from regraft.evidence import (
    ArmSummary,
    Outcome,
    PairedTest,
    VerdictKind,
    base_name,
    in_percent,
    is_network,
    is_rival,
    kind_of,
    nearest_rival,
    points,
    scratch_of,
    uses_base,
)

# What may be said of pre-training, and what of two runs.
_CLAIMS: dict[Outcome, str] = {
    "better": "Pre-training helped",
    "worse": "Pre-training hurt",
    "unclear": "No gain from pre-training was found",
}
_CLAIMS_OF_RUNS: dict[Outcome, str] = {
    "better": "The pre-trained run is better",
    "worse": "The pre-trained run is worse",
    "unclear": "The two runs cannot be told apart",
}
_VERBS: dict[Outcome, str] = {
    "better": "beats",
    "worse": "loses to",
    "unclear": "cannot be told apart from",
}
_IN_WORDS = {
    "scratch": "scratch",
    "linear": "TF-IDF + logistic regression",
    "nbsvm": "NB-SVM",
    "latent": "TF-IDF + SVD + logistic regression",
    "lstm": "the bidirectional LSTM",
    "cnn": "the convolution",
}
_NO_BASE = "No arm with a base took part, so there is no verdict on one."
_NO_RIVAL = (
    "The base was compared neither with scratch nor with any rival without a base, "
    "so there is no verdict."
)


def judge(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> tuple[VerdictKind, str]:
    """The verdict on the base whose arm the tests begin with, by fixed rules.

    A gap counts if its paired test says so. Against scratch it says whether pre-training helped;
    among the arms that use no base the one counts that the base does worst against. A better use
    of a base than this one is named.
    """
    if not any(uses_base(arm.name) for arm in arms):
        return "no-base", _NO_BASE
    found = _find(arms, tests)
    if found is None:
        return "no-base", _NO_RIVAL
    sentences = [_headline(found), *_numbers(found), *_limits(found), *_collapses(found)]
    return _kind(found), " ".join(sentences)


def easily_missed(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> float | None:
    """The gap that another comparison of this size would show the verdict four times in five."""
    found = _find(arms, tests)
    if found is None:
        return None
    gaps = [test.smallest_difference for test in (found.scratch, found.ours.nearest) if test]
    return max((gap for gap in gaps if gap is not None), default=None)


@dataclass(frozen=True)
class _Use:
    """An arm of a base, and how it stands against the arms that use none."""

    arm: ArmSummary
    tests: tuple[PairedTest, ...]
    # The test against the strongest rival that wins, else that ties, else that is beaten.
    nearest: PairedTest | None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.nearest is None else self.nearest.outcome

    @property
    def is_of_runs(self) -> bool:
        """Does what is said of it rest on a run whose luck was not seen?"""
        if self.nearest is None:
            return False
        rests_on = self.tests if self.outcome == "better" else (self.nearest,)
        return any(test.is_of_runs for test in rests_on)

    @property
    def pays(self) -> bool:
        return self.outcome == "better" and not self.is_of_runs


@dataclass(frozen=True)
class _Found:
    """All that the verdict is made of."""

    by_name: dict[str, ArmSummary]
    ours: _Use
    # How this base would do without its pre-training, and how other bases do.
    scratch: PairedTest | None
    others: tuple[PairedTest, ...]
    # Better uses of a base than ours: the one that beats all rivals, and the best by its score.
    better_uses: tuple[_Use, ...]

    @property
    def told(self) -> list[PairedTest]:
        nearest = (use.nearest for use in (self.ours, *self.better_uses))
        return [test for test in (self.scratch, *nearest, *self.others) if test is not None]


def _find(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> _Found | None:
    """None where there is nothing to judge a base by."""
    by_name = {arm.name: arm for arm in arms}
    first = next((test.first for test in tests if uses_base(test.first)), None)
    if first is None:
        return None
    uses = [_use(arm, tests) for arm in arms if uses_base(arm.name)]
    ours = next(use for use in uses if use.arm.name == first)
    against = {test.second: test for test in tests if test.first == first}
    scratch = against.get(scratch_of(first))
    if scratch is None and ours.nearest is None:
        return None
    ahead = sorted(
        (use for use in uses if use.nearest is not None and _score(use) > _score(ours)),
        key=_score,
        reverse=True,
    )
    paying = [] if ours.pays else [use for use in ahead if use.pays]
    return _Found(
        by_name,
        ours,
        scratch,
        # Fine-tuned bases among each other; an untouched one is held against untouched ones.
        others=tuple(test for name, test in against.items() if kind_of(name) == kind_of(first)),
        better_uses=tuple({use.arm.name: use for use in (*paying[:1], *ahead[:1])}.values()),
    )


def _use(arm: ArmSummary, tests: Sequence[PairedTest]) -> _Use:
    own = tuple(test for test in tests if test.first == arm.name and is_rival(test.second))
    return _Use(arm, own, nearest_rival(own))


def _score(use: _Use) -> float:
    return use.arm.test_accuracy.mean


def _kind(found: _Found) -> VerdictKind:
    main = _kind_of_ours(found)
    is_paid_otherwise = any(use.pays for use in found.better_uses)
    return "pays-otherwise" if main != "pays" and is_paid_otherwise else main


def _kind_of_ours(found: _Found) -> VerdictKind:
    scratch, ours = found.scratch, found.ours
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


def _headline(found: _Found) -> str:
    """One sentence without numbers; a use that pays is in it, rather than one that does not."""
    ours = _against_rivals(found, found.ours)
    paying = next((use for use in found.better_uses if use.pays), None)
    if found.scratch is None:
        head, is_good = ours[0].upper() + ours[1:], found.ours.pays
        clause = "" if paying is None else _against_rivals(found, paying)
    else:
        gain = found.scratch.outcome
        head = (_CLAIMS_OF_RUNS if found.scratch.is_of_runs else _CLAIMS)[gain]
        is_good = (gain == "better") == ((paying or found.ours).outcome == "better")
        clause = ours
        if paying is not None:
            head, clause = f"{head} in fine-tuning", _against_rivals(found, paying)
    return f"{head}, {'and' if is_good else 'but'} {clause}." if clause else f"{head}."


def _against_rivals(found: _Found, use: _Use) -> str:
    """`the fine-tuned base beats every rival`; empty where it has none."""
    if use.nearest is None or use.outcome is None:
        return ""
    subject = _named_use(use.arm.name)
    if use.nearest.is_of_runs and _is_one_run(use.arm):
        subject = f"this run of {subject}"
    if use.pays and len(use.tests) > 1:
        return f"{subject} beats every rival"
    return f"{subject} {_VERBS[use.outcome]} {_named(found, use.nearest)}"


def _numbers(found: _Found) -> list[str]:
    """What each of them reaches, and by how much they differ."""
    ours = found.ours
    reached = f"{_named_use(ours.arm.name)} reaches {in_percent(_score(ours))}"
    gaps = [
        f"{_gap(test)} against {_named(found, test)} ({_reached(found, test)})"
        for test in (found.scratch, ours.nearest)
        if test is not None
    ]
    told = [f"{reached[0].upper()}{reached[1:]}: {', '.join(gaps)}."]
    for test in found.others:
        told.append(
            f"It {_VERBS[test.outcome]} {_named(found, test)} "
            f"({_reached(found, test)}, {_gap(test)})."
        )
    for use in found.better_uses:
        assert use.nearest is not None
        named = _named_use(use.arm.name)
        told.append(
            f"{named[0].upper()}{named[1:]} reaches {in_percent(_score(use))}: it "
            f"{_VERBS[use.nearest.outcome]} {_named(found, use.nearest)} "
            f"({_reached(found, use.nearest)}, {_gap(use.nearest)})."
        )
    if any(test.decided_by != test.difference for test in found.told):
        told.append("Intervals are widened for all that was asked at once.")
    return told


def _limits(found: _Found) -> list[str]:
    """What could not be seen here, and what one seed cannot show."""
    limits = []
    hidden = [test.smallest_difference for test in found.told if test.outcome == "unclear"]
    largest = max((gap for gap in hidden if gap is not None), default=None)
    if largest is not None and largest >= 1:
        limits.append("Another comparison of this size could hardly show any gap: take more seeds.")
    elif largest is not None:
        limits.append(
            f"Another comparison of this size would show a true gap of {100 * largest:.1f} points "
            "four times in five, and smaller ones less often."
        )
    if any(test.is_of_runs for test in found.told) or found.ours.is_of_runs:
        limits.append(
            "One seed tells of runs and not of methods, whose luck it cannot show: repeat it with "
            "three or more."
        )
    return limits


def _collapses(found: _Found) -> list[str]:
    names = dict.fromkeys(
        [found.ours.arm.name, *(name for test in found.told for name in (test.first, test.second))]
    )
    collapsed = [
        f"{arm.num_collapsed} of {arm.num_seeds} runs of {arm.name}"
        for arm in map(found.by_name.__getitem__, names)
        if arm.num_collapsed
    ]
    return [f"Failed trainings are counted in: {', '.join(collapsed)} collapsed."] * bool(collapsed)


def _named_use(arm: str) -> str:
    base = f"base {base_name(arm)}" if base_name(arm) else "base"
    if kind_of(arm) == "embedding":
        return f"the {base} as vectors"
    return f"the {'frozen' if kind_of(arm) == 'frozen' else 'fine-tuned'} {base}"


def _named(found: _Found, test: PairedTest) -> str:
    """The second arm of a test."""
    name = test.second
    if uses_base(name):
        return f"the base {base_name(name) or 'given first'}"
    told = _IN_WORDS.get(kind_of(name), name)
    one_run = test.is_of_runs and _is_one_run(found.by_name[name]) and kind_of(name) != "scratch"
    return f"one run of {told}" if one_run else told


def _is_one_run(arm: ArmSummary) -> bool:
    """Was its luck not seen? A regression on all labels has none to see."""
    return arm.num_seeds == 1 and is_network(arm.name)


def _reached(found: _Found, test: PairedTest) -> str:
    return in_percent(found.by_name[test.second].test_accuracy.mean)


def _gap(test: PairedTest) -> str:
    """With the interval that belongs to what is said of it."""
    ends = test.decided_by
    return f"{points(test.difference.mean)} points [{points(ends.low)}, {points(ends.high)}]"
