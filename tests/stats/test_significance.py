"""Statistics against scipy, against numbers worked out by hand, and on arms of known truth."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, chi, nct, norm, t, ttest_ind
from shapes import unchecked
from simulated_arms import simulated_arms

from regraft.stats import significance as statistics
from regraft.stats.significance import (
    difference,
    difference_interval,
    holm_factors,
    mcnemar_test,
    paired_permutation_test,
    question_p,
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
    """The rule of a comparison of two arms; `seed` is for rules that draw."""
    return difference(a, b).p < 0.05


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
@unchecked()
def test_rule_keeps_its_level_with_and_without_luck_of_seeds(
    num_seeds: tuple[int, int], luck_points: float, least: int
):
    found = count(is_found, num_seeds=num_seeds, luck_points=luck_points)
    assert least <= found <= MOST_FOUND


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [500, 2_000])
@pytest.mark.parametrize("luck_points", [1, 5])
@pytest.mark.parametrize("num_seeds", [(2, 2), (2, 1), (3, 3), (5, 1), (5, 5)])
@unchecked()
def test_rule_keeps_its_level_elsewhere(
    num_seeds: tuple[int, int], luck_points: float, num_examples: int
):
    found = count(is_found, num_seeds=num_seeds, luck_points=luck_points, num_examples=num_examples)
    assert found <= MOST_FOUND


@unchecked()
def test_tests_on_examples_alone_take_luck_for_a_difference():
    def is_permutation_sure(a: np.ndarray, b: np.ndarray, *, seed: int) -> bool:
        return paired_permutation_test(a, b, seed=seed, num_resamples=200) < 0.05

    found = count(is_permutation_sure, num_seeds=(3, 3), luck_points=3, num_comparisons=300)
    assert found > 300 * 0.15


@unchecked()
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
    ("accuracy", "num_examples"), [(0.95, 20), (0.95, 50), (0.99, 50), (0.99, 100), (0.8, 30)]
)
@unchecked()
def test_intervals_cover_the_truth_though_scores_are_near_perfect(
    accuracy: float, num_examples: int
):
    # Of single runs every score is one of N + 1: the coverage is a sum over them.
    covered = 0.0
    for num_right in range(num_examples + 1):
        run = np.arange(num_examples)[None] < num_right
        interval = score_interval(run, num_resamples=500)
        assert interval.low < interval.high
        if interval.low <= accuracy <= interval.high:
            covered += binom.pmf(num_right, num_examples, accuracy)
    assert covered >= 0.95


def test_interval_of_a_perfect_score_is_that_of_agresti_and_coull():
    perfect = score_interval(np.ones((3, 5), bool))
    share = 7 / 9
    reach = norm.ppf(0.975) * np.sqrt(share * (1 - share) / 9)
    assert (perfect.mean, perfect.high) == (1, 1)
    assert perfect.low == pytest.approx(share - reach)
    assert score_interval(np.zeros((3, 5), bool)).high == pytest.approx(1 - perfect.low)


@pytest.mark.parametrize(("share", "num_examples"), [(0.99, 50), (0.98, 200), (0.9, 30)])
@unchecked()
def test_interval_of_a_difference_covers_zero_though_few_answers_differ(
    share: float, num_examples: int
):
    equal = np.ones((1, num_examples), bool)
    assert difference_interval(equal, equal).low < 0 < difference_interval(equal, equal).high
    missed = 0
    for number in range(NUM_COMPARISONS):
        runs = answers(share, num_seeds=2, num_examples=num_examples, seed=number)
        gap = difference_interval(runs[:1], runs[1:])
        missed += gap.low > 0 or gap.high < 0
    assert missed <= MOST_FOUND


@pytest.mark.parametrize(
    ("num_seeds", "luck_points"), [((1, 1), 0), ((3, 3), 0), ((3, 3), 2), ((3, 1), 2), ((5, 5), 2)]
)
@unchecked()
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
    arm = np.repeat(shares_S[:, None], 20_000, axis=1)
    freedom = num_seeds - 1
    needed = t.isf(0.025, freedom)
    shift = brentq(lambda shift: nct.sf(needed, freedom, shift) - 0.8, 0, 20)
    # The root of a variance of few is too small on average, by c4.
    c4 = chi.mean(freedom) / np.sqrt(freedom)
    deviation = shares_S.std(ddof=1) / np.sqrt(num_seeds) / c4
    found = smallest_difference(arm, np.zeros((1, 20_000)))
    # So many examples that made-up ones and steps are of no weight.
    assert found == pytest.approx(shift * deviation, rel=0.01)


def test_smallest_difference_of_single_runs_is_connors():
    # 300 of 2,000 examples differ: 180 in favour of a.
    a, b = np.ones((1, 2_000), bool), np.ones((1, 2_000), bool)
    b[0, :180], a[0, 180:300] = False, False
    found = smallest_difference(a, b)
    discordant = 300 / 2_000
    # Connor's formula; one example on both sides, and half a step, are of no weight here.
    spread = norm.ppf(0.8) * np.sqrt(discordant - found**2)
    connor = (norm.ppf(0.975) * np.sqrt(discordant) + spread) / np.sqrt(2_000)
    assert found == pytest.approx(connor, rel=0.02)
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


def test_difference_test_of_single_runs_is_mcnemars_with_one_more_on_both_sides():
    a = answers(0.75, num_seeds=1, num_examples=200, seed=8)
    b = answers(0.68, num_seeds=1, num_examples=200, seed=9)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    expected = 2 * norm.sf(abs(only_a - only_b) / np.sqrt(only_a + only_b + 2))
    assert difference(a, b).p == pytest.approx(expected)
    assert difference(b, a).p == pytest.approx(expected)


@pytest.mark.parametrize("only_b", range(5))
@pytest.mark.parametrize("only_a", range(5, 18, 3))
def test_difference_test_is_near_the_exact_one_where_few_answers_differ(only_a: int, only_b: int):
    a, b = np.ones((1, 100), bool), np.ones((1, 100), bool)
    b[0, :only_a], a[0, only_a : only_a + only_b] = False, False
    exact = mcnemar_test(a[0], b[0])
    # The exact test is too careful by half a step, this one less so.
    assert exact / 2 < difference(a, b).p < max(exact, 0.05) + 0.01


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(2, 200),
    st.sampled_from([0.05, 0.025, 0.001]),
)
def test_interval_leaves_out_zero_exactly_if_the_test_is_below_its_level(
    seed: int, s: int, n: int, level: float
):
    a = answers(0.85, num_seeds=s, num_examples=n, seed=seed)
    b = answers(0.7, num_seeds=2, num_examples=n, seed=seed + 1)
    interval = difference_interval(a, b, level=level)
    leaves_out_zero = interval.low > 0 or interval.high < 0
    assert leaves_out_zero == (difference(a, b).p < level)


def test_difference_test_of_luck_alone_is_welchs():
    # Every example is answered alike: only the seeds differ.
    means_a, means_b = np.array([0.81, 0.86, 0.84]), np.array([0.70, 0.79, 0.74, 0.80])
    # So many of them that the two made up are of no weight.
    a, b = np.tile(means_a[:, None], 30_000), np.tile(means_b[:, None], 30_000)
    expected = ttest_ind(means_a, means_b, equal_var=False)
    assert difference(a, b).p == pytest.approx(expected.pvalue, rel=1e-3)
    interval, bounds = difference_interval(a, b), expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((bounds.low, bounds.high), abs=1e-4)


def test_difference_test_of_equal_arms_is_one_and_of_opposites_tiny():
    arm = answers(0.7, num_seeds=2, num_examples=30, seed=7)
    assert difference(arm, arm).p == 1.0
    right, wrong = np.ones((1, 30), bool), np.zeros((1, 30), bool)
    assert 0 < difference(right, wrong).p < 1e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4), st.integers(2, 60))
def test_difference_turns_around_with_its_arms(seed: int, s: int, r: int, n: int):
    a = answers(0.8, num_seeds=s, num_examples=n, seed=seed)
    b = answers(0.6, num_seeds=r, num_examples=n, seed=seed + 1)
    there = difference_interval(a, b)
    back = difference_interval(b, a)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))
    assert -1 <= there.low <= there.mean <= there.high <= 1
    assert difference(a, b).p == pytest.approx(difference(b, a).p)
    assert 0 < difference(a, b).p <= 1
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
    for seed in range(5):
        first = answers(0.6, num_seeds=1, num_examples=40, seed=seed)[0]
        second = answers(0.5, num_seeds=1, num_examples=40, seed=seed + 9)[0]
        num_first, num_second = int((first & ~second).sum()), int((second & ~first).sum())
        expected = binomtest(num_first, num_first + num_second, 0.5).pvalue
        assert mcnemar_test(first, second) == pytest.approx(expected)


def test_mcnemar_agrees_with_the_permutation_test_on_single_runs():
    first = answers(0.75, num_seeds=1, num_examples=200, seed=8)
    second = answers(0.68, num_seeds=1, num_examples=200, seed=9)
    by_permutation = paired_permutation_test(first, second)
    assert mcnemar_test(first[0], second[0]) == pytest.approx(by_permutation, abs=0.02)


def test_mcnemar_of_equal_runs_is_one():
    run = np.array([True, False, True])
    assert mcnemar_test(run, run) == 1.0


def holm(p_values: list[float]) -> list[float]:
    """The p-values adjusted for multiple tests, as Holm (1979) wrote it."""
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=9))
def test_holm_factors_decide_as_holm_does(ps: list[float]):
    factors = holm_factors(ps)
    for p, factor, adjusted in zip(ps, factors, holm(ps), strict=True):
        assert 1 <= factor <= len(ps)
        assert (factor * p < 0.05) == (adjusted < 0.05)


def test_holm_factors_as_worked_out_by_hand():
    # 0.005 x 4 and 0.01 x 3 are shown; 0.03 x 2 is not, and what is left shares the level.
    assert holm_factors([0.01, 0.04, 0.03, 0.005]) == (3, 2, 2, 4)
    assert holm_factors([0.001, 0.002]) == (2, 1)
    assert holm_factors([]) == ()


def test_question_is_won_against_all_rivals_and_lost_to_one():
    assert question_p([0.01, 0.04], [0.1, 0.05]) == 0.04
    assert question_p([0.01, 0.001], [-0.1, 0.2]) == 0.02
    assert question_p([0.2, 0.001], [0.0, 0.2]) == 1.0
    assert question_p([0.03], [-0.1]) == 0.03
    assert question_p([0.8, 0.9], [-0.1, -0.1]) == 1.0


def test_holm_keeps_the_chance_of_any_error():
    ps = np.random.default_rng(0).random((2_000, 6))
    errors = np.mean([min(holm(row)) < 0.05 for row in ps.tolist()])
    assert errors == pytest.approx(0.05, abs=0.015)
