"""Calibration against numbers worked out by hand, against scikit-learn and against theory."""

import numpy as np
import pytest

from regraft.stats import calibration


def test_calibration_error_is_zero_when_confidence_is_accuracy():
    probabilities = np.tile([0.75, 0.25], (8, 1))
    targets = np.array([0, 0, 0, 1] * 2)
    error = calibration.expected_calibration_error(probabilities, targets, num_bins=15)
    assert error == pytest.approx(0)


def test_calibration_error_is_the_gap_of_an_overconfident_model():
    probabilities = np.tile([1.0, 0.0], (10, 1))
    targets = np.array([0] * 6 + [1] * 4)
    assert calibration.expected_calibration_error(probabilities, targets) == pytest.approx(0.4)


def test_reliability_bins_hold_confidence_accuracy_and_count():
    chances = np.array([[0.95, 0.05], [0.05, 0.95], [0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    targets = np.array([0, 0, 0, 1, 1])
    bins = calibration.reliability(chances, targets, num_bins=10)
    # Exactly 0.5, 0.6 and 0.9 belong to the bins which end there.
    assert [(b.count, b.accuracy) for b in bins] == [(1, 0.0), (1, 1.0), (1, 1.0), (2, 0.5)]
    assert [b.confidence for b in bins] == pytest.approx([0.5, 0.6, 0.9, 0.95])


@pytest.mark.parametrize(("num_mistakes", "is_surer"), [(0, False), (9, False), (10, True)])
def test_answers_are_made_surer_only_by_mistakes(num_mistakes, is_surer):
    # Of 400 answers that say 60 %, nearly all are right.
    chances = np.tile([[0.6, 0.4]], (400, 1))
    targets = (np.arange(400) < num_mistakes).astype(int)
    fitted = calibration.fit_temperature(chances, targets)
    assert fitted < 0.5
    assert calibration.cautious_temperature(chances, targets) == (fitted if is_surer else 1.0)


def test_answers_are_made_less_sure_by_any_mistake():
    chances = np.tile([[0.999, 0.001]], (9, 1))
    targets = np.array([1, 0, 0, 0, 0, 0, 0, 0, 0])
    fitted = calibration.fit_temperature(chances, targets)
    assert calibration.cautious_temperature(chances, targets) == fitted > 1


def test_reliability_is_scikit_learns_calibration_curve():
    from sklearn.calibration import calibration_curve

    generator = np.random.default_rng(8)
    chances = generator.dirichlet([2, 1, 1], size=400)
    targets = generator.integers(0, 3, 400)
    bins = calibration.reliability(chances, targets, num_bins=8)
    shares, confidences = calibration_curve(
        chances.argmax(axis=1) == targets, chances.max(axis=1), n_bins=8
    )
    np.testing.assert_allclose([b.accuracy for b in bins], shares)
    np.testing.assert_allclose([b.confidence for b in bins], confidences)
    assert sum(b.count for b in bins) == 400


def test_reliability_of_certain_answers_is_the_last_bin():
    (certain,) = calibration.reliability(np.array([[1.0, 0.0]]), np.array([0]), num_bins=15)
    assert certain == calibration.ConfidenceBin(confidence=1.0, accuracy=1.0, count=1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_tempered_is_a_softmax_of_divided_logarithms(temperature: float):
    chances = np.random.default_rng(9).dirichlet([1, 1, 1], size=20)
    expected = chances ** (1 / temperature)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibration.tempered(chances, temperature), expected)


def test_tempered_leaves_impossible_classes_impossible():
    tempered = calibration.tempered(np.array([[0.8, 0.2, 0.0]]), 3.0)
    assert tempered[0, 2] == 0
    assert tempered.sum() == pytest.approx(1)


def test_fitted_temperature_makes_bold_answers_honest():
    generator = np.random.default_rng(10)
    honest = generator.dirichlet([1, 1, 1], size=3_000)
    targets = np.array([generator.choice(3, p=row) for row in honest])
    bold = calibration.tempered(honest, 0.4)
    temperature = calibration.fit_temperature(bold, targets)
    assert temperature == pytest.approx(2.5, rel=0.1)
    before = calibration.expected_calibration_error(bold, targets)
    after = calibration.expected_calibration_error(calibration.tempered(bold, temperature), targets)
    assert after < before / 3


def test_steady_temperature_is_between_the_fitted_one_and_one() -> None:
    generator = np.random.default_rng(3)
    for sharpness, num in ((0.4, 100), (2.5, 100), (0.4, 2_000)):
        scores = 3 * generator.normal(size=(num, 3))
        truth = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        targets = (truth.cumsum(axis=1) > generator.random((num, 1))).argmax(axis=1)
        chances = calibration.tempered(truth, 1 / sharpness)
        fitted, steady = (
            find(chances, targets)
            for find in (calibration.fit_temperature, calibration.steady_temperature)
        )
        assert 1 < steady < fitted or fitted < steady < 1
        if num == 2_000:
            assert steady == pytest.approx(fitted, rel=0.1)


def test_steady_temperature_without_evidence_is_one() -> None:
    even = np.full((30, 2), 0.5)
    assert calibration.steady_temperature(even, np.arange(30) % 2) == 1.0
    unknown = np.array([[1.0, 0.0]] * 3)
    assert calibration.steady_temperature(unknown, np.array([1, 1, 1])) == 1.0


def test_decisions_of_label_sets_are_between_no_and_yes():
    chances_MNC = np.random.default_rng(1).uniform(size=(2, 3, 4))
    targets_NC = np.random.default_rng(2).integers(2, size=(3, 4))
    pairs, targets = calibration.decisions(chances_MNC, targets_NC)
    assert pairs.shape == (2, 12, 2)
    assert pairs.sum(axis=-1) == pytest.approx(np.ones((2, 12)))
    assert pairs[1, 5].tolist() == [1 - chances_MNC[1, 1, 1], chances_MNC[1, 1, 1]]
    assert targets[5] == targets_NC[1, 1]
    single = np.array([2, 0, 1])
    assert calibration.decisions(chances_MNC, single) == (chances_MNC, single)
