"""Accuracy by the number of labels: measured on folds, and forecast."""

import random

import numpy as np
import pytest

from regraft.classifiers.held_out import HeldOut
from regraft.classifiers.learning_curve import LabelPoint, _forecasts, label_curve
from regraft.classifiers.tfidf import fit_linear
from regraft.data.text.records import Example, labels_of


def examples(num: int) -> list[Example]:
    """Texts of four words, each of one of many words that lean to a class."""
    generator = random.Random(0)
    words = [f"w{n}" for n in range(200)]
    found = []
    for row in range(num):
        label = "ab"[row % 2]
        own = words[: len(words) // 2] if label == "a" else words[len(words) // 2 :]
        text = " ".join([*generator.choices(own, k=3), *generator.choices(words, k=3)])
        found.append(Example(text, label, "train.csv", row + 2))
    return found


def curve_of(num: int) -> tuple[LabelPoint, ...]:
    train = examples(num)
    labels = labels_of(train)
    linear = fit_linear(train, [], labels=labels)
    held_out = HeldOut({"linear": linear}, labels.targets(train), seed=0)
    return label_curve(held_out, weights={"linear": 1.0})


def test_curve_measures_parts_and_forecasts_more() -> None:
    curve = curve_of(200)
    assert [point.num_labels for point in curve] == [40, 56, 80, 112, 160, 200, 400, 800]
    assert [point.is_forecast for point in curve] == [False] * 5 + [True] * 3
    means = [point.accuracy.mean for point in curve]
    assert means[0] < means[4]
    assert means[5] <= means[6] <= means[7] <= 1
    for point in curve:
        assert point.accuracy.low <= point.accuracy.mean <= point.accuracy.high


def test_too_few_labels_have_no_curve() -> None:
    assert curve_of(16) == ()


def test_forecast_of_a_power_law_holds_its_continuation() -> None:
    sizes = [100, 140, 200, 280, 400]
    generator = np.random.default_rng(1)
    luck = generator.random(400)
    correct = np.stack([luck > 0.4 * (size / 100) ** -0.4 for size in sizes])
    (point,) = _forecasts(correct.astype(float), sizes, [1_600], seed=0)
    truth = 1 - 0.4 * 16**-0.4
    assert point.accuracy.low < truth < point.accuracy.high
    assert point.accuracy.high - point.accuracy.low < 0.2


def test_forecast_without_errors_is_near_one() -> None:
    (point,) = _forecasts(np.ones((5, 50)), [10, 14, 20, 28, 40], [80], seed=0)
    assert point.accuracy.mean == pytest.approx(0.99, abs=0.011)
