"""Accuracy against coverage, and the threshold for a target accuracy."""

import numpy as np
import pytest

from regraft.stats.selective import CoveragePoint, coverage_curve, point_for_accuracy, thinned


def chances(confidences: list[float]) -> np.ndarray:
    return np.array([[1 - c, c] for c in confidences])


def test_curve_falls_from_the_most_confident_to_all() -> None:
    # Class 1 is predicted throughout; the third and the last are wrong.
    curve = coverage_curve(chances([0.9, 0.8, 0.7, 0.6]), np.array([1, 1, 0, 0]))
    assert curve == (
        CoveragePoint(0.9, 0.25, 1.0),
        CoveragePoint(0.8, 0.5, 1.0),
        CoveragePoint(0.7, 0.75, 2 / 3),
        CoveragePoint(0.6, 1.0, 0.5),
    )


def test_equal_confidences_are_never_separated() -> None:
    curve = coverage_curve(chances([0.9, 0.7, 0.7]), np.array([1, 0, 1]))
    assert [point.coverage for point in curve] == pytest.approx([1 / 3, 1.0])


def test_target_takes_the_largest_coverage_and_counts_one_more_error() -> None:
    targets = np.array([1] * 19 + [0])
    curve = coverage_curve(chances([0.99 - 0.01 * n for n in range(20)]), targets)
    # 19 right answers count as 19 of 20, all 20 as 19 of 21.
    point, is_reached = point_for_accuracy(curve, 0.95, num_examples=20)
    assert (point.coverage, is_reached) == (0.95, True)
    point, is_reached = point_for_accuracy(curve, 0.99, num_examples=20)
    assert (point.accuracy, is_reached) == (1.0, False)


def test_accuracy_on_new_texts_keeps_the_target_on_average() -> None:
    generator = np.random.default_rng(0)

    def draw(num: int) -> tuple[np.ndarray, np.ndarray]:
        confidence = generator.uniform(0.5, 1, num)
        return chances(confidence.tolist()), (generator.random(num) < confidence).astype(int)

    reached = []
    for _ in range(30):
        probabilities, targets = draw(200)
        curve = coverage_curve(probabilities, targets)
        point, _ = point_for_accuracy(curve, 0.9, num_examples=200)
        fresh, truth = draw(2_000)
        answered = fresh[:, 1] >= point.threshold
        reached.append(truth[answered].mean())
    assert np.mean(reached) == pytest.approx(0.9, abs=0.02)


def test_thinned_keeps_the_last_point() -> None:
    curve = tuple(CoveragePoint(1 - n / 1000, n / 1000, 0.9) for n in range(1, 1001))
    few = thinned(curve)
    assert len(few) == 100
    assert few[-1] == curve[-1]
    assert thinned(curve[:50]) == curve[:50]
