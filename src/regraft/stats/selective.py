"""When not to answer: accuracy on what is answered against the share that is.

Letters: N examples, C classes.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

# Enough for a figure.
_NUM_POINTS = 100
# Enough for a table.
_COVERAGES = (1.0, 0.9, 0.75, 0.5, 0.25)


@dataclass(frozen=True)
class CoveragePoint:
    """A threshold on the confidence: the share of examples that reach it, and their accuracy."""

    threshold: float
    coverage: float
    accuracy: float


def coverage_curve(
    probabilities_NC: Float[np.ndarray, "N C"], targets_N: Int[np.ndarray, " N"]
) -> tuple[CoveragePoint, ...]:
    """Every threshold that separates the examples, from that of the most confident one down."""
    confidence_N = probabilities_NC.max(axis=1)
    order_N = np.argsort(-confidence_N, kind="stable")
    falling_N = confidence_N[order_N]
    hits_N = np.cumsum((probabilities_NC.argmax(axis=1) == targets_N)[order_N])
    # No threshold separates equal confidences.
    is_cut_N = np.append(falling_N[:-1] > falling_N[1:], True)
    return tuple(
        CoveragePoint(
            threshold=float(falling_N[place]),
            coverage=(place + 1) / len(targets_N),
            accuracy=float(hits_N[place] / (place + 1)),
        )
        for place in np.flatnonzero(is_cut_N).tolist()
    )


def point_for_accuracy(
    curve: tuple[CoveragePoint, ...], accuracy: float, *, num_examples: int
) -> tuple[CoveragePoint, bool]:
    """The point with the largest coverage that reaches an accuracy, and whether any does.

    One more example, answered wrongly, is counted: the bound of conformal risk control (arXiv
    2208.02814), without which the luckiest of many thresholds would win. If none reaches it, the
    point with the best accuracy by that count.
    """

    def cautious(point: CoveragePoint) -> float:
        num_answered = point.coverage * num_examples
        return point.accuracy * num_answered / (num_answered + 1)

    reached = [point for point in curve if cautious(point) >= accuracy]
    if reached:
        return max(reached, key=lambda point: point.coverage), True
    return max(curve, key=cautious), False


def landmarks(curve: tuple[CoveragePoint, ...]) -> tuple[CoveragePoint, ...]:
    """The few points of a table, from all examples to a quarter of them."""
    nearest = (min(curve, key=lambda point: abs(point.coverage - part)) for part in _COVERAGES)
    return tuple(dict.fromkeys(nearest))


def thinned(curve: tuple[CoveragePoint, ...]) -> tuple[CoveragePoint, ...]:
    """At most _NUM_POINTS points, evenly spread over the coverage, the last among them."""
    stride = -(-len(curve) // _NUM_POINTS)
    return curve[::-1][:: max(stride, 1)][::-1]
