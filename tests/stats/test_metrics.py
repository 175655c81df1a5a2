"""Metrics against numbers worked out by hand, against scikit-learn and against theory."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from regraft.stats import metrics
from regraft.stats.significance import score_interval

TARGETS = np.array([0, 0, 1, 1, 2, 2, 2])
PREDICTIONS = np.array([0, 1, 1, 1, 2, 0, 2])


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
    half = np.arange(200) % 2
    assert metrics.is_collapsed(np.array([1] * 199 + [0]), half)
    assert not metrics.is_collapsed(np.array([1] * 194 + [0] * 6), half)


def test_run_is_not_collapsed_where_the_labels_are_nearly_one_class():
    rare = np.array([1] * 199 + [0])
    assert not metrics.is_collapsed(rare, rare)
    assert metrics.is_collapsed(np.ones(200, int), rare)
    assert metrics.is_collapsed(np.zeros(200, int), rare)
    # All labels are of one class: nothing else could be answered.
    assert not metrics.is_collapsed(np.ones(200, int), np.ones(200, int))


def test_accuracy_interval_is_that_of_right_answers():
    correct = np.random.default_rng(1).random((3, 90)) < 0.8
    assert metrics.accuracy_interval(correct, seed=4) == score_interval(correct, seed=4)


def predicted(*, num_seeds: int, num_examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, the last one rare; seeds are right in about 70 % of cases."""
    generator = np.random.default_rng(seed)
    targets = generator.choice(3, size=num_examples, p=[0.6, 0.3, 0.1])
    guesses = generator.choice(3, size=(num_seeds, num_examples))
    is_right = generator.random((num_seeds, num_examples)) < 0.55
    return np.where(is_right, targets, guesses), targets


def test_macro_f1_shares_have_the_score_as_their_mean():
    predictions, targets = predicted(num_seeds=4, num_examples=50, seed=3)
    shares = metrics.macro_f1_shares(predictions, targets, num_classes=5)
    expected = [metrics.macro_f1(row, targets, num_classes=5) for row in predictions]
    np.testing.assert_allclose(shares.mean(axis=1), expected)


def test_macro_f1_shares_are_the_slopes_of_the_score():
    from sklearn.metrics import f1_score

    predictions, targets = predicted(num_seeds=1, num_examples=40, seed=4)
    shares = metrics.macro_f1_shares(predictions, targets, num_classes=3)
    scores, tiny = [], 1e-6
    for row in range(40):
        weights = np.ones(40)
        weights[row] += tiny
        scores.append(f1_score(targets, predictions[0], average="macro", sample_weight=weights))
    base = f1_score(targets, predictions[0], average="macro")
    np.testing.assert_allclose(shares[0] - base, 40 * (np.array(scores) - base) / tiny, atol=1e-3)


def test_macro_f1_interval_is_about_that_of_resampled_scores():
    predictions, targets = predicted(num_seeds=1, num_examples=600, seed=5)
    interval = metrics.macro_f1_interval(predictions, targets, num_classes=3)
    generator = np.random.default_rng(6)
    rows = generator.integers(0, 600, size=(500, 600))
    scores = [metrics.macro_f1(predictions[0, r], targets[r], num_classes=3) for r in rows]
    assert interval.mean == pytest.approx(metrics.macro_f1(predictions[0], targets, num_classes=3))
    expected = np.quantile(scores, [0.025, 0.975]).tolist()
    assert [interval.low, interval.high] == pytest.approx(expected, abs=0.01)


def test_macro_f1_of_seeds_that_disagree_has_a_wider_interval():
    predictions, targets = predicted(num_seeds=3, num_examples=300, seed=7)
    same = np.stack([predictions[0]] * 3)
    worse = np.stack([predictions[0], np.zeros(300, int), targets])
    narrow = metrics.macro_f1_interval(same, targets, num_classes=3)
    wide = metrics.macro_f1_interval(worse, targets, num_classes=3)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_accuracy_by_length_has_bins_of_about_as_many_examples():
    lengths = np.arange(1, 11)
    correct = np.array([[True] * 5 + [False] * 5, [True] * 10])
    bins = metrics.accuracy_by_length(correct, lengths, num_bins=2)
    assert bins == (
        metrics.LengthBin(low=1, high=5, count=5, accuracy=1.0),
        metrics.LengthBin(low=6, high=10, count=5, accuracy=0.5),
    )


def test_accuracy_by_length_of_equal_lengths_is_one_bin():
    correct = np.array([[True, False, True, True]])
    bins = metrics.accuracy_by_length(correct, np.full(4, 7))
    assert bins == (metrics.LengthBin(low=7, high=7, count=4, accuracy=0.75),)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 8))
def test_accuracy_by_length_tells_every_example_once(lengths: list[int], num_bins: int):
    correct = np.random.default_rng(0).random((2, len(lengths))) < 0.5
    bins = metrics.accuracy_by_length(correct, np.array(lengths), num_bins=num_bins)
    assert sum(b.count for b in bins) == len(lengths)
    assert len(bins) <= num_bins
    assert all(left.high < right.low for left, right in itertools.pairwise(bins))
    weighted = sum(b.count * b.accuracy for b in bins) / len(lengths)
    assert weighted == pytest.approx(correct.mean())


def test_label_doubts_are_contradicted_by_every_run_with_confidence():
    targets = np.array([0, 0, 0, 0, 1, 1, 1])
    run = np.array(
        [
            [0.9, 0.1],
            [0.8, 0.2],
            [0.1, 0.9],  # contradicted by both, surely
            [0.4, 0.6],  # contradicted, but less surely than is usual
            [0.2, 0.8],
            [0.3, 0.7],
            [0.03, 0.97],
        ]
    )
    other = run.copy()
    other[2] = [0.15, 0.85]
    assert metrics.label_doubts(np.stack([run, other]), targets).tolist() == [2]
    other[2] = [0.6, 0.4]
    assert metrics.label_doubts(np.stack([run, other]), targets).tolist() == []


def test_label_doubts_come_surest_first_and_name_one_class():
    targets = np.array([0, 0, 0, 0, 0, 1, 1, 2, 2])
    chances = np.full((9, 3), 0.1)
    sure_of = [0, 0, 1, 1, 2, 1, 1, 2, 2]
    chances[np.arange(9), sure_of] = 0.8
    chances[3] = [0.02, 0.96, 0.02]
    assert metrics.label_doubts(chances[None], targets).tolist() == [3, 2, 4]
    disagreeing = chances.copy()
    disagreeing[2] = [0.1, 0.1, 0.8]
    both = np.stack([chances, disagreeing])
    assert metrics.label_doubts(both, targets).tolist() == [3, 4]


def test_label_doubts_do_not_name_a_class_without_examples():
    chances = np.array([[[0.1, 0.9], [0.8, 0.2]]])
    assert metrics.label_doubts(chances, np.array([0, 0])).tolist() == []


def random_sets(num_examples: int = 60, num_labels: int = 4, *, seed: int = 0):
    generator = np.random.default_rng(seed)
    targets_NC = (generator.random((num_examples, num_labels)) < 0.4).astype(np.int64)
    noise_NC = generator.random((num_examples, num_labels))
    return 0.4 * targets_NC + 0.6 * noise_NC, targets_NC


def test_shares_of_label_sets_average_to_f1():
    probabilities_NC, targets_NC = random_sets()
    predicted_NC = probabilities_NC >= 0.5
    micro, macro = (
        f1_score(targets_NC, predicted_NC, average=average) for average in ("micro", "macro")
    )
    assert metrics.micro_f1_shares(predicted_NC, targets_NC).mean() == pytest.approx(micro)
    assert metrics.mean_f1_shares(predicted_NC, targets_NC).mean() == pytest.approx(macro)


def test_share_of_an_example_is_what_its_weight_changes():
    probabilities_NC, targets_NC = random_sets(400)
    predicted_NC = probabilities_NC >= 0.5
    for shares_of in (metrics.micro_f1_shares, metrics.mean_f1_shares):
        shares_N = shares_of(predicted_NC, targets_NC)
        without = shares_of(predicted_NC[1:], targets_NC[1:]).mean()
        change = (shares_N[0] - shares_N.mean()) / len(shares_N)
        assert shares_N.mean() - without == pytest.approx(change, abs=3e-5)


def test_nothing_said_where_nothing_is_to_say_is_right():
    nothing_NC, none_NC = np.zeros((5, 3), dtype=bool), np.zeros((5, 3), dtype=np.int64)
    assert metrics.micro_f1_shares(nothing_NC, none_NC).mean() == 1
    assert metrics.mean_f1_shares(nothing_NC, none_NC).mean() == 1


def test_best_micro_f1_is_the_best_of_all_thresholds():
    probabilities_NC, targets_NC = random_sets()
    tried = [
        f1_score(targets_NC, probabilities_NC >= threshold, average="micro")
        for threshold in np.unique(probabilities_NC)
    ]
    assert metrics.best_micro_f1(probabilities_NC, targets_NC) == pytest.approx(max(tried))
    # Equal probabilities cannot be told apart by any threshold.
    even_NC = np.full((4, 2), 0.3)
    targets_NC = np.array([[1, 0], [1, 0], [1, 0], [0, 0]])
    assert metrics.best_micro_f1(even_NC, targets_NC) == pytest.approx(2 * 3 / (8 + 3))


def test_thresholds_are_the_best_of_each_label_or_one_half():
    probabilities_NC, targets_NC = random_sets(80)
    targets_NC[:, 3] = 0
    targets_NC[:9, 3] = 1  # too few to choose by
    thresholds_C = metrics.f1_thresholds(probabilities_NC, targets_NC)
    assert thresholds_C[3] == 0.5
    for label in range(3):
        chances_N, truth_N = probabilities_NC[:, label], targets_NC[:, label]
        best = max(f1_score(truth_N, chances_N >= threshold) for threshold in chances_N)
        assert f1_score(truth_N, chances_N >= thresholds_C[label]) == pytest.approx(best)


def test_common_threshold_has_the_best_micro_f1():
    chances_NC = np.random.default_rng(3).uniform(size=(30, 4))
    targets_NC = (np.random.default_rng(4).uniform(size=(30, 4)) < chances_NC).astype(np.int64)
    threshold = metrics.common_threshold(chances_NC, targets_NC)
    found = metrics.micro_f1_shares(chances_NC >= threshold, targets_NC).mean()
    assert found == pytest.approx(metrics.best_micro_f1(chances_NC, targets_NC))
