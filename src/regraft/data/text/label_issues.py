"""Labels that are probably wrong, as a table that people read, edit and apply."""

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from regraft.data.text.duplicates import duplicate_key
from regraft.data.text.lines import Measured, check_present, read_lines
from regraft.data.text.records import Example
from regraft.data.text.writers import csv_text
from regraft.errors import ConfigError, DataError
from regraft.runtime import read_limits, write_text


@dataclass(frozen=True, slots=True)
class LabelIssue:
    """An example whose label is probably wrong, with the label proposed instead.

    `row` is its row in the file, as a spreadsheet shows it; `id` is empty if the file has none.
    """

    row: int
    id: str
    text: str
    label: str
    proposal: str
    confidence: float


# More of a kind are counted, not listed.
_MOST_LISTED = 5
_COLUMNS = tuple(field.name for field in fields(LabelIssue))


def write_label_issues(path: Path, issues: Iterable[LabelIssue]) -> None:
    """Write a csv file with a header, in this order; a file without issues has the header only."""
    rows = [
        [*(getattr(issue, name) for name in _COLUMNS[:-1]), f"{issue.confidence:.4f}"]
        for issue in issues
    ]
    write_text(path, csv_text(_COLUMNS, rows))


def read_label_issues(path: str | Path) -> list[LabelIssue]:
    """Read what `write_label_issues` wrote, edited or not; other columns are ignored."""
    check_present(Path(path))
    csv.field_size_limit(read_limits().record_bytes)
    lines = Measured(
        read_lines(Path(path), encoding="utf-8"), source=str(path), limit="whole_bytes"
    )
    records = csv.DictReader(lines)
    missing = [name for name in _COLUMNS if name not in (records.fieldnames or ())]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}.",
            f"Label issues have the columns {', '.join(_COLUMNS)}.",
            remedy="Pass the label_issues.csv of a run folder of `regraft fit`.",
        )
    issues = []
    for record in records:
        try:
            values = {name: _present(record[name]) for name in _COLUMNS}
            numbers = {"row": int(values["row"]), "confidence": float(values["confidence"])}
            issues.append(LabelIssue(**{**values, **numbers}))  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path} line {records.line_num} is not a label issue: {error}.",
                "It has a row number, texts and a confidence between 0 and 1.",
                remedy="Fix or remove the row.",
            ) from error
    return issues


def _present(value: str | None) -> str:
    if value is None:
        raise ValueError("it has too few fields")
    return value


def accepted_issues(
    issues: Sequence[LabelIssue],
    *,
    rows: Collection[int] | None = None,
    min_confidence: float | None = None,
) -> list[LabelIssue]:
    """The issues of these rows, or of at least this confidence; all if neither is given."""
    if rows is not None and min_confidence is not None:
        raise ConfigError(
            "--accept and --min-confidence are two ways to choose.", remedy="Pass one of them."
        )
    if min_confidence is not None and not 0 <= min_confidence <= 1:
        raise ConfigError(
            f"--min-confidence is {min_confidence:g}.",
            "A confidence is between 0 and 1.",
            remedy="Pass for example 0.9.",
        )
    known = {issue.row for issue in issues}
    unknown = sorted(set(rows or ()) - known)
    if unknown:
        raise DataError(
            f"There is no proposal for row {unknown[0]}.",
            f"{len(known):,} rows have one.",
            remedy="Pass rows that the file of issues lists.",
        )
    accepted = [
        issue
        for issue in issues
        if (rows is None or issue.row in rows) and issue.confidence >= (min_confidence or 0.0)
    ]
    if not accepted:
        highest = max((issue.confidence for issue in issues), default=None)
        raise DataError(
            "No proposal is accepted.",
            "The file of issues is empty."
            if highest is None
            else f"The highest confidence is {highest:.4f}.",
            remedy="There is nothing to clean." if highest is None else "Accept more.",
        )
    return accepted


def label_warnings(examples: Sequence[Example], *, separator: str | None = None) -> list[str]:
    """Labels that differ only in case or blanks, and equal texts with different labels.

    With a `separator` of several labels, also if it never occurs, and texts without any label.
    """
    warnings = []
    if separator is not None and all(len(example.names) < 2 for example in examples):
        warnings.append(
            f"No text has two labels: the separator {separator!r} never occurs. If every text has "
            "one label, omit --label-separator."
        )
    if unlabelled := [example.row for example in examples if not example.names]:
        shown = ", ".join(map(str, unlabelled[:_MOST_LISTED]))
        more = len(unlabelled) - _MOST_LISTED
        also = f" and {more:,} more" if more > 0 else ""
        warnings.append(
            f"Texts without any label: row {shown}{also}. They are examples of none; leave them "
            "out if they were not labelled yet."
        )
    counts = Counter(name for example in examples for name in example.names)
    for names in spellings_of(counts):
        shown = " and ".join(f"{name!r} ({counts[name]:,})" for name in names)
        warnings.append(
            f"Labels differ only in case or blanks: {shown}. They count as different classes."
        )
    groups: dict[str, list[Example]] = {}
    for example in examples:
        if key := duplicate_key(example.text, example.pair):
            groups.setdefault(key, []).append(example)
    contradicting = [
        group for group in groups.values() if len({example.names for example in group}) > 1
    ]
    if contradicting:
        listed = "; ".join(_contradiction(group) for group in contradicting[:_MOST_LISTED])
        more = len(contradicting) - _MOST_LISTED
        also = f"; and {more:,} more" if more > 0 else ""
        warnings.append(f"Equal texts have different labels: {listed}{also}.")
    return warnings


def spellings_of(names: Iterable[str]) -> list[list[str]]:
    """Labels that differ only in case or blanks, group by group."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault("".join(name.casefold().split()), []).append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def _contradiction(group: Sequence[Example]) -> str:
    places = [f"{example.place} {example.label!r}" for example in group[:_MOST_LISTED]]
    return ", ".join(places)
