"""How far scores can be trusted: intervals and tests over seeds and examples together, power.

Comes in: arrays of scores, a row for each seed and a column for each example: right or wrong, or
what an example adds to macro-F1. Goes out: Intervals, p-values, differences. Letters: S and R seeds
of two arms, N examples, B resamples. The rules stand in docs/concepts/evidence.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Shaped

CONFIDENCE = 0.95
POWER = 0.8
# Resamples are drawn in blocks of at most this many numbers, so that memory stays flat.
_BLOCK_NUMBERS = 4_000_000
_LEAST_P = 1e-15


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
    """The mean of scores between 0 and 1, its interval over new seeds and new examples."""
    _require_same_examples(scores_SN)
    means_B = _resampled_means(scores_SN.mean(axis=0), seed=seed, num_resamples=num_resamples)
    interval = _interval(float(scores_SN.mean()), means_B, seed_luck(scores_SN))
    return Interval(interval.mean, max(interval.low, 0.0), min(interval.high, 1.0))


def difference_interval(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    seed: int = 0,
    num_resamples: int = 2_000,
) -> Interval:
    """Mean score of a minus that of b on the same examples; seeds may differ in number.

    Examples are resampled for both at once, which makes it paired; seeds are each arm's own.
    """
    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    means_B = _resampled_means(gaps_N, seed=seed, num_resamples=num_resamples)
    interval = _interval(float(gaps_N.mean()), means_B, seed_luck(scores_a_SN, scores_b_RN))
    return Interval(interval.mean, max(interval.low, -1.0), min(interval.high, 1.0))


def difference_test(
    scores_a_SN: Shaped[np.ndarray, "S N"], scores_b_RN: Shaped[np.ndarray, "R N"]
) -> float:
    """Two-sided p that a and b would score alike over new seeds and new examples.

    The level of the widest interval that leaves out zero. Unlike tests on examples alone it keeps
    its level where seeds vary, if arms that do have more than one.
    """
    from scipy.optimize import brentq
    from scipy.special import stdtrit

    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    gap, deviation = abs(float(gaps_N.mean())), np.sqrt(_variance(gaps_N) / len(gaps_N))
    luck = seed_luck(scores_a_SN, scores_b_RN)

    def beyond(log_p: float) -> float:
        tail = np.exp(log_p) / 2
        examples = float(-stdtrit(max(len(gaps_N) - 1, 1), tail) * deviation)
        return float(np.hypot(examples, luck.reach(tail))) - gap

    if beyond(0.0) >= 0:
        return 1.0
    least = float(np.log(_LEAST_P))
    return _LEAST_P if beyond(least) <= 0 else float(np.exp(brentq(beyond, least, 0.0)))


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
    from scipy.stats import binomtest

    only_a = int((correct_a_N & ~correct_b_N).sum())
    only_b = int((correct_b_N & ~correct_a_N).sum())
    if only_a + only_b == 0:
        return 1.0
    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values, each made larger for being one of several (Holm 1979), in their order.

    The chance that any true "no difference" falls below 5 % is then 5 % at most.
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return tuple(adjusted.tolist())


def smallest_difference(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    num_tests: int = 1,
) -> float:
    """The smallest true gap that arms which vary as these do would show four times in five.

    The power of McNemar's test (Connor 1987) at 5 %, or at 5 % / `num_tests`, from the share of
    examples on which the arms differ, with the luck of seeds added.
    """
    from scipy.stats import norm

    gaps_N = _gaps(scores_a_SN, scores_b_RN)
    num_examples = len(gaps_N)
    luck = seed_luck(scores_a_SN, scores_b_RN)
    tail = (1 - CONFIDENCE) / 2 / num_tests
    # The variance of the mean gap, were there none; with a gap it is less by its square / N.
    variance = float(np.square(gaps_N).mean()) / num_examples
    needed = float(np.hypot(norm.isf(tail) * np.sqrt(variance), luck.reach(tail)))
    # It is shown if d - needed >= hypot(reserve * sqrt(variance - d^2 / N), luck): solve for d.
    reserve = float(norm.ppf(POWER))
    lead = 1 + reserve**2 / num_examples
    rest = needed**2 - reserve**2 * variance - luck.reach(1 - POWER) ** 2
    found = (needed + np.sqrt(max(needed**2 - lead * rest, 0.0))) / lead
    # Answers are right or wrong: a gap goes in steps, and half of one is lost on average.
    found += 1 / (num_examples * max(len(scores_a_SN), len(scores_b_RN)))
    # So many examples, all in favour of one arm, are the fewest that an exact test believes.
    fewest = np.floor(-np.log2(tail)) + 1
    return float(min(max(found, fewest / num_examples), 1.0))


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


def _seed_variance(scores_SN: Shaped[np.ndarray, "S N"]) -> float:
    """What the luck of seeds adds to the variance of a mean over S of them.

    Seeds also differ because each errs on examples of its own. That part is in the variance over
    examples already and is taken off here (analysis of variance, two ways). Two seeds are too few
    for that: they are often alike by chance, and nothing would be left.
    """
    num_seeds: int = scores_SN.shape[0]
    num_examples: int = scores_SN.shape[1]
    means_S = scores_SN.mean(axis=1)
    variance = _variance(means_S) / num_seeds
    if num_seeds == 2 or num_examples == 1:
        return variance
    rest_SN = scores_SN - scores_SN.mean(axis=0) - means_S[:, None] + means_S.mean()
    rest = float(np.square(rest_SN).sum()) / ((num_seeds - 1) * (num_examples - 1))
    return max(variance - rest / (num_seeds * num_examples), 0.0)


def _interval(mean: float, means_B: Float[np.ndarray, " B"], luck: SeedLuck) -> Interval:
    """The quantiles of resampled means, moved out by the luck of seeds as an error of its own."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means_B, [tail, 1 - tail])
    reach = luck.reach(tail)
    return Interval(
        mean, mean - float(np.hypot(mean - low, reach)), mean + float(np.hypot(high - mean, reach))
    )


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
