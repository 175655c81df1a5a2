"""The verdict: what may be concluded from a comparison, by fixed rules, in a few sentences.

Comes in: summaries of arms and paired tests. Goes out: a kind and the sentences. The rules stand in
docs/concepts/evidence.md and are tested on simulated comparisons of which the truth is known.
"""

from collections.abc import Sequence
from typing import Literal

from regraft.evidence import ArmSummary, PairedTest, VerdictKind, base_name, kind_of, uses_base

Outcome = Literal["better", "worse", "unclear"]

# What may be said of pre-training, and what of two runs.
_CLAIMS: dict[Outcome, str] = {
    "better": "Pre-training helped",
    "worse": "Pre-training hurt",
    "unclear": "No gain from pre-training was found",
}
_CLAIMS_OF_ONE_SEED: dict[Outcome, str] = {
    "better": "The pre-trained run is better",
    "worse": "The pre-trained run is worse",
    "unclear": "The two runs cannot be told apart",
}
# What is said of a base that was not held against scratch.
_REACHES = {
    "pretrained": "The pre-trained model reaches",
    "frozen": "The untouched base with a trained head reaches",
    "embedding": "Vectors of the untouched base + logistic regression reach",
}
_VERBS: dict[Outcome, str] = {
    "better": "beats",
    "worse": "loses to",
    "unclear": "cannot be told apart from",
}
_IN_WORDS = {
    "linear": "TF-IDF + logistic regression",
    "nbsvm": "NB-SVM",
    "latent": "TF-IDF + SVD + logistic regression",
    "lstm": "the bidirectional LSTM",
    "cnn": "the convolution",
}


def judge(arms: Sequence[ArmSummary], tests: Sequence[PairedTest]) -> tuple[VerdictKind, str]:
    """The verdict on the base whose arm the tests compare with the others, by fixed rules.

    A gap counts if its paired test says so. Against scratch it says whether pre-training helped;
    among the arms that use no base the one counts that the base does worst against.
    """
    by_name = {arm.name: arm for arm in arms}
    bases = [test.first for test in tests if uses_base(test.first)]
    against = {test.second: test for test in tests if bases and test.first == bases[0]}
    scratch = against.get(_scratch_of(bases[0])) if bases else None
    rival = _strictest(
        [test for name, test in against.items() if _is_rival(name)], score=_scores(arms)
    )
    if scratch is None and rival is None:
        return "no-base", (
            "The base was compared neither with scratch nor with a linear model, "
            "so there is no verdict."
        )
    ours = by_name[bases[0]]
    # Fine-tuned bases among each other; an untouched one is held against other untouched ones.
    others = [test for name, test in against.items() if kind_of(name) == kind_of(bases[0])]
    told = [test for test in (scratch, rival, *others) if test is not None]
    sentences = [
        "; ".join(_parts(by_name, ours, scratch=scratch, rival=rival, others=others)) + "."
    ]
    sentences += _limits(ours, told)
    sentences += _collapses([ours, *(by_name[test.second] for test in told)])
    return _kind(ours, scratch=scratch, rival=rival), " ".join(sentences)


def outcome(test: PairedTest) -> Outcome:
    """Is the first arm better, worse, or is it unclear?"""
    if not test.is_significant:
        return "unclear"
    return "better" if test.difference.mean > 0 else "worse"


def _kind(ours: ArmSummary, *, scratch: PairedTest | None, rival: PairedTest | None) -> VerdictKind:
    if _is_one_seed(ours):
        return "one-seed"
    gain = "better" if scratch is None else outcome(scratch)
    if gain != "better":
        return "hurts" if gain == "worse" else "no-gain"
    found = "better" if rival is None else outcome(rival)
    if rival is None or found == "better":
        return "pays"
    if rival.second == "linear":
        return "loses-to-linear" if found == "worse" else "ties-with-linear"
    return "loses-to-rival" if found == "worse" else "ties-with-rival"


def _parts(
    by_name: dict[str, ArmSummary],
    ours: ArmSummary,
    *,
    scratch: PairedTest | None,
    rival: PairedTest | None,
    others: Sequence[PairedTest],
) -> list[str]:
    reached = f"{ours.test_accuracy.mean:.1%}"
    if scratch is None:
        parts = [f"{_REACHES[kind_of(ours.name)]} {reached}"]
    else:
        claims = _CLAIMS_OF_ONE_SEED if _is_one_seed(ours) else _CLAIMS
        theirs = f"{by_name[scratch.second].test_accuracy.mean:.1%} from scratch, {_gap(scratch)}"
        parts = [f"{claims[outcome(scratch)]}: {reached} against {theirs}"]
    for test in (rival, *others):
        if test is not None:
            score = by_name[test.second].test_accuracy.mean
            name = _IN_WORDS.get(test.second, f"the base {base_name(test.second) or 'given first'}")
            parts.append(f"it {_VERBS[outcome(test)]} {name} ({score:.1%}, {_gap(test)})")
    return parts


def _limits(ours: ArmSummary, told: Sequence[PairedTest]) -> list[str]:
    """What could not be seen here, and what one seed cannot show."""
    limits = []
    hidden = [test.smallest_difference for test in told if outcome(test) == "unclear"]
    largest = max((gap for gap in hidden if gap is not None), default=None)
    if largest is not None and largest >= 1:
        limits.append("With this test set and these seeds, hardly any gap could be shown.")
    elif largest is not None:
        limits.append(
            f"With this test set and these seeds, a true gap of less than {100 * largest:.1f} "
            "points is easily missed."
        )
    if _is_one_seed(ours):
        limits.append(
            "One seed cannot tell pre-training from the luck of a run: repeat it with three or "
            "more."
        )
    return limits


def _collapses(arms: Sequence[ArmSummary]) -> list[str]:
    collapsed = [
        f"{arm.num_collapsed} of {arm.num_seeds} runs of {arm.name}"
        for arm in arms
        if arm.num_collapsed
    ]
    return [f"Failed trainings are counted in: {', '.join(collapsed)} collapsed."] * bool(collapsed)


def _strictest(tests: Sequence[PairedTest], *, score: dict[str, float]) -> PairedTest | None:
    """The test against the strongest arm that wins, else that ties, else that is beaten."""
    order = ("worse", "unclear", "better")
    return min(
        tests, key=lambda test: (order.index(outcome(test)), -score[test.second]), default=None
    )


def _scores(arms: Sequence[ArmSummary]) -> dict[str, float]:
    return {arm.name: arm.test_accuracy.mean for arm in arms}


def _is_one_seed(ours: ArmSummary) -> bool:
    """Was its luck not seen? A regression on vectors of an untouched base has none to see."""
    return ours.num_seeds == 1 and kind_of(ours.name) != "embedding"


def _scratch_of(base_arm: str) -> str:
    """The arm that differs from this one in its random weights alone; none for other kinds."""
    return base_arm.replace("pretrained", "scratch", 1) if kind_of(base_arm) == "pretrained" else ""


def _is_rival(name: str) -> bool:
    return not uses_base(name) and kind_of(name) != "scratch"


def _gap(test: PairedTest) -> str:
    gap = test.difference
    return f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
