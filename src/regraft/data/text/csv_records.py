"""Records of csv and tsv files, checked for ragged rows, open quotes and line endings."""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from regraft.data.text.columns import Columns, Values, check_width, unique_names
from regraft.data.text.lines import Measured, peeked
from regraft.errors import DataError
from regraft.runtime import read_limits


def read_csv_records(
    lines: Iterable[str], *, source: str, columns: Columns, delimiters: str, whole: bool
) -> Iterator[tuple[Values, int, range, dict[str, str] | None]]:
    """(values, row, lines, cells) of each record below the header.

    A row is what a spreadsheet shows: a record, however many lines it has, or a blank line. Blank
    ones are skipped, and cells are None, unless the table is read whole.
    """
    header_line, lines = peeked(lines)
    if not header_line:
        return
    delimiter = likely_delimiter(header_line, delimiters, wanted=columns.text)
    records = _split_records(lines, source=source, delimiter=delimiter)
    header = next(fields for fields, _, _ in records if fields)
    names = [name.strip() for name in header]
    check_width(len(names), place=source)
    columns.check(names, place=source)
    places = [None if name is None else names.index(name) for name in columns.present(names)]
    all_names = unique_names(names)
    for fields, row, at in records:
        if not fields:
            if not whole:
                continue
            fields = [""] * len(header)
        if len(fields) != len(header):
            span = f" (lines {at[0]} to {at[-1]}: is a quote left open?)" if len(at) > 1 else ""
            raise DataError(
                f"{source} row {row}{span} has {len(fields)} fields.",
                f"The header has {len(header)}.",
                remedy=f'Quote texts that contain {delimiter!r} or newlines with "...".',
            )
        values = Values(*(None if at is None else fields[at] for at in places))
        cells = dict(zip(all_names, fields, strict=True)) if whole else None
        yield values, row, at, cells


def relabelled_csv(
    lines: Sequence[str],
    *,
    source: str,
    columns: Columns,
    delimiters: str,
    labels: Mapping[int, str],
) -> list[str]:
    """All lines, with another label in the records of these rows."""
    header_line, _ = peeked(lines)
    delimiter = likely_delimiter(header_line, delimiters, wanted=columns.text)
    records = _split_records(lines, source=source, delimiter=delimiter)
    header = next(fields for fields, _, _ in records if fields)
    place = [name.strip() for name in header].index(columns.label)
    written = list(lines)
    for fields, row, at in records:
        if row in labels:
            table = io.StringIO()
            ending = "\r\n" if lines[at[-1] - 1].endswith("\r\n") else "\n"
            writer = csv.writer(table, delimiter=delimiter, lineterminator=ending)
            writer.writerow([*fields[:place], labels[row], *fields[place + 1 :]])
            written[at[0] - 1 : at[-1]] = [table.getvalue(), *[""] * (len(at) - 1)]
    return written


def likely_delimiter(header_line: str, delimiters: str, *, wanted: str) -> str:
    """The delimiter under which the header names the wanted column, else has most columns."""

    def score(delimiter: str) -> tuple[bool, int]:
        names = next(csv.reader(header_line.splitlines()[:1], delimiter=delimiter), [])
        return wanted in [name.strip() for name in names], len(names)

    return max(delimiters, key=score)


def _split_records(
    lines: Iterable[str], *, source: str, delimiter: str
) -> Iterator[tuple[list[str], int, range]]:
    """(fields, row, lines) of each record; a blank line has no fields."""
    measured = Measured(lines, source=source)
    # The module refuses fields above 128 KiB by default; documents can be longer.
    csv.field_size_limit(read_limits().record_bytes)
    reader = csv.reader(measured, delimiter=delimiter, strict=True)
    for row in itertools.count(1):
        first_line = reader.line_num + 1
        measured.begin()
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _quote_error(
                source, line=first_line, last_line=reader.line_num, error=error
            ) from error
        if fields is None:
            return
        yield fields, row, range(first_line, reader.line_num + 1)


def _quote_error(source: str, *, line: int, last_line: int, error: csv.Error) -> DataError:
    if "unexpected end" in str(error):
        return DataError(
            f"{source} line {line} opens a quote that is never closed.",
            f"Everything up to line {last_line} is inside it.",
            remedy='Close it, or write a quote inside a quoted text twice ("").',
        )
    if "new-line character" in str(error):
        return DataError(
            f"{source} line {line} contains a carriage return outside quotes.",
            "Lines end with a newline, optionally after a carriage return.",
            remedy="Convert the line endings of the file.",
        )
    return DataError(
        f"{source} line {line} is not valid csv (detected in line {last_line}): {error}.",
        remedy='Write a quote inside a quoted text twice ("").',
    )
