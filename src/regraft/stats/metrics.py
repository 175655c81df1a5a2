"""Accuracy, F1, losses and possible label errors, from numpy arrays.

Letters: S seeds, N examples, C classes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped

from regraft.stats.significance import Interval, score_interval

_COLLAPSED_REST = 0.01
# Fewest examples with a label, and without it, from which its threshold is chosen.
FEWEST_TO_CHOOSE_BY = 10


@dataclass(frozen=True)
class LengthBin:
    """Accuracy on test examples of `low` to `high` words."""

    low: int
    high: int
    count: int
    accuracy: float


def accuracy(predictions: Int[np.ndarray, " N"], targets: Int[np.ndarray, " N"]) -> float:
    """The share of correct predictions."""
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
    """Mean F1 over classes; a class that is neither present nor predicted is omitted."""
    _require_examples(len(targets))
    counts_CC = confusion(predictions, targets, num_classes=num_classes)
    hits_C = np.diag(counts_CC)
    mentions_C = counts_CC.sum(axis=0) + counts_CC.sum(axis=1)
    seen_C = mentions_C > 0
    return float(np.mean(2 * hits_C[seen_C] / mentions_C[seen_C]))


def macro_f1_shares(
    predictions_SN: Int[np.ndarray, "S N"], targets_N: Int[np.ndarray, " N"], *, num_classes: int
) -> Float[np.ndarray, "S N"]:
    """The contribution of each example to the macro-F1 of its seed; their mean is the score.

    F1 is not a mean over examples; these are its first-order changes when an example gains weight,
    which allow the intervals and tests of a mean (infinitesimal jackknife, Jaeckel 1972).
    """
    shares = []
    for predictions_N in predictions_SN:
        score = macro_f1(predictions_N, targets_N, num_classes=num_classes)
        counts_CC = confusion(predictions_N, targets_N, num_classes=num_classes)
        mentions_C = counts_CC.sum(axis=0) + counts_CC.sum(axis=1)
        scale_C = len(targets_N) / np.maximum(mentions_C, 1) / (mentions_C > 0).sum()
        f1_C = 2 * np.diag(counts_CC) / np.maximum(mentions_C, 1)
        gain_N = 2 * (predictions_N == targets_N) * scale_C[targets_N]
        cost_N = (f1_C * scale_C)[predictions_N] + (f1_C * scale_C)[targets_N]
        shares.append(score + gain_N - cost_N)
    return np.stack(shares)


def micro_f1_shares(
    predicted_NC: Bool[np.ndarray, "N C"], targets_NC: Int[np.ndarray, "N C"]
) -> Float[np.ndarray, " N"]:
    """The contribution of each multi-label example to micro-F1; their mean is the score."""
    _require_examples(len(targets_NC))
    is_label_NC = targets_NC == 1
    hits_N = (predicted_NC & is_label_NC).sum(axis=1)
    return _f1_shares(hits_N, predicted_NC.sum(axis=1) + is_label_NC.sum(axis=1))


def mean_f1_shares(
    predicted_NC: Bool[np.ndarray, "N C"], targets_NC: Int[np.ndarray, "N C"]
) -> Float[np.ndarray, " N"]:
    """The same for macro-F1; a label neither present nor predicted is omitted."""
    _require_examples(len(targets_NC))
    is_label_NC = targets_NC == 1
    hits_NC, mentions_NC = predicted_NC & is_label_NC, predicted_NC.astype(int) + is_label_NC
    seen = np.flatnonzero(mentions_NC.any(axis=0))
    if not len(seen):
        return np.ones(len(targets_NC))
    shares = [_f1_shares(hits_NC[:, c], mentions_NC[:, c]) for c in seen]
    means_N: Float[np.ndarray, " N"] = np.stack(shares).mean(axis=0)
    return means_N


def _f1_shares(
    hits_N: Shaped[np.ndarray, " N"], mentions_N: Shaped[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    """First-order shares of 2 hits / mentions, as for macro-F1; 1 if there are no mentions."""
    total = mentions_N.sum()
    if not total:
        return np.ones(len(hits_N))
    score = 2 * hits_N.sum() / total
    shares_N: Float[np.ndarray, " N"] = (
        score + len(hits_N) * (2 * hits_N - score * mentions_N) / total
    )
    return shares_N


def best_micro_f1(
    probabilities_NC: Float[np.ndarray, "N C"], targets_NC: Int[np.ndarray, "N C"]
) -> float:
    """The best micro-F1 of a single threshold for all labels."""
    _require_examples(len(targets_NC))
    scores, _ = _f1_by_threshold(probabilities_NC.ravel(), targets_NC.ravel())
    return float(scores.max())


def common_threshold(
    probabilities_NC: Float[np.ndarray, "N C"], targets_NC: Int[np.ndarray, "N C"]
) -> float:
    """The single threshold of all labels with the best micro-F1; of equals the nearest to half."""
    scores, thresholds = _f1_by_threshold(probabilities_NC.ravel(), targets_NC.ravel())
    is_best = scores == scores.max()
    return float(min(thresholds[is_best], key=lambda each: abs(each - 0.5)))


def f1_thresholds(
    probabilities_NC: Float[np.ndarray, "N C"],
    targets_NC: Int[np.ndarray, "N C"],
    *,
    otherwise: float = 0.5,
) -> Float[np.ndarray, " C"]:
    """The threshold of each label with the best F1 on these examples.

    `otherwise` if too few examples have the label, or do not have it.
    """
    chosen = []
    for probabilities_N, targets_N in zip(probabilities_NC.T, targets_NC.T, strict=True):
        if min(targets_N.sum(), (1 - targets_N).sum()) < FEWEST_TO_CHOOSE_BY:
            chosen.append(otherwise)
        else:
            chosen.append(common_threshold(probabilities_N[:, None], targets_N[:, None]))
    return np.array(chosen)


def _f1_by_threshold(
    probabilities_N: Float[np.ndarray, " N"], targets_N: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """All F1 scores that a threshold can reach, each with such a threshold."""
    order = np.argsort(-probabilities_N, kind="stable")
    falling_N, hits_N = probabilities_N[order], targets_N[order].cumsum()
    next_N = np.append(falling_N[1:], 0.0)
    mentions_N = np.arange(1, len(order) + 1) + targets_N.sum()
    # No threshold separates equal probabilities.
    is_cut_N = falling_N > next_N
    is_cut_N[-1] = True
    return (2 * hits_N / mentions_N)[is_cut_N], ((falling_N + next_N) / 2)[is_cut_N]


def accuracy_interval(
    correct_SN: Bool[np.ndarray, "S N"], *, seed: int = 0, num_resamples: int = 2_000
) -> Interval:
    """Accuracy over seeds; the interval is over new seeds and new examples."""
    return score_interval(correct_SN, seed=seed, num_resamples=num_resamples)


def macro_f1_interval(
    predictions_SN: Int[np.ndarray, "S N"],
    targets_N: Int[np.ndarray, " N"],
    *,
    num_classes: int,
) -> Interval:
    """Macro-F1 over seeds, with the same interval."""
    return score_interval(macro_f1_shares(predictions_SN, targets_N, num_classes=num_classes))


def accuracy_by_length(
    correct_SN: Bool[np.ndarray, "S N"], lengths_N: Int[np.ndarray, " N"], *, num_bins: int = 5
) -> tuple[LengthBin, ...]:
    """Accuracy over seeds by text length, in bins of about equal size; ties stay together."""
    _require_examples(len(lengths_N))
    inner = np.quantile(lengths_N, np.arange(1, num_bins) / num_bins, method="inverted_cdf")
    # Edges belong to the lower bin; the last bin is open.
    bins_N = np.searchsorted(np.unique(inner), lengths_N)
    members = [np.flatnonzero(bins_N == place) for place in np.unique(bins_N)]
    return tuple(
        LengthBin(
            low=int(lengths_N[rows].min()),
            high=int(lengths_N[rows].max()),
            count=len(rows),
            accuracy=float(correct_SN[:, rows].mean()),
        )
        for rows in members
    )


def label_doubts(
    probabilities_SNC: Float[np.ndarray, "S N C"], targets_N: Int[np.ndarray, " N"]
) -> Int[np.ndarray, " K"]:
    """Possible label errors: all S runs confidently disagree with the label, most confident first.

    All runs must predict the same other class, each at least as confidently as it does on average
    for examples with that label (confident learning, arXiv 1911.00068).
    """
    _require_examples(len(targets_N))
    num_classes = probabilities_SNC.shape[2]
    answers_SN = probabilities_SNC.argmax(axis=2)
    agreed_N = (answers_SN == answers_SN[0]).all(axis=0) & (answers_SN[0] != targets_N)
    usual_SC = np.full((len(probabilities_SNC), num_classes), np.inf)
    for target in np.unique(targets_N):
        usual_SC[:, target] = probabilities_SNC[:, targets_N == target, target].mean(axis=1)
    confidence_SN = probabilities_SNC[:, np.arange(len(targets_N)), answers_SN[0]]
    doubted_N = agreed_N & (confidence_SN >= usual_SC[:, answers_SN[0]]).all(axis=0)
    rows = np.flatnonzero(doubted_N)
    return rows[np.argsort(-confidence_SN.mean(axis=0)[rows], kind="stable")]


def cross_entropy(
    probabilities_NC: Float[np.ndarray, "N C"], targets_N: Int[np.ndarray, " N"]
) -> float:
    """Nats per example; a probability of zero counts as the smallest float."""
    _require_examples(len(targets_N))
    chosen_N = probabilities_NC[np.arange(len(targets_N)), targets_N].astype(np.float64)
    return float(-np.log(np.maximum(chosen_N, np.finfo(np.float64).tiny)).mean())


def unigram_entropy(counts: Num[np.ndarray, " V"]) -> float:
    """Entropy of the token frequencies in nats per token: the baseline of a language model."""
    total = counts.sum()
    if total <= 0:
        raise ValueError("unigram_entropy needs at least one token")
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum())


def bits_per_byte(nats_per_token: float, *, num_tokens: int, num_bytes: int) -> float:
    """The loss in bits per byte of text, comparable across vocabularies."""
    if num_bytes <= 0:
        raise ValueError(f"bits_per_byte needs at least one byte, not {num_bytes}")
    return float(nats_per_token * num_tokens / num_bytes / np.log(2))


def is_collapsed(predictions_N: Int[np.ndarray, " N"], targets_N: Int[np.ndarray, " N"]) -> bool:
    """Does a run predict (almost) one class only? Then training failed.

    Other predictions must be rare, and much rarer than other labels: on very uneven classes, a good
    model also predicts mostly one.
    """
    _require_examples(len(predictions_N))
    most = np.bincount(predictions_N).argmax()
    other_answers, other_labels = (predictions_N != most).mean(), (targets_N != most).mean()
    return bool(other_answers <= min(_COLLAPSED_REST, other_labels / 10) and other_labels > 0)


def _require_examples(num_examples: int) -> None:
    if num_examples == 0:
        raise ValueError("a metric needs at least one example")
