"""Statistics against scipy, against numbers worked out by hand, and on arms of known truth."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, chi, nct, norm, t, ttest_1samp, ttest_ind
from simulated_arms import simulated_arms

from regraft import statistics
from regraft.evidence import PairedTest
from regraft.statistics import (
    difference_interval,
    difference_test,
    holm,
    mcnemar_test,
    paired_permutation_test,
    score_interval,
    seed_luck,
    smallest_difference,
)

NUM_COMPARISONS = 1_000
# So many of them may come out at 5 % before chance is no longer to blame (1 in 1,000).
MOST_FOUND = binom(NUM_COMPARISONS, 0.05).ppf(0.999)


def answers(share: float, *, num_seeds: int, num_examples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((num_seeds, num_examples)) < share


def is_found(a: np.ndarray, b: np.ndarray, *, seed: int) -> bool:
    """The rule of a comparison of two arms."""
    p_permutation = paired_permutation_test(a, b, seed=seed, num_resamples=200)
    p_difference = difference_test(a, b)
    test = PairedTest(
        "a",
        "b",
        difference_interval(a, b, seed=seed, num_resamples=200),
        p_permutation=p_permutation,
        p_mcnemar=1.0,
        p_difference=p_difference,
        p_holm=max(p_permutation, p_difference),
    )
    return test.is_significant


def count(
    rule: Callable[..., bool],
    *,
    gap: float = 0.0,
    num_seeds: tuple[int, int],
    luck_points: float,
    num_examples: int = 200,
    num_comparisons: int = NUM_COMPARISONS,
) -> int:
    return sum(
        rule(
            *simulated_arms(
                accuracies=(0.8 + gap / 2, 0.8 - gap / 2),
                num_seeds=num_seeds,
                num_examples=num_examples,
                luck_points=luck_points,
                seed=number,
            ),
            seed=number,
        )
        for number in range(num_comparisons)
    )


@pytest.mark.parametrize(
    ("num_seeds", "luck_points", "least"),
    [((1, 1), 0, 30), ((3, 3), 0, 10), ((3, 3), 3, 10), ((3, 1), 3, 20)],
)
def test_rule_keeps_its_level_with_and_without_luck_of_seeds(
    num_seeds: tuple[int, int], luck_points: float, least: int
):
    found = count(is_found, num_seeds=num_seeds, luck_points=luck_points)
    assert least <= found <= MOST_FOUND


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [500, 2_000])
@pytest.mark.parametrize("luck_points", [1, 5])
@pytest.mark.parametrize("num_seeds", [(2, 2), (2, 1), (3, 3), (5, 1), (5, 5)])
def test_rule_keeps_its_level_elsewhere(
    num_seeds: tuple[int, int], luck_points: float, num_examples: int
):
    found = count(is_found, num_seeds=num_seeds, luck_points=luck_points, num_examples=num_examples)
    assert found <= MOST_FOUND


def test_tests_on_examples_alone_take_luck_for_a_difference():
    def is_permutation_sure(a: np.ndarray, b: np.ndarray, *, seed: int) -> bool:
        return paired_permutation_test(a, b, seed=seed, num_resamples=200) < 0.05

    found = count(is_permutation_sure, num_seeds=(3, 3), luck_points=3, num_comparisons=300)
    assert found > 300 * 0.15


def test_intervals_cover_the_truth_though_seeds_are_few():
    covered = 0
    for number in range(NUM_COMPARISONS):
        (arm,) = simulated_arms(
            accuracies=(0.8,), num_seeds=(3,), num_examples=200, luck_points=3, seed=number
        )
        interval = score_interval(arm, seed=number, num_resamples=200)
        covered += interval.low <= 0.8 <= interval.high
    assert covered >= NUM_COMPARISONS - MOST_FOUND


@pytest.mark.parametrize(
    ("num_seeds", "luck_points"), [((1, 1), 0), ((3, 3), 0), ((3, 3), 2), ((3, 1), 2), ((5, 5), 2)]
)
def test_power_is_what_the_smallest_difference_promises(
    num_seeds: tuple[int, int], luck_points: float
):
    facts = {"num_seeds": num_seeds, "num_examples": 400, "luck_points": luck_points}
    gaps = [
        smallest_difference(*simulated_arms(accuracies=(0.8, 0.8), seed=number, **facts))
        for number in range(200)
    ]
    found = count(is_found, gap=float(np.mean(gaps)), num_comparisons=400, **facts)
    assert found / 400 == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("num_seeds", [3, 5, 12])
def test_smallest_difference_of_luck_alone_is_that_of_the_noncentral_t(num_seeds: int):
    # Seeds that are right by other shares, and the same on every example: nothing but luck.
    shares_S = np.linspace(-0.01, 0.01, num_seeds)
    arm = np.repeat(shares_S[:, None], 1_000, axis=1)
    freedom = num_seeds - 1
    needed = t.isf(0.025, freedom)
    shift = brentq(lambda shift: nct.sf(needed, freedom, shift) - 0.8, 0, 20)
    # The root of a variance of few is too small on average, by c4.
    c4 = chi.mean(freedom) / np.sqrt(freedom)
    deviation = shares_S.std(ddof=1) / np.sqrt(num_seeds) / c4
    found = smallest_difference(arm, np.zeros((1, 1_000)))
    assert found - 1 / (1_000 * num_seeds) == pytest.approx(shift * deviation, rel=0.01)


def test_smallest_difference_of_single_runs_is_connors():
    # 30 of 200 examples differ: 18 in favour of a.
    a, b = np.ones((1, 200), bool), np.ones((1, 200), bool)
    b[0, :18], a[0, 18:30] = False, False
    found = smallest_difference(a, b)
    discordant = 30 / 200
    # Connor's formula, with half a step of one example for continuity.
    gap = found - 1 / 200
    spread = norm.ppf(0.8) * np.sqrt(discordant - gap**2)
    assert gap == pytest.approx((norm.ppf(0.975) * np.sqrt(discordant) + spread) / np.sqrt(200))
    assert smallest_difference(a, b, num_tests=4) > found
    assert smallest_difference(b, a) == found


def test_smallest_difference_of_equal_runs_is_what_an_exact_test_needs():
    run = answers(0.7, num_seeds=1, num_examples=50, seed=1)
    assert smallest_difference(run, run) == 6 / 50
    assert smallest_difference(run[:, :3], ~run[:, :3]) == 1
    first, second = np.ones((1, 50), bool), np.ones((1, 50), bool)
    second[0, :6] = False
    assert mcnemar_test(first[0], second[0]) < 0.05
    second[0, 5] = True
    assert mcnemar_test(first[0], second[0]) > 0.05


def test_smallest_difference_shrinks_with_examples_and_grows_with_luck():
    def smallest(num_examples: int, luck_points: float) -> float:
        arms = simulated_arms(
            accuracies=(0.8, 0.8),
            num_seeds=(6, 6),
            num_examples=num_examples,
            luck_points=luck_points,
            seed=3,
        )
        return smallest_difference(*arms)

    assert smallest(2_000, 0) < smallest(200, 0)
    assert smallest(2_000, 0) < smallest(2_000, 3) < smallest(2_000, 9)


def test_luck_of_seeds_is_the_analysis_of_variance():
    scores = np.array([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    # Means of seeds 3/4, 1, 1/4: mean square 0.583; of what is left, worked out by hand, 0.139.
    between = 4 * np.var([0.75, 1.0, 0.25], ddof=1)
    left = scores - scores.mean(axis=0) - scores.mean(axis=1)[:, None] + scores.mean()
    within = np.square(left).sum() / 6
    assert (between, within) == pytest.approx((0.5833333, 0.1388889))
    luck = seed_luck(scores)
    assert luck.variance == pytest.approx((between - within) / 12)
    assert luck.freedom == pytest.approx(2)


def test_luck_of_single_runs_is_not_seen():
    run = answers(0.7, num_seeds=1, num_examples=60, seed=2)
    assert seed_luck(run).variance == 0
    assert seed_luck(run, run).reach(0.025) == 0
    many = np.repeat(np.eye(3), 20, axis=1) + np.arange(3)[:, None]
    assert seed_luck(many, run) == seed_luck(many)


def test_nothing_is_taken_off_the_luck_of_two_seeds():
    two = answers(0.7, num_seeds=2, num_examples=90, seed=4)
    assert seed_luck(two).variance == pytest.approx(np.var(two.mean(axis=1), ddof=1) / 2)


def test_difference_test_of_single_runs_is_students():
    a = answers(0.75, num_seeds=1, num_examples=200, seed=8)
    b = answers(0.68, num_seeds=1, num_examples=200, seed=9)
    expected = ttest_1samp(a[0].astype(float) - b[0], 0).pvalue
    assert difference_test(a, b) == pytest.approx(expected)
    assert difference_test(b, a) == pytest.approx(expected)


def test_difference_test_of_luck_alone_is_welchs():
    # Every example is answered alike: only the seeds differ.
    means_a, means_b = np.array([0.81, 0.86, 0.84]), np.array([0.70, 0.79, 0.74, 0.80])
    a, b = np.tile(means_a[:, None], 30), np.tile(means_b[:, None], 30)
    expected = ttest_ind(means_a, means_b, equal_var=False)
    assert difference_test(a, b) == pytest.approx(expected.pvalue)
    interval, bounds = difference_interval(a, b), expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((bounds.low, bounds.high))


def test_difference_test_of_equal_arms_is_one_and_of_opposites_tiny():
    arm = answers(0.7, num_seeds=2, num_examples=30, seed=7)
    assert difference_test(arm, arm) == 1.0
    right, wrong = np.ones((1, 30), bool), np.zeros((1, 30), bool)
    assert 0 < difference_test(right, wrong) < 1e-12


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4), st.integers(2, 60))
def test_difference_turns_around_with_its_arms(seed: int, s: int, r: int, n: int):
    a = answers(0.8, num_seeds=s, num_examples=n, seed=seed)
    b = answers(0.6, num_seeds=r, num_examples=n, seed=seed + 1)
    there = difference_interval(a, b, num_resamples=50)
    back = difference_interval(b, a, num_resamples=50)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))
    assert -1 <= there.low <= there.mean <= there.high <= 1
    assert difference_test(a, b) == pytest.approx(difference_test(b, a))
    assert 0 < difference_test(a, b) <= 1
    assert smallest_difference(a, b) == pytest.approx(smallest_difference(b, a))


def test_difference_interval_is_paired_by_example():
    one = answers(0.5, num_seeds=1, num_examples=500, seed=4)
    better = one.copy()
    better[0, np.flatnonzero(~one[0])[:10]] = True
    interval = difference_interval(better, one)
    assert interval.mean == pytest.approx(0.02)
    assert 0 < interval.low < 0.02 < interval.high < 0.05


def test_difference_interval_takes_arms_of_different_seeds():
    many = answers(0.9, num_seeds=4, num_examples=300, seed=5)
    single = answers(0.6, num_seeds=1, num_examples=300, seed=6)
    interval = difference_interval(many, single)
    assert interval.mean == pytest.approx(many.mean() - single.mean())
    assert interval.low > 0


def test_interval_of_one_seed_agrees_with_the_binomial():
    correct = answers(0.8, num_seeds=1, num_examples=1000, seed=1)
    interval = score_interval(correct)
    expected = binom(1000, correct.mean()).ppf([0.025, 0.975]) / 1000
    assert interval.mean == correct.mean()
    assert [interval.low, interval.high] == pytest.approx(expected.tolist(), abs=0.004)


def test_interval_widens_when_seeds_disagree():
    half = np.arange(400) % 2 == 0
    agreeing = np.stack([half] * 4)
    disagreeing = np.stack([np.ones(400, bool), np.ones(400, bool), ~half & half, ~half & half])
    assert agreeing.mean() == disagreeing.mean()
    narrow, wide = score_interval(agreeing), score_interval(disagreeing)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_intervals_stay_within_what_is_possible():
    wild = np.stack([np.ones(20, bool), np.zeros(20, bool)])
    interval = score_interval(wild)
    assert (interval.low, interval.high) == (0, 1)
    gap = difference_interval(wild, np.zeros((1, 20), bool))
    assert (gap.low, gap.high) == (-1, 1)


def test_intervals_repeat_with_their_seed():
    correct = answers(0.7, num_seeds=3, num_examples=50, seed=2)
    assert score_interval(correct, seed=5) == score_interval(correct, seed=5)


def test_intervals_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch):
    correct = answers(0.7, num_seeds=1, num_examples=60, seed=3)
    whole = score_interval(correct)
    monkeypatch.setattr(statistics, "_BLOCK_NUMBERS", 700)
    assert score_interval(correct).low == pytest.approx(whole.low, abs=0.02)


def test_arms_without_examples_are_refused():
    nothing = np.ones((2, 0), bool)
    for arms in ((nothing,), (nothing, nothing)):
        function = score_interval if len(arms) == 1 else difference_interval
        with pytest.raises(ValueError, match=r"the same examples, at least one; .* \(2, 0\)"):
            function(*arms)


def test_permutation_test_finds_a_real_difference_and_is_symmetric():
    many = answers(0.9, num_seeds=4, num_examples=300, seed=5)
    single = answers(0.6, num_seeds=1, num_examples=300, seed=6)
    p = paired_permutation_test(many, single, num_resamples=2000)
    assert p == pytest.approx(1 / 2001)
    assert paired_permutation_test(single, many, num_resamples=2000) == p


def test_permutation_test_of_equal_arms_is_one():
    arm = answers(0.7, num_seeds=2, num_examples=30, seed=7)
    assert paired_permutation_test(arm, arm) == 1.0


def test_mcnemar_is_the_exact_binomial():
    first = np.array([True] * 9 + [False] * 1 + [True] * 20)
    second = np.array([False] * 9 + [True] * 1 + [True] * 20)
    assert mcnemar_test(first, second) == pytest.approx(22 / 1024)


def test_mcnemar_agrees_with_the_permutation_test_on_single_runs():
    first = answers(0.75, num_seeds=1, num_examples=200, seed=8)
    second = answers(0.68, num_seeds=1, num_examples=200, seed=9)
    by_permutation = paired_permutation_test(first, second)
    assert mcnemar_test(first[0], second[0]) == pytest.approx(by_permutation, abs=0.02)


def test_mcnemar_of_equal_runs_is_one():
    run = np.array([True, False, True])
    assert mcnemar_test(run, run) == 1.0


def test_holm_as_worked_out_by_hand():
    # In rising order 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, which may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([0.4, 0.9]) == pytest.approx((0.8, 0.9))
    assert holm([0.6, 0.7, 0.8]) == (1.0, 1.0, 1.0)
    assert holm([]) == ()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_keeps_the_order_and_lies_between_nothing_and_bonferroni(ps: list[float]):
    adjusted = holm(ps)
    for p, larger in zip(ps, adjusted, strict=True):
        assert p <= larger <= min(p * len(ps), 1) + 1e-12
    order = np.argsort(ps, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()
    assert min(adjusted) == pytest.approx(min(1, min(ps) * len(ps)))


def test_holm_keeps_the_chance_of_any_error():
    ps = np.random.default_rng(0).random((2_000, 6))
    errors = np.mean([min(holm(row)) < 0.05 for row in ps.tolist()])
    assert errors == pytest.approx(0.05, abs=0.015)
