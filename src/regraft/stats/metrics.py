"""Accuracy, F1, calibration and possible label errors, from numpy arrays.

Letters: S seeds, N examples, C classes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped

from regraft.stats.significance import Interval, score_interval

_COLLAPSED_REST = 0.01
# Strength of the prior on log temperature, in nats over all examples.
_PULL_TO_ONE = 1.0
_MOST_TEMPERATURE = 20.0
# Fewest errors that allow a temperature below 1. With fewer the fit follows chance: 20 articles and
# a model of 88 % accuracy raised the calibration error on test from 5.6 to 8.3 points (2026-11-17).
_FEWEST_MISTAKES = 10
# Fewest examples with a label, and without it, from which its threshold is chosen.
FEWEST_TO_CHOOSE_BY = 10
# Smaller probabilities count as this one, so that no single prediction can rule out a class.
_LEAST_CHANCE = 1e-12


@dataclass(frozen=True)
class ConfidenceBin:
    """Predictions of similar confidence: their mean confidence and accuracy."""

    confidence: float
    accuracy: float
    count: int


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
    seed: int = 0,
    num_resamples: int = 2_000,
) -> Interval:
    """Macro-F1 over seeds, with the same interval."""
    shares_SN = macro_f1_shares(predictions_SN, targets_N, num_classes=num_classes)
    return score_interval(shares_SN, seed=seed, num_resamples=num_resamples)


def reliability(
    probabilities_NC: Float[np.ndarray, "N C"],
    targets_N: Int[np.ndarray, " N"],
    *,
    num_bins: int = 15,
) -> tuple[ConfidenceBin, ...]:
    """Predictions in confidence bins of equal width, without empty bins."""
    correct_N = probabilities_NC.argmax(axis=1) == targets_N
    return confidence_bins(probabilities_NC.max(axis=1), correct_N, num_bins=num_bins)


def confidence_bins(
    confidence_N: Float[np.ndarray, " N"], correct_N: Bool[np.ndarray, " N"], *, num_bins: int = 15
) -> tuple[ConfidenceBin, ...]:
    """The same, where only the confidence in each prediction is known."""
    _require_examples(len(confidence_N))
    # Bins are open on the left: a confidence of exactly 1 is in the last.
    bins_N = np.clip(np.ceil(confidence_N * num_bins).astype(int) - 1, 0, num_bins - 1)
    counts = np.bincount(bins_N, minlength=num_bins)
    confidences = np.bincount(bins_N, weights=confidence_N, minlength=num_bins)
    hits = np.bincount(bins_N, weights=correct_N, minlength=num_bins)
    return tuple(
        ConfidenceBin(
            confidence=float(confidences[place] / counts[place]),
            accuracy=float(hits[place] / counts[place]),
            count=int(counts[place]),
        )
        for place in np.flatnonzero(counts).tolist()
    )


def expected_calibration_error(
    probabilities_NC: Float[np.ndarray, "N C"],
    targets_N: Int[np.ndarray, " N"],
    *,
    num_bins: int = 15,
) -> float:
    """Expected calibration error over bins of equal width (arXiv 1706.04599)."""
    bins = reliability(probabilities_NC, targets_N, num_bins=num_bins)
    return sum(b.count * abs(b.confidence - b.accuracy) for b in bins) / len(targets_N)


def fit_temperature(
    probabilities_NC: Float[np.ndarray, "N C"], targets_N: Int[np.ndarray, " N"]
) -> float:
    """The temperature with the lowest cross-entropy (arXiv 1706.04599), with a weak prior at 1.

    Examples whose class has probability zero are omitted.
    """
    from scipy.optimize import minimize_scalar

    known_N = probabilities_NC[np.arange(len(targets_N)), targets_N] > 0
    probabilities_NC, targets_N = probabilities_NC[known_N], targets_N[known_N]
    num_examples = len(targets_N)
    if num_examples == 0:
        return 1.0
    logs_NC, known_NC = log_probabilities(probabilities_NC), probabilities_NC > 0
    target_logs_N = logs_NC[np.arange(num_examples), targets_N]

    def loss(log_temperature: float) -> float:
        sharpness = np.exp(-log_temperature)
        _, sums_N = softmax(logs_NC * sharpness, known_NC)
        pull = _PULL_TO_ONE / num_examples * log_temperature**2
        return float(np.mean(sums_N - target_logs_N * sharpness) + pull)

    most = float(np.log(_MOST_TEMPERATURE))
    found = minimize_scalar(loss, bounds=(-most, most), method="bounded", options={"xatol": 1e-8})
    return float(np.exp(found.x))


def steady_temperature(
    probabilities_NC: Float[np.ndarray, "N C"], targets_N: Int[np.ndarray, " N"]
) -> float:
    """`fit_temperature`, moved towards 1 by one standard error of its logarithm.

    The fewer errors there are, the larger that is: errors say how confident is too confident. The
    error is estimated from the slopes of single examples (sandwich estimator, White 1982).
    """
    log_temperature = float(np.log(fit_temperature(probabilities_NC, targets_N)))
    known_N = probabilities_NC[np.arange(len(targets_N)), targets_N] > 0
    probabilities_NC, targets_N = probabilities_NC[known_N], targets_N[known_N]
    if log_temperature == 0 or len(targets_N) == 0:
        return 1.0
    logs_NC, known_NC = log_probabilities(probabilities_NC), probabilities_NC > 0
    target_logs_N = logs_NC[np.arange(len(targets_N)), targets_N]

    def slopes(log_temperature: float) -> Float[np.ndarray, " N"]:
        sharpness = np.exp(-log_temperature)
        chances_NC, _ = softmax(logs_NC * sharpness, known_NC)
        slopes_N: Float[np.ndarray, " N"] = sharpness * (
            target_logs_N - (chances_NC * logs_NC).sum(axis=1)
        )
        return slopes_N

    step = 1e-4
    curvature = float(
        (slopes(log_temperature + step) - slopes(log_temperature - step)).sum() / (2 * step)
    )
    spread = float(np.sqrt(np.square(slopes(log_temperature)).sum()))
    if curvature <= 0:
        return 1.0
    moved = max(abs(log_temperature) - spread / curvature, 0.0)
    return float(np.exp(np.copysign(moved, log_temperature)))


def cautious_temperature(
    probabilities_NC: Float[np.ndarray, "N C"], targets_N: Int[np.ndarray, " N"]
) -> float:
    """The same, but at least 1 if there are too few errors to justify more confidence.

    For probabilities that users rely on, fitted on possibly very few examples.
    """
    temperature = fit_temperature(probabilities_NC, targets_N)
    num_mistakes = int((probabilities_NC.argmax(axis=1) != targets_N).sum())
    return temperature if num_mistakes >= _FEWEST_MISTAKES else max(temperature, 1.0)


def decisions(
    chances: Float[np.ndarray, "*M N C"], targets: Int[np.ndarray, " N"] | Int[np.ndarray, "N C"]
) -> tuple[Float[np.ndarray, "*M _ _"], Int[np.ndarray, " _"]]:
    """Probabilities and targets of single-label decisions.

    Where an example may have several labels (N x C targets), each of them is one decision between
    no and yes.
    """
    if targets.ndim == 1:
        return chances, targets
    flat = chances.reshape(*chances.shape[:-2], -1)
    return np.stack([1 - flat, flat], axis=-1), targets.ravel()


def tempered(
    probabilities_NC: Float[np.ndarray, "N C"], temperature: float
) -> Float[np.ndarray, "N C"]:
    """Less confident above a temperature of 1, more below; the order of classes is unchanged."""
    scores_NC = log_probabilities(probabilities_NC) / temperature
    return softmax(scores_NC, probabilities_NC > 0)[0]


def log_probabilities(chances: Float[np.ndarray, "*M N C"]) -> Float[np.ndarray, "*M N C"]:
    """Logarithms in double precision, finite at zero."""
    return np.log(np.maximum(chances.astype(np.float64), _LEAST_CHANCE))


def softmax(
    scores_NC: Float[np.ndarray, "N C"], known_NC: Bool[np.ndarray, "N C"]
) -> tuple[Float[np.ndarray, "N C"], Float[np.ndarray, " N"]]:
    """Probabilities over the known classes, and the log of their normalizer."""
    # Not scipy's logsumexp: importing it would take a tenth of the start of `regraft predict`.
    scores_NC = np.where(known_NC, scores_NC, -np.inf)
    most_N1 = scores_NC.max(axis=1, keepdims=True)
    sums_N1 = most_N1 + np.log(np.exp(scores_NC - most_N1).sum(axis=1, keepdims=True))
    return np.exp(scores_NC - sums_N1), sums_N1[:, 0]


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
    sureness_SN = probabilities_SNC[:, np.arange(len(targets_N)), answers_SN[0]]
    doubted_N = agreed_N & (sureness_SN >= usual_SC[:, answers_SN[0]]).all(axis=0)
    rows = np.flatnonzero(doubted_N)
    return rows[np.argsort(-sureness_SN.mean(axis=0)[rows], kind="stable")]


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
