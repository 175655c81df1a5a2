"""xlsx files: which sheet is read, what a formula is, and what is refused."""

import datetime
import re
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from regraft.config.resolution import resolve
from regraft.data.text import sheets
from regraft.data.text.readers import load_examples, read_rows
from regraft.data.text.table_rows import scan_tables
from regraft.errors import DataError
from regraft.runtime import SILENT

DATA = resolve("finetune").data
ROWS = [["id", "text", "label"], [1, "good", "yes"], [], [2, 5, "no"]]


def write_book(path: Path, *tables: list[list[Any]], hidden: int = 0) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, rows in enumerate(tables, start=1):
        sheet = book.create_sheet(f"sheet {number}")
        for at, row in enumerate(rows, start=1):
            for column, value in enumerate(row, start=1):
                sheet.cell(at, column, value)
        if number <= hidden:
            sheet.sheet_state = "hidden"
    book.save(path)
    return path


def test_examples_are_read_from_a_sheet(tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", ROWS)
    examples = load_examples(path, data=DATA)
    assert [(e.text, e.label, e.row) for e in examples] == [("good", "yes", 2), ("5", "no", 4)]


def test_whole_sheet_has_all_cells_and_blank_rows(tmp_path: Path) -> None:
    day = datetime.datetime(2026, 1, 2)
    path = write_book(tmp_path / "a.xlsx", [[], ["id", "text", "id"], [1, "a", day], [], [2, "b"]])
    rows = list(read_rows(path, data=DATA, need_label=False, whole=True))
    assert [row.cells for row in rows] == [
        {"id": 1, "text": "a", "id_2": day},
        {"id": None, "text": None, "id_2": None},
        {"id": 2, "text": "b", "id_2": None},
    ]
    assert [row.row for row in rows] == [3, 4, 5]


def test_first_visible_sheet_is_read_and_named(tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", [["x"]], ROWS, [["y"]], hidden=1)
    examples = load_examples(path, data=DATA)
    assert {example.source for example in examples} == {f"{path} (sheet 'sheet 2')"}
    scan = scan_tables([path], data=DATA, for_sheet=False, progress=SILENT)
    assert scan.notes == (f"{path}: read the sheet 'sheet 2', not 'sheet 3'.",)


def test_formula_without_a_value_is_refused(tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", [*ROWS, [3, '=CONCAT("a", "b")', "yes"]])
    with pytest.raises(DataError, match="row 5 has a formula without a value: =CONCAT"):
        load_examples(path, data=DATA)


def test_formula_with_a_value_is_its_value(tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", [*ROWS, [3, "=1+1", "yes"]])
    saved = tmp_path / "saved.xlsx"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(saved, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, re.sub(rb"(<f>1\+1</f>)<v */?>(</v>)?", rb"\1<v>2</v>", content))
    assert load_examples(saved, data=DATA)[-1].text == "2"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["id", "body"], [1, "a"]], "has no column 'text'"),
        ([["text", "label"], ["a", "b", "c"]], "row 2 has 3 cells. The header has 2"),
        ([], "is empty"),
    ],
)
def test_wrong_sheets_are_refused(rows: list[list[Any]], message: str, tmp_path: Path) -> None:
    path = write_book(tmp_path / "a.xlsx", rows)
    with pytest.raises(DataError, match=re.escape(message)):
        load_examples(path, data=DATA)


def test_broken_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "a.xlsx"
    broken.write_bytes(b"text,label\n")
    with pytest.raises(DataError, match="is not an xlsx file"):
        load_examples(broken, data=DATA)
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(DataError, match="is not an xlsx file"):
        load_examples(broken, data=DATA)
    path = write_book(tmp_path / "b.xlsx", ROWS)
    monkeypatch.setattr(sheets, "MOST_BYTES", 100)
    with pytest.raises(DataError, match="unpacks to"):
        load_examples(path, data=DATA)
