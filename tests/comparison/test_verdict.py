"""The verdict: what follows from the paired tests, in the words that people read."""

import dataclasses

import pytest
from comparisons import info

from regraft.comparison.results import ArmSummary, PairedTest, VerdictKind
from regraft.comparison.verdict import easily_missed, judge
from regraft.stats.significance import Interval


def arm(name: str, mean: float, *, num_seeds: int = 3, num_collapsed: int = 0) -> ArmSummary:
    score = Interval(mean, mean - 0.02, mean + 0.02)
    return ArmSummary(
        **dataclasses.asdict(info(name)),
        num_seeds=num_seeds,
        valid_accuracy=score,
        test_accuracy=score,
        test_accuracy_without_leaks=None,
        macro_f1=mean,
        calibration_error=0.1,
        seconds=1.0,
        num_collapsed=num_collapsed,
        valid_curves=((mean,),),
        confusion=[[1, 0], [0, 1]],
    )


def paired(second: str, mean: float, *, first: str = "pretrained", p: float = 0.001) -> PairedTest:
    difference = Interval(mean, mean - 0.02, mean + 0.02)
    return PairedTest(first, second, difference, p_permutation=p, p_mcnemar=p)


def judged(
    others: dict[str, float], *, ours: float = 0.82, num_seeds: int = 3
) -> tuple[VerdictKind, str]:
    """The verdict where gaps above two points count."""
    arms = [
        arm("pretrained", ours, num_seeds=num_seeds),
        *(arm(name, score, num_seeds=num_seeds) for name, score in others.items()),
    ]
    return judge(arms, [paired(name, ours - score) for name, score in others.items()])


def gap(mean: float) -> str:
    """`+5.0 points (+3.0 to +7.0)`, as such a gap is told."""
    low, high = (f"{100 * end:+.1f}" for end in (mean - 0.02, mean + 0.02))
    return f"{100 * mean:+.1f} points ({low} to {high})".replace("-", "\N{MINUS SIGN}")


LINEAR = "TF-IDF + logistic regression"


@pytest.mark.parametrize(
    ("scratch", "linear", "kind", "headline"),
    [
        (0.77, 0.79, "pays", f"Pre-training helped, and the fine-tuned base beats {LINEAR}."),
        (
            0.77,
            0.81,
            "ties-with-linear",
            f"Pre-training helped, but the fine-tuned base is not distinguishable from {LINEAR}.",
        ),
        (
            0.77,
            0.85,
            "loses-to-linear",
            f"Pre-training helped, but the fine-tuned base loses to {LINEAR}.",
        ),
        (
            0.81,
            0.85,
            "no-gain",
            f"No gain from pre-training was found, and the fine-tuned base loses to {LINEAR}.",
        ),
        (
            0.81,
            0.79,
            "no-gain",
            f"No gain from pre-training was found, but the fine-tuned base beats {LINEAR}.",
        ),
        (0.86, 0.79, "hurts", f"Pre-training hurt, but the fine-tuned base beats {LINEAR}."),
        (
            0.86,
            0.81,
            "hurts",
            f"Pre-training hurt, and the fine-tuned base is not distinguishable from {LINEAR}.",
        ),
    ],
)
def test_verdict_follows_from_the_paired_tests(
    scratch: float, linear: float, kind: VerdictKind, headline: str
) -> None:
    # One sentence for everyone, then the numbers.
    assert judged({"scratch": scratch, "linear": linear}) == (
        kind,
        f"{headline} The fine-tuned base reaches 82.0 %: {gap(0.82 - scratch)} against scratch "
        f"({100 * scratch:.1f} %), {gap(0.82 - linear)} against {LINEAR} ({100 * linear:.1f} %).",
    )


def test_verdict_without_scratch_or_linear() -> None:
    assert judged({"scratch": 0.77}) == (
        "pays",
        "Pre-training helped. The fine-tuned base reaches 82.0 %: "
        f"{gap(0.05)} against scratch (77.0 %).",
    )
    assert judged({"linear": 0.85}) == (
        "loses-to-linear",
        f"The fine-tuned base loses to {LINEAR}. The fine-tuned base reaches 82.0 %: "
        f"{gap(-0.03)} against {LINEAR} (85.0 %).",
    )


@pytest.mark.parametrize(
    ("name", "subject"),
    [("frozen", "he frozen base"), ("embedding:news", "he base news as vectors")],
)
def test_verdict_on_a_base_that_is_not_fine_tuned(name: str, subject: str) -> None:
    # Against scratch it differs in more than its weights: that says nothing of pre-training.
    others = {"linear": 0.78, "scratch": 0.7}
    arms = [arm(name, 0.82), *(arm(other, score) for other, score in others.items())]
    tests = [paired(other, 0.82 - score, first=name) for other, score in others.items()]
    assert judge(arms, tests) == (
        "pays",
        f"T{subject} beats {LINEAR}. T{subject} reaches 82.0 %: {gap(0.04)} against {LINEAR} "
        "(78.0 %).",
    )


def test_one_run_of_a_regression_is_not_one_seed_of_many() -> None:
    arms = [arm("embedding", 0.82, num_seeds=1), arm("linear", 0.78, num_seeds=1)]
    kind, verdict = judge(arms, [paired("linear", 0.04, first="embedding")])
    assert kind == "pays"
    assert "seed" not in verdict


@pytest.mark.parametrize("others", [{}, {"frozen": 0.8}, {"frozen": 0.8, "embedding": 0.7}])
def test_verdict_needs_something_to_beat(others: dict[str, float]) -> None:
    assert judged(others) == (
        "no-base",
        "The base was compared neither with scratch nor with any rival without a base, "
        "so there is no verdict.",
    )


def test_verdict_needs_a_base() -> None:
    tests = [paired("linear", 0.1, first="nbsvm")]
    assert judge([arm("nbsvm", 0.9), arm("linear", 0.8)], tests) == (
        "no-base",
        "No arm with a base took part, so there is no verdict on one.",
    )
    assert judge([arm("scratch", 0.9)], [])[0] == "no-base"


@pytest.mark.parametrize(
    ("others", "kind", "told"),
    [
        # The one that wins counts, then the strongest that ties, then the strongest.
        ({"linear": 0.83, "nbsvm": 0.86, "cnn": 0.85}, "loses-to-rival", "but {} loses to NB-SVM"),
        (
            {"linear": 0.81, "latent": 0.83, "lstm": 0.7},
            "ties-with-rival",
            "but {} is not distinguishable from TF-IDF + SVD + logistic regression",
        ),
        ({"linear": 0.79, "cnn": 0.78}, "pays", "and {} beats every rival"),
        ({"cnn": 0.7}, "pays", "and {} beats the convolution"),
    ],
)
def test_verdict_names_the_rival_that_the_base_does_worst_against(
    others: dict[str, float], kind: VerdictKind, told: str
) -> None:
    found, verdict = judged({"scratch": 0.77, **others})
    assert found == kind
    headline = told.format("the fine-tuned base")
    assert verdict.startswith(f"Pre-training helped, {headline}. The fine-tuned base reaches")


def test_verdict_of_a_loss_outweighs_a_stronger_tie() -> None:
    tests = [
        paired("linear", -0.03),
        dataclasses.replace(paired("cnn", -0.031), p_holm=0.2),
    ]
    arms = [arm("pretrained", 0.82), arm("linear", 0.85), arm("cnn", 0.851)]
    assert judge(arms, tests)[0] == "loses-to-linear"


def otherwise(linear: float, *, embedding: float = 0.87) -> tuple[VerdictKind, str]:
    """A base that gains nothing when fine-tuned, beside another one as vectors."""
    scores = {
        "pretrained": 0.73,
        "scratch": 0.73,
        "embedding:bag": embedding,
        "linear": linear,
        "cnn": 0.7,
    }
    pairs = [("pretrained", other) for other in scores if other != "pretrained"]
    pairs += [("embedding:bag", "linear"), ("embedding:bag", "cnn")]
    tests = [paired(b, scores[a] - scores[b], first=a) for a, b in pairs]
    return judge([arm(name, score) for name, score in scores.items()], tests)


def test_verdict_names_a_better_use_of_a_base() -> None:
    kind, verdict = otherwise(0.84)
    assert kind == "pays-otherwise"
    assert verdict.startswith(
        "No gain from pre-training was found in fine-tuning, but the base bag as vectors beats "
        f"every rival. The fine-tuned base reaches 73.0 %: {gap(0.0)} against scratch (73.0 %), "
        f"{gap(-0.11)} against {LINEAR} (84.0 %). "
    )
    assert verdict.endswith(
        f" The base bag as vectors reaches 87.0 %: it beats {LINEAR} (84.0 %, {gap(0.03)})."
    )


def test_verdict_without_scratch_names_a_better_use_of_a_base() -> None:
    tests = [
        paired("linear", -0.11),
        paired("linear", 0.03, first="embedding"),
        paired("embedding", -0.14),
    ]
    arms = [arm("pretrained", 0.73), arm("embedding", 0.87), arm("linear", 0.84)]
    kind, verdict = judge(arms, tests)
    assert kind == "pays-otherwise"
    assert verdict.startswith(
        f"The fine-tuned base loses to {LINEAR}, but the base as vectors beats {LINEAR}. "
    )


def test_verdict_claims_no_more_of_a_better_use_than_was_shown() -> None:
    kind, verdict = otherwise(0.86)
    assert kind == "no-gain"
    assert "every rival" not in verdict
    assert verdict.endswith(
        f" The base bag as vectors reaches 87.0 %: it is not distinguishable from {LINEAR} "
        f"(86.0 %, {gap(0.01)})."
    )
    assert "as vectors" not in otherwise(0.86, embedding=0.6)[1]


def test_verdict_compares_bases() -> None:
    others = {"pretrained:news": 0.86, "scratch": 0.77, "scratch:news": 0.70, "linear": 0.79}
    kind, verdict = judged(others)
    assert kind == "pays"
    assert verdict.endswith(f" It loses to the fine-tuned base news (86.0 %, {gap(-0.04)}).")


def test_verdict_on_a_named_base_uses_its_own_scratch() -> None:
    arms = [arm("pretrained:news", 0.82), arm("scratch", 0.9), arm("scratch:news", 0.77)]
    tests = [
        paired("scratch", -0.08, first="pretrained:news"),
        paired("scratch:news", 0.05, first="pretrained:news"),
    ]
    kind, verdict = judge(arms, tests)
    assert kind == "pays"
    assert verdict.startswith("Pre-training helped. The fine-tuned base news reaches 82.0 %: ")


def of_runs(
    others: dict[str, float], *, first: str = "pretrained", num_seeds: int = 1
) -> tuple[VerdictKind, str]:
    """The verdict where the luck of single runs was not seen."""
    arms = [arm(first, 0.82, num_seeds=num_seeds)]
    arms += [arm(name, score, num_seeds=1) for name, score in others.items()]
    tests = [
        dataclasses.replace(
            paired(name, 0.82 - score, first=first),
            is_of_runs=info(first).is_random or info(name).is_random,
        )
        for name, score in others.items()
    ]
    return judge(arms, tests)


ONE_SEED = (
    " With one seed the verdict is about these runs, not about the methods: repeat it with three "
    "seeds or more."
)


def test_verdict_of_one_seed_claims_nothing_of_pre_training() -> None:
    kind, verdict = of_runs({"scratch": 0.77, "linear": 0.79})
    assert kind == "one-seed"
    assert verdict.startswith(
        f"The pre-trained run is better, and this run of the fine-tuned base beats {LINEAR}. "
    )
    assert verdict.endswith(ONE_SEED)
    assert of_runs({"scratch": 0.81})[1].startswith("No difference between")
    assert of_runs({"scratch": 0.9})[1].startswith("The pre-trained run is worse. ")


def test_verdict_of_a_regression_against_one_run_of_a_network_is_one_of_runs() -> None:
    kind, verdict = of_runs({"lstm": 0.62, "scratch": 0.6}, first="embedding")
    assert kind == "one-seed"
    assert verdict.startswith("The base as vectors beats one run of the bidirectional LSTM. ")
    assert verdict.endswith(ONE_SEED)
    # It must beat them all, so the one run counts though another rival is nearer.
    kind, verdict = of_runs({"linear": 0.7, "lstm": 0.62}, first="embedding")
    assert kind == "one-seed"
    assert verdict.startswith(f"The base as vectors beats {LINEAR}. ")
    assert verdict.endswith(ONE_SEED)
    # What linear wins, it wins whatever the luck of the network was.
    assert of_runs({"linear": 0.9, "lstm": 0.62}, first="embedding")[0] == "loses-to-linear"


def test_verdict_says_what_the_next_comparison_would_show() -> None:
    arms = [arm("pretrained", 0.82), arm("scratch", 0.81), arm("linear", 0.79)]
    tests = [
        dataclasses.replace(paired("scratch", 0.01), smallest_difference=0.0312),
        dataclasses.replace(paired("linear", 0.03), smallest_difference=0.05),
    ]
    # Only where nothing was found: what was found was not missed.
    assert "detects a true gap of 3.1 points" in judge(arms, tests)[1]
    assert "detects" not in judge(arms, tests[1:])[1]
    assert easily_missed(arms, tests) == 0.05
    assert easily_missed(arms[1:], []) is None


def test_verdict_tells_the_interval_that_decides() -> None:
    arms = [arm("pretrained", 0.82), arm("linear", 0.85)]
    wide = dataclasses.replace(
        paired("linear", -0.03), p_holm=0.066, corrected=Interval(-0.03, -0.061, 0.001)
    )
    verdict = judge(arms, [wide])[1]
    assert f"is not distinguishable from {LINEAR}" in verdict
    told = "-3.0 points (-6.1 to +0.1)".replace("-", "\N{MINUS SIGN}")
    assert f"{told} against {LINEAR} (85.0 %). Intervals are widened for the number of" in verdict


def test_verdict_counts_collapsed_runs_of_those_it_names() -> None:
    arms = [
        arm("pretrained", 0.82, num_collapsed=1),
        arm("scratch", 0.77, num_collapsed=2),
        arm("frozen", 0.5, num_collapsed=3),
    ]
    tests = [paired("scratch", 0.05), paired("frozen", 0.32)]
    assert judge(arms, tests)[1].endswith(
        "(77.0 %). Failed runs are included: 1 of 3 runs of pretrained, "
        "2 of 3 runs of scratch collapsed."
    )


@pytest.mark.parametrize(
    ("low", "high", "p", "p_holm", "is_significant"),
    [
        (0.01, 0.05, 0.04, None, True),
        (-0.05, -0.01, 0.04, None, True),
        (0.01, 0.05, 0.06, None, False),
        (-0.01, 0.05, 0.04, None, False),
        (0.01, 0.05, 0.001, 0.06, False),
        (0.01, 0.05, 0.001, 0.04, True),
    ],
)
def test_gap_counts_when_test_and_interval_agree(
    low: float, high: float, p: float, p_holm: float | None, is_significant: bool
) -> None:
    difference = Interval((low + high) / 2, low, high)
    test = PairedTest(
        "pretrained", "scratch", difference, p_permutation=p, p_mcnemar=1.0, p_holm=p_holm
    )
    assert test.is_significant == is_significant
