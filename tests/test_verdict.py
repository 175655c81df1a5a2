"""The verdict: what follows from the paired tests, in the words that people read."""

import dataclasses

import pytest

from regraft.evidence import ArmSummary, PairedTest, VerdictKind
from regraft.metrics import Interval
from regraft.presets import ARMS
from regraft.verdict import judge


def arm(name: str, mean: float, *, num_seeds: int = 3, num_collapsed: int = 0) -> ArmSummary:
    score = Interval(mean, mean - 0.02, mean + 0.02)
    return ArmSummary(
        name=name,
        description=ARMS[name.partition(":")[0]],
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


HELPED = "Pre-training helped: 82.0% against 77.0% from scratch, +5.0 points [+3.0, +7.0]"


@pytest.mark.parametrize(
    ("scratch", "linear", "kind", "verdict"),
    [
        (
            0.77,
            0.79,
            "pays",
            f"{HELPED}; it beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0]).",
        ),
        (
            0.77,
            0.81,
            "ties-with-linear",
            f"{HELPED}; it cannot be told apart from TF-IDF + logistic regression "
            "(81.0%, +1.0 points [-1.0, +3.0]).",
        ),
        (
            0.77,
            0.85,
            "loses-to-linear",
            f"{HELPED}; it loses to TF-IDF + logistic regression "
            "(85.0%, -3.0 points [-5.0, -1.0]).",
        ),
        (
            0.81,
            0.85,
            "no-gain",
            "No gain from pre-training was found: 82.0% against 81.0% from scratch, "
            "+1.0 points [-1.0, +3.0]; it loses to TF-IDF + logistic regression "
            "(85.0%, -3.0 points [-5.0, -1.0]).",
        ),
        (
            0.86,
            0.79,
            "hurts",
            "Pre-training hurt: 82.0% against 86.0% from scratch, -4.0 points [-6.0, -2.0]; "
            "it beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0]).",
        ),
        (
            0.86,
            0.81,
            "hurts",
            "Pre-training hurt: 82.0% against 86.0% from scratch, -4.0 points [-6.0, -2.0]; "
            "it cannot be told apart from TF-IDF + logistic regression "
            "(81.0%, +1.0 points [-1.0, +3.0]).",
        ),
    ],
)
def test_verdict_follows_from_the_paired_tests(
    scratch: float, linear: float, kind: VerdictKind, verdict: str
) -> None:
    assert judged({"scratch": scratch, "linear": linear}) == (kind, verdict)


def test_verdict_without_scratch_or_linear() -> None:
    assert judged({"scratch": 0.77}) == ("pays", f"{HELPED}.")
    assert judged({"linear": 0.85}) == (
        "loses-to-linear",
        "The pre-trained model reaches 82.0%; it loses to TF-IDF + logistic regression "
        "(85.0%, -3.0 points [-5.0, -1.0]).",
    )


@pytest.mark.parametrize(
    ("name", "reaches"),
    [
        ("frozen", "The untouched base with a trained head reaches 82.0%"),
        ("embedding:news", "Vectors of the untouched base + logistic regression reach 82.0%"),
    ],
)
def test_verdict_on_a_base_that_is_not_fine_tuned(name: str, reaches: str) -> None:
    # Against scratch it differs in more than its weights: that says nothing of pre-training.
    others = {"linear": 0.78, "scratch": 0.7}
    arms = [arm(name, 0.82), *(arm(other, score) for other, score in others.items())]
    tests = [paired(other, 0.82 - score, first=name) for other, score in others.items()]
    assert judge(arms, tests) == (
        "pays",
        f"{reaches}; it beats TF-IDF + logistic regression (78.0%, +4.0 points [+2.0, +6.0]).",
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
        "The base was compared neither with scratch nor with a linear model, "
        "so there is no verdict.",
    )


def test_verdict_needs_a_base() -> None:
    tests = [paired("linear", 0.1, first="scratch")]
    assert judge([arm("scratch", 0.9), arm("linear", 0.8)], tests)[0] == "no-base"
    assert judge([arm("scratch", 0.9)], [])[0] == "no-base"


@pytest.mark.parametrize(
    ("others", "kind", "told"),
    [
        # The one that wins counts, then the strongest that ties, then the strongest.
        (
            {"linear": 0.83, "nbsvm": 0.86, "cnn": 0.85},
            "loses-to-rival",
            "loses to NB-SVM (86.0%, -4.0 points [-6.0, -2.0])",
        ),
        (
            {"linear": 0.81, "latent": 0.83, "lstm": 0.7},
            "ties-with-rival",
            "cannot be told apart from TF-IDF + SVD + logistic regression "
            "(83.0%, -1.0 points [-3.0, +1.0])",
        ),
        (
            {"linear": 0.79, "cnn": 0.78},
            "pays",
            "beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0])",
        ),
        (
            {"cnn": 0.7, "lstm": 0.72, "frozen": 0.95, "embedding": 0.9},
            "pays",
            "beats the bidirectional LSTM (72.0%, +10.0 points [+8.0, +12.0])",
        ),
        ({"cnn": 0.7}, "pays", "beats the convolution (70.0%, +12.0 points [+10.0, +14.0])"),
    ],
)
def test_verdict_names_the_rival_that_the_base_does_worst_against(
    others: dict[str, float], kind: VerdictKind, told: str
) -> None:
    assert judged({"scratch": 0.77, **others}) == (kind, f"{HELPED}; it {told}.")


def test_verdict_of_a_loss_outweighs_a_stronger_tie() -> None:
    tests = [
        paired("linear", -0.03),
        dataclasses.replace(paired("cnn", -0.03), p_holm=0.2),
    ]
    arms = [arm("pretrained", 0.82), arm("linear", 0.85), arm("cnn", 0.851)]
    assert judge(arms, tests)[0] == "loses-to-linear"


def test_verdict_compares_bases() -> None:
    others = {"pretrained:news": 0.86, "scratch": 0.77, "scratch:news": 0.70, "linear": 0.79}
    kind, verdict = judged(others)
    assert kind == "pays"
    assert verdict == (
        f"{HELPED}; it beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0]); "
        "it loses to the base news (86.0%, -4.0 points [-6.0, -2.0])."
    )


def test_verdict_on_a_named_base_uses_its_own_scratch() -> None:
    arms = [arm("pretrained:news", 0.82), arm("scratch", 0.9), arm("scratch:news", 0.77)]
    tests = [
        paired("scratch", -0.08, first="pretrained:news"),
        paired("scratch:news", 0.05, first="pretrained:news"),
    ]
    assert judge(arms, tests) == ("pays", f"{HELPED}.")


def test_verdict_of_one_seed_claims_nothing_of_pre_training() -> None:
    warning = "One seed cannot tell pre-training from the luck of a run: repeat it with three or"
    kind, verdict = judged({"scratch": 0.77, "linear": 0.79}, num_seeds=1)
    assert kind == "one-seed"
    assert verdict == (
        "The pre-trained run is better: 82.0% against 77.0% from scratch, +5.0 points "
        "[+3.0, +7.0]; it beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0]). "
        f"{warning} more."
    )
    assert judged({"scratch": 0.81}, num_seeds=1)[1].startswith("The two runs cannot be told apart")
    assert judged({"scratch": 0.9}, num_seeds=1)[1].startswith("The pre-trained run is worse: ")


def test_verdict_says_which_gap_is_easily_missed() -> None:
    arms = [arm("pretrained", 0.82), arm("scratch", 0.81), arm("linear", 0.79)]
    tests = [
        dataclasses.replace(paired("scratch", 0.01), smallest_difference=0.0312),
        dataclasses.replace(paired("linear", 0.03), smallest_difference=0.05),
    ]
    # Only where nothing was found: what was found was not missed.
    assert judge(arms, tests)[1].endswith(
        ". With this test set and these seeds, a true gap of less than 3.1 points is easily missed."
    )
    assert "missed" not in judge(arms, tests[1:])[1]


def test_verdict_counts_collapsed_runs_of_those_it_names() -> None:
    arms = [
        arm("pretrained", 0.82, num_collapsed=1),
        arm("scratch", 0.77, num_collapsed=2),
        arm("frozen", 0.5, num_collapsed=3),
    ]
    tests = [paired("scratch", 0.05), paired("frozen", 0.32)]
    assert judge(arms, tests)[1] == (
        f"{HELPED}. Failed trainings are counted in: 1 of 3 runs of pretrained, "
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
