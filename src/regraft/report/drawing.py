"""How figures are drawn: lines named at their ends, and SVG that belongs to a page.

Comes in: lines in percent with their styles. Goes out: axes drawn on, and the text of a figure as a
file or as part of a page. Knows neither arms nor comparisons.
"""

import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from regraft.report.palette import GRID, INK, MUTED, Style, page_variables
from regraft.report.words import clipped
from regraft.runtime import write_text, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT_POINTS = 11
WIDTH = 5.6
DASHES = (0, (5, 3))
MAX_NAME = 22


@dataclass(frozen=True)
class Line:
    """An arm's line in percent; the band may be empty. One point stands for the whole axis.

    `rings` mark points beside the line; `value` is named at its end, if not its last.
    """

    name: str
    style: Style
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    rings: Sequence[tuple[float, float]] = ()
    value: float | None = None


def line_axes(names: Sequence[str]) -> "tuple[Figure, Axes]":
    """Axes with room for the lines' names at their right, one above the other."""
    from matplotlib.figure import Figure

    height = max(3.7, 0.95 + 0.245 * len(names))
    # Letters are at most 0.62 of their height wide on average, in any font a page may use.
    longest = max((len(clipped(name, MAX_NAME)) for name in names), default=0) + len(" 00.0")
    right = 1 - 0.062 - longest * 0.62 * FONT_POINTS / 72 / WIDTH
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left=0.07, right=right, bottom=0.52 / height, top=1 - 0.33 / height)
    return figure, figure.add_subplot()


def name_axes(axes: "Axes", *, title: str, across: str) -> None:
    """A title above, what is across below, and nothing that is not needed."""
    axes.set_xlabel(across, color=MUTED, fontsize=FONT_POINTS)
    axes.set_title(title, loc="left", color=INK, fontsize=FONT_POINTS + 1)
    calm_axes(axes)


def calm_axes(axes: "Axes") -> None:
    """A light grid, one line below, no ticks."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=FONT_POINTS, length=0)


def draw_lines(axes: "Axes", lines: Sequence[Line]) -> None:
    """Every line with its band, named at its end."""
    from matplotlib.ticker import MaxNLocator

    # Many bands on top of each other would hide the lines.
    alpha = 0.16 if len(lines) <= 4 else 0.09
    for place, line in enumerate(lines):
        colour, marker = line.style.colour, line.style.marker
        # The first arm is the one that matters: it lies on top where lines meet.
        height = 3 - place / len(lines)
        if len(line.xs) == 1 and axes.get_xscale() == "linear":
            axes.axhline(line.ys[0], color=colour, linewidth=1.6, linestyle=DASHES, zorder=height)
            continue
        if line.lows:
            axes.fill_between(
                line.xs, line.lows, line.highs, color=colour, alpha=alpha, linewidth=0
            )
        axes.plot(line.xs, line.ys, color=colour, marker=marker, linewidth=2, zorder=height)
        for x, y in line.rings:
            axes.plot([x], [y], "o", markersize=9, fillstyle="none", color=colour, zorder=4)
    axes.margins(y=0.08)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    # Drawn once and for all, or the names would be moved apart by another scale.
    axes.set_ylim(*axes.get_ylim())
    _label_line_ends(axes, lines)


def _label_line_ends(axes: "Axes", lines: Sequence[Line]) -> None:
    """Each arm's name and last value right of the axes, moved apart where they would collide."""
    low, high = axes.get_ylim()
    height_points = 72 * axes.bbox.height / axes.figure.dpi
    gap = 1.45 * FONT_POINTS / height_points * (high - low)
    rising = sorted(lines, key=lambda line: line.ys[-1])
    heights = _spread([line.ys[-1] for line in rising], gap, low=low, high=high)
    for line, height in zip(rising, heights, strict=True):
        is_flat = len(line.xs) == 1 and axes.get_xscale() == "linear"
        value = line.ys[-1] if line.value is None else line.value
        axes.annotate(
            f"{clipped(line.name, MAX_NAME)} {value:.1f}",
            xy=(axes.get_xlim()[1] if is_flat else line.xs[-1], line.ys[-1]),
            xytext=(1.05, height),
            textcoords=("axes fraction", "data"),
            color=line.style.colour,
            fontsize=FONT_POINTS,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.style.colour,
                "alpha": 0.5,
                "linewidth": 0.8,
                # From the name's edge: a line from its middle would cross the other names.
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 3,
            },
        )


def _spread(rising: Sequence[float], gap: float, *, low: float, high: float) -> list[float]:
    """The rising values moved apart to at least `gap`, as near as can be, between low and high.

    Where they do not all fit, they pass `low`.
    """
    moved = [max(value, low) for value in rising]
    # Each pass shares a collision between both sides; a few dozen settle a dozen names.
    for _ in range(60):
        for index, (below, above) in enumerate(pairwise(moved)):
            missing = gap - (above - below)
            if missing > 0:
                moved[index] -= missing / 2
                moved[index + 1] += missing / 2
        moved[0] = max(moved[0], low)
        moved[-1] = min(moved[-1], high)
    # What is left of it is settled from the top.
    for index in range(len(moved) - 2, -1, -1):
        moved[index] = min(moved[index], moved[index + 1] - gap)
    return moved


def write_figures(figures: "Mapping[str, Figure]", out_dir: Path) -> dict[str, Path]:
    """Every figure as PNG and as SVG; the paths by file name."""
    paths: dict[str, Path] = {}
    for name, figure in figures.items():
        png_path, svg_path = out_dir / f"{name}.png", out_dir / f"{name}.svg"
        write_whole(png_path, partial(figure.savefig, format="png", dpi=200))
        write_text(svg_path, figure_to_svg(figure))
        paths |= {png_path.name: png_path, svg_path.name: svg_path}
    return paths


def figure_to_svg(figure: "Figure", *, transparent: bool = False) -> str:
    """The figure as a file; equal figures give equal files."""
    import matplotlib

    # A fixed salt and no date: equal comparisons give equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regraft"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=transparent)
    return buffer.getvalue()


def figure_for_page(figure: "Figure", *, name: str, described: str) -> str:
    """The figure as part of a page: no prolog, no background, the page's colours and font.

    `described` is what a reader who cannot see it is told. Ids begin with `name`, as several
    figures share a page.
    """
    svg = figure_to_svg(figure, transparent=True)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|width|height)="[^"]*"', "", svg, count=4)
    # Written in one property or in two, by matplotlib's version.
    svg = re.sub(r"(font: [\d.]+px|font-family:) [^;\"]+", r"\1 var(--sans)", svg)
    svg = re.sub(r'(\sid="|url\(#|xlink:href="#)', rf"\1{name}-", svg)
    svg = svg.replace("xlink:href", "href")
    for colour, variable in page_variables().items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(described)}"', 1)
