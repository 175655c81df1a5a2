"""How far scores can be trusted: intervals and tests over seeds and examples together, power.

Comes in: arrays of scores, a row for each seed and a column for each example: right or wrong, or
what an example adds to macro-F1. Goes out: Intervals, p-values, differences. Letters: S and R seeds
of two arms, N examples, B resamples. The rules stand in docs/concepts/evidence.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Shaped

CONFIDENCE = 0.95
POWER = 0.8
SIGNIFICANCE = 0.05
# Resamples are drawn in blocks of at most this many numbers, so that memory stays flat.
_BLOCK_NUMBERS = 4_000_000
_LEAST_P = 1e-15
# Of the variance that the next seeds may have, for each arm.
_NUM_POINTS = 16
# Examples that nobody answered, added where a score or a gap says how far examples move it: without
# them a perfect score has no interval. Two right and two wrong (Agresti & Coull 1998); of a gap one
# for each arm (Bonett & Price 2012).
_MADE_UP_SCORES = (1.0, 1.0, 0.0, 0.0)
_MADE_UP_GAPS = (1.0, -1.0)
# Gaps are at most 1: whatever reaches further says nothing.
_FARTHEST = 2.0
# How far the variance of each arm's seeds is drawn to the mean of both, where the next seeds are
# foretold: two variances of few seeds differ more than the arms do.
_PULL = 0.1


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SeedLuck:
    """The variance that the luck of seeds adds to a mean, and the freedom of that estimate.

    Few seeds tell little of their variance: few degrees of freedom.
    """

    variance: float
    freedom: float

    def reach(self, tail: float) -> float:
        """How far luck moves the mean with a chance of `tail` to each side, by Student's t."""
        from scipy.special import stdtrit

        if self.variance == 0:
            return 0.0
        return float(-stdtrit(self.freedom, tail) * np.sqrt(self.variance))


def seed_luck(*arms: Shaped[np.ndarray, "_ N"]) -> SeedLuck:
    """The luck of an arm's seeds, or of two arms' in their difference (Satterthwaite 1946).

    An arm with one seed is taken as it is: whatever luck was in that run is not seen.
    """
    parts = [(_seed_variance(arm), len(arm) - 1) for arm in arms if len(arm) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return SeedLuck(0.0, 1.0)
    return SeedLuck(variance, variance**2 / sum(part**2 / freedom for part, freedom in parts))


def score_interval(
    scores_SN: Shaped[np.ndarray, "S N"], *, seed: int = 0, num_resamples: int = 2_000
) -> Interval:
    """The mean of scores between 0 and 1, its interval over new seeds and new examples.

    The quantiles of resampled means or, where that is further, the ends by Agresti & Coull; moved
    out by the luck of seeds as an error of its own.
    """
    _require_same_examples(scores_SN)
    tail = (1 - CONFIDENCE) / 2
    scores_N, mean = scores_SN.mean(axis=0), float(scores_SN.mean())
    means_B = _resampled_means(scores_N, seed=seed, num_resamples=num_resamples)
    low, high = np.quantile(means_B, [tail, 1 - tail])
    padded = np.append(scores_N, _MADE_UP_SCORES)
    centre, reach = float(padded.mean()), _normal(tail) * padded.std() / np.sqrt(len(padded))
    below, above = mean - min(low, centre - reach), max(high, centre + reach) - mean
    luck = seed_luck(scores_SN).reach(tail)
    return Interval(
        mean,
        max(mean - float(np.hypot(below, luck)), 0.0),
        min(mean + float(np.hypot(above, luck)), 1.0),
    )


@dataclass(frozen=True)
class Difference:
    """The mean gap of two arms on the same examples, and what moves it.

    Test and interval are the same thing turned around: a gap of d is refused if it is further from
    the centre than luck and examples reach, with the variance that examples have if d is true.
    """

    mean: float
    centre: float
    spread: float
    num_examples: int
    luck: SeedLuck

    @property
    def p(self) -> float:
        """Two-sided: the level of the widest interval that leaves out zero."""
        from scipy.optimize import brentq

        def beyond(log_p: float) -> float:
            return self._reach(float(np.exp(log_p)) / 2) - abs(self.centre)

        if beyond(0.0) >= 0:
            return 1.0
        least = float(np.log(_LEAST_P))
        return _LEAST_P if beyond(least) <= 0 else float(np.exp(brentq(beyond, least, 0.0)))

    def interval(self, *, level: float = SIGNIFICANCE) -> Interval:
        """It leaves out zero exactly if p is below `level`."""
        reach = self._reach(level / 2)
        return Interval(self.mean, max(self.centre - reach, -1.0), min(self.centre + reach, 1.0))

    def _reach(self, tail: float) -> float:
        """How far examples and luck move the gap with a chance of `tail` to each side."""
        luck = min(self.luck.reach(tail), _FARTHEST)
        return float(np.hypot(_score_reach(self.spread, self.num_examples, tail), luck))


def difference(
    scores_a_SN: Shaped[np.ndarray, "S N"], scores_b_RN: Shaped[np.ndarray, "R N"]
) -> Difference:
    """Mean score of a minus that of b on the same examples; seeds may differ in number."""
    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    padded = np.append(gaps_N, _MADE_UP_GAPS)
    return Difference(
        mean=float(gaps_N.mean()),
        centre=float(padded.mean()),
        spread=float(padded.std()),
        num_examples=len(padded),
        luck=seed_luck(scores_a_SN, scores_b_RN),
    )


def _score_reach(spread: float, num_examples: int, tail: float) -> float:
    """Where |d| / sqrt((spread^2 + d^2) / N) is the quantile: d is in its own variance."""
    z = _normal(tail)
    room = num_examples - z**2
    return min(float(z * spread / np.sqrt(room)), _FARTHEST) if room > 0 else _FARTHEST


def difference_interval(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    level: float = SIGNIFICANCE,
) -> Interval:
    """Mean score of a minus that of b, its interval over new seeds and new examples.

    In closed form: a bootstrap knows nothing of the far tails that a correction for several tests
    asks for.
    """
    return difference(scores_a_SN, scores_b_RN).interval(level=level)


def difference_test(
    scores_a_SN: Shaped[np.ndarray, "S N"], scores_b_RN: Shaped[np.ndarray, "R N"]
) -> float:
    """Two-sided p that a and b would score alike over new seeds and new examples.

    Unlike tests on examples alone it keeps its level where seeds vary, if arms that do have more
    than one. Of single runs it is McNemar's test with one example added on both sides.
    """
    return difference(scores_a_SN, scores_b_RN).p


def paired_permutation_test(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    seed: int = 0,
    num_resamples: int = 10_000,
) -> float:
    """Two-sided p that these runs are equally good: random sign flips of each example's gap.

    The gap of an example is the difference of its mean over seeds, so arms may differ in seeds. The
    runs are taken as they are: the luck of a seed is not in this p.
    """
    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    gaps_N = gaps_N[gaps_N != 0]
    if gaps_N.size == 0:
        return 1.0
    generator = np.random.default_rng(seed)
    observed = abs(gaps_N.sum())
    num_as_far = 0
    for size in block_sizes(num_resamples, gaps_N.size):
        signs_BN = generator.integers(0, 2, size=(size, gaps_N.size), dtype=np.int8) * 2 - 1
        num_as_far += int((np.abs(signs_BN @ gaps_N) >= observed - 1e-9).sum())
    # The observed order is one of the permutations: p is never 0 (Phipson & Smyth 2010).
    return (num_as_far + 1) / (num_resamples + 1)


def mcnemar_test(correct_a_N: Bool[np.ndarray, " N"], correct_b_N: Bool[np.ndarray, " N"]) -> float:
    """Two-sided exact p of two single runs, from the examples that only one of them got right."""
    from scipy.special import bdtr

    only_a = int((correct_a_N & ~correct_b_N).sum())
    only_b = int((correct_b_N & ~correct_a_N).sum())
    # At one half the binomial is symmetric: both tails are as large as that of the smaller count.
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values, each made larger for being one of several (Holm 1979), in their order.

    The chance that any true "no difference" falls below 5 % is then 5 % at most.
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return tuple(adjusted.tolist())


def holm_factors(p_values: Sequence[float]) -> tuple[int, ...]:
    """By how much Holm multiplies each p where he decides: what is below 5 % then, is shown.

    The next smallest p has one test less to pay for as long as all before it were shown; those that
    are not, share what is left. 5 % / factor is the level of the interval that belongs to a test.
    """
    factors = [0] * len(p_values)
    left = len(p_values)
    is_open = True
    for place in np.argsort(p_values, kind="stable").tolist():
        factors[place] = left
        is_open = is_open and p_values[place] * left < SIGNIFICANCE
        left -= is_open
    return tuple(factors)


def question_p(p_values: Sequence[float], gaps: Sequence[float]) -> float:
    """One p for an arm against several rivals: is it better, or worse, than the best of them?

    Better only if it is better than every one: the largest p, at no price for their number
    (intersection-union, Berger 1982). Worse if any one is better: the smallest p, times their
    number.
    """
    if min(gaps) > 0:
        return max(p_values)
    lost = [p for p, gap in zip(p_values, gaps, strict=True) if gap < 0]
    return min(1.0, len(p_values) * min(lost, default=1.0))


def smallest_difference(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    num_tests: int = 1,
) -> float:
    """The smallest true gap that arms which vary as these do would show four times in five.

    Solved from the power of the rule at 5 %, or at 5 % / `num_tests`: of single runs that of
    McNemar's test (Connor 1987); with seeds it is drawn anew how wide the interval will be.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    num_examples = len(gaps_N)
    num_padded = num_examples + len(_MADE_UP_GAPS)
    tail = SIGNIFICANCE / 2 / num_tests
    # The variance of the mean gap, were there none; with a gap it is less by its square / N.
    squares = float(np.square(gaps_N).sum())
    luck, chances_K, reaches_K = _future_luck(scores_a_SN, scores_b_RN, tail=tail)
    # Answers are right or wrong: a gap goes in steps, and half of one is lost on average.
    half_step = 1 / (2 * num_examples * max(len(scores_a_SN), len(scores_b_RN)))

    def power(gap: float) -> float:
        shown = (gap - half_step) * num_examples / num_padded
        spread = np.sqrt(max((squares + len(_MADE_UP_GAPS)) / num_padded - shown**2, 0.0))
        needed_K = np.hypot(_score_reach(float(spread), num_padded, tail), reaches_K)
        rest = max(squares / num_examples - gap**2, 0.0) / num_examples
        deviation = max(np.sqrt(max(rest + luck, 0.0)), _LEAST_P)
        return float(chances_K @ ndtr((shown - needed_K) / deviation))

    found = 1.0
    if power(1.0) > POWER:
        found = float(brentq(lambda gap: power(gap) - POWER, 0.0, 1.0))
    # So many examples, all in favour of one arm, are the fewest that the test believes.
    square = _normal(tail) ** 2
    fewest = np.floor((square + np.sqrt(square**2 + 8 * square)) / 2) + 1
    return float(min(max(found, fewest / num_examples), 1.0))


def _future_luck(
    *arms: Shaped[np.ndarray, "_ N"], tail: float
) -> tuple[float, Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """The variance that luck adds to a gap, and what the next seeds may say of it.

    That is how far an interval reaches for luck, K cases with their chances. The variance of few
    seeds is drawn from a chi-squared distribution, so the power is not that of a fixed interval.
    """
    from scipy.special import stdtrit

    spreads = [_seed_spread(arm) for arm in arms if len(arm) > 1]
    luck = 0.0
    chances_K, variances_K, squares_K = np.ones(1), np.zeros(1), np.zeros(1)
    for spread, own in zip(spreads, _true_lucks(spreads), strict=True):
        luck += own
        points, chances = _chi_squared(spread.freedom)
        drawn = max(own + spread.noise, 0.0) * points / spread.freedom
        told = np.maximum(drawn - spread.taken_off, 0.0)
        chances_K = np.multiply.outer(chances_K, chances).ravel()
        variances_K = np.add.outer(variances_K, told).ravel()
        squares_K = np.add.outer(squares_K, told**2 / spread.freedom).ravel()
    freedoms_K = np.divide(
        variances_K**2, squares_K, out=np.ones_like(squares_K), where=squares_K > 0
    )
    return luck, chances_K, np.asarray(-stdtrit(freedoms_K, tail) * np.sqrt(variances_K))


@lru_cache
def _chi_squared(freedom: int) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Points of the chi-squared distribution and their chances, by Gauss's quadrature."""
    from scipy.special import roots_genlaguerre

    points, weights = roots_genlaguerre(_NUM_POINTS, freedom / 2 - 1)
    return 2 * points, weights / weights.sum()


def _true_lucks(spreads: Sequence["_SeedSpread"]) -> list[float]:
    """What luck adds to the variance of each arm's mean, right on average for a deviation.

    Below zero it is not cut off, as it is in the rule: that would be too much on average.
    """
    from scipy.special import gamma

    each = [(spread.variance - spread.noise) * spread.num_seeds for spread in spreads]
    freedom = sum(spread.freedom for spread in spreads)
    # The root of a variance of few is on average too small, by this factor.
    c4 = np.sqrt(2 / freedom) * gamma((freedom + 1) / 2) / gamma(freedom / 2) if spreads else 1.0
    lucks = []
    for spread, own in zip(spreads, each, strict=True):
        pulled = own + _PULL * (float(np.mean(each)) - own)
        lucks.append((pulled / c4**2 if pulled > 0 else pulled) / spread.num_seeds)
    return lucks


def draw_counts(
    generator: np.random.Generator, *, num_draws: int, num_items: int
) -> Float[np.ndarray, "B N"]:
    """How often each item comes up when as many are drawn with replacement, `num_draws` times."""
    cells = generator.integers(0, num_items, size=(num_draws, num_items))
    cells += np.arange(num_draws)[:, None] * num_items
    counts = np.bincount(cells.ravel(), minlength=num_draws * num_items)
    return counts.reshape(num_draws, num_items).astype(np.float64)


def block_sizes(total: int, row_numbers: int) -> Iterator[int]:
    """How many draws of so many numbers to hold at a time."""
    size = max(1, _BLOCK_NUMBERS // max(1, row_numbers))
    for start in range(0, total, size):
        yield min(size, total - start)


def _variance(values: Float[np.ndarray, " N"]) -> float:
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class _SeedSpread:
    """The variance of a mean over seeds, and how much of it is the examples' and not luck.

    Seeds also differ because each errs on examples of its own: `noise`. That part is in the
    variance over examples already and is taken off (analysis of variance, two ways), but not of two
    seeds: they are often alike by chance, and nothing would be left.
    """

    variance: float
    noise: float
    num_seeds: int

    @property
    def freedom(self) -> int:
        return self.num_seeds - 1

    @property
    def taken_off(self) -> float:
        return 0.0 if self.num_seeds == 2 else self.noise


def _seed_spread(scores_SN: Shaped[np.ndarray, "S N"]) -> _SeedSpread:
    num_seeds: int = scores_SN.shape[0]
    num_examples: int = scores_SN.shape[1]
    means_S = scores_SN.mean(axis=1)
    variance = _variance(means_S) / num_seeds
    if num_examples == 1:
        return _SeedSpread(variance, 0.0, num_seeds)
    rest_SN = scores_SN - scores_SN.mean(axis=0) - means_S[:, None] + means_S.mean()
    rest = float(np.square(rest_SN).sum()) / ((num_seeds - 1) * (num_examples - 1))
    return _SeedSpread(variance, rest / (num_seeds * num_examples), num_seeds)


def _seed_variance(scores_SN: Shaped[np.ndarray, "S N"]) -> float:
    """What the luck of seeds adds to the variance of a mean over S of them."""
    spread = _seed_spread(scores_SN)
    return max(spread.variance - spread.taken_off, 0.0)


def _normal(tail: float) -> float:
    """The point that a normal number exceeds with this chance."""
    from scipy.special import ndtri

    return float(-ndtri(tail))


def _resampled_means(
    values_N: Float[np.ndarray, " N"], *, seed: int, num_resamples: int
) -> Float[np.ndarray, " B"]:
    generator = np.random.default_rng(seed)
    return np.concatenate(
        [
            draw_counts(generator, num_draws=size, num_items=len(values_N)) @ values_N
            for size in block_sizes(num_resamples, len(values_N))
        ]
    ) / len(values_N)


def _gaps(
    scores_a_SN: Shaped[np.ndarray, "S N"], scores_b_RN: Shaped[np.ndarray, "R N"]
) -> Float[np.ndarray, " N"]:
    """How much better a is than b on each example, by their means over seeds."""
    _require_same_examples(scores_a_SN, scores_b_RN)
    return np.asarray(scores_a_SN.mean(axis=0) - scores_b_RN.mean(axis=0))


def _require_same_examples(*arms: Shaped[np.ndarray, "_ _"]) -> None:
    if arms[0].size == 0 or any(arm.shape[1] != arms[0].shape[1] for arm in arms):
        shapes = ", ".join(str(arm.shape) for arm in arms)
        raise ValueError(f"arms must answer the same examples, at least one; shapes are {shapes}")
