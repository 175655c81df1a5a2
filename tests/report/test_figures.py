"""What the figures show: means, bands, names that do not collide, what the base is worth."""

import dataclasses
from itertools import pairwise
from typing import Any

import comparisons
import numpy as np
import pytest
from comparisons import ARMS, SIZES, comparison, full_comparison

from regraft.comparison.results import LabelWorth, Split
from regraft.report import figures
from regraft.report.comparison_page import comparison_page
from regraft.report.html import to_html
from regraft.report.markdown import to_markdown
from regraft.stats.significance import Interval


def name_boxes(figure: Any) -> list[Any]:
    """The boxes of the names right of the axes, from the lowest up."""
    figure.draw_without_rendering()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    names = [text for text in texts if "labels" not in text.get_text()]
    # Of an annotation only the words; its window extent would take in the leader line.
    boxes = [super(type(text), text).get_window_extent() for text in names]
    return sorted(boxes, key=lambda box: box.y0)


def test_accuracy_draws_means_bands_and_the_linear_line():
    axes = figures.accuracy_figure(comparison()).axes[0]
    dashed, solid = [], []
    for line in axes.lines:
        (dashed if line.is_dashed() else solid).append(line)
    np.testing.assert_allclose(solid[0].get_ydata(), [65, 76, 81])
    np.testing.assert_allclose(dashed[0].get_ydata(), [85, 85])
    assert len(axes.collections) == 3
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((64, 82))


def test_accuracy_names_arms_at_their_lines_end():
    texts = figures.accuracy_figure(comparison()).axes[0].texts
    assert sorted(text.get_text() for text in texts) == [
        "frozen 72.0",
        "linear 85.0",
        "pretrained 81.0",
        "scratch 80.0",
    ]


@pytest.mark.parametrize("draw", [figures.accuracy_figure, figures.curve_figure])
def test_names_of_eleven_arms_do_not_collide(draw: Any):
    figure = draw(full_comparison())
    boxes = name_boxes(figure)
    assert len(boxes) == 11
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_names_of_equal_scores_do_not_collide():
    arms = tuple(dataclasses.replace(one, valid_curves=((0.5, 0.8),)) for one in ARMS)
    boxes = name_boxes(figures.accuracy_figure(comparison(arms=arms)))
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


def test_long_names_of_bases_are_cut_and_stay_inside():
    long = dataclasses.replace(ARMS[0], name="pretrained:a-very-long-name-of-a-base")
    figure = figures.accuracy_figure(comparison(arms=(long, *ARMS[1:])))
    assert name_boxes(figure)[-1].x1 <= figure.bbox.x1
    assert any("…" in text.get_text() for text in figure.axes[0].texts)


def test_accuracy_shows_the_mean_over_seeds():
    arm = dataclasses.replace(ARMS[0], valid_curves=((0.5, 0.6, 0.7), (0.5, 0.8, 0.9)))
    axes = figures.accuracy_figure(comparison(arms=(arm,))).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 70, 80])


def test_runs_that_stop_early_stay_at_what_they_kept():
    arm = dataclasses.replace(
        ARMS[0],
        valid_curves=((0.5, 0.7, 0.6), (0.5, 0.6, 0.8, 0.9, 0.8)),
        chosen=({"epoch": 1}, {"epoch": 3}),
    )
    axes = figures.accuracy_figure(comparison(arms=(arm,))).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 65, 70, 80, 75])
    # Rings mark what was kept, and the number beside the name is its mean, as in the table.
    rings = [tuple(float(line.get_data()[axis][0]) for axis in (0, 1)) for line in axes.lines[1:]]
    assert rings == [(1, 70), (3, 90)]
    assert [text.get_text() for text in axes.texts] == ["pretrained 80.0"]
    # A report that does not say what was chosen: the last epoch counts.
    arm = dataclasses.replace(arm, chosen=())
    axes = figures.accuracy_figure(comparison(arms=(arm,))).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 65, 70, 75, 70])


def test_arms_without_a_curve_on_valid_are_left_out():
    arms = (dataclasses.replace(ARMS[0], valid_curves=()), *ARMS[1:])
    axes = figures.accuracy_figure(comparison(arms=arms)).axes[0]
    assert not any("pretrained" in text.get_text() for text in axes.texts)


def test_curve_is_on_a_log_axis_with_every_size():
    axes = figures.curve_figure(full_comparison()).axes[0]
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"{size:,}" for size in SIZES]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), SIZES)
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(87.4)


def test_curve_of_many_arms_has_bands_for_those_that_matter():
    # The base, what its worth is held against, and the best of the others.
    many = full_comparison()
    axes = figures.curve_figure(many).axes[0]
    banded = {tuple(band.get_facecolor()[0][:3]) for band in axes.collections}
    lines = {line.get_color() for line in axes.lines}
    assert (len(axes.collections), len(banded), len(lines)) == (4, 4, 11)
    few = full_comparison(curve=tuple(point for point in many.curve if ":" not in point.arm)[:24])
    assert len(figures.curve_figure(few).axes[0].collections) == 4


def test_curve_leaves_out_leaks_where_they_decide_nothing():
    clean = Interval(0.5, 0.4, 0.6)
    points = tuple(
        dataclasses.replace(point, accuracy_without_leaks=clean)
        for point in full_comparison().curve
    )
    axes = figures.curve_figure(full_comparison(curve=points)).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50] * len(SIZES))


def test_curve_does_not_write_sizes_over_each_other():
    points = full_comparison().curve
    near = tuple(dataclasses.replace(p, num_labels=p.num_labels - 30) for p in points)
    axes = figures.curve_figure(full_comparison(curve=points + near)).axes[0]
    shown = axes.get_xticks()
    assert shown[-1] == 1600
    assert all(high / low >= 1.35 for low, high in pairwise(shown))


def test_curve_shows_the_best_other_use_of_a_base_if_fine_tuning_is_worth_nothing():
    worth = LabelWorth("pretrained", "linear", 400, None, False, "No gain found.")
    axes = figures.curve_figure(full_comparison(worth=worth)).axes[0]
    assert "more than +1,200 labels" in [text.get_text() for text in axes.texts]


def test_curve_tells_what_the_base_is_worth():
    axes = figures.curve_figure(full_comparison()).axes[0]
    assert "+700 labels" in [text.get_text() for text in axes.texts]
    nothing = figures.curve_figure(full_comparison(worth=None, more_worths=())).axes[0]
    assert "labels" not in "".join(text.get_text() for text in nothing.texts)


def test_curve_tells_a_lower_bound_and_stays_inside():
    worth = LabelWorth("pretrained", "linear", 400, Interval(1200, 1200, 1200), True, "")
    axes = figures.curve_figure(full_comparison(worth=worth)).axes[0]
    assert "more than +1,200 labels" in [text.get_text() for text in axes.texts]
    assert all(text.xy[0] <= axes.get_xlim()[1] for text in axes.texts if not text.get_text())


def test_curve_without_a_gain_draws_no_arrow():
    worth = LabelWorth("pretrained", "linear", 400, None, False, "No gain found.")
    axes = figures.curve_figure(full_comparison(worth=worth, more_worths=())).axes[0]
    assert len(axes.texts) == 11


def test_calibration_has_a_plot_for_each_arm():
    figure = figures.calibration_figure(full_comparison())
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 11
    assert shown[0].get_title(loc="left") == "pretrained"
    confidences = [100 * one.confidence for one in full_comparison().arms[0].reliability]
    np.testing.assert_allclose(shown[0].lines[1].get_xdata(), confidences)


@pytest.mark.parametrize("number", range(1, 25))
def test_no_small_plot_is_alone_in_its_row(number: int):
    columns = figures._num_columns(number)
    assert columns in (3, 4, 5)
    assert number <= columns or number % columns != 1


def test_lengths_name_their_bins():
    axes = figures.lengths_figure(full_comparison()).axes[0]
    shown = [text.get_text() for text in axes.get_xticklabels()]
    assert shown[0] == "1\N{EN DASH}40"
    assert shown[-1] == "301\N{EN DASH}1,544"
    assert axes.lines[0].get_ydata()[2] == pytest.approx(89.4)


def test_members_show_their_intervals():
    scores = {"blend": Interval(0.84, 0.82, 0.86), "linear": Interval(0.79, 0.77, 0.81)}
    axes = figures.members_figure(scores, title="Accuracy").axes[0]
    assert [text.get_text() for text in axes.texts] == ["blend 84.0", "linear 79.0"]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [82, 86])


def test_only_figures_with_values_are_drawn():
    assert list(figures.comparison_figures(comparison())) == ["accuracy"]
    one_size = tuple(p for p in full_comparison().curve if p.num_labels == 400)
    assert "curve" not in figures.comparison_figures(comparison(curve=one_size))
    drawn = figures.comparison_figures(comparisons.full_comparison())
    assert list(drawn) == ["accuracy", "curve", "calibration", "lengths"]


def test_uneven_classes_have_a_curve_of_macro_f1():
    full = comparisons.full_comparison()
    uneven = Split("test", 2000, {"negative": 1600, "positive": 400}, 0.12, 0)
    found = dataclasses.replace(full, splits=(*full.splits[:2], uneven))
    drawn = figures.comparison_figures(found)
    assert list(drawn) == ["accuracy", "curve", "macro-f1", "calibration", "lengths"]
    axes = drawn["macro-f1"].axes[0]
    assert axes.get_title(loc="left") == "Macro-F1 on test, %"
    points = [p for p in full.curve if p.arm == "linear"]
    expected = [100 * p.macro_f1.mean for p in sorted(points, key=lambda p: p.num_labels)]
    assert any(np.allclose(line.get_ydata(), expected) for line in axes.lines)
    note = "The largest class is 80.0"
    page = comparison_page(found, figures=drawn)
    assert note in to_markdown(page)
    assert note in to_html(page)
