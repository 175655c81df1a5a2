"""Weights and temperatures, against scipy's general optimisers."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from regraft.classifiers import weights as blend
from regraft.classifiers.weights import adjusted, blended, choose_weights
from regraft.stats import calibration
from regraft.stats.calibration import fit_temperature
from regraft.stats.metrics import cross_entropy


def answers(
    num_examples: int,
    *,
    quality: tuple[float, ...],
    sureness: tuple[float, ...] | None = None,
    num_classes: int = 3,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Members that see the truth through noise; of sureness 1 they are calibrated."""
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, num_classes, num_examples)
    chances = []
    for strength, sure in zip(quality, sureness or (1.0,) * len(quality), strict=True):
        scores = generator.normal(size=(num_examples, num_classes))
        scores[np.arange(num_examples), targets] += strength
        chances.append(softmax(sure * strength * scores, axis=1))
    return np.array(chances), targets


def test_blend_is_the_renormalised_weighted_geometric_mean():
    chances, _ = answers(6, quality=(1.0, 2.0))
    weights = np.array([0.25, 0.75])
    product = chances[0] ** 0.25 * chances[1] ** 0.75
    expected = product / product.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(blended(chances, weights), expected)
    cooler = expected**2 / (expected**2).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(blended(chances, weights, temperature=0.5), cooler)


def test_blend_of_one_is_itself():
    chances, _ = answers(6, quality=(1.0,))
    np.testing.assert_allclose(blended(chances, np.ones(1)), chances[0])


def test_blend_gives_a_class_nobody_knows_no_chance():
    chances = np.array([[[0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0]]])
    mixed = blended(chances, np.array([0.5, 0.5]))
    assert mixed[0, 2] == 0
    assert 0 < mixed[0, 1] < mixed[0, 0]
    np.testing.assert_allclose(mixed.sum(axis=1), 1)


def test_member_that_is_worth_nothing_has_no_weight_at_all():
    chances, targets = answers(400, quality=(2.0, 1.5, 0.1), seed=3)
    wrong = chances[2][:, [1, 2, 0]]
    assert choose_weights(np.stack([chances[0], wrong]), targets).tolist() == [1, 0]


def test_weights_are_the_optimum_that_a_general_optimiser_finds():
    chances, targets = answers(80, quality=(1.2, 0.9, 0.2), num_classes=4)
    weights = choose_weights(chances, targets)
    temperatures = np.array([fit_temperature(member, targets) for member in chances])
    logs = np.log(chances) / temperatures[:, None, None]

    def loss(free: np.ndarray) -> float:
        shares = softmax(free)
        mixed = log_softmax(np.tensordot(shares, logs, axes=1), axis=1)
        pull = blend._PULL_TO_EQUAL / 80 * np.square(shares - 1 / 3).sum()
        return float(-mixed[np.arange(80), targets].mean() + pull)

    found = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 0})
    expected = softmax(found.x) / temperatures
    np.testing.assert_allclose(weights, expected / expected.sum(), atol=1e-4)
    assert weights.sum() == pytest.approx(1)


def test_useless_member_has_no_weight():
    chances, targets = answers(2_000, quality=(1.5, 1.5, 0.0))
    weights = choose_weights(chances, targets)
    assert weights[2] == pytest.approx(0, abs=0.02)
    assert weights[0] == pytest.approx(weights[1], abs=0.1)


@pytest.mark.parametrize("num_examples", [50, 100, 400])
def test_blend_is_hardly_worse_than_a_member_that_is_far_better(num_examples):
    """On fresh examples, on average over draws."""
    losses = []
    for seed in range(20):
        chances, targets = answers(num_examples + 2_000, quality=(0.1, 1.5), seed=seed)
        weights = choose_weights(chances[:, :num_examples], targets[:num_examples])
        fresh, fresh_targets = chances[:, num_examples:], targets[num_examples:]
        mixed = (blended(fresh, weights).argmax(axis=1) == fresh_targets).mean()
        losses.append((fresh[1].argmax(axis=1) == fresh_targets).mean() - mixed)
    assert np.mean(losses) < 0.003


def test_members_that_answer_alike_share_the_weight():
    chances, targets = answers(60, quality=(1.0,))
    weights = choose_weights(np.concatenate([chances, chances]), targets)
    np.testing.assert_allclose(weights, [0.5, 0.5], atol=1e-3)


def test_timid_member_is_made_bolder():
    chances, targets = answers(400, quality=(2.0, 1.0), sureness=(0.2, 1.0))
    weights = choose_weights(chances, targets)
    assert weights[0] > 0.8
    better = cross_entropy(blended(chances, weights, temperature=0.3), targets)
    assert better < cross_entropy(chances[1], targets)


def test_weights_without_anything_to_go_by_are_equal():
    chances, targets = answers(0, quality=(1.0, 2.0))
    np.testing.assert_array_equal(choose_weights(chances, targets), [0.5, 0.5])
    assert fit_temperature(chances[0], targets) == 1.0
    lone, lone_targets = answers(9, quality=(1.0,))
    np.testing.assert_array_equal(choose_weights(lone, lone_targets), [1.0])


def test_examples_of_an_unknown_class_change_nothing():
    chances, targets = answers(30, quality=(1.0, 2.0), num_classes=2)
    chances = np.concatenate([chances, np.zeros((2, 30, 1))], axis=2)
    more = np.concatenate([chances, chances[:, :3]], axis=1)
    more_targets = np.concatenate([targets, [2, 2, 2]])
    np.testing.assert_array_equal(
        choose_weights(more, more_targets), choose_weights(chances, targets)
    )
    assert fit_temperature(more[0], more_targets) == fit_temperature(chances[0], targets)


def test_certain_mistakes_are_finite():
    chances = np.array([[[1.0, 0.0]] * 4, [[0.4, 0.6]] * 4])
    weights = choose_weights(chances, np.array([1, 1, 1, 1]))
    assert np.isfinite(weights).all()
    assert weights[1] > weights[0]


@pytest.mark.parametrize("sureness", [0.4, 1.0, 3.0])
def test_temperature_undoes_what_was_done(sureness):
    (chances,), targets = answers(4_000, quality=(1.5,), sureness=(sureness,))
    assert fit_temperature(chances, targets) == pytest.approx(sureness, rel=0.1)


def test_temperature_is_the_least_loss():
    (chances,), targets = answers(60, quality=(1.0,), sureness=(2.0,))
    found = fit_temperature(chances, targets)

    def loss(temperature: float) -> float:
        tempered = blended(chances[None], np.ones(1), temperature=temperature)
        pull = calibration._PULL_TO_ONE / 60 * np.log(temperature) ** 2
        return cross_entropy(tempered, targets) + pull

    grid = np.geomspace(0.2, 8, 400)
    assert loss(found) <= min(map(loss, grid)) + 1e-9


def test_temperature_of_flawless_answers_stays_sane():
    chances = np.array([[0.8, 0.2], [0.3, 0.7]] * 5)
    assert 0.1 < fit_temperature(chances, np.array([0, 1] * 5)) < 1


def test_weights_and_temperature_are_the_same_twice():
    chances, targets = answers(50, quality=(1.0, 1.5, 0.5))
    first = choose_weights(chances, targets)
    np.testing.assert_array_equal(first, choose_weights(chances, targets))
    assert fit_temperature(chances[0], targets) == fit_temperature(chances[0], targets)


def test_label_sets_are_blended_label_by_label():
    chances = np.array([[[0.2, 0.9, 0.5]], [[0.4, 0.6, 0.1]]])
    found = blended(chances, np.array([0.7, 0.3]), temperature=2.0, has_label_sets=True)
    for place in range(3):
        pair = np.stack([1 - chances[:, :, place], chances[:, :, place]], axis=2)
        alone = blended(pair, np.array([0.7, 0.3]), temperature=2.0)
        assert found[0, place] == pytest.approx(alone[0, 1])


def test_adjusted_probabilities_are_of_equally_frequent_classes():
    chances = np.array([[0.9, 0.1], [0.5, 0.5]])
    found = adjusted(chances, np.array([0.9, 0.1]))
    assert found[0] == pytest.approx([0.5, 0.5])
    assert found[1] == pytest.approx([0.1, 0.9])
    assert adjusted(chances, None) is chances
