"""Records of csv, tsv and parquet files, checked for ragged rows, quotes and missing columns."""

import csv
import difflib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regraft.data.text.lines import Measured, peeked, read_whole, refuse_bomb, too_long
from regraft.errors import DataError
from regraft.runtime import optional, raising, read_limits

# Records of a parquet file that are in memory at once.
_BATCH_ROWS = 4096


class Values(NamedTuple):
    """The values of one record in the wanted columns; None without such a column."""

    text: Any
    label: Any
    pair: Any
    id: Any = None


@dataclass(frozen=True)
class Columns:
    """The wanted columns, and whether a missing label is an error."""

    text: str
    label: str
    need_label: bool
    pair: str | None = None
    id: str = "id"

    def present(self, names: Sequence[str]) -> Values:
        """The wanted columns; a label or id that is missing is None."""
        label, identifier = (name if name in names else None for name in (self.label, self.id))
        return Values(self.text, label, self.pair, identifier)

    def check(self, present: Sequence[str], *, place: str, noun: str = "column") -> None:
        """Raise DataError if wanted columns are missing or ambiguous: all of them at once."""
        wanted = {"--text-column": self.text}
        if self.pair is not None:
            wanted["--pair-column"] = self.pair
        if self.need_label:
            wanted["--label-column"] = self.label
        for name in wanted.values():
            if present.count(name) > 1:
                raise DataError(
                    f"{place} has two {noun}s named {name!r}.", remedy="Rename one of them."
                )
        missing = {flag: name for flag, name in wanted.items() if name not in present}
        if not missing:
            return
        shown = ", ".join(repr(other[:40]) for other in present[:12]) or "none"
        hints = [
            other
            for name in missing.values()
            for other in difflib.get_close_matches(name, present, n=1, cutoff=0.5)
        ]
        hint = f"Did you mean {' and '.join(map(repr, hints))}? " if hints else ""
        raise DataError(
            f"{place} has no {noun} {' and no '.join(map(repr, missing.values()))}.",
            f"Its {noun}s are {shown}.",
            remedy=f"{hint}Pass {' '.join(f'{flag} NAME' for flag in missing)}.",
        )


def check_width(num_columns: int, *, place: str) -> None:
    """Raise DataError for more columns than a table of texts has."""
    most = read_limits().columns
    if num_columns > most:
        raise DataError(
            f"{place} has {num_columns:,} columns.",
            f"A table may have {most:,}.",
            remedy=f"Check that it is a table of texts, or {raising('columns')}.",
        )


def unique_names(names: Iterable[str]) -> list[str]:
    """The names of columns; the second of one name gets a number, such as `note_2`."""
    unique: dict[str, None] = {}
    for name in names:
        number, candidate = 2, name
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique[candidate] = None
    return list(unique)


def read_csv_records(
    lines: Iterable[str], *, source: str, columns: Columns, delimiters: str, whole: bool
) -> Iterator[tuple[Values, int, int, dict[str, str] | None]]:
    """(values, first line, last line, cells) of each record below the header.

    Blank lines are skipped, and cells are None, unless the table is read whole.
    """
    header_line, lines = peeked(lines)
    if not header_line:
        return
    delimiter = _likely_delimiter(header_line, delimiters, wanted=columns.text)
    records = _split_records(lines, source=source, delimiter=delimiter)
    header = next(fields for fields, _, _ in records if fields)
    names = [name.strip() for name in header]
    check_width(len(names), place=source)
    columns.check(names, place=source)
    places = [None if name is None else names.index(name) for name in columns.present(names)]
    all_names = unique_names(names)
    for fields, row, last_row in records:
        if not fields:
            if not whole:
                continue
            fields = [""] * len(header)
        if len(fields) != len(header):
            span = f" (to row {last_row}: is a quote left open?)" if last_row > row else ""
            raise DataError(
                f"{source} row {row}{span} has {len(fields)} fields.",
                f"The header has {len(header)}.",
                remedy=f'Quote texts that contain {delimiter!r} or newlines with "...".',
            )
        values = Values(*(None if at is None else fields[at] for at in places))
        cells = dict(zip(all_names, fields, strict=True)) if whole else None
        yield values, row, last_row, cells


def relabelled_csv(
    lines: Sequence[str],
    *,
    source: str,
    columns: Columns,
    delimiters: str,
    labels: Mapping[int, str],
) -> list[str]:
    """All lines, with another label in the records that start at these rows."""
    header_line, _ = peeked(lines)
    delimiter = _likely_delimiter(header_line, delimiters, wanted=columns.text)
    records = _split_records(lines, source=source, delimiter=delimiter)
    header = next(fields for fields, _, _ in records if fields)
    place = [name.strip() for name in header].index(columns.label)
    written = list(lines)
    for fields, row, last_row in records:
        if row in labels:
            table = io.StringIO()
            ending = "\r\n" if lines[last_row - 1].endswith("\r\n") else "\n"
            writer = csv.writer(table, delimiter=delimiter, lineterminator=ending)
            writer.writerow([*fields[:place], labels[row], *fields[place + 1 :]])
            written[row - 1 : last_row] = [table.getvalue(), *[""] * (last_row - row)]
    return written


def _likely_delimiter(header_line: str, delimiters: str, *, wanted: str) -> str:
    """The delimiter under which the header names the wanted column, else has most columns."""

    def score(delimiter: str) -> tuple[bool, int]:
        names = next(csv.reader(header_line.splitlines()[:1], delimiter=delimiter), [])
        return wanted in [name.strip() for name in names], len(names)

    return max(delimiters, key=score)


def _split_records(
    lines: Iterable[str], *, source: str, delimiter: str
) -> Iterator[tuple[list[str], int, int]]:
    """(fields, first line, last line) of each record; a blank line has no fields."""
    measured = Measured(lines, source=source)
    # The module refuses fields above 128 KiB by default; documents can be longer.
    csv.field_size_limit(read_limits().record_bytes)
    reader = csv.reader(measured, delimiter=delimiter, strict=True)
    while True:
        row = reader.line_num + 1
        measured.begin()
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _quote_error(source, row=row, last_row=reader.line_num, error=error) from error
        if fields is None:
            return
        yield fields, row, reader.line_num


def _quote_error(source: str, *, row: int, last_row: int, error: csv.Error) -> DataError:
    if "unexpected end" in str(error):
        return DataError(
            f"{source} row {row} opens a quote that is never closed.",
            f"Everything up to row {last_row} is inside it.",
            remedy='Close it, or write a quote inside a quoted text twice ("").',
        )
    if "new-line character" in str(error):
        return DataError(
            f"{source} row {row} contains a carriage return outside quotes.",
            "Lines end with a newline, optionally after a carriage return.",
            remedy="Convert the line endings of the file.",
        )
    return DataError(
        f"{source} row {row} is not valid csv (detected in row {last_row}): {error}.",
        remedy='Write a quote inside a quoted text twice ("").',
    )


def read_parquet_records(
    path: Path, *, columns: Columns, whole: bool
) -> Iterator[tuple[Values, dict[str, Any] | None]]:
    """Each record as Python values, read batch by batch, with its cells if the table is whole."""
    with opened_parquet(path, keeps_dictionaries=True) as file:
        names = file.schema_arrow.names
        check_width(len(names), place=str(path))
        columns.check(names, place=str(path))
        wanted = columns.present(names)
        wanted_names = dict.fromkeys(name for name in wanted if name is not None)
        read = names if whole else list(wanted_names)
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=read):
            # By place: names may occur twice.
            parts = [_values(array, path=path) for array in batch.columns]
            places = [None if name is None else batch.schema.names.index(name) for name in wanted]
            all_names = unique_names(batch.schema.names)
            for record in zip(*parts, strict=True):
                values = Values(*(None if place is None else record[place] for place in places))
                yield values, dict(zip(all_names, record, strict=True)) if whole else None


def _values(array: Any, *, path: Path) -> list[Any]:
    """A column of a batch as Python values; rows with one entry of a dictionary share it."""
    entries = getattr(array, "dictionary", array)
    if entries is array:
        found: list[Any] = array.to_pylist()
    else:
        codes = array.indices.to_pylist()
        by_code = {code: entries[code].as_py() for code in set(codes) - {None}}
        found = [by_code.get(code) for code in codes]
    most = read_limits().record_bytes
    if any(isinstance(value, str | bytes) and len(value) > most for value in found):
        raise too_long(f"A cell of {path}", most, limit="record_bytes")
    return found


def opened_parquet(path: Path, *, keeps_dictionaries: bool = False) -> Any:
    """A `pyarrow.parquet.ParquetFile`; pyarrow is an optional dependency without types.

    In its dictionary, a long text that occurs in many rows is held once.
    """
    with optional(f"Reading {path}", extra="parquet"):
        import pyarrow
        import pyarrow.parquet
    try:
        source = pyarrow.BufferReader(read_whole(path)) if path.suffix == ".gz" else path
        file = pyarrow.parquet.ParquetFile(source)
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        refuse_bomb(path, num_bytes=sum(group.total_byte_size for group in groups))
        if not keeps_dictionaries:
            return file
        is_text = pyarrow.types.is_string
        texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        file.close()
        return pyarrow.parquet.ParquetFile(source, read_dictionary=texts)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} is not a parquet file: {str(error).splitlines()[0]}",
            remedy="Write it again, or convert it to csv.",
        ) from error
