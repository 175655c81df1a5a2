"""Confidence intervals, tests and power over seeds and examples together.

Scores are arrays with a row per seed and a column per example: correct or not, or the contribution
of an example to macro-F1. Letters: S and R seeds of two arms, N examples, B resamples. See
docs/concepts/evidence.md.
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
# Quadrature points for the seed variance of each arm in a repeated experiment.
_NUM_POINTS = 16
# Pseudo-examples, without which a perfect score would have an interval of width zero: two correct
# and two wrong for a score (Agresti & Coull 1998), one for each arm for a difference (Bonett &
# Price 2012).
_PSEUDO_SCORES = (1.0, 1.0, 0.0, 0.0)
_PSEUDO_GAPS = (1.0, -1.0)
# Differences are at most 1; a larger margin carries no information.
_LARGEST_MARGIN = 2.0
# Shrinkage of each arm's seed variance to the mean of both in power calculations: estimates from
# few seeds differ more than the true variances do.
_SHRINKAGE = 0.1


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class SeedLuck:
    """The variance that seeds add to a mean, and the degrees of freedom of that estimate."""

    variance: float
    freedom: float

    def reach(self, tail: float) -> float:
        """Margin of error due to seeds at `tail` probability on each side (Student's t)."""
        from scipy.special import stdtrit

        if self.variance == 0:
            return 0.0
        return float(-stdtrit(self.freedom, tail) * np.sqrt(self.variance))


def seed_luck(*arms: Shaped[np.ndarray, "_ N"]) -> SeedLuck:
    """The seed variance of an arm, or of the difference of two (Satterthwaite 1946).

    With a single seed it cannot be estimated and counts as zero.
    """
    parts = [(_seed_variance(arm), len(arm) - 1) for arm in arms if len(arm) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return SeedLuck(0.0, 1.0)
    return SeedLuck(variance, variance**2 / sum(part**2 / freedom for part, freedom in parts))


def score_interval(
    scores_SN: Shaped[np.ndarray, "S N"], *, seed: int = 0, num_resamples: int = 2_000
) -> Interval:
    """The mean of scores between 0 and 1 with its interval over new seeds and new examples.

    Each bound is the bootstrap quantile or, if wider, the bound of Agresti & Coull; the seed
    variance is added as an independent error.
    """
    _require_same_examples(scores_SN)
    tail = (1 - CONFIDENCE) / 2
    scores_N, mean = scores_SN.mean(axis=0), float(scores_SN.mean())
    means_B = _resampled_means(scores_N, seed=seed, num_resamples=num_resamples)
    low, high = np.quantile(means_B, [tail, 1 - tail])
    padded = np.append(scores_N, _PSEUDO_SCORES)
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
    """The mean difference of two arms on the same examples, with its sources of variance.

    The interval inverts the test: a difference d is rejected if it is further from the centre than
    the margin of error due to seeds and examples, with the variance of examples under d.
    """

    mean: float
    centre: float
    spread: float
    num_examples: int
    luck: SeedLuck

    @property
    def p(self) -> float:
        """Two-sided p: the level of the widest interval that excludes zero."""
        from scipy.optimize import brentq

        if self._beyond(0.0) >= 0:
            return 1.0
        least = float(np.log(_LEAST_P))
        if self._beyond(least) <= 0:
            return _LEAST_P
        return float(np.exp(brentq(self._beyond, least, 0.0)))

    def _beyond(self, log_p: float) -> float:
        """How far the interval at this level reaches beyond zero."""
        return self._reach(float(np.exp(log_p)) / 2) - abs(self.centre)

    def interval(self, *, level: float = SIGNIFICANCE) -> Interval:
        """It excludes zero if and only if p is below `level`."""
        reach = self._reach(level / 2)
        return Interval(self.mean, max(self.centre - reach, -1.0), min(self.centre + reach, 1.0))

    def _reach(self, tail: float) -> float:
        """Margin of error due to examples and seeds at `tail` probability on each side."""
        luck = min(self.luck.reach(tail), _LARGEST_MARGIN)
        return float(np.hypot(_score_reach(self.spread, self.num_examples, tail), luck))


def difference(
    scores_a_SN: Shaped[np.ndarray, "S N"], scores_b_RN: Shaped[np.ndarray, "R N"]
) -> Difference:
    """Mean score of a minus that of b on the same examples; seeds may differ in number."""
    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    padded = np.append(gaps_N, _PSEUDO_GAPS)
    return Difference(
        mean=float(gaps_N.mean()),
        centre=float(padded.mean()),
        spread=float(padded.std()),
        num_examples=len(padded),
        luck=seed_luck(scores_a_SN, scores_b_RN),
    )


def _score_reach(spread: float, num_examples: int, tail: float) -> float:
    """The d at which |d| / sqrt((spread^2 + d^2) / N) is the normal quantile (score test)."""
    z = _normal(tail)
    room = num_examples - z**2
    return min(float(z * spread / np.sqrt(room)), _LARGEST_MARGIN) if room > 0 else _LARGEST_MARGIN


def difference_interval(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    level: float = SIGNIFICANCE,
) -> Interval:
    """Mean score of a minus that of b with its interval over new seeds and new examples.

    In closed form, because a bootstrap is unreliable in the far tails that a correction for
    multiple tests needs.
    """
    return difference(scores_a_SN, scores_b_RN).interval(level=level)


def paired_permutation_test(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    seed: int = 0,
    num_resamples: int = 10_000,
) -> float:
    """Two-sided p that these runs are equally good: random sign flips of each example's gap.

    The gap of an example is the difference of its mean over seeds, so arms may differ in their
    number of seeds. The p-value ignores the variance between seeds.
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
    # The binomial is symmetric at one half: twice the tail of the smaller count.
    return min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def holm_factors(p_values: Sequence[float]) -> tuple[int, ...]:
    """The factor by which Holm's method multiplies each p before comparing it with 5 %.

    It decreases by one with each rejected hypothesis, in the order of p; all that are not rejected
    share the last factor. 5 % / factor is the level of the interval that matches the test.
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
    """One p for an arm against several others: is it better, or worse, than the best of them?

    It is better only if it beats all of them: the largest p, uncorrected (intersection-union test,
    Berger 1982). It is worse if any of them beats it: the smallest p times their number.
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
    """The smallest true difference that would be significant with a power of 80 %.

    Solved for the power of the test at 5 %, or at 5 % / `num_tests`: with single runs that of
    McNemar's test (Connor 1987); with seeds the random width of the interval is integrated out.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    num_examples = len(gaps_N)
    num_padded = num_examples + len(_PSEUDO_GAPS)
    tail = SIGNIFICANCE / 2 / num_tests
    # The variance of the mean gap, were there none; with a gap it is less by its square / N.
    squares = float(np.square(gaps_N).sum())
    luck, chances_K, reaches_K = _future_luck(scores_a_SN, scores_b_RN, tail=tail)
    # Answers are right or wrong: a gap goes in steps, and half of one is lost on average.
    half_step = 1 / (2 * num_examples * max(len(scores_a_SN), len(scores_b_RN)))

    def power(gap: float) -> float:
        shown = (gap - half_step) * num_examples / num_padded
        spread = np.sqrt(max((squares + len(_PSEUDO_GAPS)) / num_padded - shown**2, 0.0))
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
    """The seed variance of a difference, and the margins of error that new seeds may give.

    These are K cases with their probabilities: the variance of few seeds follows a chi-squared
    distribution, so the interval of a repeated experiment has no fixed width.
    """
    from scipy.special import stdtrit

    spreads = [_seed_spread(arm) for arm in arms if len(arm) > 1]
    luck = 0.0
    chances_K, variances_K, squares_K = np.ones(1), np.zeros(1), np.zeros(1)
    for spread, own in zip(spreads, _true_lucks(spreads), strict=True):
        luck += own
        points, chances = _chi_squared(spread.freedom)
        drawn = max(own + spread.noise, 0.0) * points / spread.freedom
        estimated = np.maximum(drawn - spread.taken_off, 0.0)
        chances_K = np.multiply.outer(chances_K, chances).ravel()
        variances_K = np.add.outer(variances_K, estimated).ravel()
        squares_K = np.add.outer(squares_K, estimated**2 / spread.freedom).ravel()
    freedoms_K = np.divide(
        variances_K**2, squares_K, out=np.ones_like(squares_K), where=squares_K > 0
    )
    return luck, chances_K, np.asarray(-stdtrit(freedoms_K, tail) * np.sqrt(variances_K))


@lru_cache
def _chi_squared(freedom: int) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Points of the chi-squared distribution and their weights, by Gauss quadrature."""
    from scipy.special import roots_genlaguerre

    points, weights = roots_genlaguerre(_NUM_POINTS, freedom / 2 - 1)
    return 2 * points, weights / weights.sum()


def _true_lucks(spreads: Sequence["_SeedSpread"]) -> list[float]:
    """The seed variance of each arm's mean, such that its square root is unbiased.

    Negative estimates are kept, unlike in the test: truncation would be biased upwards.
    """
    from scipy.special import gamma

    each = [(spread.variance - spread.noise) * spread.num_seeds for spread in spreads]
    freedom = sum(spread.freedom for spread in spreads)
    # The bias of the standard deviation in small samples.
    c4 = np.sqrt(2 / freedom) * gamma((freedom + 1) / 2) / gamma(freedom / 2) if spreads else 1.0
    lucks = []
    for spread, own in zip(spreads, each, strict=True):
        shrunk = own + _SHRINKAGE * (float(np.mean(each)) - own)
        lucks.append((shrunk / c4**2 if shrunk > 0 else shrunk) / spread.num_seeds)
    return lucks


def draw_counts(
    generator: np.random.Generator, *, num_draws: int, num_items: int
) -> Float[np.ndarray, "B N"]:
    """How often each item occurs in each of `num_draws` bootstrap resamples."""
    cells = generator.integers(0, num_items, size=(num_draws, num_items))
    cells += np.arange(num_draws)[:, None] * num_items
    counts = np.bincount(cells.ravel(), minlength=num_draws * num_items)
    return counts.reshape(num_draws, num_items).astype(np.float64)


def block_sizes(total: int, row_numbers: int) -> Iterator[int]:
    """Sizes of blocks of draws, `row_numbers` numbers each, that fit into memory."""
    size = max(1, _BLOCK_NUMBERS // max(1, row_numbers))
    for start in range(0, total, size):
        yield min(size, total - start)


def _variance(values: Float[np.ndarray, " N"]) -> float:
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class _SeedSpread:
    """The variance of a mean over seeds, and the part of it that is due to examples.

    `noise` is the interaction of seeds and examples, which the variance over examples already
    includes; it is subtracted (two-way analysis of variance). Not with two seeds: they often agree
    by chance, and nothing would be left.
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
    """The variance of a mean over S seeds that is due to the seeds."""
    spread = _seed_spread(scores_SN)
    return max(spread.variance - spread.taken_off, 0.0)


def _normal(tail: float) -> float:
    """The upper quantile of the standard normal distribution."""
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
    """Mean score over seeds of a minus that of b, for each example."""
    _require_same_examples(scores_a_SN, scores_b_RN)
    return np.asarray(scores_a_SN.mean(axis=0) - scores_b_RN.mean(axis=0))


def _require_same_examples(*arms: Shaped[np.ndarray, "_ _"]) -> None:
    if arms[0].size == 0 or any(arm.shape[1] != arms[0].shape[1] for arm in arms):
        shapes = ", ".join(str(arm.shape) for arm in arms)
        raise ValueError(f"arms must answer the same examples, at least one; shapes are {shapes}")
