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


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """How much a mean would vary over new seeds and new examples, and how well that is known.

    `variance` is its variance; `freedom` are the degrees of freedom of that estimate, few where it
    comes from a few seeds (Satterthwaite 1946).
    """

    variance: float
    freedom: float


def spread(
    scores_SN: Shaped[np.ndarray, "S N"], rival_RN: Shaped[np.ndarray, "R N"] | None = None
) -> Spread:
    """The spread of the mean over seeds and examples, or of its difference from a rival's.

    The examples are the same for both, the seeds are each arm's own. An arm with one seed is taken
    as it is: whatever luck was in that run is not seen.
    """
    arms = [np.asarray(arm, np.float64) for arm in (scores_SN, rival_RN) if arm is not None]
    _require_same_examples(arms)
    num_examples = arms[0].shape[1]
    gaps_N = arms[0].mean(axis=0) - (arms[1].mean(axis=0) if len(arms) > 1 else 0)
    parts: list[tuple[float, int]] = [(_variance(gaps_N) / num_examples, max(num_examples - 1, 1))]
    parts += [(_seed_variance(arm), len(arm) - 1) for arm in arms if len(arm) > 1]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Spread(0.0, float(max(num_examples - 1, 1)))
    return Spread(variance, variance**2 / sum(part**2 / freedom for part, freedom in parts))


def score_interval(
    scores_SN: Shaped[np.ndarray, "S N"], *, seed: int = 0, num_resamples: int = 2_000
) -> Interval:
    """The mean score between 0 and 1; its interval resamples seeds and examples together."""
    means_B = _resampled_means(scores_SN, None, seed=seed, num_resamples=num_resamples)
    interval = _interval(float(scores_SN.mean()), means_B, spread(scores_SN))
    return Interval(interval.mean, max(interval.low, 0.0), min(interval.high, 1.0))


def difference_interval(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"],
    *,
    seed: int = 0,
    num_resamples: int = 2_000,
) -> Interval:
    """Mean score of a minus that of b on the same examples; seeds may differ in number.

    Both are resampled on the same examples, each on its own seeds.
    """
    means_B = _resampled_means(scores_a_SN, scores_b_RN, seed=seed, num_resamples=num_resamples)
    mean = float(scores_a_SN.mean() - scores_b_RN.mean())
    interval = _interval(mean, means_B, spread(scores_a_SN, scores_b_RN))
    return Interval(mean, max(interval.low, -1.0), min(interval.high, 1.0))


def difference_test(
    scores_a_SN: Shaped[np.ndarray, "S N"], scores_b_RN: Shaped[np.ndarray, "R N"]
) -> float:
    """Two-sided p that a and b would score alike over new seeds and new examples.

    Student's t of the difference over its spread. Unlike the tests on examples alone it holds its
    level where seeds vary, if both arms have more than one or need no more.
    """
    from scipy.stats import t

    gap = float(scores_a_SN.mean() - scores_b_RN.mean())
    found = spread(scores_a_SN, scores_b_RN)
    if found.variance == 0:
        return 1.0 if gap == 0 else 0.0
    return float(2 * t.sf(abs(gap) / np.sqrt(found.variance), found.freedom))


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
    gaps_N = scores_a_SN.mean(axis=0) - scores_b_RN.mean(axis=0)
    gaps_N = gaps_N[gaps_N != 0]
    if gaps_N.size == 0:
        return 1.0
    generator = np.random.default_rng(seed)
    observed = abs(gaps_N.sum())
    num_as_far = 0
    for size in _block_sizes(num_resamples, gaps_N.size):
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
    examples on which the arms differ; with several seeds their variance is added.
    """
    from scipy.stats import t

    gap = float(scores_a_SN.mean() - scores_b_RN.mean())
    num_examples = scores_a_SN.shape[1]
    found = spread(scores_a_SN, scores_b_RN)
    tail = (1 - CONFIDENCE) / 2 / num_tests
    steps = float(t.isf(tail, found.freedom) + t.ppf(POWER, found.freedom))
    # Were there no gap, the examples would vary by its square more, and by the square of the gap
    # sought less.
    variance = found.variance + gap**2 / num_examples
    return float(steps * np.sqrt(variance / (1 + steps**2 / num_examples)))


def draw_counts(
    generator: np.random.Generator, *, num_draws: int, num_items: int
) -> Float[np.ndarray, "B N"]:
    """How often each item comes up when as many are drawn with replacement, `num_draws` times."""
    cells = generator.integers(0, num_items, size=(num_draws, num_items))
    cells += np.arange(num_draws)[:, None] * num_items
    counts = np.bincount(cells.ravel(), minlength=num_draws * num_items)
    return counts.reshape(num_draws, num_items).astype(np.float64)


def _variance(values: Float[np.ndarray, " N"]) -> float:
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


def _seed_variance(scores_SN: Float[np.ndarray, "S N"]) -> float:
    """What the luck of seeds adds to the variance of a mean over S of them.

    Seeds also differ because each errs on examples of its own. That part is in the variance over
    examples already and is taken off here (analysis of variance, two ways).
    """
    num_seeds: int
    num_examples: int
    num_seeds, num_examples = scores_SN.shape
    means_S = scores_SN.mean(axis=1)
    if num_examples == 1:
        return _variance(means_S) / num_seeds
    rest_SN = scores_SN - scores_SN.mean(axis=0) - means_S[:, None] + means_S.mean()
    rest = float(np.square(rest_SN).sum()) / ((num_seeds - 1) * (num_examples - 1))
    return max(_variance(means_S) - rest / num_examples, 0.0) / num_seeds


def _interval(mean: float, means_B: Float[np.ndarray, " B"], found: Spread) -> Interval:
    """The quantiles of resampled means, moved out to where the spread wants them.

    A bootstrap takes the few seeds for all there are. Its shape is kept, its width is that of
    Student's t.
    """
    from scipy.stats import norm, t

    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means_B, [tail, 1 - tail])
    deviation = float(means_B.std())
    if deviation == 0:
        return Interval(mean, mean, mean)
    wanted = t.isf(tail, found.freedom) * np.sqrt(found.variance)
    stretch = float(wanted / (norm.isf(tail) * deviation))
    return Interval(mean, mean - stretch * (mean - float(low)), mean + stretch * (high - mean))


def _resampled_means(
    scores_a_SN: Shaped[np.ndarray, "S N"],
    scores_b_RN: Shaped[np.ndarray, "R N"] | None,
    *,
    seed: int,
    num_resamples: int,
) -> Float[np.ndarray, " B"]:
    """Means, or differences of them, of B bootstrap draws.

    The examples of a draw are the same for both arms, which is what makes it paired; the seeds are
    drawn for each arm.
    """
    arms = [np.asarray(arm, np.float64) for arm in (scores_a_SN, scores_b_RN) if arm is not None]
    _require_same_examples(arms)
    num_examples = arms[0].shape[1]
    generator = np.random.default_rng(seed)
    blocks = []
    for size in _block_sizes(num_resamples, num_examples):
        weights_BN = draw_counts(generator, num_draws=size, num_items=num_examples)
        block = np.zeros(size)
        for sign, scores_SN in zip((1, -1), arms, strict=False):
            draws_BS = draw_counts(generator, num_draws=size, num_items=len(scores_SN))
            block += sign * (draws_BS * (weights_BN @ scores_SN.T)).mean(axis=1) / num_examples
        blocks.append(block)
    return np.concatenate(blocks)


def _require_same_examples(arms: Sequence[Float[np.ndarray, "_ _"]]) -> None:
    if arms[0].size == 0 or any(arm.shape[1] != arms[0].shape[1] for arm in arms):
        shapes = ", ".join(str(arm.shape) for arm in arms)
        raise ValueError(f"arms must answer the same examples, at least one; shapes are {shapes}")


def _block_sizes(total: int, row_numbers: int) -> Iterator[int]:
    size = max(1, _BLOCK_NUMBERS // max(1, row_numbers))
    for start in range(0, total, size):
        yield min(size, total - start)
