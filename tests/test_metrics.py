"""Metrics against numbers worked out by hand, against scikit-learn and against theory."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from regraft import metrics, statistics

TARGETS = np.array([0, 0, 1, 1, 2, 2, 2])
PREDICTIONS = np.array([0, 1, 1, 1, 2, 0, 2])


def answers(share: float, *, num_seeds: int, num_examples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((num_seeds, num_examples)) < share


def test_accuracy_counts_hits():
    assert metrics.accuracy(PREDICTIONS, TARGETS) == pytest.approx(5 / 7)


def test_accuracy_of_nothing_is_refused():
    nothing = np.array([], dtype=np.int64)
    with pytest.raises(ValueError, match="at least one example"):
        metrics.accuracy(nothing, nothing)


def test_confusion_has_targets_in_rows():
    counts = metrics.confusion(PREDICTIONS, TARGETS, num_classes=3)
    assert counts.tolist() == [[1, 1, 0], [0, 2, 0], [1, 0, 2]]


def test_macro_f1_equals_scikit_learn():
    from sklearn.metrics import f1_score

    ours = metrics.macro_f1(PREDICTIONS, TARGETS, num_classes=3)
    assert ours == pytest.approx(f1_score(TARGETS, PREDICTIONS, average="macro"))


def test_macro_f1_leaves_out_a_class_nobody_names():
    with_absent = metrics.macro_f1(PREDICTIONS, TARGETS, num_classes=5)
    assert with_absent == metrics.macro_f1(PREDICTIONS, TARGETS, num_classes=3)


def test_calibration_error_is_zero_when_confidence_is_accuracy():
    probabilities = np.tile([0.75, 0.25], (8, 1))
    targets = np.array([0, 0, 0, 1] * 2)
    error = metrics.expected_calibration_error(probabilities, targets, num_bins=15)
    assert error == pytest.approx(0)


def test_calibration_error_is_the_gap_of_an_overconfident_model():
    probabilities = np.tile([1.0, 0.0], (10, 1))
    targets = np.array([0] * 6 + [1] * 4)
    assert metrics.expected_calibration_error(probabilities, targets) == pytest.approx(0.4)


def test_cross_entropy_of_a_coin_is_log_two():
    assert metrics.cross_entropy(np.full((3, 2), 0.5), np.array([0, 1, 1])) == pytest.approx(
        math.log(2)
    )


def test_cross_entropy_stays_finite_at_probability_zero():
    loss = metrics.cross_entropy(np.array([[0.0, 1.0]]), np.array([0]))
    assert 100 < loss < math.inf


def test_unigram_entropy_of_even_counts_is_log_of_their_number():
    assert metrics.unigram_entropy(np.array([7, 7, 0, 7, 7])) == pytest.approx(math.log(4))


def test_bits_per_byte_of_one_token_a_byte():
    assert metrics.bits_per_byte(math.log(256), num_tokens=5, num_bytes=5) == pytest.approx(8)


def test_collapsed_run_answers_one_class():
    assert metrics.is_collapsed(np.array([1] * 199 + [0]), num_classes=2)
    assert not metrics.is_collapsed(np.array([1] * 97 + [0] * 3), num_classes=2)


def test_accuracy_interval_of_one_seed_agrees_with_the_binomial():
    correct = answers(0.8, num_seeds=1, num_examples=1000, seed=1)
    interval = metrics.accuracy_interval(correct)
    expected = binom(1000, correct.mean()).ppf([0.025, 0.975]) / 1000
    assert interval.mean == correct.mean()
    assert [interval.low, interval.high] == pytest.approx(expected.tolist(), abs=0.004)


def test_accuracy_interval_widens_when_seeds_disagree():
    half = np.arange(400) % 2 == 0
    agreeing = np.stack([half] * 4)
    disagreeing = np.stack([np.ones(400, bool), np.ones(400, bool), ~half & half, ~half & half])
    assert agreeing.mean() == disagreeing.mean()
    narrow, wide = metrics.accuracy_interval(agreeing), metrics.accuracy_interval(disagreeing)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_intervals_repeat_with_their_seed():
    correct = answers(0.7, num_seeds=3, num_examples=50, seed=2)
    assert metrics.accuracy_interval(correct, seed=5) == metrics.accuracy_interval(correct, seed=5)


def test_intervals_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch):
    correct = answers(0.7, num_seeds=1, num_examples=60, seed=3)
    whole = metrics.accuracy_interval(correct)
    monkeypatch.setattr(statistics, "_BLOCK_NUMBERS", 700)
    assert metrics.accuracy_interval(correct).low == pytest.approx(whole.low, abs=0.02)


def test_difference_interval_is_paired_by_example():
    one = answers(0.5, num_seeds=1, num_examples=500, seed=4)
    better = one.copy()
    better[0, np.flatnonzero(~one[0])[:10]] = True
    interval = metrics.difference_interval(better, one)
    assert interval.mean == pytest.approx(0.02)
    assert 0 < interval.low < 0.02 < interval.high < 0.05


def test_difference_interval_takes_arms_of_different_seeds():
    many = answers(0.9, num_seeds=4, num_examples=300, seed=5)
    single = answers(0.6, num_seeds=1, num_examples=300, seed=6)
    interval = metrics.difference_interval(many, single)
    assert interval.mean == pytest.approx(many.mean() - single.mean())
    assert interval.low > 0


def test_permutation_test_finds_a_real_difference_and_is_symmetric():
    many = answers(0.9, num_seeds=4, num_examples=300, seed=5)
    single = answers(0.6, num_seeds=1, num_examples=300, seed=6)
    p = metrics.paired_permutation_test(many, single, num_resamples=2000)
    assert p == pytest.approx(1 / 2001)
    assert metrics.paired_permutation_test(single, many, num_resamples=2000) == p


def test_permutation_test_of_equal_arms_is_one():
    arm = answers(0.7, num_seeds=2, num_examples=30, seed=7)
    assert metrics.paired_permutation_test(arm, arm) == 1.0


def test_permutation_test_keeps_its_level_when_nothing_differs():
    ps = [
        metrics.paired_permutation_test(
            answers(0.7, num_seeds=1, num_examples=80, seed=2 * trial),
            answers(0.7, num_seeds=1, num_examples=80, seed=2 * trial + 1),
            num_resamples=300,
        )
        for trial in range(200)
    ]
    assert np.mean(np.array(ps) < 0.05) < 0.10


def test_mcnemar_is_the_exact_binomial():
    first = np.array([True] * 9 + [False] * 1 + [True] * 20)
    second = np.array([False] * 9 + [True] * 1 + [True] * 20)
    assert metrics.mcnemar_test(first, second) == pytest.approx(22 / 1024)


def test_mcnemar_agrees_with_the_permutation_test_on_single_runs():
    first = answers(0.75, num_seeds=1, num_examples=200, seed=8)
    second = answers(0.68, num_seeds=1, num_examples=200, seed=9)
    by_permutation = metrics.paired_permutation_test(first, second)
    assert metrics.mcnemar_test(first[0], second[0]) == pytest.approx(by_permutation, abs=0.02)


def test_mcnemar_of_equal_runs_is_one():
    run = np.array([True, False, True])
    assert metrics.mcnemar_test(run, run) == 1.0
