"""Tables to files: csv, tsv, jsonl, parquet, xlsx, written a block of rows at a time.

A writer knows columns and rows, not what they mean. Equal rows in equal blocks give equal bytes.
"""

import codecs
import csv
import datetime
import gzip
import io
import json
import math
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from regraft.errors import DataError
from regraft.runtime import check_library

# What a column holds. A `number` has whole and other numbers, a `probability` has six digits;
# `mixed` is written as text where a column has one type.
Kind = Literal["text", "whole", "number", "boolean", "time", "date", "probability", "list", "mixed"]

# The signs that may separate the fields of a csv file.
DELIMITERS = ",;\t|"
# The limits of a sheet.
MOST_SHEET_ROWS = 1_048_576
MOST_SHEET_COLUMNS = 16_384
LONGEST_SHEET_CELL = 32_767
# A probability as a sheet shows it: 0.000001 and not 1E-06.
_SIX_DIGITS = "0.000000"
# What the others do without.
_EXTRAS = {".parquet": "parquet", ".xlsx": "xlsx"}
# Larger whole numbers, such as ids, lose digits in a spreadsheet: they are written as text.
LARGEST_SHEET_NUMBER = 10**15


@runtime_checkable
class BinaryFile(Protocol):
    """What a writer needs of an open file: of one on disk, in memory, or compressed."""

    def write(self, data: bytes, /) -> Any:
        """Add bytes."""

    def flush(self) -> Any:
        """Pass them on."""


@dataclass(frozen=True)
class Column:
    """A column of a table to write. `type` is its Arrow type, if it comes from a parquet file."""

    name: str
    kind: Kind
    type: Any = None


@dataclass(frozen=True)
class Dialect:
    """How a csv file is written: its delimiter, and whether it begins with a byte order mark."""

    delimiter: str = ","
    has_mark: bool = False


@runtime_checkable
class Writer(Protocol):
    """Writes rows, whose cells are in the order of its columns, to an open file."""

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a block of rows."""

    def close(self) -> None:
        """Write the end of the table; the file stays open."""


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A small table of our own as the text of a csv file; None is an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def format_of(path: Path) -> str:
    """The format of an output by its name, such as `.csv`; DataError if it is none of ours.

    ConfigError if it needs a library that is not installed: better now than after the work.
    """
    name = path.name.lower()
    ending = Path(name.removesuffix(".gz")).suffix
    if ending not in WRITERS or (ending == ".xlsx" and name.endswith(".gz")):
        found = f"the unknown ending {ending!r}" if ending else "no ending"
        if ending == ".xlsx":
            found = "the ending '.xlsx.gz', but an xlsx file is compressed already"
        raise DataError(
            f"{path} has {found}.",
            f"Tables are written as {' '.join(WRITERS)}, all but .xlsx also as .gz.",
            remedy="Choose an --out that ends in one of these.",
        )
    if ending in _EXTRAS:
        check_library(f"Writing {path}", extra=_EXTRAS[ending])
    return ending


def open_writer(
    ending: str,
    file: BinaryFile,
    *,
    columns: Sequence[Column],
    has_header: bool = True,
    dialect: Dialect | None = None,
) -> Writer:
    """A writer for a format of `WRITERS`, or `.json`; csv and tsv can omit their header.

    A `dialect` is for csv alone.
    """
    if ending == ".csv" and dialect is not None:
        return _Delimited(file, columns, has_header, dialect=dialect)
    make = _Json if ending == ".json" else WRITERS[ending]
    return make(file, columns, has_header)


class _Delimited:
    """csv and tsv in UTF-8: cells with delimiters, quotes or line ends are quoted."""

    def __init__(
        self, file: BinaryFile, columns: Sequence[Column], has_header: bool, *, dialect: Dialect
    ) -> None:
        self._file, self._delimiter = file, dialect.delimiter
        self._special = re.compile(f'[{dialect.delimiter}"\\r\\n]|^\\s|\\s$')
        self._is_probability = [column.kind == "probability" for column in columns]
        if has_header:
            if dialect.has_mark:
                file.write(codecs.BOM_UTF8)
            self._write_lines([[self._cell(column.name) for column in columns]])

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._write_lines(
            [
                f"{cell:.6f}" if is_probability and cell is not None else self._cell(cell)
                for cell, is_probability in zip(row, self._is_probability, strict=True)
            ]
            for row in rows
        )

    def close(self) -> None: ...

    def _write_lines(self, rows: Iterable[list[str]]) -> None:
        lines = "".join(self._delimiter.join(cells) + "\n" for cells in rows)
        self._file.write(lines.encode("utf-8"))

    def _cell(self, value: Any) -> str:
        if value is None or value == "":
            return ""
        text = without_formula(value) if isinstance(value, str) else as_text(value)
        if self._special.search(text):
            return '"' + text.replace('"', '""') + '"'
        return text


def without_formula(text: str) -> str:
    """A text as a spreadsheet should show it, after an apostrophe if it would be computed.

    So is a text that begins with = + - @, a tab or a line end, unless it is a number such as -3.5.
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


class _Jsonl:
    """One JSON object per line, with the columns as keys."""

    def __init__(self, file: BinaryFile, columns: Sequence[Column], has_header: bool) -> None:
        self._file = file
        self._names = [column.name for column in columns]

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        lines = "".join(self.record(row) + "\n" for row in rows)
        self._file.write(lines.encode("utf-8"))

    def close(self) -> None: ...

    def record(self, row: Sequence[Any]) -> str:
        """A row as a JSON object."""
        values = dict(zip(self._names, map(_json_value, row), strict=True))
        return json.dumps(values, ensure_ascii=False, default=as_text)


class _Json(_Jsonl):
    """One JSON array of objects, a row per line: for standard output."""

    def __init__(self, file: BinaryFile, columns: Sequence[Column], has_header: bool) -> None:
        super().__init__(file, columns, has_header)
        self._separator = "[\n"

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._file.write((self._separator + self.record(row)).encode("utf-8"))
            self._separator = ",\n"

    def close(self) -> None:
        self._file.write(b"[]\n" if self._separator == "[\n" else b"\n]\n")


class _Parquet:
    """A row group per block; a column has the type of its file, or of its values."""

    def __init__(self, file: BinaryFile, columns: Sequence[Column], has_header: bool) -> None:
        import pyarrow.parquet

        self._columns = columns
        fields = [(column.name, _arrow_type(column)) for column in columns]
        self._schema = pyarrow.schema(fields)
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        import pyarrow

        arrays = [
            pyarrow.array([_arrow_value(row[at], column) for row in rows], type=field.type)
            for at, (column, field) in enumerate(zip(self._columns, self._schema, strict=True))
        ]
        self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _arrow_type(column: Column) -> Any:
    import pyarrow

    if column.type is not None:
        return column.type
    types: dict[Kind, Callable[[], Any]] = {
        "whole": pyarrow.int64,
        "number": pyarrow.float64,
        "probability": pyarrow.float64,
        "boolean": pyarrow.bool_,
        "time": lambda: pyarrow.timestamp("us"),
        "date": pyarrow.date32,
        "list": lambda: pyarrow.list_(pyarrow.string()),
    }
    return types.get(column.kind, pyarrow.string)()


def _arrow_value(value: Any, column: Column) -> Any:
    is_text = column.type is None and column.kind in ("text", "mixed")
    return as_text(value) if is_text and value is not None else value


class _Xlsx:
    """One sheet. A text is a text here: no cell is a formula."""

    def __init__(self, file: BinaryFile, columns: Sequence[Column], has_header: bool) -> None:
        from openpyxl import Workbook

        self._file: Any = file
        self._num_rows = 0
        self._formats = [_SIX_DIGITS if c.kind == "probability" else None for c in columns]
        self._book = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("predictions")
        if len(columns) > MOST_SHEET_COLUMNS:
            raise DataError(
                f"The table has {len(columns):,} columns.",
                f"A sheet has at most {MOST_SHEET_COLUMNS:,}.",
                remedy="Choose another format for --out.",
            )
        self.write([[column.name for column in columns]])

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._num_rows += 1
            check_sheet_cells(row, row_number=self._num_rows)
            self._sheet.append(list(map(self._cell, row, self._formats)))

    def close(self) -> None:
        # A zip archive holds the time at which it was written: equal tables give equal files.
        with tempfile.TemporaryFile() as saved:
            self._book.save(saved)
            with (
                zipfile.ZipFile(saved) as source,
                zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as target,
            ):
                for name in source.namelist():
                    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                    info.compress_type = zipfile.ZIP_DEFLATED
                    with source.open(name) as part, target.open(info, "w") as copy:
                        if name == "docProps/core.xml":
                            copy.write(_TIMES.sub(b"2000-01-01T00:00:00Z", part.read()))
                            continue
                        while block := part.read(1 << 20):
                            copy.write(block)

    def _cell(self, value: Any, number_format: str | None) -> Any:
        from openpyxl.cell import WriteOnlyCell

        value = sheet_value(value)
        if number_format is not None and isinstance(value, float):
            cell = WriteOnlyCell(self._sheet, value)
            cell.number_format = number_format
            return cell
        if isinstance(value, str):
            cell = WriteOnlyCell(self._sheet, value)
            cell.data_type = "s"  # else a text that begins with = would be a formula
            return cell
        return value


def sheet_value(value: Any) -> Any:
    """A value that a cell of a sheet can hold; everything else as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < LARGEST_SHEET_NUMBER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime.datetime):
        return value if value.tzinfo is None and value.year >= 1900 else as_text(value)
    if isinstance(value, datetime.date):
        return value if value.year >= 1900 else as_text(value)
    return as_text(value)


def check_sheet_cells(row: Iterable[Any], *, row_number: int) -> None:
    """Raise DataError for a row that a sheet cannot hold."""
    problem = ""
    if row_number > MOST_SHEET_ROWS:
        problem = f"The table has more than {MOST_SHEET_ROWS:,} rows, which a sheet cannot hold."
    for value in row:
        text = value if isinstance(value, str) else ""
        if len(text) > LONGEST_SHEET_CELL:
            problem = (
                f"Row {row_number} has a cell of {len(text):,} characters, and one of a sheet "
                f"has at most {LONGEST_SHEET_CELL:,}."
            )
        elif found := _UNWRITABLE.search(text):
            problem = (
                f"Row {row_number} has the control character {found[0]!r}, which a sheet "
                "cannot hold."
            )
    if problem:
        raise DataError(problem, remedy="Choose another format for --out, such as csv.")


def as_text(value: Any) -> str:
    """A value as one text: names for booleans, ISO 8601 for times, JSON for lists."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, list | dict | tuple):
        return json.dumps(_json_value(value), ensure_ascii=False, default=as_text)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _json_value(value: Any) -> Any:
    """NaN and infinity are not JSON: as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _json_value(part) for name, part in value.items()}
    return value


def zipped(file: Any) -> gzip.GzipFile:
    """A file that is compressed while it is written; without a time: equal tables stay equal."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)


# Also what Excel reads as these signs: their full-width forms.
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)*|\.\d+)([eE][+-]?\d+)?%?")
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
_TIMES = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def _csv(file: BinaryFile, columns: Sequence[Column], has_header: bool) -> Writer:
    return _Delimited(file, columns, has_header, dialect=Dialect())


def _tsv(file: BinaryFile, columns: Sequence[Column], has_header: bool) -> Writer:
    return _Delimited(file, columns, has_header, dialect=Dialect("\t"))


WRITERS: dict[str, Callable[[BinaryFile, Sequence[Column], bool], Writer]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".jsonl": _Jsonl,
    ".parquet": _Parquet,
    ".xlsx": _Xlsx,
}
