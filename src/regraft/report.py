"""A Comparison told to people and to programs: HTML, Markdown, JSON and the accuracy figure.

Comes in: a finished Comparison. Goes out: files in one folder; report.html needs no other file, no
network and no script. Computes no result: every number was decided in compare.
"""

import dataclasses
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from regraft.arms import ArmsFolder
from regraft.config import flat
from regraft.evidence import REPORT_NAME, ArmSummary, Comparison, PairedTest
from regraft.metrics import Interval
from regraft.runtime import write_json, write_text, write_whole

if TYPE_CHECKING:
    import matplotlib.figure

_MAX_MISTAKE_LENGTH = 700
# Beyond this many classes a matrix is unreadable; the most frequent confusions are listed instead.
_MAX_MATRIX_CLASSES = 10
_NUM_CONFUSIONS = 10

# Okabe and Ito's colours, made for the colour-blind; markers differ too. The page replaces each by
# the CSS variable of the same name, so that the figure follows the reader's light or dark theme.
_ARM_COLOURS = {
    "pretrained": "#0072b2",
    "scratch": "#c65300",
    "frozen": "#008a64",
    "linear": "#4a4e57",
}
_ARM_MARKERS = {"pretrained": "o", "scratch": "s", "frozen": "^"}
_INK, _MUTED, _GRID = "#1d2026", "#646870", "#e4e2dc"
_PAGE_COLOURS = {**_ARM_COLOURS, "ink": _INK, "muted": _MUTED, "grid": _GRID}
_FONT_POINTS = 11


def write_report(comparison: Comparison, out_dir: str | Path) -> dict[str, Path]:
    """Write every form of the report; the paths by file name.

    What `compare` kept in this folder to go on with is then of no use, and removed.
    """
    out_dir = Path(out_dir)
    figure = accuracy_figure(comparison)
    names = ("report.html", "report.md", REPORT_NAME, "accuracy.png", "accuracy.svg")
    paths = {name: out_dir / name for name in names}
    svg = _svg(figure)
    write_whole(paths["accuracy.png"], lambda file: figure.savefig(file, format="png", dpi=200))
    write_text(paths["accuracy.svg"], svg)
    write_text(paths["report.md"], comparison_to_markdown(comparison))
    write_text(paths["report.html"], comparison_to_html(comparison, svg=svg))
    # Last: its presence says that the comparison has ended.
    write_json(paths[REPORT_NAME], comparison_to_dict(comparison))
    ArmsFolder(out_dir).discard()
    return paths


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """Plain values ready for JSON; a number that is not finite becomes null."""
    plain: dict[str, Any] = _plain(comparison)
    return plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return _encodable(value)
    return value if value is None or isinstance(value, bool | int) else str(value)


def _encodable(text: str) -> str:
    """JSON data may hold half a surrogate pair, which no file can; it becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def accuracy_figure(comparison: Comparison) -> "matplotlib.figure.Figure":
    """Accuracy on valid against the epoch: mean over seeds, the seeds' range as a band.

    The linear arm, which knows no epochs, is a dashed line. Arms are named at their line's end.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Small in inches, so that the text stays readable when a phone shows the figure 9 cm wide.
    figure = Figure(figsize=(5.6, 3.7))
    axes = figure.add_subplot()
    curves = {arm.name: _mean_curve(arm) for arm in comparison.arms}
    last_epoch = max((len(curve) - 1 for curve in curves.values()), default=0) or 1
    for arm in comparison.arms:
        colour = _ARM_COLOURS.get(arm.name, _INK)
        curve = curves[arm.name]
        if len(curve) == 1:
            axes.axhline(100 * curve[0], color=colour, linewidth=1.6, linestyle=(0, (5, 3)))
            continue
        epochs = range(len(curve))
        lows, highs = _range_over_seeds(arm)
        axes.fill_between(epochs, lows, highs, color=colour, alpha=0.16, linewidth=0)
        marker = _ARM_MARKERS.get(arm.name, "D")
        axes.plot(
            epochs, [100 * share for share in curve], color=colour, marker=marker, linewidth=2
        )
    axes.set_xlim(-0.02 * last_epoch, 1.02 * last_epoch)
    axes.margins(y=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.set_xlabel("epoch (0: before the first)", color=_MUTED, fontsize=_FONT_POINTS)
    axes.set_title("Accuracy on valid, %", loc="left", color=_INK, fontsize=_FONT_POINTS + 1)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
    axes.tick_params(colors=_MUTED, labelsize=_FONT_POINTS, length=0)
    figure.subplots_adjust(left=0.07, right=0.715, bottom=0.14, top=0.91)
    _label_line_ends(
        axes,
        {name: (len(curve) - 1, 100 * curve[-1]) for name, curve in curves.items()},
        last_epoch=last_epoch,
    )
    return figure


def _label_line_ends(axes: Any, ends: Mapping[str, tuple[int, float]], *, last_epoch: int) -> None:
    """Each arm's name and last value right of the axes, moved apart where they would collide."""
    low, high = axes.get_ylim()
    height_points = 72 * axes.get_position().height * axes.figure.get_figheight()
    gap = 1.45 * _FONT_POINTS / height_points * (high - low)
    names = sorted(ends, key=lambda name: ends[name][1])
    for name, label_y in zip(names, _spread([ends[n][1] for n in names], gap, high), strict=True):
        epoch, value = ends[name]
        axes.annotate(
            f"{name} {value:.1f}",
            xy=(epoch if epoch else axes.get_xlim()[1], value),
            xytext=(1.07 * last_epoch, label_y),
            color=_ARM_COLOURS.get(name, _INK),
            fontsize=_FONT_POINTS,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _ARM_COLOURS.get(name, _INK),
                "alpha": 0.5,
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def _spread(rising: Sequence[float], gap: float, high: float) -> list[float]:
    """The rising values moved apart to at least `gap`, upwards first, down again below `high`."""
    moved: list[float] = []
    for value in rising:
        moved.append(max(value, moved[-1] + gap) if moved else value)
    for index in range(len(moved) - 1, -1, -1):
        ceiling = high if index == len(moved) - 1 else moved[index + 1] - gap
        moved[index] = min(moved[index], ceiling)
    return moved


def _epochs(arm: ArmSummary) -> list[list[float]]:
    """The seeds' accuracies epoch by epoch."""
    return [list(column) for column in zip(*arm.valid_curves, strict=True)]


def _mean_curve(arm: ArmSummary) -> list[float]:
    return [sum(shares) / len(shares) for shares in _epochs(arm)]


def _range_over_seeds(arm: ArmSummary) -> tuple[list[float], list[float]]:
    epochs = _epochs(arm)
    return [100 * min(shares) for shares in epochs], [100 * max(shares) for shares in epochs]


def _svg(figure: "matplotlib.figure.Figure") -> str:
    import matplotlib

    # A fixed salt and no date: equal comparisons give equal files.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regraft"}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _svg_for_page(svg: str) -> str:
    """The figure as part of a page: no prolog, no background, the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="patch_[12]">.*?</g>', "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|width|height)="[^"]*"', "", svg, count=4)
    svg = re.sub(r"(font: [\d.]+px) [^;\"]+", r"\1 var(--sans)", svg)
    for name, colour in _PAGE_COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    label = "Accuracy on valid after every epoch, one line an arm"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def comparison_to_markdown(comparison: Comparison) -> str:
    """The report for a terminal, a pull request or a log."""
    columns = [
        "arm",
        "test accuracy, %",
        "valid, %",
        "macro-F1, %",
        "calibration error, %",
        "cost",
        "seeds",
    ]
    shows_leaks = comparison.num_test_leaks > 0
    if shows_leaks:
        columns.insert(2, "without leaks, %")
    rows = []
    for arm in comparison.arms:
        cells = [arm.name, _range(arm.test_accuracy), *_arm_cells(arm)]
        rows.append(cells if shows_leaks else cells[:2] + cells[3:])
    parts = [
        f"# {_md(comparison.verdict)}",
        _lead(comparison),
        *[f"> **Note.** {_md(warning)}" for warning in comparison.warnings],
        "## The arms",
        _md_table(columns, rows),
        _arms_note(comparison),
        "\n".join(f"- {arm.name}: {_md(arm.description)}" for arm in comparison.arms),
        "## Are the differences real?",
        "\n".join(f"- {_md(paired_test_in_words(test))}" for test in comparison.tests),
        "## While they learned",
        "![Accuracy on valid after every epoch](accuracy.png)",
        _figure_note(comparison),
        *_md_mistakes(comparison),
        "## What ran",
        f"````\n{_encodable(comparison.command)}\n````",
        *[
            f"### {title}\n\n" + _md_table(["name", "value"], facts)
            for title, facts in _facts(comparison).items()
            if facts
        ],
        f"Made on {comparison.created}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _md(text: str) -> str:
    """Text that cannot break out of its line, its table cell, or into HTML."""
    return html.escape(_encodable(" ".join(text.split())), quote=False).replace("|", "\\|")


def _md_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *[[_md(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md_mistakes(comparison: Comparison) -> list[str]:
    if not comparison.mistakes:
        return []
    return [f"## {_mistakes_title(comparison)}"] + [
        f"> {_md(_clipped(mistake.text))}\n>\n> is **{_md(mistake.label)}**, "
        f"predicted **{_md(mistake.predicted)}** at {100 * mistake.probability:.0f} %"
        for mistake in comparison.mistakes
    ]


def comparison_to_html(comparison: Comparison, *, svg: str) -> str:
    """One page that needs nothing else; every text from data or settings is escaped."""
    template = resources.files("regraft").joinpath("templates/report.html")
    return Template(template.read_text(encoding="utf-8")).substitute(
        title=_html(f"regraft: {comparison.verdict}"),
        verdict=_html(comparison.verdict),
        verdict_kind=_html(comparison.verdict_kind),
        lead=_html(_lead(comparison)),
        warnings=_html_list("warnings", comparison.warnings),
        arms=_html_arms(comparison),
        arms_note=_html(_arms_note(comparison)),
        tests=_html_tests(comparison.tests),
        figure=_svg_for_page(svg),
        figure_note=_html(_figure_note(comparison)),
        confusions=_html_confusions(comparison),
        mistakes=_html_mistakes(comparison),
        command=_html(comparison.command),
        facts="".join(_html_facts(title, rows) for title, rows in _facts(comparison).items()),
        created=_html(comparison.created),
    )


def _html(text: str) -> str:
    return html.escape(_encodable(text))


def _html_list(css_class: str, items: Sequence[str]) -> str:
    rows = "".join(f"<li>{_html(item)}</li>" for item in items)
    return f'<ul class="{css_class}">{rows}</ul>' if items else ""


def _html_arms(comparison: Comparison) -> str:
    shows_leaks = comparison.num_test_leaks > 0
    columns = ["Without leaks", "Valid", "Macro-F1", "Calibration error", "Cost", "Seeds"]
    shown = [column for column in columns if shows_leaks or column != "Without leaks"]
    head = "".join(f"<th>{column}</th>" for column in ["Arm", "Test accuracy", *shown])
    low = min(arm.test_accuracy.low for arm in comparison.arms)
    high = max(arm.test_accuracy.high for arm in comparison.arms)
    body = []
    for arm in comparison.arms:
        cells = "".join(
            f'<td class="number" data-label="{column}">{_html(cell)}</td>'
            for column, cell in zip(columns, _arm_cells(arm), strict=True)
            if column in shown
        )
        test = arm.test_accuracy
        body.append(
            f'<tr class="{_html(arm.name)}"><th scope="row"><span class="swatch"></span>'
            f"{_html(arm.name)}<small>{_html(arm.description)}</small></th>"
            f'<td class="test"><span class="big">{_percent(test.mean)} %</span>'
            f"<small>95 % interval {_percent(test.low)} to {_percent(test.high)}</small>"
            f"{_whisker(test, low, high)}</td>{cells}</tr>"
        )
    return (
        f'<table class="arms"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


def _whisker(interval: Interval, low: float, high: float) -> str:
    """A point with its interval on the scale that all arms share."""
    left, middle, right = (
        4 + 92 * (value - low) / ((high - low) or 1)
        for value in (interval.low, interval.mean, interval.high)
    )
    return (
        f'<span class="whisker" aria-hidden="true">'
        f'<i style="left:{left:.1f}%;width:{right - left:.1f}%"></i>'
        f'<b style="left:{middle:.1f}%"></b></span>'
    )


def _html_tests(tests: Sequence[PairedTest]) -> str:
    rows = []
    for test in tests:
        claim, _, evidence = paired_test_in_words(test).partition(": ")
        rows.append(f"<li><strong>{_html(claim)}.</strong> <span>{_html(evidence)}</span></li>")
    note = (
        "The permutation test and the interval use every seed, McNemar's test the first seed only. "
        "None is corrected for there being several."
    )
    return f'<ul class="tests">{"".join(rows)}</ul><p class="note">{note}</p>'


def _html_confusions(comparison: Comparison) -> str:
    if len(comparison.labels) > _MAX_MATRIX_CLASSES:
        tables = [_html_top_confusions(arm, comparison.labels) for arm in comparison.arms]
    else:
        tables = [_html_matrix(arm, comparison.labels) for arm in comparison.arms]
    note = "Rows are the labels, columns the predictions; counts on test, all seeds together."
    return f'<div class="matrices">{"".join(tables)}</div><p class="note">{note}</p>'


def _html_matrix(arm: ArmSummary, labels: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{_html(label)}</th>' for label in labels)
    rows = []
    for label, counts in zip(labels, arm.confusion, strict=True):
        cells = "".join(
            f'<td style="--share:{count / (sum(counts) or 1):.3f}">{count:,}</td>'
            for count in counts
        )
        rows.append(f'<tr><th scope="row">{_html(label)}</th>{cells}</tr>')
    return (
        f"<div><h3>{_html(arm.name)}</h3>"
        f'<div class="scroll"><table class="matrix"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _html_top_confusions(arm: ArmSummary, labels: Sequence[str]) -> str:
    wrong = [
        (count, labels[row], labels[column])
        for row, counts in enumerate(arm.confusion)
        for column, count in enumerate(counts)
        if row != column and count
    ]
    wrong.sort(key=lambda cell: -cell[0])
    lines = [f"{count:,} of {label} taken for {other}" for count, label, other in wrong]
    listing = _html_list("confusions", lines[:_NUM_CONFUSIONS]) or "<p>No mistakes.</p>"
    return f"<div><h3>{_html(arm.name)}</h3>{listing}</div>"


def _html_mistakes(comparison: Comparison) -> str:
    if not comparison.mistakes:
        return ""
    items = "".join(
        f'<li><blockquote dir="auto">{_html(_clipped(mistake.text))}</blockquote>'
        f"<p>is <strong>{_html(mistake.label)}</strong>, predicted "
        f"<strong>{_html(mistake.predicted)}</strong> at {100 * mistake.probability:.0f} %</p></li>"
        for mistake in comparison.mistakes
    )
    return f'<h2>{_html(_mistakes_title(comparison))}</h2><ul class="mistakes">{items}</ul>'


def _html_facts(title: str, rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    items = "".join(
        f"<div><dt>{_html(name)}</dt><dd>{_html(value)}</dd></div>" for name, value in rows
    )
    return f"<section><h3>{_html(title)}</h3><dl>{items}</dl></section>"


def paired_test_in_words(test: PairedTest) -> str:
    """`a beats b by 3.1 points: 95 % interval ...`; or that no difference was shown."""
    gap = test.difference
    if test.is_significant:
        better, worse = (test.first, test.second) if gap.mean > 0 else (test.second, test.first)
        claim = f"{better} beats {worse} by {100 * abs(gap.mean):.1f} points"
    else:
        claim = f"No difference shown between {test.first} and {test.second}"
    return (
        f"{claim}: {test.first} minus {test.second} is {_points(gap.mean)} points, "
        f"95 % interval {_points(gap.low)} to {_points(gap.high)}; "
        f"{_p(test.p_permutation)} by permutation, {_p(test.p_mcnemar)} by McNemar's test."
    )


def _lead(comparison: Comparison) -> str:
    num_seeds = max(arm.num_seeds for arm in comparison.arms)
    cut = comparison.cut_share
    return (
        f"Learned from {comparison.num_train:,} examples, tuned on {comparison.num_valid:,}; "
        f"{comparison.num_test:,} test examples were opened once, at the end. "
        f"{num_seeds} {'seed' if num_seeds == 1 else 'seeds'} for each neural arm, "
        "all on the same batches."
        + (
            f" {_percent(cut)} % of the training texts were longer than the model reads, and cut."
            if cut
            else ""
        )
    )


def _arms_note(comparison: Comparison) -> str:
    leaks = comparison.num_test_leaks
    note = (
        "Scores are percentages. Intervals resample seeds and test examples together. "
        "Cost is the training time of one seed."
    )
    if leaks:
        note += (
            f" {leaks:,} test {'text occurs' if leaks == 1 else 'texts occur'} in train or valid "
            "too, exactly or nearly; “without leaks” leaves them out."
        )
    return note


def _mistakes_title(comparison: Comparison) -> str:
    names = [arm.name for arm in comparison.arms]
    name = "pretrained" if "pretrained" in names else names[0]
    return f"Where the {name} arm is surest and wrong"


def _figure_note(comparison: Comparison) -> str:
    note = "Lines are means over seeds, bands reach from the lowest to the highest seed."
    has_linear = any(arm.name == "linear" for arm in comparison.arms)
    return note + (
        " The dashed line is the linear arm, which knows no epochs." if has_linear else ""
    )


def _arm_cells(arm: ArmSummary) -> list[str]:
    """Without leaks, valid, macro-F1, calibration error, cost, seeds."""
    clean = arm.test_accuracy_without_leaks
    return [
        _percent(clean.mean) if clean else "\N{EN DASH}",
        _percent(arm.valid_accuracy.mean),
        _percent(arm.macro_f1),
        _percent(arm.calibration_error),
        _duration(arm.seconds),
        str(arm.num_seeds),
    ]


def _facts(comparison: Comparison) -> dict[str, list[tuple[str, str]]]:
    return {
        title: [(name, _fact(value)) for name, value in flat(values).items()]
        for title, values in (
            ("The base", comparison.base),
            ("Settings", comparison.settings),
            ("Versions and machine", comparison.environment),
            ("Fingerprints of the data", comparison.fingerprints),
        )
    }


def _fact(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_MISTAKE_LENGTH else text[: _MAX_MISTAKE_LENGTH - 1] + "…"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _range(interval: Interval) -> str:
    return f"{_percent(interval.mean)} ({_percent(interval.low)} to {_percent(interval.high)})"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "\N{MINUS SIGN}")


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
