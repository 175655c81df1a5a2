"""Whole tables, row by row: every column, every blank line, several files as one table.

A scan reads everything once before work begins: it finds what cannot be read, and counts.
"""

import contextlib
import csv
import datetime
import json
import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regraft.config import DataSettings
from regraft.data.text.lines import STANDARD_INPUT, check_present, opened
from regraft.data.text.parquet_records import opened_parquet
from regraft.data.text.readers import (
    Row,
    all_empty_error,
    dialect_of,
    folder_files,
    kind_of,
    read_rows,
)
from regraft.data.text.sheets import opened_sheet, sheet_names
from regraft.data.text.writers import Column, Dialect, Kind, check_sheet_cells
from regraft.errors import DataError
from regraft.runtime import Progress

_ROWS_BETWEEN_NOTES = 1_000
# Bytes in which the first row of a file is looked for.
_LOOKED_AT = 1 << 20
_LARGEST_WHOLE = 2**63 - 1
_KINDS: dict[type, Kind] = {
    str: "text",
    bool: "boolean",
    int: "whole",
    float: "number",
    datetime.datetime: "time",
    datetime.date: "date",
}


@dataclass(frozen=True)
class TableScan:
    """What a scan found: the columns of all files in order, rows, characters of text.

    `dialect` is that of all files if they are csv; None if they differ.
    """

    columns: tuple[Column, ...]
    num_rows: int
    num_characters: int
    state: tuple[object, ...]
    notes: tuple[str, ...]
    dialect: Dialect | None = None


def is_stream(path: Path) -> bool:
    """Whether a path can be read only once: standard input, a FIFO, a terminal."""
    if path == STANDARD_INPUT:
        return True
    check_present(path)
    return not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()


def read_table_rows(paths: Sequence[Path], *, data: DataSettings) -> Iterator[Row]:
    """Every row of all files with its cells; DataError at the end of a file without any text."""
    for path in paths:
        has_text = False
        for row in read_rows(path, data=data, need_label=False, whole=True):
            has_text = has_text or bool(row.text.strip())
            yield row
        if not has_text:
            raise all_empty_error(path, data=data)


def cells_of(row: Row) -> dict[str, Any]:
    """The cells of a row; a file without columns has its text, its pair and its label."""
    if row.cells is not None:
        return row.cells
    parts = {"text": row.text, "pair": row.pair, "label": row.label}
    return {name: part for name, part in parts.items() if part is not None}


def scan_tables(
    paths: Sequence[Path], *, data: DataSettings, for_sheet: bool, progress: Progress
) -> TableScan:
    """Read all files once; `for_sheet` also finds what an xlsx file cannot hold."""
    state = file_state(paths)
    kinds: dict[str, set[Kind]] = {}
    num_rows = num_characters = 0
    progress.start("read", total=None)
    for row in read_table_rows(paths, data=data):
        num_rows += 1
        num_characters += len(row.text) + len(row.pair or "")
        cells = cells_of(row)
        for name, value in cells.items():
            found = kinds.setdefault(name, set())
            if value is not None:
                found.add(_kind_of(value))
        if for_sheet:
            check_sheet_cells(cells.values(), row_number=num_rows + 1)
        if num_rows % _ROWS_BETWEEN_NOTES == 0:
            progress.advance(_ROWS_BETWEEN_NOTES, note=f"{num_rows:,} rows")
    progress.finish()
    check_state(paths, state)
    types = _parquet_types(paths)
    columns = [Column(name, _common(found), types.get(name)) for name, found in kinds.items()]
    notes, dialect = tuple(_notes(paths)), _common_dialect(paths, data=data)
    return TableScan(tuple(columns), num_rows, num_characters, state, notes, dialect)


def check_ids(paths: Sequence[Path], *, data: DataSettings, column: str) -> None:
    """Raise DataError unless this column holds a different id in every row with a text.

    Reads all files once, with eight bytes of memory for a row; again to name two equal ids.
    """
    hashes = array("q", (hash(key) for key, _ in _ids(paths, data=data, column=column)))
    ordered = np.sort(np.frombuffer(hashes, dtype=np.int64))
    repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not repeated:
        return
    seen: dict[str, Row] = {}
    for key, row in _ids(paths, data=data, column=column):
        if hash(key) not in repeated:
            continue
        first = seen.setdefault(key, row)
        if first is not row:
            raise DataError(
                f"{row.source} row {row.row} has the {column} {key!r} of {first.source} row "
                f"{first.row}.",
                "An id names one row.",
                remedy="Fix one of them, or omit --id-column: rows stay in order without it.",
            )


def _ids(paths: Sequence[Path], *, data: DataSettings, column: str) -> Iterator[tuple[str, Row]]:
    for row in read_table_rows(paths, data=data):
        cells = cells_of(row)
        if column not in cells and any(value is not None for value in cells.values()):
            raise DataError(
                f"{row.source} row {row.row} has no column {column!r}.",
                f"It has {', '.join(cells)}.",
                remedy="Pass the column that holds ids as --id-column.",
            )
        key = cells.get(column)
        if key is not None and key != "":
            yield str(key), row
        elif row.text.strip():
            raise DataError(
                f"{row.source} row {row.row} has a text, but nothing in the column {column!r}.",
                "Each text has an id.",
                remedy="Fill it in, or omit --id-column: rows stay in order without it.",
            )


def row_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of some rows, where there is no scan."""
    names = dict.fromkeys(name for row in rows for name in cells_of(row))
    return tuple(Column(name, "mixed") for name in names)


def row_values(row: Row, columns: Sequence[Column]) -> list[Any]:
    """The cells of a row in the order of the columns; None where it has none."""
    cells = cells_of(row)
    names = [column.name for column in columns]
    new = next((name for name in cells if name not in names), None)
    if new is None:
        return [cells.get(name) for name in names]
    raise DataError(
        f"{row.source} row {row.row} has the key {new!r}, which earlier rows do not have.",
        "Standard input is read once, so its first rows decide the columns.",
        remedy="Save it to a file and pass that.",
    )


def file_state(paths: Sequence[Path]) -> tuple[object, ...]:
    """What changes when a file is written to: sizes and times."""
    files: list[Path] = []
    for path in paths:
        files += folder_files(path) if path.is_dir() else [path]
    return tuple(
        (str(file), found.st_ino, found.st_size, found.st_mtime_ns)
        for file in files
        for found in [os.stat(file)]
    )


def check_state(paths: Sequence[Path], state: tuple[object, ...]) -> None:
    """Raise DataError if a file changed since its state was taken."""
    try:
        now = file_state(paths)
    except OSError:
        now = ()
    if now != state:
        before = {str(path) for path in paths}
        changed = sorted({str(entry[0]) for entry in {*state} ^ {*now} if isinstance(entry, tuple)})
        raise DataError(
            f"{(changed or sorted(before))[0]} changed while it was read.",
            "Rows and predictions would not belong together.",
            remedy="Wait until it is complete, or pass a copy of it.",
        )


def first_cells(path: Path, *, ending: str, delimiter: str = ",") -> list[str] | None:
    """The first row of a csv, tsv or xlsx file, or the names of the columns of another table.

    None if the file is empty.
    """
    if ending == ".parquet":
        with opened_parquet(path) as file:
            return list(file.schema_arrow.names)
    if ending == ".xlsx":
        with opened_sheet(path) as (rows, _):
            return ["" if cell is None else str(cell) for cell in next(rows, ())]
    with opened(path) as file:
        lines = file.read(_LOOKED_AT).decode("utf-8-sig", "replace").splitlines(keepends=True)
    if not lines:
        return None
    if ending == ".jsonl":
        with contextlib.suppress(ValueError):
            record = json.loads(lines[0])
            return list(record) if isinstance(record, dict) else []
        return []
    return next(csv.reader(lines, delimiter="\t" if ending == ".tsv" else delimiter), [])


def _kind_of(value: Any) -> Kind:
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        return "mixed"
    return _KINDS.get(type(value), "mixed")


def _common(kinds: set[Kind]) -> Kind:
    """The kind of a column out of those of its values."""
    if len(kinds) == 1:
        return next(iter(kinds))
    if not kinds:
        return "text"
    return "number" if kinds == {"whole", "number"} else "mixed"


def _common_dialect(paths: Sequence[Path], *, data: DataSettings) -> Dialect | None:
    if any(path.is_dir() or kind_of(path) != ".csv" for path in paths):
        return None
    dialects = {dialect_of(path, data=data) for path in paths}
    return dialects.pop() if len(dialects) == 1 else None


def _parquet_types(paths: Sequence[Path]) -> dict[str, Any]:
    """The Arrow types of the columns that all files have, if all are parquet files."""
    if any(path.is_dir() or kind_of(path) != ".parquet" for path in paths):
        return {}
    types: dict[str, Any] = {}
    for path in paths:
        with opened_parquet(path) as file:
            schema = file.schema_arrow
            found = dict(zip(schema.names, schema.types, strict=True))
        types = found if not types else {n: t for n, t in types.items() if found.get(n) == t}
    return types


def _notes(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        if not path.is_dir() and kind_of(path) == ".xlsx" and len(names := sheet_names(path)) > 1:
            others = ", ".join(map(repr, names[1:4])) + (" ..." if len(names) > 4 else "")
            yield f"{path}: read the sheet {names[0]!r}, not {others}."
