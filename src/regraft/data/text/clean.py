"""Copies of data files, in the same format, without leaks from an earlier split or wrong labels."""

import codecs
import gzip
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from regraft.config import DataSettings
from regraft.data.text.csv_records import relabelled_csv
from regraft.data.text.duplicates import Leak
from regraft.data.text.label_issues import LabelIssue
from regraft.data.text.lines import STANDARD_INPUT, check_present, read_lines
from regraft.data.text.parquet_records import opened_parquet
from regraft.data.text.readers import (
    FASTTEXT_PREFIX,
    delimiters_of,
    folder_files,
    kind_of,
    label_path_of,
    read_examples,
    read_rows,
    wanted_columns,
)
from regraft.errors import DataError
from regraft.runtime import write_whole

# Formats in which single labels can be replaced.
_RELABELLED = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")


def drop_leaks(
    paths: Sequence[str | Path], *, data: DataSettings, out_dir: Path, leaks: Iterable[Leak]
) -> dict[str, int]:
    """Write clean copies and return the rows dropped for each path.

    A file without leaks, such as the first split, is copied byte for byte. All files are read and
    checked before the first copy is written.
    """
    rows_by_source: dict[str, set[int]] = {}
    for leak in leaks:
        rows_by_source.setdefault(leak.source, set()).add(leak.row)
    sources = [Path(path) for path in paths]
    _check_targets(sources, out_dir=out_dir)
    dropped: dict[str, int] = {}
    copies: list[Callable[[], None]] = []
    for path in sources:
        if path.is_dir():
            kept = _kept_files(path, rows_by_source)
            dropped[str(path)] = len(folder_files(path)) - len(kept)
            copies += [
                partial(_copy, file, out_dir / path.name / file.relative_to(path)) for file in kept
            ]
        else:
            rows = rows_by_source.get(str(path), set())
            dropped[str(path)] = len(rows)
            copies += _copies_of_file(path, out_dir, rows=rows, data=data)
    for write in copies:
        write()
    return dropped


def relabel(
    path: str | Path, issues: Sequence[LabelIssue], *, data: DataSettings, out_path: Path
) -> None:
    """Write a copy of a labelled file in which every issue has the label proposed.

    Everything else stays as it is. The rows must still have the text and label of the issues.
    """
    path, labels = Path(path), {issue.row: issue.proposal for issue in issues}
    _check_relabelled(path, out_path=out_path)
    _check_unchanged(path, issues, data=data)
    kind = kind_of(path)
    if kind == ".parquet":
        _relabel_parquet(path, out_path, column=data.label_column, labels=labels)
        return
    encoder = codecs.getincrementalencoder(data.encoding)()
    lines = list(read_lines(path, encoding=data.encoding))
    if kind in (".csv", ".tsv"):
        lines = relabelled_csv(
            lines,
            source=str(path),
            columns=wanted_columns(data, need_label=True),
            delimiters=delimiters_of(path),
            labels=labels,
        )
    else:
        relabelled = _relabelled_json if kind == ".jsonl" else _relabelled_fasttext
        for row, label in labels.items():
            lines[row - 1] = relabelled(lines[row - 1], label, data=data)
    _save(out_path, b"".join(map(encoder.encode, lines)))


def _check_relabelled(path: Path, *, out_path: Path) -> None:
    if path == STANDARD_INPUT or path.is_dir() or kind_of(path) not in _RELABELLED:
        raise DataError(
            f"{path} cannot be copied with other labels.",
            f"Files that can: {' '.join(_RELABELLED)} (.txt in the format of fastText).",
            remedy="Convert it, and fit on that file.",
        )
    if out_path.exists() and out_path.resolve() == path.resolve():
        raise DataError(
            f"The clean copy would replace {path} itself.", remedy="Choose another --out."
        )
    if kind_of(out_path) != kind_of(path):
        raise DataError(
            f"{out_path} would be a copy of {path} under another extension.",
            "The copy has the format of the file.",
            remedy=f"Choose an --out that ends in {kind_of(path)}.",
        )


def _check_unchanged(path: Path, issues: Sequence[LabelIssue], *, data: DataSettings) -> None:
    """Raise DataError unless the file has the rows that the issues are about."""
    examples = {example.row: example for example in read_examples(path, data=data)}
    for issue in issues:
        example = examples.get(issue.row)
        if example is not None and (example.text, example.label) == (issue.text, issue.label):
            continue
        if example is None:
            reality = "no example starts there"
        elif example.text != issue.text:
            reality = "its text is another one"
        else:
            reality = f"its label is {example.label!r}, not {issue.label!r}"
        raise DataError(
            f"{path} row {issue.row} is not the row of the issue: {reality}.",
            "The file changed after the issues were found, or is another one.",
            remedy="Pass the file that `regraft fit` read, or fit again.",
        )


def _relabelled_json(line: str, label: str, *, data: DataSettings) -> str:
    """The same object with another label, of the type it had: a list, a number or a string."""
    record = json.loads(line)
    value = record[data.label_column]
    if isinstance(value, bool):
        new: Any = label == "true"
    elif isinstance(value, int):
        new = int(label) if label.lstrip("+-").isdigit() else label
    else:
        new = label.split(data.label_separator) if isinstance(value, list) else label
    record[data.label_column] = new
    return json.dumps(record, ensure_ascii=False) + "\n"


def _relabelled_fasttext(line: str, label: str, *, data: DataSettings) -> str:
    words = line.split(" ")
    texts = [word for word in words if not word.startswith(FASTTEXT_PREFIX)]
    names = label.split(data.label_separator) if data.label_separator else [label]
    return " ".join([*(f"{FASTTEXT_PREFIX}{name}" for name in names), *texts])


def _relabel_parquet(path: Path, out_path: Path, *, column: str, labels: Mapping[int, str]) -> None:
    with opened_parquet(path) as source:
        table: Any = source.read()
    import pyarrow

    values = table.column(column).to_pylist()
    for row, label in labels.items():
        is_number = isinstance(values[row - 1], int) and not isinstance(values[row - 1], bool)
        values[row - 1] = int(label) if is_number else label
    place, kind = table.column_names.index(column), table.schema.field(column).type
    _save_parquet(out_path, table.set_column(place, column, pyarrow.array(values, type=kind)))


def _check_targets(paths: Sequence[Path], *, out_dir: Path) -> None:
    names: set[str] = set()
    for path in paths:
        if path == STANDARD_INPUT:
            raise DataError(
                "Standard input cannot be read twice, so it has no clean copy.",
                remedy="Save it to a file first.",
            )
        check_present(path)
        if (out_dir / path.name).resolve() == path.resolve():
            raise DataError(
                f"The clean copy would replace {path} itself.",
                remedy="Choose another folder for --drop-leaks.",
            )
        if path.name in names:
            raise DataError(
                f"Two files are named {path.name!r}, and both copies would go to {out_dir}.",
                remedy="Rename one of them.",
            )
        names.add(path.name)


def _copies_of_file(
    path: Path, out_dir: Path, *, rows: set[int], data: DataSettings
) -> list[Callable[[], None]]:
    """The writes still to be done for one file, after reading and checking it."""
    kind = kind_of(path)
    label_path = label_path_of(path) if kind == ".spm" else None
    files = [path, label_path] if label_path and label_path.exists() else [path]
    if not rows:
        return [partial(_copy, file, out_dir / file.name) for file in files]
    if kind == ".parquet":
        with opened_parquet(path) as table:
            _check_some_left(path, num_rows=table.metadata.num_rows, num_dropped=len(rows))
        return [partial(_write_parquet, path, out_dir / path.name, rows=rows)]
    lines: set[int] = set()
    num_rows = 0
    for row in read_rows(path, data=data, need_label=False):
        num_rows += 1
        if row.row in rows:
            lines.update(row.lines or range(row.row, row.last_row + 1))
    _check_some_left(path, num_rows=num_rows, num_dropped=len(rows))
    return [
        partial(_write_lines, file, out_dir / file.name, without=lines, encoding=data.encoding)
        for file in files
    ]


def _kept_files(path: Path, rows_by_source: dict[str, set[int]]) -> list[Path]:
    files = folder_files(path)
    kept = [file for file in files if str(file) not in rows_by_source]
    _check_some_left(path, num_rows=len(files), num_dropped=len(files) - len(kept))
    return kept


def _check_some_left(path: Path, *, num_rows: int, num_dropped: int) -> None:
    if num_dropped >= num_rows:
        raise DataError(
            f"All {num_rows} rows of {path} are also in an earlier split.",
            "A clean copy would be empty.",
            remedy="Check that the files are different splits.",
        )


def _copy(path: Path, out_path: Path) -> None:
    with open(path, "rb") as file:
        write_whole(out_path, lambda target: shutil.copyfileobj(file, target))


def _write_lines(path: Path, out_path: Path, *, without: set[int], encoding: str) -> None:
    # An incremental encoder writes the byte order mark of UTF-16 once, not with every line.
    encoder = codecs.getincrementalencoder(encoding)()
    lines = enumerate(read_lines(path, encoding=encoding), start=1)
    _save(out_path, b"".join(encoder.encode(line) for row, line in lines if row not in without))


def _write_parquet(path: Path, out_path: Path, *, rows: set[int]) -> None:
    with opened_parquet(path) as source:
        table: Any = source.read()
    kept = table.take([index for index in range(table.num_rows) if index + 1 not in rows])
    _save_parquet(out_path, kept)


def _save_parquet(out_path: Path, table: Any) -> None:
    import pyarrow
    import pyarrow.parquet

    target = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, target)
    _save(out_path, target.getvalue().to_pybytes())


def _save(out_path: Path, content: bytes) -> None:
    # No time in the header of a zipped file: equal rows give equal files.
    stored = gzip.compress(content, mtime=0) if out_path.suffix == ".gz" else content
    write_whole(out_path, lambda file: file.writelines([stored]))
