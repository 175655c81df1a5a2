"""Files to records: csv, tsv, jsonl, parquet, xlsx, plain text, fastText, folders, the lab's pair.

Readers are registered by file extension and stream `Row`; `register_reader` adds one. Tables are
parsed in csv_records.py, parquet_records.py and sheets.py (xlsx), the other formats here.
"""

import codecs
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from regraft.config import DataSettings, Registry
from regraft.data.text.columns import Columns, Values, check_width
from regraft.data.text.csv_records import likely_delimiter, read_csv_records
from regraft.data.text.lines import (
    STANDARD_INPUT,
    Measured,
    check_present,
    nul_error,
    opened,
    peeked,
    read_lines,
    size_of,
    source_name,
)
from regraft.data.text.parquet_records import read_parquet_records
from regraft.data.text.records import Document, Example, check_class_labels
from regraft.data.text.sheets import read_sheet_records
from regraft.data.text.writers import DELIMITERS, Dialect
from regraft.errors import ConfigError, DataError
from regraft.runtime import SILENT, Progress, counted, parse_json

# Bytes of memory for a byte of a file that is not text.
_PACKED_COST = 12.0
_MUCH_BYTES = 100_000_000
_MOST_LISTED = 12
WORD_START = "\u2581"
FASTTEXT_PREFIX = "__label__"


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file, in rows `row` to `last_row`.

    A row is a line of a text file, and of a table what a spreadsheet shows: the header is row 1.
    `lines` are those of its file where they are not the rows. `cells` are all its values by column,
    where a table was read whole.
    """

    text: str
    label: str | None
    source: str
    row: int
    last_row: int
    pair: str | None = None
    id: str = ""
    cells: dict[str, Any] | None = None
    lines: range | None = None


@runtime_checkable
class Reader(Protocol):
    """Reads one file. Raises DataError with the file and row of what it cannot read."""

    def __call__(
        self, path: Path, *, data: DataSettings, need_label: bool, whole: bool
    ) -> Iterator[Row]:
        """All rows of the file in order; every row has a label if `need_label`.

        If `whole`, rows have `cells` where there are columns, and a blank line is a row as well.
        """


READERS: Registry[Reader] = Registry("reader")


def register_reader(extension: str) -> Callable[[Reader], Reader]:
    """A decorator that adds a reader for files that end in `extension`, such as `.xml`."""
    if not extension.startswith(".") or extension != extension.lower() or extension == ".gz":
        raise ConfigError(
            f"A reader cannot be registered for {extension!r}.",
            "An extension starts with a dot, is lower case, and is not .gz.",
            remedy="Write for example @register_reader('.xml').",
        )
    return READERS.register(extension)


def read_documents(paths: Sequence[str | Path], *, data: DataSettings) -> Iterator[Document]:
    """The texts of files in order, streamed, without labels.

    Blank lines of plain text are skipped; an empty cell of a table is an empty document.
    """
    for path in paths:
        check_present(Path(path))
    return _documents([Path(path) for path in paths], data=data)


def _documents(paths: Sequence[Path], *, data: DataSettings) -> Iterator[Document]:
    for path in paths:
        is_blank = True
        for row in read_rows(path, data=data, need_label=False):
            is_blank = is_blank and not row.text.strip()
            yield Document(row.text, row.source, row.row, row.pair)
        if is_blank:
            raise all_empty_error(path, data=data)


def read_examples(path: str | Path, *, data: DataSettings) -> Iterator[Example]:
    """Labelled texts of one file or folder, streamed; labels that are floats raise at the end."""
    check_present(Path(path))
    return _examples(Path(path), data=data)


def _examples(path: Path, *, data: DataSettings) -> Iterator[Example]:
    distinct: dict[str, Example] = {}
    for row in read_rows(path, data=data, need_label=True):
        if not row.label and data.label_separator is None:
            raise DataError(
                f"{row.source} row {row.row} has no label.",
                "Every example needs one.",
                remedy="Fill it in, or remove the row.",
            )
        for name in label_names(row, data=data):
            distinct.setdefault(name, Example(row.text, name, row.source, row.row))
        yield example_of(row, data=data)
    check_class_labels(list(distinct.values()))


def example_of(row: Row, *, data: DataSettings) -> Example:
    """A row with its label, or with all of several."""
    names, separator = label_names(row, data=data), data.label_separator
    if separator is None:
        return Example(row.text, row.label or "", row.source, row.row, row.pair, id=row.id)
    return Example(row.text, separator.join(names), row.source, row.row, row.pair, names, row.id)


def label_names(row: Row, *, data: DataSettings) -> tuple[str, ...]:
    """The labels of a row without empty ones; several are sorted and unique."""
    if data.label_separator is None:
        return (row.label,) if row.label else ()
    parts = (part.strip() for part in (row.label or "").split(data.label_separator))
    return tuple(sorted({part for part in parts if part}))


def load_examples(
    path: str | Path, *, data: DataSettings, progress: Progress = SILENT
) -> list[Example]:
    """The examples of one file or folder that have a text; DataError if all texts are empty."""
    say_memory([Path(path)], progress=progress)
    examples = with_text(read_examples(path, data=data), progress=progress)
    if not examples:
        raise all_empty_error(Path(path), data=data)
    return examples


def with_text(examples: Iterable[Example], *, progress: Progress = SILENT) -> list[Example]:
    """Those that have a text; one message names the rows of the others.

    An example without a text teaches nothing and cannot be scored.
    """
    kept: list[Example] = []
    blank: list[Example] = []
    for example in examples:
        (kept if example.text.strip() else blank).append(example)
    if blank and kept:
        rows = listed_rows([example.row for example in blank])
        progress.say(
            f"note: {kept[0].source}: left out {counted(len(blank), 'row')} without text: {rows}."
        )
    return kept


def listed_rows(rows: Sequence[int]) -> str:
    """The first row numbers, as `data clean --accept` takes them, and how many more there are."""
    more = len(rows) - _MOST_LISTED
    shown = ", ".join(map(str, rows[:_MOST_LISTED]))
    return f"{shown} and {more:,} more" if more > 0 else shown


def say_memory(
    paths: Sequence[Path],
    *,
    byte_cost: float = 1.0,
    row_cost: int = 200,
    progress: Progress,
) -> None:
    """Say how much memory files take that are about to be read whole, if it is much.

    Text takes `byte_cost` for each byte, decompressed, and `row_cost` for each line; the defaults
    are those of examples (2026-11-18: 1.0 to 1.2, and 200).
    """
    num_bytes = 0.0
    for path in paths:
        # Not Path.is_file, which raises if the name is too long.
        for file in folder_files(path) if os.path.isdir(path) else [path]:
            if file.suffix in (".parquet", ".xlsx") and os.path.isfile(file):
                num_bytes += _PACKED_COST * file.stat().st_size
            elif os.path.isfile(file):
                size, num_lines = size_of(file)
                num_bytes += byte_cost * size + row_cost * num_lines
    if num_bytes > _MUCH_BYTES:
        names = ", ".join(map(str, paths))
        progress.say(f"{names} will take about {num_bytes / 1e9:.1f} GB of memory.")


def read_rows(
    path: Path, *, data: DataSettings, need_label: bool, whole: bool = False
) -> Iterator[Row]:
    """Every record of one file or folder; raises DataError if there is none.

    If `whole`, with all columns, and with a row for every blank line.
    """
    check_present(path)
    is_empty = True
    for row in _reader_of(path)(path, data=data, need_label=need_label, whole=whole):
        is_empty = False
        if data.pair_column is not None and not (whole and is_blank(row)):
            _check_pair(row, data=data)
        yield row
    if is_empty:
        raise DataError(
            f"{source_name(path)} is empty.",
            "Expected at least one record with text.",
            remedy="Check the path and the file.",
        )


def is_blank(row: Row) -> bool:
    """Whether there is nothing in a row: no text, and no other cell."""
    cells = row.cells.values() if row.cells is not None else (row.text, row.pair)
    return all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in cells)


def _reader_of(path: Path) -> Reader:
    if path.is_dir():
        return _read_folder
    return _read_standard_input if path == STANDARD_INPUT else READERS[kind_of(path)]


def _check_pair(row: Row, *, data: DataSettings) -> None:
    """Raise DataError if a row has no second text."""
    if row.pair is None:
        raise DataError(
            f"{row.source} has no columns, but data.pair_column is {data.pair_column!r}.",
            "Pairs are read from .csv .tsv .jsonl .parquet .xlsx.",
            remedy="Convert the file, or omit --pair-column.",
        )
    if not row.pair.strip():
        raise DataError(
            f"{row.source} row {row.row} has no second text: its {data.pair_column!r} is empty.",
            "A pair has two texts.",
            remedy="Fill it in, or remove the row.",
        )


def check_readable(path: Path) -> None:
    """Raise DataError if a path cannot be opened or has an unknown format; reads nothing."""
    check_present(path)
    if path != STANDARD_INPUT and not path.is_dir():
        kind_of(path)
        with opened(path):
            pass


def kind_of(path: Path) -> str:
    """The format of a file, by its extension: a key of `READERS`."""
    if path == STANDARD_INPUT:
        return "-"
    extension = Path(path.name.removesuffix(".gz")).suffix.lower()
    kind = extension if extension in READERS else _SYNONYMS.get(extension, extension)
    if kind not in READERS:
        raise DataError(
            f"{path} has the unknown extension {extension!r}.",
            f"regraft reads {' '.join(READERS)} (each also .gz) and folders.",
            remedy="Rename or convert the file, or pipe plain text in with `-`.",
        )
    return kind


def all_empty_error(path: Path, *, data: DataSettings) -> DataError:
    """The error for a file without any text."""
    return DataError(
        f"All texts of {source_name(path)} are empty.",
        f"data.text_column is {data.text_column!r}.",
        remedy="Check the file, or pass --text-column with another column.",
    )


@register_reader(".tsv")
@register_reader(".csv")
def _read_csv(path: Path, *, data: DataSettings, need_label: bool, whole: bool) -> Iterator[Row]:
    source = source_name(path)
    records = read_csv_records(
        read_lines(path, encoding=data.encoding),
        source=source,
        columns=wanted_columns(data, need_label=need_label),
        delimiters=delimiters_of(path),
        whole=whole,
    )
    for (text, label, pair, name), row, at, cells in records:
        yield Row(text, label and label.strip(), source, row, row, pair, name or "", cells, at)


def delimiters_of(path: Path) -> str:
    """The signs that may separate the fields of a csv or tsv file."""
    return "\t" if kind_of(path) == ".tsv" else DELIMITERS


def dialect_of(path: Path, *, data: DataSettings) -> Dialect:
    """How a csv file is written."""
    with opened(path) as file:
        has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    header_line, _ = peeked(read_lines(path, encoding=data.encoding))
    delimiter = likely_delimiter(header_line, delimiters_of(path), wanted=data.text_column)
    return Dialect(delimiter, has_mark)


def wanted_columns(data: DataSettings, *, need_label: bool) -> Columns:
    """The columns that are read."""
    return Columns(
        data.text_column, data.label_column, need_label, data.pair_column, data.id_column
    )


@register_reader(".parquet")
def _read_parquet(
    path: Path, *, data: DataSettings, need_label: bool, whole: bool
) -> Iterator[Row]:
    source = source_name(path)
    columns = wanted_columns(data, need_label=need_label)
    records = read_parquet_records(path, columns=columns, whole=whole)
    for row, (values, cells) in enumerate(records, start=1):
        yield _row_of(values, source=source, row=row, data=data, cells=cells)


@register_reader(".xlsx")
def _read_xlsx(path: Path, *, data: DataSettings, need_label: bool, whole: bool) -> Iterator[Row]:
    columns = wanted_columns(data, need_label=need_label)
    for values, row, cells, source in read_sheet_records(path, columns=columns, whole=whole):
        yield _row_of(values, source=source, row=row, data=data, cells=cells)


def _row_of(
    values: Values, *, source: str, row: int, data: DataSettings, cells: dict[str, Any] | None
) -> Row:
    """A record out of Python values."""
    has_pair = data.pair_column is not None
    return Row(
        text=_text_of(values.text, source=source, row=row),
        label=_labels_of(values.label, source=source, row=row, separator=data.label_separator),
        source=source,
        row=row,
        last_row=row,
        pair=_text_of(values.pair, source=source, row=row, flag="--pair-column")
        if has_pair
        else None,
        id="" if values.id is None else str(values.id),
        cells=cells,
    )


@register_reader(".jsonl")
def _read_jsonl(path: Path, *, data: DataSettings, need_label: bool, whole: bool) -> Iterator[Row]:
    lines = read_lines(path, encoding=data.encoding)
    return _jsonl_rows(
        lines, source=source_name(path), data=data, need_label=need_label, whole=whole
    )


def _jsonl_rows(
    lines: Iterable[str], *, source: str, data: DataSettings, need_label: bool, whole: bool
) -> Iterator[Row]:
    columns = wanted_columns(data, need_label=need_label)
    for row, line in enumerate(lines, start=1):
        if not line.strip():
            if whole:
                yield Row("", None, source, row, row, cells={})
            continue
        try:
            record = parse_json(line)
            problem = "" if isinstance(record, dict) else f"it is a {type(record).__name__}"
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at character {error.pos + 1}"
        except ValueError as error:
            problem = str(error)
        if problem:
            raise DataError(
                f"{source} row {row} is not a JSON object: {problem}.",
                'Each line holds one, such as {"text": "...", "label": "..."}.',
                remedy="Fix or remove the line.",
            )
        check_width(len(record), place=f"{source} row {row}")
        columns.check(list(record), place=f"{source} row {row}", noun="key")
        values = Values(*(record.get(name) for name in columns.present(list(record))))
        cells = record if whole else None
        yield _row_of(values, source=source, row=row, data=data, cells=cells)


@register_reader(".txt")
def _read_plain(path: Path, *, data: DataSettings, need_label: bool, whole: bool) -> Iterator[Row]:
    lines = read_lines(path, encoding=data.encoding)
    return _plain_rows(
        lines, source=source_name(path), data=data, need_label=need_label, whole=whole
    )


def _plain_rows(
    lines: Iterable[str], *, source: str, data: DataSettings, need_label: bool, whole: bool
) -> Iterator[Row]:
    first, lines = peeked(lines)
    if first.startswith(FASTTEXT_PREFIX):
        separator = data.label_separator
        yield from _fasttext_rows(
            lines, source=source, need_label=need_label, whole=whole, separator=separator
        )
    elif need_label and first:
        raise DataError(
            f"{source} is plain text and has no labels.",
            f"Labelled lines begin with {FASTTEXT_PREFIX}NAME.",
            remedy="Give a csv, tsv, jsonl, parquet or xlsx file, or a folder per class.",
        )
    elif data.documents == "blank":
        yield from _blank_separated_rows(lines, source=source)
    else:
        for row, line in enumerate(lines, start=1):
            text = line.strip()
            if text or (whole and first):
                yield Row(text, None, source, row, row)


def _fasttext_rows(
    lines: Iterable[str], *, source: str, need_label: bool, whole: bool, separator: str | None
) -> Iterator[Row]:
    for row, line in enumerate(lines, start=1):
        if not line.strip():
            if whole:
                yield Row("", None, source, row, row)
            continue
        words = line.split()
        labels = list(itertools.takewhile(lambda word: word.startswith(FASTTEXT_PREFIX), words))
        if need_label and len(labels) > 1 and separator is None:
            raise DataError(
                f"{source} row {row} has {len(labels)} labels, {' '.join(labels[:3])}.",
                "An example has one.",
                remedy="Keep one label per line, or pass --label-separator.",
            )
        parts = line.strip().split(maxsplit=len(labels))
        text = parts[len(labels)] if len(parts) > len(labels) else ""
        names = [name.removeprefix(FASTTEXT_PREFIX) for name in labels]
        label = names[0] if names else None
        if separator is not None:
            label = _joined(names, source=source, row=row, separator=separator)
        yield Row(text, label, source, row, row)


def _blank_separated_rows(lines: Iterable[str], *, source: str) -> Iterator[Row]:
    measured = Measured(lines, source=source)
    numbered = enumerate(measured, start=1)
    for is_text, group in itertools.groupby(numbered, key=lambda pair: bool(pair[1].strip())):
        if is_text:
            block = list(group)
            text = "\n".join(line.strip() for _, line in block)
            yield Row(text, None, source, block[0][0], block[-1][0])
        measured.begin()


def _read_standard_input(
    path: Path, *, data: DataSettings, need_label: bool, whole: bool
) -> Iterator[Row]:
    first, lines = peeked(read_lines(path, encoding=data.encoding))
    rows = _jsonl_rows if first.startswith("{") else _plain_rows
    return rows(lines, source=source_name(path), data=data, need_label=need_label, whole=whole)


@register_reader(".spm")
def _read_spm(path: Path, *, data: DataSettings, need_label: bool, whole: bool) -> Iterator[Row]:
    source = source_name(path)
    lines = read_lines(path, encoding=data.encoding)
    label_path = label_path_of(path)
    if not label_path.exists():
        if need_label:
            raise DataError(
                f"{path} has no labels: there is no file {label_path}.",
                remedy="Create it with one label per line.",
            )
        for row, line in enumerate(lines, start=1):
            yield Row(decoded_pieces(line), None, source, row, row)
        return
    labels = read_lines(label_path, encoding=data.encoding)
    for row, (pieces, label) in enumerate(itertools.zip_longest(lines, labels), start=1):
        if pieces is None or label is None:
            ended, other = (path, label_path) if pieces is None else (label_path, path)
            raise DataError(
                f"{ended} ends after row {row - 1}, but {other} continues.",
                "Both need one line per example.",
                remedy="Use two files of the same data set.",
            )
        yield Row(decoded_pieces(pieces), label.strip(), source, row, row)


def decoded_pieces(line: str) -> str:
    """Plain text of SentencePiece pieces separated by spaces."""
    return line.replace(" ", "").replace(WORD_START, " ").strip()


def label_path_of(spm_path: Path) -> Path:
    """The file of labels that belongs to a file of pieces."""
    name, zipped = re.subn(r"\.gz$", "", spm_path.name)
    stem = name.removesuffix(".spm").removesuffix(".review")
    plain_path = spm_path.with_name(f"{stem}.label")
    zipped_path = spm_path.with_name(f"{stem}.label.gz")
    return zipped_path if zipped and zipped_path.exists() else plain_path


def _read_folder(path: Path, *, data: DataSettings, need_label: bool, whole: bool) -> Iterator[Row]:
    """Each .txt file is a document; its folder under `path` is the label."""
    files = folder_files(path)
    in_classes = [file for file in files if file.parent != path]
    if not files or (need_label and not in_classes):
        raise DataError(
            f"The folder {path} has no .txt files{' in class folders' if files else ''}.",
            "Expected files NAME.txt, or CLASS/NAME.txt for examples.",
            remedy="Give single files of another format instead.",
        )
    # Files outside the class folders are notes about the data set.
    for file in in_classes if need_label else files:
        read = read_lines(file, encoding=data.encoding)
        lines = list(Measured(read, source=str(file), limit="whole_bytes"))
        label = file.relative_to(path).parts[0] if file.parent != path else None
        text = "".join(lines).strip()
        name = str(file.relative_to(path))
        cells = {"file": name, "text": text} if whole else None
        yield Row(text, label, str(file), 1, max(1, len(lines)), id=name, cells=cells)


def folder_files(path: Path) -> list[Path]:
    """The .txt files of a folder and its class folders, without hidden files."""
    found = [*path.rglob("*.txt"), *path.rglob("*.txt.gz")]
    return sorted(
        file
        for file in found
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )


def _text_of(value: Any, *, source: str, row: int, flag: str = "--text-column") -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"The text of {source} row {row} is {value!r:.60}.",
            "Texts are strings.",
            remedy=f"Pass {flag} with the column that holds them.",
        )
    return _characters(value, source=source, row=row)


def _characters(value: str, *, source: str, row: int) -> str:
    """A string from JSON or parquet; raises DataError for NUL and lone surrogates."""
    if "\0" in value:
        raise nul_error(f"{source} row {row}")
    if _SURROGATE.search(value):
        raise DataError(
            f"{source} row {row} contains a lone surrogate, which is not a character.",
            remedy="Fix the escape such as \\ud83d in that row.",
        )
    return value


def _labels_of(value: Any, *, source: str, row: int, separator: str | None) -> str | None:
    """A label from JSON or parquet; a list of labels is joined by the separator."""
    if not isinstance(value, list) or separator is None:
        return _label_of(value, source=source, row=row)
    names = [_label_of(part, source=source, row=row) or "" for part in value]
    return _joined(names, source=source, row=row, separator=separator)


def _joined(names: Sequence[str], *, source: str, row: int, separator: str) -> str:
    for name in names:
        if separator in name:
            raise DataError(
                f"The label {name!r} of {source} row {row} contains the separator {separator!r}.",
                "Labels cannot contain it.",
                remedy="Choose another --label-separator.",
            )
    return separator.join(names)


def _label_of(value: Any, *, source: str, row: int) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _characters(value.strip(), source=source, row=row)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise DataError(
        f"The label of {source} row {row} is {value!r:.60}.",
        "A label is a name or a whole number.",
        remedy="Pass --label-separator for several labels, or --label-column with another column."
        if isinstance(value, list)
        else "Pass --label-column with another column.",
    )


_SURROGATE = re.compile("[\ud800-\udfff]")
_SYNONYMS = {
    ".tab": ".tsv",
    ".json-lines": ".jsonl",
    ".jsonlines": ".jsonl",
    ".ndjson": ".jsonl",
    "": ".txt",
}
