"""The parts that pages are made of: tables, figures, sections, and the page around them.

Comes in: plain text, escaped here, and parts that were made here. Goes out: HTML that needs no
other file, no network and no script. Knows nothing of comparisons.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template

from regraft.metrics import Interval
from regraft.report.palette import Style, dark_css, light_css
from regraft.report.tables import encodable

# Beyond this many classes a matrix is unreadable; the most frequent confusions are listed instead.
MAX_MATRIX_CLASSES = 10
_NUM_CONFUSIONS = 10


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading of its own; `name` is its anchor, `link` its short title."""

    name: str
    title: str
    body: str
    link: str = ""


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, and smaller text below."""

    text: str
    note: str = ""


def escape(text: str) -> str:
    """Text from data or settings, made harmless."""
    return html.escape(encodable(text))


def prose(text: str) -> str:
    """A sentence of ours, whose numbers stay beside their signs at the end of a line."""
    return escape(
        re.sub(r"(?<=\d) (?=%)|(?<=\bp) (?=[=<])|(?<=[=<]) (?=\d)", "\N{NO-BREAK SPACE}", text)
    )


def page(
    *,
    title: str,
    eyebrow: str,
    headline: str,
    is_good: bool,
    limits: str,
    worth: str,
    lead: str,
    warnings: Sequence[str],
    sections: Iterable[Section],
    created: str,
) -> str:
    """The whole page; sections without a body are left out."""
    shown = [section for section in sections if section.body]
    links = "".join(
        f'<li><a href="#{section.name}">{escape(section.link or section.title)}</a></li>'
        for section in shown
    )
    style = Template(_template("report.css")).substitute(light=light_css(), dark=dark_css())
    return Template(_template("report.html")).substitute(
        title=escape(title),
        style=style,
        eyebrow=escape(eyebrow),
        headline=prose(headline),
        kind="good" if is_good else "caution",
        limits=paragraph(limits, css_class="limits"),
        worth=paragraph(worth, css_class="worth"),
        lead=paragraph(lead, css_class="lead"),
        warnings=listing(warnings, css_class="warnings"),
        links=links,
        sections="\n".join(
            f'<section aria-labelledby="{section.name}">'
            f'<h2 id="{section.name}">{escape(section.title)}</h2>\n{section.body}\n</section>'
            for section in shown
        ),
        created=escape(created),
    )


def _template(name: str) -> str:
    return resources.files("regraft").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def paragraph(text: str, *, css_class: str) -> str:
    """A paragraph, or nothing for an empty text."""
    return f'<p class="{css_class}">{prose(text)}</p>' if text else ""


def listing(items: Sequence[str], *, css_class: str) -> str:
    """A list, or nothing for no items."""
    rows = "".join(f"<li>{prose(item)}</li>" for item in items)
    return f'<ul class="{css_class}">{rows}</ul>' if items else ""


def figure(svg: str, *, note: str, numbers: str = "") -> str:
    """A figure of `figure_for_page` with its caption, and a table of its numbers to open."""
    folded = folding("The numbers", numbers) if numbers else ""
    return f"<figure>{svg}<figcaption>{prose(note)}</figcaption></figure>{folded}"


def folding(summary: str, body: str) -> str:
    """Something to open, by mouse or by keyboard."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def swatch(style: Style | None) -> str:
    """A dot in the arm's colour."""
    return "" if style is None else f'<span class="swatch" style="{_arm_colour(style)}"></span>'


def _arm_colour(style: Style) -> str:
    return f"--arm:var(--{style.variable})"


def table(
    columns: Sequence[str],
    rows: Iterable[tuple[str, Sequence[Cell]]],
    *,
    caption: str,
    styles: Mapping[str, Style] | None = None,
) -> str:
    """A table of numbers that scrolls by itself; the first column names the rows."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = []
    for name, cells in rows:
        shown = "".join(f"<td>{_cell(cell)}</td>" for cell in cells)
        dot = swatch((styles or {}).get(name))
        body.append(f'<tr><th scope="row">{dot}{escape(name)}</th>{shown}</tr>')
    return scrolling(
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody>",
        css_class="plain",
        label=caption,
    )


def scrolling(inner: str, *, css_class: str, label: str) -> str:
    """A table in a region that the keyboard can reach and scroll."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f'<table class="{css_class}">{inner}</table></div>'
    )


def _cell(cell: Cell) -> str:
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"{escape(cell.text)}{note}"


@dataclass(frozen=True)
class Scored:
    """A row of the table that matters most: an arm or a member, and its score."""

    name: str
    description: str
    style: Style
    score: Interval
    cells: Sequence[Cell]


def score_table(columns: Sequence[str], rows: Sequence[Scored], *, caption: str) -> str:
    """Scores with their intervals drawn on one scale; on a phone each row becomes a card.

    `columns` name the row, its score, and its cells. Roles are spelled out, because a browser
    forgets that a table is one when it is laid out otherwise.
    """
    head = "".join(f'<th role="columnheader" scope="col">{escape(c)}</th>' for c in columns)
    low = min(row.score.low for row in rows)
    high = max(row.score.high for row in rows)
    body = []
    for row in rows:
        cells = "".join(
            f'<td role="cell" data-label="{escape(column)}"><span>{_cell(cell)}</span></td>'
            for column, cell in zip(columns[2:], row.cells, strict=True)
        )
        score = row.score
        body.append(
            f'<tr role="row" style="{_arm_colour(row.style)}">'
            f'<th role="rowheader" scope="row"><span class="swatch"></span>{escape(row.name)}'
            f"<small>{escape(row.description)}</small></th>"
            f'<td role="cell" class="score"><span class="big">{100 * score.mean:.1f} %</span>'
            f"<small>95 % interval {100 * score.low:.1f} to {100 * score.high:.1f}</small>"
            f"{_whisker(score, low, high)}</td>{cells}</tr>"
        )
    return (
        f'<table class="scores" role="table"><caption>{escape(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(body)}</tbody></table>'
    )


def _whisker(interval: Interval, low: float, high: float) -> str:
    """A point with its interval on the scale that all rows share."""
    left, middle, right = (
        4 + 92 * (value - low) / ((high - low) or 1)
        for value in (interval.low, interval.mean, interval.high)
    )
    return (
        f'<span class="whisker" aria-hidden="true">'
        f'<i style="left:{left:.1f}%;width:{right - left:.1f}%"></i>'
        f'<b style="left:{middle:.1f}%"></b></span>'
    )


def confusions(name: str, counts: Sequence[Sequence[int]], *, labels: Sequence[str]) -> str:
    """Labels against predictions as a matrix, or in words where there are many labels."""
    is_small = len(labels) <= MAX_MATRIX_CLASSES
    told = _matrix(name, counts, labels) if is_small else _top_confusions(counts, labels)
    return f"<div><h3>{escape(name)}</h3>{told}</div>"


def _matrix(name: str, counts: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    rows = []
    for label, row in zip(labels, counts, strict=True):
        cells = "".join(
            f'<td style="--share:{count / (sum(row) or 1):.3f}">{count:,}</td>' for count in row
        )
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{cells}</tr>')
    return scrolling(
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody>",
        css_class="matrix",
        label=f"What {name} takes for what",
    )


def _top_confusions(counts: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    wrong = [
        (count, labels[row], labels[column])
        for row, cells in enumerate(counts)
        for column, count in enumerate(cells)
        if row != column and count
    ]
    wrong.sort(key=lambda cell: -cell[0])
    lines = [f"{count:,} of {label} taken for {other}" for count, label, other in wrong]
    return listing(lines[:_NUM_CONFUSIONS], css_class="confusions") or "<p>No mistakes.</p>"


def facts(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Names and values side by side, or nothing."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows
    )
    return f"<section><h3>{escape(title)}</h3><dl>{items}</dl></section>" if rows else ""


def quotation(text: str, *, told: str) -> str:
    """A text of the data with what is told of it; its language is not known."""
    quoted = f'<blockquote lang="" dir="auto">{escape(text)}</blockquote>' if text else ""
    return f"<li>{quoted}<p>{told}</p></li>"


def command(text: str) -> str:
    """A command to copy."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
