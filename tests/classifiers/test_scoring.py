"""The scores of every label, and the most confident errors with their rows."""

import numpy as np
import pytest

from regraft.classifiers.scoring import ERRORS_LISTED, evaluation
from regraft.data.text.records import Example, Labels

LABELS = Labels(("bad", "good"))


def scored(rows: list[tuple[float, int]]):
    """Each row is the probability of good, and the target."""
    examples = [
        Example(f"text {place}", LABELS[target], "test.csv", place + 2, id=f"r{place}")
        for place, (_, target) in enumerate(rows)
    ]
    return evaluation(
        np.array([[1 - chance, chance] for chance, _ in rows]),
        targets_N=np.array([target for _, target in rows]),
        labels=LABELS,
        cut_share=0.0,
        examples=examples,
    )


def test_every_label_has_precision_recall_and_f1() -> None:
    bad, good = scored([(0.9, 1), (0.8, 0), (0.3, 1), (0.2, 0), (0.7, 1)]).by_label
    assert (bad.count, bad.predicted, bad.precision, bad.recall) == (2, 2, 0.5, 0.5)
    assert (good.count, good.predicted) == (3, 3)
    assert good.f1 == pytest.approx(2 / 3)
    assert good.threshold is None


def test_most_confident_errors_come_first_with_row_and_id() -> None:
    errors = scored([(0.9, 1), (0.8, 0), (0.05, 1), (0.2, 0)]).errors
    assert [(error.row, error.id, error.label, error.predicted) for error in errors] == [
        (4, "r2", "good", "bad"),
        (3, "r1", "bad", "good"),
    ]
    assert errors[0].probability == pytest.approx(0.95)
    assert len(scored([(0.9, 0)] * 30 + [(0.9, 1)]).errors) == ERRORS_LISTED
