"""From answers to the numbers of a report."""

import dataclasses

import numpy as np
from test_verdict import arm

from regraft.arms import Cell
from regraft.evidence import CurvePoint
from regraft.metrics import Interval
from regraft.summaries import (
    Exam,
    SeedRun,
    arm_summary,
    curve_point,
    doubts,
    mistakes,
    paired_tests,
    split,
    split_warnings,
    warnings,
)
from regraft.text import Example, Labels

LABELS = Labels(("bad", "good"))
CHANCES_NC = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.3, 0.7]])


def run(chances_NC: np.ndarray = CHANCES_NC, *, seed: int = 0, **chosen: float) -> SeedRun:
    cell = Cell("pretrained", 8, seed)
    return SeedRun(cell, (0.5, 0.75), 2.0, dict(chosen), chances_NC, chances_NC)


def exam(*labels: str) -> Exam:
    examples = [
        Example(text, label, "test.csv", row)
        for row, (text, label) in enumerate(zip("abcd", labels, strict=True), start=2)
    ]
    targets_N = LABELS.targets(examples)
    return Exam(examples, LABELS, targets_N, targets_N, np.array([True, True, False, True]))


ALL_BAD = exam("bad", "bad", "bad", "bad")
HALF = exam("bad", "bad", "good", "good")


def test_mistakes_are_the_most_confident_ones() -> None:
    found = mistakes([run(), run(seed=1)], exam=ALL_BAD)
    assert [dataclasses.astuple(mistake) for mistake in found] == [
        ("c", "bad", "good", 0.8),
        ("d", "bad", "good", 0.7),
        ("b", "bad", "good", 0.6),
    ]


def test_summary_takes_every_number_from_the_answers() -> None:
    found = arm_summary("pretrained", [run(rate=1.0), run(seed=1)], exam=HALF, description="it")
    assert (found.name, found.description, found.num_seeds) == ("pretrained", "it", 2)
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


def test_tests_set_the_first_arm_against_every_other() -> None:
    generator = np.random.default_rng(0)
    ours_SN, theirs_SN = generator.random((5, 300)) < 0.9, generator.random((5, 300)) < 0.6
    found = paired_tests({"pretrained": ours_SN, "scratch": theirs_SN, "linear": ours_SN})
    assert [(test.first, test.second) for test in found] == [
        ("pretrained", "scratch"),
        ("pretrained", "linear"),
    ]
    assert [test.is_significant for test in found] == [True, False]
    assert found[0].p_holm is not None
    assert found[0].p_holm >= found[0].p_permutation


def test_warnings_name_what_weakens_a_result() -> None:
    fine, collapsed = arm("linear", 0.8), arm("scratch", 0.5, num_collapsed=2)
    assert warnings([fine, collapsed], [], seeds=3, num_leaks=0) == (
        "2 of 3 runs of the scratch arm collapsed: they predict one class almost always.",
    )
    assert warnings([fine], [], seeds=1, num_leaks=0) == (
        "One seed: intervals cover the test examples only, not the luck of a training run.",
    )
    assert warnings([fine], [], seeds=2, num_leaks=0) == ()
    half = Interval(0.5, 0.5, 0.5)
    curve = [CurvePoint("scratch", size, 3, half, half, 1.0, 1) for size in (8, 16)]
    assert warnings([fine], curve, seeds=2, num_leaks=0) == (
        "1 of 3 runs with fewer labels collapsed; the label curve counts them as they are.",
    )


def test_split_counts_classes_and_contradictions() -> None:
    rows = [("a", "bad"), ("a ", "good"), ("b", "bad"), ("b", "bad")]
    examples = [Example(text, label, "train.csv", 1) for text, label in rows]
    found = split("train", examples, labels=LABELS, cut_share=0.5)
    assert (found.num_examples, found.counts) == (4, {"bad": 3, "good": 1})
    assert found.num_contradictions == 1
    assert split_warnings([found]) == (
        "1 texts of train bear contradicting labels: no model can be right on all of them.",
    )
    missing = split("valid", examples[2:], labels=LABELS, cut_share=0)
    assert split_warnings([missing]) == (
        "valid has no example of 'good': there is none to choose by.",
    )
