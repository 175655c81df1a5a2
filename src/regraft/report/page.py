"""The parts of a report, and the page made of them: plain text and numbers.

`html` and `markdown` turn a page into a file. Knows nothing of comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from regraft.report.drawing import Style, figure_for_page
from regraft.stats import Interval

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

# Beyond this many classes a matrix is unreadable; the most frequent confusions are listed instead.
MAX_MATRIX_CLASSES = 10
_NUM_CONFUSIONS = 10


@dataclass(frozen=True)
class Part:
    """Anything in a section; `kind` names the function and the macro that write it."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Paragraph(Part):
    """A paragraph; nothing if its text is empty. With a `summary`, it unfolds from under it."""

    kind = "paragraph"
    text: str
    css_class: str = "note"
    summary: str = ""


@dataclass(frozen=True)
class Listing(Part):
    """A list of sentences; nothing if there are none."""

    kind = "listing"
    items: Sequence[str]
    css_class: str = "notes"


@dataclass(frozen=True)
class Claims(Part):
    """Claims with their evidence."""

    kind = "claims"
    claims: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Cell:
    """A table cell: its text, and smaller text below."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Table(Part):
    """A table of numbers; the first column names the rows, with a dot in the colour of the arm."""

    kind = "table"
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    caption: str
    styles: Mapping[str, Style] = field(default_factory=dict)


@dataclass(frozen=True)
class Drawing(Part):
    """A figure with its file's name, a description for screen readers, and its caption.

    `numbers` are shown in a table to unfold.
    """

    kind = "figure"
    figure: "Figure"
    name: str
    described: str
    note: str
    numbers: Table | None = None

    @property
    def svg(self) -> "Markup":
        """The figure inside a page."""
        return figure_for_page(self.figure, name=self.name, described=self.described)


@dataclass(frozen=True)
class Scored:
    """A row of the main table: an arm or a member, and its score."""

    name: str
    description: str
    style: Style
    score: Interval
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Scores(Part):
    """Scores with their intervals on one scale; `columns` name the row, its score and its cells.

    Where no intervals can be drawn, `picture` names the file of a figure of them.
    """

    kind = "scores"
    columns: Sequence[str]
    rows: Sequence[Scored]
    caption: str
    picture: str = ""

    def whisker(self, row: Scored) -> tuple[float, float, float]:
        """The ends and the middle of an interval, in percent of the common scale."""
        low = min(each.score.low for each in self.rows)
        high = max(each.score.high for each in self.rows)
        ends = (row.score.low, row.score.mean, row.score.high)
        left, middle, right = (4 + 92 * (end - low) / ((high - low) or 1) for end in ends)
        return left, middle, right


@dataclass(frozen=True)
class Matrix:
    """Labels against predictions; of many labels the most frequent confusions in words."""

    name: str
    counts: Sequence[Sequence[int]]
    labels: Sequence[str]

    @property
    def confusions(self) -> list[str] | None:
        """None where the matrix itself is shown."""
        if len(self.labels) <= MAX_MATRIX_CLASSES:
            return None
        wrong = [
            (count, self.labels[row], self.labels[column])
            for row, cells in enumerate(self.counts)
            for column, count in enumerate(cells)
            if row != column and count
        ]
        wrong.sort(key=lambda cell: -cell[0])
        return [
            f"{count:,} of {label} predicted as {other}"
            for count, label, other in wrong[:_NUM_CONFUSIONS]
        ]


@dataclass(frozen=True)
class Matrices(Part):
    """Confusion matrices; some are folded."""

    kind = "matrices"
    shown: Sequence[Matrix]
    folded: Sequence[Matrix] = ()


@dataclass(frozen=True)
class Quotation:
    """A text of the data, its label and the prediction, with the words around them."""

    text: str
    label: str
    predicted: str
    before: str
    between: str
    after: str


@dataclass(frozen=True)
class Quotations(Part):
    """Texts of the data."""

    kind = "quotations"
    quotations: Sequence[Quotation]


@dataclass(frozen=True)
class Facts(Part):
    """Names and values under a few titles."""

    kind = "facts"
    groups: Mapping[str, Sequence[tuple[str, str]]]


@dataclass(frozen=True)
class Command(Part):
    """A command to copy."""

    kind = "command"
    title: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; `name` is its anchor, `link` a short title.

    Those that `is_detail` come last and are folded: who wants the result does not need them.
    """

    name: str
    title: str
    parts: Sequence[Part]
    link: str = ""
    is_detail: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """The whole page; sections without parts are omitted."""

    eyebrow: str
    headline: str
    is_good: bool
    sections: Sequence[Section]
    created: str
    limits: str = ""
    worth: str = ""
    lead: str = ""
    warnings: Sequence[str] = ()

    @property
    def shown(self) -> list[Section]:
        """The sections that have something to show, details last."""
        shown = [section for section in self.sections if section.parts]
        return sorted(shown, key=lambda section: section.is_detail)
