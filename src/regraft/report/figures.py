"""The figures of a report: training and label curves, calibration, text length, members of a blend.

Figures are small in inches, so that their text is readable on a phone.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from regraft.comparison import ArmSummary, Comparison, CurvePoint, LabelWorth, about
from regraft.report.drawing import (
    CARD,
    DASHES,
    FONT_POINTS,
    INK,
    MAX_NAME,
    MUTED,
    WIDTH,
    Line,
    Style,
    arm_styles,
    calm_axes,
    draw_lines,
    line_axes,
    name_axes,
)
from regraft.report.sentences import (
    base_arm,
    clipped,
    drawn_worth,
    has_uneven_classes,
    percent,
    words_range,
)
from regraft.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RELIABILITY_COLUMNS = (3, 4, 5)
# On a log axis: nearer ticks would run into each other.
_TICK_FACTOR = 1.35
# More bands on top of each other are a smear.
MAX_BANDS = 4


def comparison_figures(comparison: Comparison) -> "dict[str, Figure]":
    """Every figure that there are values for, by file name."""
    figures = {}
    if any(len(curve) > 1 for arm in comparison.arms for curve in arm.valid_curves):
        figures["accuracy"] = accuracy_figure(comparison)
    if has_curve(comparison):
        figures["curve"] = curve_figure(comparison)
    if has_curve(comparison) and has_uneven_classes(comparison):
        figures["macro-f1"] = macro_f1_figure(comparison)
    if any(arm.reliability for arm in comparison.arms):
        figures["calibration"] = calibration_figure(comparison)
    if any(len(arm.by_length) > 1 for arm in comparison.arms):
        figures["lengths"] = lengths_figure(comparison)
    return figures


def has_curve(comparison: Comparison) -> bool:
    """Are there several numbers of labels?"""
    return len({point.num_labels for point in comparison.curve}) > 1


def accuracy_figure(comparison: Comparison) -> "Figure":
    """Accuracy on valid against the epoch: mean over seeds, the seeds' range as a band.

    An arm without epochs is a dashed line. Names are at the end of their lines, with the mean of
    what the runs kept; a ring is an epoch whose weights were kept.
    """
    from matplotlib.ticker import MaxNLocator

    lines = []
    styles = arm_styles(arm.name for arm in comparison.arms)
    for arm in comparison.arms:
        epochs = list(zip(*_to_the_end(arm), strict=True))
        if epochs:
            lines.append(
                Line(
                    arm.name,
                    styles[arm.name],
                    xs=range(len(epochs)),
                    ys=[100 * sum(shares) / len(shares) for shares in epochs],
                    lows=[100 * min(shares) for shares in epochs],
                    highs=[100 * max(shares) for shares in epochs],
                    rings=[(epoch, 100 * kept) for epoch, kept in _kept(arm) if _chose_epochs(arm)],
                    value=100 * sum(kept for _, kept in _kept(arm)) / len(arm.valid_curves),
                )
            )
    last_epoch = max((len(line.xs) - 1 for line in lines), default=0) or 1
    figure, axes = line_axes([line.name for line in lines])
    axes.set_xlim(-0.02 * last_epoch, 1.02 * last_epoch)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    name_axes(axes, title="Accuracy on valid, %", across="epoch (0: before the first)")
    draw_lines(axes, lines)
    return figure


def _to_the_end(arm: ArmSummary) -> list[tuple[float, ...]]:
    """Curves of equal length: a run that stopped early stays at the value it kept."""
    longest = max(map(len, arm.valid_curves), default=0)
    return [
        (*curve, *[kept] * (longest - len(curve)))
        for curve, (_, kept) in zip(arm.valid_curves, _kept(arm), strict=True)
    ]


def _chose_epochs(arm: ArmSummary) -> bool:
    return any("epoch" in chosen for chosen in arm.chosen)


def _kept(arm: ArmSummary) -> list[tuple[int, float]]:
    """(epoch, accuracy on valid) that each run kept: the last, if none was chosen."""
    chosen = arm.chosen if len(arm.chosen) == len(arm.valid_curves) else ()
    kept = []
    for run, curve in enumerate(arm.valid_curves):
        epoch = chosen[run].get("epoch", len(curve) - 1) if chosen else len(curve) - 1
        kept.append((epoch, curve[epoch]))
    return kept


def curve_figure(comparison: Comparison) -> "Figure":
    """Accuracy on test against the number of labels, on a log axis, with 95 % bands."""
    figure, axes, lines = _label_curve(
        comparison, score=lambda point: point.deciding, title="Accuracy on test, %"
    )
    shown = drawn_worth(comparison)
    if shown is not None:
        _draw_worth(axes, shown, lines={line.name: line for line in lines})
    return figure


def macro_f1_figure(comparison: Comparison) -> "Figure":
    """Macro-F1, in which rare classes count as much as frequent ones."""
    figure, _, _ = _label_curve(
        comparison, score=lambda point: point.deciding_macro_f1, title="Macro-F1 on test, %"
    )
    return figure


def _label_curve(
    comparison: Comparison, *, score: Callable[[CurvePoint], Interval], title: str
) -> "tuple[Figure, Axes, list[Line]]":
    styles = arm_styles(arm.name for arm in comparison.arms)
    names = list(dict.fromkeys(point.arm for point in comparison.curve))
    lines = []
    for name in names:
        found = sorted(
            (point for point in comparison.curve if point.arm == name),
            key=lambda point: point.num_labels,
        )
        lines.append(
            Line(
                name,
                styles.get(name) or arm_styles([name])[name],
                xs=[point.num_labels for point in found],
                ys=[100 * score(point).mean for point in found],
                lows=[100 * score(point).low for point in found],
                highs=[100 * score(point).high for point in found],
            )
        )
    lines = _few_bands(lines, comparison)
    figure, axes = label_axes(lines, title=title)
    return figure, axes, lines


def label_axes(lines: Sequence[Line], *, title: str) -> "tuple[Figure, Axes]":
    """Lines over the number of labels, on a log axis."""
    from matplotlib.ticker import NullFormatter, NullLocator

    figure, axes = line_axes([line.name for line in lines])
    sizes = sorted({int(size) for line in lines for size in line.xs})
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] / 1.05, sizes[-1] * 1.05)
    axes.set_xticks(_apart(sizes), [f"{size:,}" for size in _apart(sizes)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    name_axes(axes, title=title, across="labelled examples")
    draw_lines(axes, lines)
    return figure, axes


def _few_bands(lines: Sequence[Line], comparison: Comparison) -> list[Line]:
    """If there are many arms, bands of those that the report is about: the table has the others."""
    if len(lines) <= MAX_BANDS:
        return list(lines)
    shown = drawn_worth(comparison)
    named = {base_arm(comparison), *([shown.arm, shown.rival] if shown else [])}
    rest = sorted((line for line in lines if line.name not in named), key=lambda line: -line.ys[-1])
    banded = named | {line.name for line in rest[: MAX_BANDS - len(named)]}
    return [
        line if line.name in banded else dataclasses.replace(line, lows=(), highs=())
        for line in lines
    ]


def lengths_figure(comparison: Comparison) -> "Figure":
    """Accuracy on test by the length of the text."""
    arms = [arm for arm in comparison.arms if arm.by_length]
    styles = arm_styles(arm.name for arm in comparison.arms)
    lines = [
        Line(
            arm.name,
            styles[arm.name],
            xs=range(len(arm.by_length)),
            ys=[100 * length.accuracy for length in arm.by_length],
        )
        for arm in arms
    ]
    figure, axes = line_axes([line.name for line in lines])
    bins = max((arm.by_length for arm in arms), key=len)
    names = [words_range(length) for length in bins]
    axes.set_xlim(-0.05, len(bins) - 0.95)
    axes.set_xticks(range(len(bins)), names)
    name_axes(axes, title="Accuracy on test, %", across="words of the text")
    draw_lines(axes, lines)
    # Long ranges of words would run into each other.
    axes.tick_params(axis="x", labelsize=FONT_POINTS - 2)
    return figure


def _num_columns(num_plots: int) -> int:
    """Of small plots in rows: the fewest columns that leave no plot alone in the last row."""
    for num_columns in _RELIABILITY_COLUMNS:
        if num_plots <= num_columns or num_plots % num_columns != 1:
            return num_columns
    return _RELIABILITY_COLUMNS[0]


def calibration_figure(comparison: Comparison) -> "Figure":
    """A small reliability plot for each arm: confidence against how often it is right."""
    from matplotlib.figure import Figure

    arms = [arm for arm in comparison.arms if arm.reliability]
    styles = arm_styles(arm.name for arm in comparison.arms)
    num_columns = _num_columns(len(arms))
    num_rows = math.ceil(len(arms) / num_columns)
    height = 1.95 * num_rows + 0.55
    figure = Figure(figsize=(WIDTH, height))
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    shares = [min(one.confidence, one.accuracy) for arm in arms for one in arm.reliability]
    floor = 10 * math.floor(10 * min(shares))
    for place, axes in enumerate(grid.flat):
        if place >= len(arms):
            axes.set_visible(False)
            continue
        _draw_reliability(axes, arms[place], style=styles[arms[place].name], floor=floor)
        if place % num_columns:
            axes.set_yticklabels([])
        if place + num_columns < len(arms):
            axes.set_xticklabels([])
    figure.subplots_adjust(
        left=0.085,
        right=0.97,
        bottom=0.62 / height,
        top=1 - 0.28 / height,
        hspace=0.28,
        wspace=0.16,
    )
    figure.text(
        0.53,
        0.12 / height,
        "x: confidence, %; y: accuracy, %",
        ha="center",
        color=MUTED,
        fontsize=FONT_POINTS,
    )
    return figure


def members_figure(scores: Mapping[str, Interval], *, title: str) -> "Figure":
    """A row for each member: its accuracy with its interval."""
    from matplotlib.figure import Figure

    height = 0.85 + 0.42 * len(scores)
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_subplot()
    styles = arm_styles(scores)
    for row, (name, interval) in enumerate(scores.items()):
        style = styles[name]
        low, mean, high = (100 * v for v in (interval.low, interval.mean, interval.high))
        axes.plot([low, high], [row, row], color=style.colour, linewidth=5, alpha=0.3)
        axes.plot([mean], [row], color=style.colour, marker=style.marker, markersize=8)
        axes.annotate(
            f"{name} {percent(interval.mean)}",
            xy=(1.03, row),
            xycoords=("axes fraction", "data"),
            color=style.colour,
            fontsize=FONT_POINTS,
            va="center",
            annotation_clip=False,
        )
    axes.set_yticks([])
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.margins(x=0.06)
    name_axes(axes, title=title, across="%")
    figure.subplots_adjust(left=0.03, right=0.74, bottom=0.52 / height, top=1 - 0.34 / height)
    return figure


def _apart(sizes: Sequence[int]) -> list[int]:
    """The sizes that can be written side by side; the last one always."""
    kept = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if kept[-1] / max(size, 1) >= _TICK_FACTOR:
            kept.append(size)
    return kept[::-1]


def _draw_worth(axes: "Axes", worth: LabelWorth, *, lines: Mapping[str, Line]) -> None:
    """An arrow from the base's score to where the rival reaches it, or to the edge."""
    line = lines.get(worth.arm)
    if worth.extra is None or line is None or worth.num_labels not in line.xs:
        return
    score = line.ys[list(line.xs).index(worth.num_labels)]
    reached = min(worth.num_labels + worth.extra.mean, axes.get_xlim()[1])
    if reached <= worth.num_labels:
        return
    axes.annotate(
        "",
        xy=(reached, score),
        xytext=(worth.num_labels, score),
        arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 1.2, "linestyle": DASHES},
    )
    extra = worth.extra.mean
    axes.annotate(
        f"more than +{extra:,.0f} labels" if worth.is_bound else f"+{about(extra)} labels",
        xy=(math.sqrt(worth.num_labels * reached), score),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        color=INK,
        fontsize=FONT_POINTS - 1,
        bbox={"facecolor": CARD, "alpha": 0.8, "linewidth": 0, "pad": 1},
    )


def _draw_reliability(axes: "Axes", arm: ArmSummary, *, style: Style, floor: int) -> None:
    axes.plot([floor, 100], [floor, 100], color=MUTED, linewidth=1, linestyle=DASHES)
    confidences = [100 * one.confidence for one in arm.reliability]
    accuracies = [100 * one.accuracy for one in arm.reliability]
    axes.plot(confidences, accuracies, color=style.colour, linewidth=1.5)
    most = max(one.count for one in arm.reliability) or 1
    areas = [6 + 70 * one.count / most for one in arm.reliability]
    axes.scatter(
        confidences, accuracies, s=areas, color=style.colour, linewidth=0, zorder=3, clip_on=False
    )
    axes.set(xlim=(floor - 3, 103), ylim=(floor - 3, 103))
    ticks = [floor, (floor + 100) / 2, 100]
    axes.set(xticks=ticks, yticks=ticks)
    # Inside the plot, or the ends would touch those of the next one.
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    axes.set_title(
        clipped(arm.name, MAX_NAME), loc="left", color=style.colour, fontsize=FONT_POINTS
    )
    calm_axes(axes)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_major_formatter("{x:.0f}")
