"""Files to records: csv, tsv, jsonl, parquet, plain text, fastText, folders, the lab's .spm pair.

Comes in: paths (`-` is standard input, .gz of any) and the data settings. Goes out: a stream of
`Row`, seen by others as `Document` or `Example`. Every reader has the same signature and names file
and row of what it refuses. Knows nothing of splits.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.config import DataSettings
from regraft.errors import DataError
from regraft.text.lines import (
    STANDARD_INPUT,
    check_present,
    nul_error,
    opened,
    peeked,
    read_lines,
    source_name,
)
from regraft.text.records import Document, Example, check_class_labels
from regraft.text.tables import Columns, Values, read_csv_records, read_parquet_records

WORD_START = "\u2581"
FASTTEXT_PREFIX = "__label__"


@dataclass(frozen=True, slots=True)
class Row:
    """One record as it lies in its file, from line `row` to line `last_row`."""

    text: str
    label: str | None
    source: str
    row: int
    last_row: int
    pair: str | None = None


def read_documents(paths: Sequence[str | Path], *, data: DataSettings) -> Iterator[Document]:
    """The texts of any files, in order, streamed; labels are left aside.

    Blank lines of plain text are no documents; an empty cell of a table is an empty document.
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
    """Labelled texts of one file or folder, streamed; a column of floats is refused at the end."""
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
    """A row with its label; where there may be any number of them, with all."""
    names, separator = label_names(row, data=data), data.label_separator
    if separator is None:
        return Example(row.text, row.label or "", row.source, row.row, row.pair)
    return Example(row.text, separator.join(names), row.source, row.row, row.pair, names)


def label_names(row: Row, *, data: DataSettings) -> tuple[str, ...]:
    """The labels of a row, none among them empty; of several in order, each once."""
    if data.label_separator is None:
        return (row.label,) if row.label else ()
    parts = (part.strip() for part in (row.label or "").split(data.label_separator))
    return tuple(sorted({part for part in parts if part}))


def load_examples(path: str | Path, *, data: DataSettings) -> list[Example]:
    """All examples of one file or folder; refuses one without any text."""
    examples = list(read_examples(path, data=data))
    if not any(example.text.strip() for example in examples):
        raise all_empty_error(Path(path), data=data)
    return examples


def read_rows(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    """Every record of one file or folder; refuses a file with none."""
    check_present(path)
    read = _read_folder if path.is_dir() else _READERS[kind_of(path)]
    is_empty = True
    for row in read(path, data=data, need_label=need_label):
        is_empty = False
        if data.pair_column is not None:
            _check_pair(row, data=data)
        yield row
    if is_empty:
        raise DataError(
            f"{source_name(path)} is empty.",
            "Expected at least one record with text.",
            remedy="Check the path and the file.",
        )


def _check_pair(row: Row, *, data: DataSettings) -> None:
    """Refuse a row that has one text where two are wanted."""
    if row.pair is None:
        raise DataError(
            f"{row.source} has no columns, and the second text was sought in {data.pair_column!r}.",
            "Pairs are read from .csv .tsv .jsonl .parquet.",
            remedy="Convert the file, or leave --text-pair away.",
        )
    if not row.pair.strip():
        raise DataError(
            f"{row.source} row {row.row} has no second text: its {data.pair_column!r} is empty.",
            "A pair is two texts.",
            remedy="Fill it in, or remove the row.",
        )


def check_readable(path: Path) -> None:
    """Refuse a path that cannot be read, or of an unknown format; its content stays unread."""
    check_present(path)
    if path != STANDARD_INPUT and not path.is_dir():
        kind_of(path)
        with opened(path):
            pass


def kind_of(path: Path) -> str:
    """The format of a file, by its extension: a key of `_READERS`."""
    if path == STANDARD_INPUT:
        return "-"
    extension = Path(path.name.removesuffix(".gz")).suffix.lower()
    kind = _SYNONYMS.get(extension, extension)
    if kind not in _READERS:
        raise DataError(
            f"{path} has an extension that is not known, {extension!r}.",
            "regraft reads .csv .tsv .jsonl .parquet .txt .spm (each also .gz) and folders.",
            remedy="Rename or convert the file, or pipe plain text in with `-`.",
        )
    return kind


def all_empty_error(path: Path, *, data: DataSettings) -> DataError:
    """The refusal of a file without any text."""
    return DataError(
        f"All texts of {source_name(path)} are empty.",
        f"The text was sought in {data.text_column!r}.",
        remedy="Check the file, or pass --text with another column.",
    )


def _read_csv(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    source = source_name(path)
    delimiters = "\t" if kind_of(path) == ".tsv" else ",;\t"
    records = read_csv_records(
        read_lines(path, encoding=data.encoding),
        source=source,
        columns=_columns(data, need_label=need_label),
        delimiters=delimiters,
    )
    for (text, label, pair), row, last_row in records:
        yield Row(text, label and label.strip(), source, row, last_row, pair)


def _columns(data: DataSettings, *, need_label: bool) -> Columns:
    return Columns(data.text_column, data.label_column, need_label, data.pair_column)


def _read_parquet(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    source = source_name(path)
    columns = _columns(data, need_label=need_label)
    for row, values in enumerate(read_parquet_records(path, columns=columns), start=1):
        yield _row_of(values, source=source, row=row, data=data)


def _row_of(values: Values, *, source: str, row: int, data: DataSettings) -> Row:
    """A record out of Python values."""
    has_pair = data.pair_column is not None
    return Row(
        text=_text_of(values.text, source=source, row=row),
        label=_labels_of(values.label, source=source, row=row, separator=data.label_separator),
        source=source,
        row=row,
        last_row=row,
        pair=_text_of(values.pair, source=source, row=row, flag="--text-pair")
        if has_pair
        else None,
    )


def _read_jsonl(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    lines = read_lines(path, encoding=data.encoding)
    return _jsonl_rows(lines, source=source_name(path), data=data, need_label=need_label)


def _jsonl_rows(
    lines: Iterable[str], *, source: str, data: DataSettings, need_label: bool
) -> Iterator[Row]:
    columns = _columns(data, need_label=need_label)
    for row, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            problem = "" if isinstance(record, dict) else f"it is a {type(record).__name__}"
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at character {error.pos + 1}"
        except RecursionError:
            problem = "it is nested too deeply"
        except ValueError:  # Python's limit on the digits it turns into an integer
            problem = "it holds a number of too many digits"
        if problem:
            raise DataError(
                f"{source} row {row} is not a JSON object: {problem}.",
                'Each line holds one, such as {"text": "...", "label": "..."}.',
                remedy="Mend or remove the line.",
            )
        columns.check(list(record), place=f"{source} row {row}", noun="key")
        values = Values(*(record.get(name) for name in columns.present(list(record))))
        yield _row_of(values, source=source, row=row, data=data)


def _read_plain(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    lines = read_lines(path, encoding=data.encoding)
    return _plain_rows(lines, source=source_name(path), data=data, need_label=need_label)


def _plain_rows(
    lines: Iterable[str], *, source: str, data: DataSettings, need_label: bool
) -> Iterator[Row]:
    first, lines = peeked(lines)
    if first.startswith(FASTTEXT_PREFIX):
        separator = data.label_separator
        yield from _fasttext_rows(lines, source=source, need_label=need_label, separator=separator)
    elif need_label and first:
        raise DataError(
            f"{source} is plain text and has no labels.",
            f"Labelled lines begin with {FASTTEXT_PREFIX}NAME.",
            remedy="Give a csv, tsv, jsonl or parquet file, or a folder per class.",
        )
    elif data.documents == "blank":
        yield from _blank_separated_rows(lines, source=source)
    else:
        for row, line in enumerate(lines, start=1):
            if text := line.strip():
                yield Row(text, None, source, row, row)


def _fasttext_rows(
    lines: Iterable[str], *, source: str, need_label: bool, separator: str | None
) -> Iterator[Row]:
    for row, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        words = line.split()
        labels = list(itertools.takewhile(lambda word: word.startswith(FASTTEXT_PREFIX), words))
        if need_label and len(labels) > 1 and separator is None:
            raise DataError(
                f"{source} row {row} has {len(labels)} labels, {' '.join(labels[:3])}.",
                "An example has one.",
                remedy="Keep one label a line, or pass --label-separator for several.",
            )
        parts = line.strip().split(maxsplit=len(labels))
        text = parts[len(labels)] if len(parts) > len(labels) else ""
        names = [name.removeprefix(FASTTEXT_PREFIX) for name in labels]
        label = names[0] if names else None
        if separator is not None:
            label = _joined(names, source=source, row=row, separator=separator)
        yield Row(text, label, source, row, row)


def _blank_separated_rows(lines: Iterable[str], *, source: str) -> Iterator[Row]:
    numbered = enumerate(lines, start=1)
    for is_text, group in itertools.groupby(numbered, key=lambda pair: bool(pair[1].strip())):
        if is_text:
            block = list(group)
            text = "\n".join(line.strip() for _, line in block)
            yield Row(text, None, source, block[0][0], block[-1][0])


def _read_standard_input(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    first, lines = peeked(read_lines(path, encoding=data.encoding))
    rows = _jsonl_rows if first.startswith("{") else _plain_rows
    return rows(lines, source=source_name(path), data=data, need_label=need_label)


def _read_spm(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    source = source_name(path)
    lines = read_lines(path, encoding=data.encoding)
    label_path = label_path_of(path)
    if not label_path.exists():
        if need_label:
            raise DataError(
                f"{path} has no labels: there is no file {label_path}.",
                remedy="Put the labels there, one a line.",
            )
        for row, line in enumerate(lines, start=1):
            yield Row(decoded_pieces(line), None, source, row, row)
        return
    labels = read_lines(label_path, encoding=data.encoding)
    for row, (pieces, label) in enumerate(itertools.zip_longest(lines, labels), start=1):
        if pieces is None or label is None:
            ended, other = (path, label_path) if pieces is None else (label_path, path)
            raise DataError(
                f"{ended} ends after row {row - 1}, {other} goes on.",
                "The two must have a line for each example.",
                remedy="Take both files from the same place.",
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


def _read_folder(path: Path, *, data: DataSettings, need_label: bool) -> Iterator[Row]:
    """A .txt file is a document; the folder it lies in, under `path`, is its label."""
    files = folder_files(path)
    in_classes = [file for file in files if file.parent != path]
    if not files or (need_label and not in_classes):
        raise DataError(
            f"The folder {path} holds no .txt files{' in class folders' if files else ''}.",
            "Expected files NAME.txt, or CLASS/NAME.txt for examples.",
            remedy="Name single files of another format instead.",
        )
    # Files beside class folders are lists and notes about the set: no examples.
    for file in in_classes if need_label else files:
        lines = list(read_lines(file, encoding=data.encoding))
        label = file.relative_to(path).parts[0] if file.parent != path else None
        yield Row("".join(lines).strip(), label, str(file), 1, max(1, len(lines)))


def folder_files(path: Path) -> list[Path]:
    """The .txt files of a folder and its class folders, hidden ones left aside."""
    found = [*path.rglob("*.txt"), *path.rglob("*.txt.gz")]
    return sorted(
        file
        for file in found
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )


def _text_of(value: Any, *, source: str, row: int, flag: str = "--text") -> str:
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
    """A string out of JSON or parquet, or the name of a folder, if it holds characters only."""
    if "\0" in value:
        raise nul_error(source, row=row)
    if _SURROGATE.search(value):
        raise DataError(
            f"{source} row {row} holds half of a surrogate pair, which is no character.",
            remedy="Mend the escape such as \\ud83d in that row.",
        )
    return value


def _labels_of(value: Any, *, source: str, row: int, separator: str | None) -> str | None:
    """A label out of JSON or parquet; a list of them, where there may be any number, in one."""
    if not isinstance(value, list) or separator is None:
        return _label_of(value, source=source, row=row)
    names = [_label_of(part, source=source, row=row) or "" for part in value]
    return _joined(names, source=source, row=row, separator=separator)


def _joined(names: Sequence[str], *, source: str, row: int, separator: str) -> str:
    for name in names:
        if separator in name:
            raise DataError(
                f"The label {name!r} of {source} row {row} holds the separator {separator!r}.",
                "It stands between labels, and in none.",
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
        remedy="Pass --label-separator for several labels, or --label with another column."
        if isinstance(value, list)
        else "Pass --label with another column.",
    )


_SURROGATE = re.compile("[\ud800-\udfff]")
_READERS: dict[str, Callable[..., Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".txt": _read_plain,
    ".spm": _read_spm,
    "-": _read_standard_input,
}
_SYNONYMS = {
    ".tab": ".tsv",
    ".json-lines": ".jsonl",
    ".jsonlines": ".jsonl",
    ".ndjson": ".jsonl",
    "": ".txt",
}
