"""How the score grows with the number of labels, measured on the folds of one fit, and a forecast.

Letters: S sizes, N examples, C classes, B resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from regraft.classifiers.held_out import HeldOut
from regraft.classifiers.logistic import most_folds, strata, subset_probabilities
from regraft.classifiers.weights import adjusted, blended
from regraft.runtime import SILENT, Progress
from regraft.stats import Interval, score_interval

# Parts of the training examples of each fold that members are fitted on again.
_SHARES = (0.25, 0.35, 0.5, 0.7)
# Fewer examples of a class on average teach nothing that could be extrapolated.
_FEWEST_PER_CLASS = 2
# Forecasts are for this many times the labels there are.
_TIMES = (1, 2, 4)
_NUM_RESAMPLES = 1_000
# The error that no number of labels removes is unknown: between none and this share of the error.
_MOST_FLOOR = 0.9


@dataclass(frozen=True)
class LabelPoint:
    """The accuracy of the blend with a number of labels: measured on folds, or a forecast."""

    num_labels: int
    accuracy: Interval
    is_forecast: bool


def label_curve(
    held_out: HeldOut, *, weights: Mapping[str, float], progress: Progress = SILENT
) -> tuple[LabelPoint, ...]:
    """Points measured with parts of the labels, then forecasts; empty with too few labels.

    `held_out` is about folds. Members with non-zero weight are fitted again on nested parts of the
    training examples of every fold, with their own C.
    """
    targets = held_out.targets
    num_folds = most_folds(targets)
    num_seen = len(targets) * (num_folds - 1) // num_folds
    sizes = [round(share * num_seen) for share in _SHARES]
    if sizes[0] < _FEWEST_PER_CLASS * len(np.unique(strata(targets))):
        return ()
    active = [name for name, weight in weights.items() if weight > 0]
    chances = []
    progress.start("score by number of labels", total=len(active) * num_folds)
    for name in active:
        member = held_out.members[name]
        parts_SNC = subset_probabilities(
            member.tuned.rows,
            targets,
            strength=member.tuned.regularisation,
            sizes=sizes,
            num_classes=len(member.labels),
            num_folds=num_folds,
            seed=held_out.seed,
            progress=progress,
        )
        chances.append([*parts_SNC, held_out.of(name)])
    progress.finish()
    weights_M = np.array([weights[name] for name in active])
    shares_SN = np.stack(
        [
            held_out.shares(held_out.predicted(adjusted(blend_NC, held_out.priors_C)))
            for blend_NC in (
                blended(np.stack(each_MNC), weights_M, has_label_sets=held_out.has_label_sets)
                for each_MNC in zip(*chances, strict=True)
            )
        ]
    )
    sizes.append(num_seen)
    measured = [
        LabelPoint(size, score_interval(shares_N[None]), is_forecast=False)
        for size, shares_N in zip(sizes, shares_SN, strict=True)
    ]
    ahead = [times * len(targets) for times in _TIMES]
    return (*measured, *_forecasts(shares_SN, sizes, ahead, seed=held_out.seed))


def expected_gain(curve: Sequence[LabelPoint], *, num_more: int) -> float | None:
    """What a few more labels would add to the score, between two forecasts; None without them."""
    forecasts = [point for point in curve if point.is_forecast]
    if len(forecasts) < 2:
        return None
    now, later = forecasts[:2]
    share = np.log1p(num_more / now.num_labels) / np.log(later.num_labels / now.num_labels)
    return float(min(share, 1.0) * (later.accuracy.mean - now.accuracy.mean))


def _forecasts(
    shares_SN: Float[np.ndarray, "S N"], sizes: Sequence[int], ahead: Sequence[int], *, seed: int
) -> list[LabelPoint]:
    """Power laws with a floor through the errors of resampled examples (arXiv 1712.00409)."""
    num_examples = shares_SN.shape[1]
    generator = np.random.default_rng(seed)
    picks_BN = generator.integers(num_examples, size=(_NUM_RESAMPLES, num_examples))
    errors_BS = 1 - np.stack([shares_N[picks_BN].mean(axis=1) for shares_N in shares_SN], axis=1)
    floors_B = generator.uniform(0, _MOST_FLOOR, size=_NUM_RESAMPLES) * errors_BS.min(axis=1)
    # Half an error: the logarithm of none would be infinite.
    above_BS = np.maximum(errors_BS - floors_B[:, None], 0.5 / num_examples)
    slopes_B, heights_B = _lines(np.log(sizes), np.log(above_BS))
    points = []
    for size in ahead:
        # Centred at the last size measured; more labels do not hurt.
        removed_B = np.minimum(slopes_B, 0) * np.log(size / sizes[-1])
        accuracies_B = 1 - np.minimum(floors_B + np.exp(heights_B + removed_B), 1)
        low, high = np.quantile(accuracies_B, (0.025, 0.975)).tolist()
        interval = Interval(float(accuracies_B.mean()), low, high)
        points.append(LabelPoint(size, interval, is_forecast=True))
    return points


def _lines(
    xs_S: Float[np.ndarray, " S"], ys_BS: Float[np.ndarray, "B S"]
) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " B"]]:
    """The slope of every least-squares line, and its height at the last x."""
    centred_S = xs_S - xs_S.mean()
    slopes_B = (ys_BS @ centred_S) / (centred_S @ centred_S)
    return slopes_B, ys_BS.mean(axis=1) + slopes_B * centred_S[-1]
