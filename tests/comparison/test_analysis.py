"""From predictions to the numbers of a report."""

import dataclasses

import numpy as np
import pytest
from comparisons import arm, info

from regraft.comparison.analysis import (
    Exam,
    SeedRun,
    arm_summary,
    curve_point,
    doubting_arms,
    doubts,
    mistakes,
    paired_tests,
    split,
)
from regraft.comparison.caveats import run_caveats, split_caveats
from regraft.comparison.plan import Cell
from regraft.comparison.results import ArmSummary, CurvePoint, PairedTest
from regraft.data.text.records import Example, Labels
from regraft.stats.significance import Interval

LABELS = Labels(("bad", "good"))
CHANCES_NC = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.3, 0.7]])


def run(chances_NC: np.ndarray = CHANCES_NC, *, seed: int = 0, **chosen: float) -> SeedRun:
    cell = Cell("pretrained", 8, seed)
    return SeedRun(cell, (0.5, 0.75), 2.0, dict(chosen), chances_NC, chances_NC, HALF.targets_N)


def exam(*labels: str) -> Exam:
    examples = [
        Example(text, label, "test.csv", row)
        for row, (text, label) in enumerate(zip("abcd", labels, strict=True), start=2)
    ]
    targets_N = LABELS.targets(examples)
    return Exam(examples, LABELS, targets_N, np.array([True, True, False, True]))


def summary(name: str, mean: float, *, num_collapsed: int = 0) -> ArmSummary:
    score = Interval(mean, mean - 0.02, mean + 0.02)
    made = arm(name, curves=((mean,),) * 3, test=mean)
    return dataclasses.replace(made, valid_accuracy=score, num_collapsed=num_collapsed)


ALL_BAD = exam("bad", "bad", "bad", "bad")
HALF = exam("bad", "bad", "good", "good")


def test_mistakes_are_the_most_confident_ones() -> None:
    found = mistakes([run(), run(seed=1)], exam=ALL_BAD)
    assert [dataclasses.astuple(mistake) for mistake in found] == [
        ("c", "bad", "good", 0.8, 4),
        ("d", "bad", "good", 0.7, 5),
        ("b", "bad", "good", 0.6, 3),
    ]


def test_valid_score_of_what_knows_no_epochs_is_its_own() -> None:
    """A blend that chose its weights on valid would look better on its examples."""
    blend = dataclasses.replace(run(), valid_accuracy=(0.5,))
    assert (blend.final_accuracy, run().final_accuracy) == (0.5, 0.75)


def test_summary_takes_every_number_from_the_answers() -> None:
    found = arm_summary(info("pretrained"), [run(rate=1.0), run(seed=1)], exam=HALF)
    assert (found.name, found.role, found.num_seeds) == ("pretrained", "base", 2)
    assert found.test_accuracy.mean == 0.75
    assert found.test_accuracy_without_leaks is not None
    assert found.test_accuracy_without_leaks.mean == 2 / 3
    assert found.valid_accuracy == Interval(0.75, 0.75, 0.75)
    assert found.confusion == [[2, 2], [0, 4]]
    assert found.seconds == 2.0
    assert found.chosen == ({"rate": 1.0},)
    assert sum(each.count for each in found.reliability) == 8
    assert sum(each.count for each in found.by_length) == 4
    assert found.temperature is not None
    assert found.calibrated_error is not None


def test_curve_point_is_one_arm_with_one_number_of_labels() -> None:
    point = curve_point("linear", [run()], exam=HALF, num_labels=8)
    assert (point.arm, point.num_labels, point.num_seeds) == ("linear", 8, 1)
    assert point.accuracy.mean == 0.75
    assert point.macro_f1.low <= point.macro_f1.mean <= point.macro_f1.high


def test_doubts_are_what_all_runs_contradict() -> None:
    sure_NC = np.array([[0.9, 0.1], [0.05, 0.95], [0.2, 0.8], [0.3, 0.7]])
    found = doubts([run(sure_NC), run(sure_NC, seed=1)], exam=HALF)
    assert [(doubt.row, doubt.label, doubt.predicted) for doubt in found] == [(3, "bad", "good")]
    assert found[0].num_runs == 2


def test_doubts_come_from_the_two_arms_that_are_best_on_valid() -> None:
    arms = [
        summary("pretrained", 0.7),
        summary("scratch", 0.6),
        summary("linear", 0.8),
        summary("nbsvm", 0.79),
    ]
    assert doubting_arms(arms) == ("linear", "nbsvm")
    assert doubting_arms(arms[:1]) == ("pretrained",)
    sure_NC = np.array([[0.9, 0.1], [0.05, 0.95], [0.2, 0.8], [0.3, 0.7]])
    other = dataclasses.replace(run(sure_NC), cell=Cell("linear", 8, 0))
    found = doubts([run(sure_NC), run(sure_NC, seed=1), other], exam=HALF)
    assert (found[0].arms, found[0].num_runs) == (("pretrained", "linear"), 3)


def paired(arms: dict[str, np.ndarray], **more: object) -> tuple[PairedTest, ...]:
    return paired_tests({info(name): right_SN for name, right_SN in arms.items()}, **more)


def right(share: float, *, num_seeds: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((num_seeds, 300)) < share


def test_tests_set_the_first_arm_against_every_other() -> None:
    ours_SN, theirs_SN = right(0.9), right(0.6, seed=1)
    arms = {"pretrained": ours_SN, "scratch": theirs_SN, "linear": ours_SN}
    found = paired(arms, is_whole=True)
    assert [(test.first, test.second) for test in found] == [
        ("pretrained", "scratch"),
        ("pretrained", "linear"),
    ]
    assert [test.is_significant for test in found] == [True, False]
    for test in found:
        assert test.p_difference is not None
        assert test.p_holm is not None
        assert test.p_holm >= test.p_difference
        assert not test.is_of_runs


def test_tests_hold_every_use_of_a_base_against_every_rival() -> None:
    names = ("pretrained", "scratch", "frozen", "embedding:bag", "linear", "cnn")
    arms = {name: right(0.7, seed=seed) for seed, name in enumerate(names)}
    found = {(test.first, test.second): test for test in paired(arms, is_whole=True)}
    uses = ("pretrained", "frozen", "embedding:bag")
    asked = {("pretrained", "scratch"), *((use, r) for use in uses for r in ("linear", "cnn"))}
    assert {pair for pair, test in found.items() if test.p_holm is not None} == asked
    # Uses of a base among each other answer no question of the verdict.
    assert found.keys() - asked == {("pretrained", "frozen"), ("pretrained", "embedding:bag")}
    assert all(found[pair].corrected is None for pair in found.keys() - asked)


def test_corrected_interval_leaves_out_zero_exactly_if_the_gap_counts() -> None:
    for seed in range(40):
        shares = np.random.default_rng(seed).uniform(0.7, 0.85, size=5)
        names = ("pretrained", "scratch", "embedding", "linear", "nbsvm")
        arms = {
            name: right(share, num_seeds=3, seed=seed + place)
            for place, (name, share) in enumerate(zip(names, shares, strict=True))
        }
        for test in paired(arms, is_whole=True, num_resamples=10):
            if test.corrected is not None:
                leaves_out_zero = test.corrected.low > 0 or test.corrected.high < 0
                assert test.is_significant == leaves_out_zero == (test.p < 0.05)
                assert test.corrected.low <= test.difference.low
                assert test.difference.high <= test.corrected.high


def test_beating_every_rival_costs_nothing_for_their_number() -> None:
    strong, weak = right(0.9), right(0.7, seed=1)
    rivals = dict.fromkeys(("linear", "nbsvm", "latent", "cnn"), weak)
    alone, *_ = paired({"pretrained": strong, "linear": weak}, is_whole=True)
    among = paired({"pretrained": strong, **rivals}, is_whole=True)
    assert {test.p_holm for test in among} == {alone.p_holm}
    # To lose to one of four must be shown four times as clearly.
    lost, *_ = paired({"pretrained": weak, "linear": strong}, is_whole=True)
    mixed, *_ = paired({"pretrained": weak, **rivals, "linear": strong}, is_whole=True)
    assert mixed.p_holm == pytest.approx(4 * lost.p_holm)


@pytest.mark.parametrize(
    ("first", "second", "is_whole", "is_of_runs"),
    [
        ("embedding", "linear", True, False),
        ("embedding", "lstm", True, True),
        ("pretrained", "linear", True, True),
        # The labels were drawn by the one seed.
        ("embedding", "linear", False, True),
    ],
)
def test_single_run_whose_luck_is_not_seen_is_no_method(
    first: str, second: str, is_whole: bool, is_of_runs: bool
) -> None:
    arms = {first: right(0.9, num_seeds=1), second: right(0.7, num_seeds=1, seed=1)}
    (test,) = paired(arms, is_whole=is_whole)
    assert test.is_of_runs == is_of_runs
    assert (test.p_difference is None) == is_of_runs


def test_arms_without_a_base_are_held_against_the_first() -> None:
    arms = {"linear": right(0.9), "nbsvm": right(0.7, seed=1), "cnn": right(0.8, seed=2)}
    found = paired(arms, is_whole=True)
    assert [(test.first, test.second) for test in found] == [("linear", "nbsvm"), ("linear", "cnn")]
    assert all(test.p_holm is not None for test in found)


def test_caveats_name_what_weakens_a_result() -> None:
    fine, collapsed = summary("linear", 0.8), summary("scratch", 0.5, num_collapsed=2)
    (caveat,) = run_caveats([fine, collapsed], [], num_seeds=3)
    assert "2 of 3 runs of the scratch arm collapsed" in caveat
    (caveat,) = run_caveats([fine], [], num_seeds=1)
    assert caveat.startswith("One seed: ")
    assert run_caveats([fine], [], num_seeds=2) == []
    half = Interval(0.5, 0.5, 0.5)
    curve = [CurvePoint("scratch", size, 3, half, half, 1.0, 1) for size in (8, 16)]
    (caveat,) = run_caveats([fine], curve, num_seeds=2)
    assert "1 of 3 runs with fewer labels collapsed" in caveat


def test_split_counts_classes_and_contradictions() -> None:
    rows = [("a", "bad"), ("a ", "good"), ("b", "bad"), ("b", "bad")]
    examples = [Example(text, label, "train.csv", 1) for text, label in rows]
    found = split("train", examples, labels=LABELS, cut_share=0.5)
    assert (found.num_examples, found.counts) == (4, {"bad": 3, "good": 1})
    assert found.num_contradictions == 1
    (caveat,) = split_caveats([found])
    assert "1 texts of train have contradicting labels" in caveat
    missing = split("valid", examples[2:], labels=LABELS, cut_share=0)
    (caveat,) = split_caveats([missing])
    assert caveat.startswith("valid has no example of 'good'")
