"""Numbers from arrays: how often right, how sure, and how far a difference can be trusted.

Comes in: numpy arrays of predictions, probabilities or right/wrong answers. Goes out: plain floats
and Intervals. Letters: S seeds, N examples, C classes. Knows no models, no files, no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Num

_CONFIDENCE = 0.95
_COLLAPSED_SHARE = 0.99
# Resamples are drawn in blocks of at most this many numbers, so that memory stays flat.
_BLOCK_NUMBERS = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def accuracy(predictions: Int[np.ndarray, " N"], targets: Int[np.ndarray, " N"]) -> float:
    """The share of examples predicted right."""
    _require_examples(len(targets))
    return float(np.mean(predictions == targets))


def confusion(
    predictions: Int[np.ndarray, " N"], targets: Int[np.ndarray, " N"], *, num_classes: int
) -> Int[np.ndarray, "C C"]:
    """Counts by target (row) and prediction (column)."""
    cells = targets.astype(np.int64) * num_classes + predictions
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def macro_f1(
    predictions: Int[np.ndarray, " N"], targets: Int[np.ndarray, " N"], *, num_classes: int
) -> float:
    """The mean of the classes' F1; a class that is neither present nor predicted is left out."""
    _require_examples(len(targets))
    counts_CC = confusion(predictions, targets, num_classes=num_classes)
    hits_C = np.diag(counts_CC)
    mentions_C = counts_CC.sum(axis=0) + counts_CC.sum(axis=1)
    seen_C = mentions_C > 0
    return float(np.mean(2 * hits_C[seen_C] / mentions_C[seen_C]))


def expected_calibration_error(
    probabilities_NC: Float[np.ndarray, "N C"],
    targets_N: Int[np.ndarray, " N"],
    *,
    num_bins: int = 15,
) -> float:
    """The mean gap between confidence and accuracy over bins of equal width (arXiv 1706.04599)."""
    _require_examples(len(targets_N))
    confidence_N = probabilities_NC.max(axis=1)
    correct_N = probabilities_NC.argmax(axis=1) == targets_N
    # Bins are open on the left: a confidence of exactly 1 belongs to the last.
    bins_N = np.clip(np.ceil(confidence_N * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins_N, weights=confidence_N - correct_N, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(targets_N))


def cross_entropy(
    probabilities_NC: Float[np.ndarray, "N C"], targets_N: Int[np.ndarray, " N"]
) -> float:
    """Nats an example; a probability of zero counts as the smallest float, not as infinity."""
    _require_examples(len(targets_N))
    chosen_N = probabilities_NC[np.arange(len(targets_N)), targets_N].astype(np.float64)
    return float(-np.log(np.maximum(chosen_N, np.finfo(np.float64).tiny)).mean())


def unigram_entropy(counts: Num[np.ndarray, " V"]) -> float:
    """Nats a token of a corpus known only by its token counts: the line a model must beat."""
    total = counts.sum()
    if total <= 0:
        raise ValueError("unigram_entropy needs at least one token")
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum())


def bits_per_byte(nats_per_token: float, *, num_tokens: int, num_bytes: int) -> float:
    """The loss in bits for each byte of text: comparable between vocabularies."""
    if num_bytes <= 0:
        raise ValueError(f"bits_per_byte needs at least one byte, not {num_bytes}")
    return float(nats_per_token * num_tokens / num_bytes / np.log(2))


def is_collapsed(predictions_N: Int[np.ndarray, " N"], *, num_classes: int) -> bool:
    """Whether a run answers (almost) one class only: a failed training, not a weak model."""
    _require_examples(len(predictions_N))
    if num_classes < 2:
        return False
    most = np.bincount(predictions_N, minlength=num_classes).max()
    return bool(most >= _COLLAPSED_SHARE * len(predictions_N))


def accuracy_interval(
    correct_SN: Bool[np.ndarray, "S N"], *, seed: int = 0, num_resamples: int = 2_000
) -> Interval:
    """Accuracy over seeds; the interval resamples seeds and examples together."""
    means = np.concatenate(
        [
            (weights_BN * answers_BN).mean(axis=1)
            for weights_BN, (answers_BN,) in _resamples([correct_SN], seed, num_resamples)
        ]
    )
    return _interval(float(correct_SN.mean()), means)


def difference_interval(
    correct_a_SN: Bool[np.ndarray, "S N"],
    correct_b_SN: Bool[np.ndarray, "R N"],
    *,
    seed: int = 0,
    num_resamples: int = 2_000,
) -> Interval:
    """Accuracy of a minus that of b on the same examples; seeds may differ in number.

    Both are resampled on the same examples, each on its own seeds.
    """
    means = np.concatenate(
        [
            (weights_BN * (a_BN - b_BN)).mean(axis=1)
            for weights_BN, (a_BN, b_BN) in _resamples(
                [correct_a_SN, correct_b_SN], seed, num_resamples
            )
        ]
    )
    return _interval(float(correct_a_SN.mean() - correct_b_SN.mean()), means)


def paired_permutation_test(
    correct_a_SN: Bool[np.ndarray, "S N"],
    correct_b_SN: Bool[np.ndarray, "R N"],
    *,
    seed: int = 0,
    num_resamples: int = 10_000,
) -> float:
    """Two-sided p that a and b are equally accurate: random sign flips of each example's gap.

    The gap of an example is the difference of its mean over seeds, so arms may differ in seeds.
    """
    gaps_N = correct_a_SN.mean(axis=0) - correct_b_SN.mean(axis=0)
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


def _require_examples(num_examples: int) -> None:
    if num_examples == 0:
        raise ValueError("a metric needs at least one example")


def _interval(mean: float, resampled_means: Float[np.ndarray, " M"]) -> Interval:
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(resampled_means, [tail, 1 - tail])
    return Interval(mean, float(low), float(high))


def _block_sizes(total: int, row_numbers: int) -> Iterator[int]:
    size = max(1, _BLOCK_NUMBERS // max(1, row_numbers))
    for start in range(0, total, size):
        yield min(size, total - start)


def _resamples(
    arms: list[Bool[np.ndarray, "_ N"]], seed: int, num_resamples: int
) -> Iterator[tuple[Float[np.ndarray, "B N"], list[Float[np.ndarray, "B N"]]]]:
    """Blocks of B bootstrap draws: how often each example was drawn, and each arm's answers.

    An arm's answers are its means over seeds drawn with replacement. The examples are the same for
    all arms, which is what makes a difference of arms a paired one.
    """
    num_examples = arms[0].shape[1]
    if num_examples == 0 or any(arm.shape[1] != num_examples for arm in arms):
        shapes = ", ".join(str(arm.shape) for arm in arms)
        raise ValueError(f"arms must answer the same examples, at least one; shapes are {shapes}")
    generator = np.random.default_rng(seed)
    for size in _block_sizes(num_resamples, num_examples):
        weights_BN = _draw_counts(generator, size, num_examples)
        answers = []
        for correct_SN in arms:
            draws_BS = _draw_counts(generator, size, len(correct_SN)) / len(correct_SN)
            answers.append(draws_BS @ correct_SN.astype(np.float64))
        yield weights_BN, answers


def _draw_counts(
    generator: np.random.Generator, num_draws: int, num_items: int
) -> Float[np.ndarray, "B N"]:
    """How often each item comes up when as many are drawn with replacement, `num_draws` times."""
    cells = generator.integers(0, num_items, size=(num_draws, num_items))
    cells += np.arange(num_draws)[:, None] * num_items
    counts = np.bincount(cells.ravel(), minlength=num_draws * num_items)
    return counts.reshape(num_draws, num_items).astype(np.float64)
