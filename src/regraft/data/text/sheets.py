"""Records of an xlsx file: its first visible sheet, streamed, with the values of formulas."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regraft.data.text.columns import Columns, Values, check_width, unique_names
from regraft.data.text.lines import opened, read_whole
from regraft.errors import DataError
from regraft.runtime import optional, raising, read_limits

# A sheet has at most 1,048,576 rows: a file that unpacks to more than this is not a table of texts.
MOST_BYTES = 2**32
_BLOCK_BYTES = 1 << 20


def read_sheet_records(
    path: Path, *, columns: Columns, whole: bool
) -> Iterator[tuple[Values, int, dict[str, Any] | None, str]]:
    """(values, row, cells, source) of each record below the header, which is the first full row.

    Blank rows are skipped, and cells are None, unless the table is read whole. The source names the
    sheet if there are several.
    """
    with opened_sheet(path) as (rows, source):
        header: list[str] | None = None
        for row, record in enumerate(rows, start=1):
            if header is None:
                if _width(record):
                    header = [_name(cell) for cell in record[: _width(record)]]
                    check_width(len(header), place=source)
                    columns.check(header, place=source)
                    wanted = columns.present(header)
                    names = unique_names(header)
                continue
            if not _width(record) and not whole:
                continue
            if _width(record) > len(header):
                raise DataError(
                    f"{source} row {row} has {_width(record)} cells.",
                    f"The header has {len(header)}.",
                    remedy="Name every column in the first row, or clear the cells beyond it.",
                )
            cells = [*record[: len(header)], *[None] * (len(header) - len(record))]
            values = [None if name is None else cells[header.index(name)] for name in wanted]
            # A spreadsheet turns a text such as 5 into a number.
            text, label, pair, name = values
            label = label if _is_label(label) else _text(label)
            yield (
                Values(_text(text), label, _text(pair), _text(name)),
                row,
                dict(zip(names, cells, strict=True)) if whole else None,
                source,
            )


def sheet_names(path: Path) -> list[str]:
    """The sheets of an xlsx file in the order in which they are looked at; the first is read."""
    with _workbook(path, values=True) as book:
        return [sheet.title for sheet in _visible(book, path=path)]


@contextmanager
def opened_sheet(path: Path) -> Iterator[tuple[Iterator[tuple[Any, ...]], str]]:
    """The rows of the sheet that is read, and how errors name it."""
    with _workbook(path, values=True) as book:
        sheets = _visible(book, path=path)
        source = str(path) if len(sheets) == 1 else f"{path} (sheet {sheets[0].title!r})"
        if not _has_formulas(path):
            yield _rows(sheets[0]), source
            return
        with _workbook(path, values=False) as formulas:
            sheet = _visible(formulas, path=path)[0]
            yield _computed_rows(_rows(sheets[0]), _rows(sheet), source=source), source


def _rows(sheet: Any) -> Iterator[tuple[Any, ...]]:
    sheet.reset_dimensions()  # what the file says of its size may be wrong
    return map(tuple, sheet.iter_rows(values_only=True))


def _computed_rows(
    values: Iterator[tuple[Any, ...]], formulas: Iterator[tuple[Any, ...]], *, source: str
) -> Iterator[tuple[Any, ...]]:
    """The values; DataError for a formula that was never computed, as it has none."""
    for row, (computed, written) in enumerate(zip(values, formulas, strict=True), start=1):
        for value, formula in zip(computed, written, strict=True):
            if value is None and formula is not None:
                raise DataError(
                    f"{source} row {row} has a formula without a value: {formula!s:.60}.",
                    "The value of a formula is read as it was when the file was last saved.",
                    remedy="Open and save the file in a spreadsheet program, or paste the values.",
                )
        yield computed


@contextmanager
def _workbook(path: Path, *, values: bool) -> Iterator[Any]:
    with optional(f"Reading {path}", extra="xlsx"):
        import openpyxl
    with _unzipped(path) as file:
        try:
            book = openpyxl.load_workbook(file, read_only=True, data_only=values)
        except Exception as error:  # of zipfile, of the XML parser, of openpyxl's own checks
            raise _broken(path, error) from error
        try:
            yield book
        finally:
            book.close()


@contextmanager
def _unzipped(path: Path) -> Iterator[Any]:
    """The file, checked to be a zip archive of a size that can be read."""
    with opened(path) as given:
        file = io.BytesIO(read_whole(path)) if path.suffix == ".gz" else given
        try:
            with zipfile.ZipFile(file) as archive:
                sizes = {part.filename: part.file_size for part in archive.infolist()}
        except zipfile.BadZipFile as error:
            raise _broken(path, error) from error
        num_bytes, most = sum(sizes.values()), read_limits().whole_bytes
        # The texts of all cells are in memory; the sheets are streamed.
        if num_bytes > MOST_BYTES or sizes.get("xl/sharedStrings.xml", 0) > most:
            raise DataError(
                f"{path} unpacks to {num_bytes / 1e9:,.1f} GB.",
                f"An xlsx file may have {MOST_BYTES / 1e9:,.1f} GB, and {most / 1e9:,.1f} GB of "
                "different texts.",
                remedy=f"Convert it to csv, or {raising('whole_bytes')}.",
            )
        file.seek(0)
        yield file


def _broken(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path} is not an xlsx file: {str(error) or type(error).__name__}.",
        remedy="Save it again as .xlsx (not .xls), or convert it to csv.",
    )


def _visible(book: Any, *, path: Path) -> list[Any]:
    sheets = [sheet for sheet in book.worksheets if sheet.sheet_state == "visible"]
    if not sheets:
        raise DataError(f"{path} has no visible sheet.", remedy="Show the sheet to read.")
    return sheets


def _has_formulas(path: Path) -> bool:
    """Whether any sheet has a formula: without one, a single pass over the sheet is enough."""
    with _unzipped(path) as file, zipfile.ZipFile(file) as archive:
        for part in archive.namelist():
            if part.startswith("xl/worksheets/") and part.endswith(".xml"):
                with archive.open(part) as sheet:
                    tail = b""
                    while block := sheet.read(_BLOCK_BYTES):
                        if b"<f>" in tail + block or b"<f " in tail + block:
                            return True
                        tail = block[-2:]
    return False


def _width(record: tuple[Any, ...]) -> int:
    """Cells up to the last one with a value."""
    return max((place for place, cell in enumerate(record, 1) if cell is not None), default=0)


def _name(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _is_label(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
