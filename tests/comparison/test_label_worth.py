"""Label curves read across: known answers, bounds, and how often a worth is found by chance."""

import numpy as np
import pytest
from comparisons import info
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import unchecked
from simulated_arms import simulated_arms
from sklearn.isotonic import IsotonicRegression

from regraft.comparison import label_worth
from regraft.comparison.label_worth import Curves, _rising, labels_needed
from regraft.comparison.results import LabelWorth

SIZES = [100, 400, 1_600]


def curves(
    scores: dict[str, tuple[float, ...]],
    *,
    sizes: list[int] = SIZES,
    num_seeds: int = 3,
    luck_points: float = 0.0,
    num_examples: int = 1_000,
    seed: int = 0,
) -> dict[str, dict[int, np.ndarray]]:
    """Simulated arms that reach these accuracies with these numbers of labels."""
    flat = [score for by_size in scores.values() for score in by_size]
    arms = simulated_arms(
        accuracies=tuple(flat),
        num_seeds=(num_seeds,) * len(flat),
        num_examples=num_examples,
        luck_points=luck_points,
        seed=seed,
    )
    rows = iter(arms)
    return {name: {size: next(rows) for size in sizes} for name in scores}


def worth_in_labels(made: Curves, *, arm: str, **more: int) -> LabelWorth | None:
    others = [name for name in made if info(name).role != "base"]
    return label_worth.worth_in_labels(made, arm=info(arm), others=others, **more)


def needed(scores: list[float], wanted: float) -> float:
    return float(labels_needed(np.array([scores]), np.array([wanted]), SIZES)[0])


def test_labels_are_read_off_a_logarithmic_axis():
    assert needed([0.6, 0.7, 0.8], 0.7) == pytest.approx(400)
    assert needed([0.6, 0.7, 0.8], 0.75) == pytest.approx(800)
    assert needed([0.6, 0.7, 0.8], 0.8) == pytest.approx(1_600)


def test_labels_beyond_the_curve_are_bounds():
    assert needed([0.6, 0.7, 0.8], 0.81) == np.inf
    assert needed([0.6, 0.7, 0.8], 0.5) == 100
    assert needed([0.7, 0.7, 0.7], 0.7) == 100


def test_curve_that_falls_is_made_to_rise():
    # 0.75 and 0.65 count as 0.7 and 0.7.
    assert needed([0.6, 0.75, 0.65], 0.7) == pytest.approx(400)
    assert needed([0.6, 0.75, 0.65], 0.65) == pytest.approx(200)
    assert needed([0.6, 0.75, 0.65], 0.72) == np.inf


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_rising_curves_are_scikit_learns(scores: list[float]):
    ours = _rising(np.array([scores]))[0]
    theirs = IsotonicRegression().fit_transform(np.arange(len(scores)), scores)
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.floats(0, 1), st.floats(0, 0.2))
def test_higher_score_never_needs_fewer_labels(scores: list[float], wanted: float, more: float):
    assert 100 <= needed(scores, wanted) <= needed(scores, wanted + more)


def test_worth_of_a_base_that_is_ahead():
    made = curves({"pretrained": (0.8, 0.84, 0.87), "linear": (0.7, 0.77, 0.85)})
    worth = worth_in_labels(made, arm="pretrained")
    assert worth is not None
    assert worth.extra is not None
    # The truth: 400 x 4^(3/8) = 673 labels.
    assert worth.extra.low < 573 < worth.extra.high
    assert (worth.arm, worth.rival, worth.num_labels) == ("pretrained", "linear", 100)
    assert not worth.is_bound
    about = f"{round(worth.extra.mean, -1):.0f}"
    assert worth.sentence.startswith(f"The fine-tuned base is worth about {about} labels")
    assert "linear needs about " in worth.sentence
    assert worth_in_labels(made, arm="pretrained") == worth


def test_worth_of_a_base_that_is_never_reached():
    made = curves({"pretrained:news": (0.9, 0.9, 0.9), "linear": (0.6, 0.65, 0.7)})
    worth = worth_in_labels(made, arm="pretrained:news")
    assert worth is not None
    assert worth.extra is not None
    assert worth.is_bound
    assert worth.is_high_bound
    assert worth.extra.mean == 1_500
    assert worth.sentence.startswith("The fine-tuned base news is worth more than 1,500 labels")


def test_worth_of_a_base_that_is_not_ahead():
    made = curves({"pretrained": (0.7, 0.8, 0.85), "linear": (0.72, 0.8, 0.85)})
    worth = worth_in_labels(made, arm="pretrained")
    assert worth is not None
    assert worth.extra is None
    assert not worth.is_bound
    ours, theirs = made["pretrained"][100].mean(), made["linear"][100].mean()
    assert worth.sentence == (
        f"No gain in labels was found: with 100 of them pretrained reaches {100 * ours:.1f} %, "
        f"linear {100 * theirs:.1f} %."
    )


def test_worth_is_against_the_best_arm_without_a_base():
    made = curves(
        {
            "pretrained": (0.8, 0.84, 0.87),
            "frozen": (0.85, 0.86, 0.87),
            "scratch": (0.55, 0.6, 0.65),
            "linear": (0.6, 0.7, 0.78),
            "latent": (0.7, 0.77, 0.85),
            "pretrained:news": (0.85, 0.86, 0.87),
        }
    )
    worth = worth_in_labels(made, arm="pretrained")
    assert worth is not None
    assert worth.rival == "latent"
    alone = {name: made[name] for name in ("pretrained", "scratch", "linear")}
    bound = worth_in_labels(alone, arm="pretrained")
    assert bound is not None
    assert (bound.rival, bound.is_bound) == ("linear", True)


def test_worth_needs_a_curve_and_a_rival():
    made = curves({"pretrained": (0.8, 0.84, 0.87), "frozen": (0.7, 0.77, 0.85)})
    assert worth_in_labels(made, arm="pretrained") is None
    point = {"pretrained": {100: made["pretrained"][100]}, "linear": {100: made["frozen"][100]}}
    assert worth_in_labels(point, arm="pretrained") is None
    del made["frozen"][400]
    with pytest.raises(ValueError, match=r"pretrained has \[100, 400, 1600\], linear has \[100, "):
        worth_in_labels(
            {"pretrained": made["pretrained"], "linear": made["frozen"]}, arm="pretrained"
        )


def test_worth_of_single_runs_is_told_with_its_limit():
    made = curves({"pretrained": (0.8, 0.84, 0.87), "linear": (0.7, 0.77, 0.85)}, num_seeds=1)
    worth = worth_in_labels(made, arm="pretrained")
    assert worth is not None
    assert worth.extra is not None
    assert worth.is_of_runs
    assert worth.sentence.startswith("In these runs, the fine-tuned base is worth about ")
    assert "three seeds or more" in worth.sentence


def test_one_run_of_all_labels_is_no_single_run_of_a_curve():
    made = curves({"pretrained": (0.8, 0.84, 0.87), "linear": (0.7, 0.77, 0.85)})
    # A regression on all labels knows no seed.
    made["linear"][1_600] = made["linear"][1_600][:1]
    worth = worth_in_labels(made, arm="pretrained")
    assert worth is not None
    assert not worth.is_of_runs
    assert worth.sentence.startswith("The fine-tuned base is worth about ")


@pytest.mark.parametrize("luck_points", [0.0, 3.0])
@unchecked()
def test_worth_is_seldom_found_where_there_is_none(luck_points: float):
    found = 0
    for number in range(300):
        made = curves(
            {"pretrained": (0.7, 0.76, 0.8), "linear": (0.7, 0.76, 0.8)},
            luck_points=luck_points,
            num_examples=200,
            seed=number,
        )
        worth = worth_in_labels(made, arm="pretrained", seed=number, num_resamples=200)
        assert worth is not None
        found += worth.extra is not None
    # One side of a level of 5 %, and then chance (1 in 1,000).
    assert found <= 17
