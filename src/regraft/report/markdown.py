"""A page as Markdown: for a repository, a pull request or a log."""

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from regraft.report.page import (
    Cell,
    Claims,
    Command,
    Drawing,
    Facts,
    Listing,
    Matrices,
    Matrix,
    Page,
    Paragraph,
    Quotations,
    Scores,
    Table,
)
from regraft.report.sentences import interval_in_words
from regraft.report.tables import encodable


def to_markdown(page: Page) -> str:
    """The text of the file; figures are PNG files in the same folder."""
    paragraphs = [
        f"# {inline(page.headline)}",
        inline(page.limits),
        f"**{inline(page.worth)}**" if page.worth else "",
        inline(page.lead),
        *(f"> **Note.** {inline(warning)}" for warning in page.warnings),
    ]
    for section in page.shown:
        paragraphs.append(f"## {inline(section.title)}")
        for part in section.parts:
            paragraphs += _WRITERS[part.kind](part)
    paragraphs.append(f"Created {inline(page.created)}.")
    return "\n\n".join(text for text in paragraphs if text) + "\n"


def inline(text: str) -> str:
    """Text that cannot break out of its line, its table cell, or into HTML."""
    return html.escape(encodable(" ".join(text.split())), quote=False).replace("|", "\\|")


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every cell becomes one line."""
    lines = [["---"] * len(columns), *[[inline(cell) for cell in row] for row in rows]]
    head = [inline(column) for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, *lines])


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {inline(item)}" for item in items)


def _cells(cells: Iterable[Cell]) -> list[str]:
    return [f"{cell.text} ({cell.note})" if cell.note else cell.text for cell in cells]


def _paragraph(part: Paragraph) -> list[str]:
    return [inline(part.text)]


def _listing(part: Listing) -> list[str]:
    return [_list(part.items)]


def _claims(part: Claims) -> list[str]:
    return [_list(f"{claim}: {evidence}" for claim, evidence in part.claims)]


def _figure(part: Drawing) -> list[str]:
    picture = f"![{inline(part.described)}]({part.name}.png)"
    return [picture, inline(part.note), *(_table(part.numbers) if part.numbers else [])]


def _table(part: Table) -> list[str]:
    rows = [[name, *_cells(cells)] for name, cells in part.rows]
    return [f"{inline(part.caption)}:", _rows(part.columns, rows)]


def _scores(part: Scores) -> list[str]:
    rows = [[row.name, interval_in_words(row.score), *_cells(row.cells)] for row in part.rows]
    described = _list(f"{row.name}: {row.description}" for row in part.rows)
    picture = f"![{inline(part.caption)}]({part.picture}.png)" if part.picture else ""
    return [_rows(part.columns, rows), picture, described]


def _matrices(part: Matrices) -> list[str]:
    return [text for matrix in part.shown for text in _matrix(matrix)]


def _matrix(matrix: Matrix) -> list[str]:
    if matrix.confusions is not None:
        return [f"### {inline(matrix.name)}", _list(matrix.confusions) or "No errors."]
    counts = zip(matrix.labels, matrix.counts, strict=True)
    rows = [[label, *(f"{count:,}" for count in row)] for label, row in counts]
    return [f"### {inline(matrix.name)}", _rows(["label", *matrix.labels], rows)]


def _quotations(part: Quotations) -> list[str]:
    return [
        f"> {inline(each.text)}\n>\n> {each.before} **{inline(each.label)}**{each.between} "
        f"**{inline(each.predicted)}** {each.after}"
        for each in part.quotations
    ]


def _facts(part: Facts) -> list[str]:
    return [
        f"### {title}\n\n{_rows(['name', 'value'], rows)}"
        for title, rows in part.groups.items()
        if rows
    ]


def _command(part: Command) -> list[str]:
    return [f"{inline(part.title)}:", f"````\n{encodable(part.text)}\n````"]


_WRITERS: dict[str, Callable[[Any], list[str]]] = {
    "paragraph": _paragraph,
    "listing": _listing,
    "claims": _claims,
    "figure": _figure,
    "table": _table,
    "scores": _scores,
    "matrices": _matrices,
    "quotations": _quotations,
    "facts": _facts,
    "command": _command,
}
