"""How figures are drawn: colours and markers of arms, lines with names at their ends, SVG.

No two arms differ by colour alone. Knows nothing of comparisons.
"""

import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from regraft.report.sentences import clipped
from regraft.runtime import write_text, write_whole

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT_POINTS = 11
WIDTH = 5.6
DASHES = (0, (5, 3))
MAX_NAME = 22


@dataclass(frozen=True)
class Style:
    """How an arm is drawn; `variable` names its colour in the style sheet."""

    variable: str
    colour: str
    dark_colour: str
    marker: str


# After the colour-blind safe palette of Okabe and Ito, darkened so that text is readable.
_STYLES = {
    "pretrained": Style("pretrained", "#0072b2", "#5ab4ea", "o"),
    "scratch": Style("scratch", "#c04f00", "#f0955a", "s"),
    "frozen": Style("frozen", "#00805c", "#45c9a1", "^"),
    "linear": Style("linear", "#4a4e57", "#c3c7d0", "D"),
    "latent": Style("latent", "#86660a", "#e3c34d", "v"),
    "nbsvm": Style("nbsvm", "#a8457e", "#e58fbf", "P"),
    "lstm": Style("lstm", "#a52a2a", "#ff8a80", "X"),
    "cnn": Style("cnn", "#5a6e00", "#b5cf4e", "<"),
    "embedding": Style("embedding", "#6a4bb8", "#b39df3", ">"),
    "fit": Style("fit", "#006d7a", "#4fd0dd", "*"),
    # The blend is what `fit` makes, its features what pre-training gives.
    "blend": Style("fit", "#006d7a", "#4fd0dd", "*"),
    "features": Style("pretrained", "#0072b2", "#5ab4ea", "o"),
    "encoder": Style("embedding", "#6a4bb8", "#b39df3", ">"),
}
# Further bases, and arms of a later version, in their order.
_OTHERS = (
    Style("other-1", "#3b55a8", "#8fabff", "p"),
    Style("other-2", "#7d4a2d", "#d9a184", "h"),
    Style("other-3", "#8b3fa0", "#d794ea", "d"),
    Style("other-4", "#2f6b3a", "#86cf92", "8"),
)

INK, MUTED, GRID, CARD = "#1d2026", "#646870", "#e4e2dc", "#ffffff"
_DARK = {"ink": "#e9e8e3", "muted": "#a0a4ad", "grid": "#30343c", "card": "#1c1f25"}


def arm_styles(names: Iterable[str]) -> dict[str, Style]:
    """A style for each arm; the same name has the same style in every report."""
    styles: dict[str, Style] = {}
    num_others = 0
    for name in names:
        style = _STYLES.get(name)
        if style is None:
            style = _OTHERS[num_others % len(_OTHERS)]
            num_others += 1
        styles[name] = style
    return styles


def page_variables() -> dict[str, str]:
    """The variable for each colour that a figure may hold."""
    variables = {style.colour: style.variable for style in (*_STYLES.values(), *_OTHERS)}
    return {**variables, INK: "ink", MUTED: "muted", GRID: "grid", CARD: "card"}


def light_css() -> str:
    """Declarations of all variables for paper and light screens."""
    return _css({variable: colour for colour, variable in page_variables().items()})


def dark_css() -> str:
    """The same variables for dark screens."""
    styles = (*_STYLES.values(), *_OTHERS)
    return _css({**{style.variable: style.dark_colour for style in styles}, **_DARK})


def _css(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


@dataclass(frozen=True)
class Line:
    """A line in percent; the band may be empty. One point stands for the whole axis.

    `rings` mark points; `value` is written at its end, if it is not the last point.
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
    """A title above and the x-axis label below."""
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
        # The first arm matters most: it is drawn on top.
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
    # Fixed, or the names would be placed on another scale.
    axes.set_ylim(*axes.get_ylim())
    _label_line_ends(axes, lines)


def _label_line_ends(axes: "Axes", lines: Sequence[Line]) -> None:
    """Each name and last value right of the axes, moved apart where they would collide."""
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
    """Rising values moved apart to at least `gap`, as little as possible, between low and high.

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
    # What remains is resolved from the top.
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


def figure_for_page(figure: "Figure", *, name: str, described: str) -> "Markup":
    """The figure as part of a page: no prolog, no background, the page's colours and font.

    `described` is for screen readers. Ids begin with `name`, because several figures share a page.
    """
    from markupsafe import Markup

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
    label = f'<svg role="img" aria-label="{html.escape(described)}"'
    return Markup(svg.replace("<svg", label, 1))
