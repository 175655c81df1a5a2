"""Tables that are written: every format gives back what it was given, and executes nothing."""

import csv
import datetime
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest

from regraft.data.text.writers import (
    LONGEST_SHEET_CELL,
    MOST_SHEET_ROWS,
    WRITERS,
    Column,
    as_text,
    check_sheet_cells,
    format_of,
    open_writer,
    sheet_value,
    without_formula,
    zipped,
)
from regraft.errors import ConfigError, DataError

COLUMNS = [Column("id", "whole"), Column("text", "text"), Column("p(a)", "probability")]
ROWS: list[list[Any]] = [
    [1, 'two\nlines, a "quote"', 0.25],
    [2, "a\rb\tc", 1.0],
    [None, None, None],
    [3, " spaces ", 0.5],
]


def written(ending: str, rows: list[list[Any]] = ROWS, columns: Any = COLUMNS) -> bytes:
    file = io.BytesIO()
    writer = open_writer(ending, file, columns=columns)
    writer.write(rows[:1])
    writer.write(rows[1:])
    writer.close()
    return file.getvalue()


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_delimited_rows_come_back(ending: str, delimiter: str) -> None:
    text = written(ending).decode()
    records = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    assert records == [
        ["id", "text", "p(a)"],
        ["1", 'two\nlines, a "quote"', "0.250000"],
        ["2", "a\rb\tc", "1.000000"],
        ["", "", ""],
        ["3", " spaces ", "0.500000"],
    ]


def test_header_can_be_omitted() -> None:
    file = io.BytesIO()
    open_writer(".csv", file, columns=COLUMNS, has_header=False).write([[1, "a", 0.5]])
    assert file.getvalue() == b"1,a,0.500000\n"


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_json_rows_come_back(ending: str) -> None:
    text = written(ending).decode()
    records = json.loads(text) if ending == ".json" else list(map(json.loads, text.splitlines()))
    assert [list(record.values()) for record in records] == ROWS


def test_json_without_rows_is_an_empty_array() -> None:
    assert json.loads(written(".json", [])) == []


def test_parquet_rows_come_back_with_their_types() -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(written(".parquet")))
    assert [list(record.values()) for record in table.to_pylist()] == ROWS
    assert table.schema.types == [pyarrow.int64(), pyarrow.string(), pyarrow.float64()]
    mixed = [[1, [0.5]], ["a", {"b": None}]]
    columns = [Column("x", "mixed"), Column("y", "mixed")]
    read = pyarrow.parquet.read_table(io.BytesIO(written(".parquet", mixed, columns)))
    assert read.to_pylist() == [{"x": "1", "y": "[0.5]"}, {"x": "a", "y": '{"b": null}'}]


def test_sheet_rows_come_back_and_texts_stay_texts() -> None:
    rows = [[10**17, "=1+1", 0.5], [2, "@x", None]]
    content = written(".xlsx", rows)
    sheet = openpyxl.load_workbook(io.BytesIO(content)).active
    assert [[cell.value for cell in row] for row in sheet.iter_rows()] == [
        ["id", "text", "p(a)"],
        [str(10**17), "=1+1", 0.5],
        [2, "@x", None],
    ]
    assert sheet["B2"].data_type == "s"
    assert written(".xlsx", rows) == content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-cmd", "'-cmd"),
        ("@sum", "'@sum"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("\uff1d1", "'\uff1d1"),
        ("-3", "-3"),
        ("+4.5e-3", "+4.5e-3"),
        ("-1,000.5", "-1,000.5"),
        ("-3%", "-3%"),
        ("-3+1", "'-3+1"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_formulas_are_defused_and_numbers_are_not(text: str, expected: str) -> None:
    assert without_formula(text) == expected
    cell = next(csv.reader(io.StringIO(written(".csv", [[None, text, None]]).decode(), newline="")))
    assert cell == ["id", "text", "p(a)"]


def test_header_is_defused_too() -> None:
    assert written(".csv", [], [Column("=x", "text")]) == b"'=x\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (1.5, "1.5"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ([1, None, float("nan")], "[1, null, null]"),
        (b"a\xff", "a\\xff"),
    ],
)
def test_values_have_a_text(value: Any, text: str) -> None:
    assert as_text(value) == text


def test_sheet_holds_what_it_can() -> None:
    early = datetime.datetime(1850, 1, 1)
    zoned = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    assert sheet_value(early) == "1850-01-01T00:00:00"
    assert sheet_value(zoned) == "2026-01-01T00:00:00+00:00"
    assert sheet_value(datetime.date(2026, 1, 2)) == datetime.date(2026, 1, 2)
    assert sheet_value(float("inf")) == "inf"
    assert sheet_value([1]) == "[1]"
    with pytest.raises(DataError, match="Row 3 has a cell of 32,768 characters"):
        check_sheet_cells(["a" * (LONGEST_SHEET_CELL + 1)], row_number=3)
    with pytest.raises(DataError, match=r"Row 3 has the control character '\\x01'"):
        check_sheet_cells(["a\x01"], row_number=3)
    with pytest.raises(DataError, match="more than 1,048,576 rows"):
        check_sheet_cells([], row_number=MOST_SHEET_ROWS + 1)
    with pytest.raises(DataError, match="16,385 columns"):
        open_writer(".xlsx", io.BytesIO(), columns=COLUMNS * 5461 + COLUMNS[:2])


@pytest.mark.parametrize("name", ["a.xls", "a", "a.gz", "a.txt", "a.xlsx.gz", "a.csv.zip"])
def test_unknown_ending_is_refused_with_the_known(name: str) -> None:
    with pytest.raises(DataError) as caught:
        format_of(Path(name))
    assert all(ending in str(caught.value) for ending in WRITERS)


def test_ending_decides_the_format() -> None:
    assert format_of(Path("a/b.CSV")) == ".csv"
    assert format_of(Path("b.jsonl.gz")) == ".jsonl"


def test_compressed_files_are_equal_whenever_they_are_written() -> None:
    files = [io.BytesIO(), io.BytesIO()]
    for file in files:
        with zipped(file) as target:
            target.write(b"a,b\n")
    assert files[0].getvalue() == files[1].getvalue()
    assert gzip.decompress(files[0].getvalue()) == b"a,b\n"
    assert files[0].getvalue()[4:8] == b"\0\0\0\0"


@pytest.mark.parametrize(("library", "extra"), [("openpyxl", "xlsx"), ("pyarrow", "parquet")])
def test_format_without_its_library_names_the_extra_before_any_work(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=rf"{library}.*\n?.*pip install '\.\[{extra}\]'"):
        format_of(Path(f"new.{extra}"))
    assert format_of(Path("new.csv.gz")) == ".csv"
