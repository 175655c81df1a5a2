"""The report of `regraft data check`: counts, lengths, duplicates, and leaks between splits."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regraft.config import DataSettings
from regraft.data.text.duplicates import Leak, duplicate_key, find_leaks
from regraft.data.text.label_issues import label_warnings
from regraft.data.text.lines import STANDARD_INPUT, check_present, source_name
from regraft.data.text.readers import (
    Row,
    all_empty_error,
    example_of,
    label_names,
    read_rows,
    say_memory,
)
from regraft.data.text.records import Document, Example, check_class_labels
from regraft.runtime import SILENT, Progress

Role = Literal["train", "valid", "test"]
TokenLengths = Callable[[Sequence[str]], list[int]]

_ROLES: tuple[Role, ...] = ("train", "valid", "test")
_ROLE_WORDS: dict[str, Role] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
_QUANTILES = (5, 25, 50, 75, 95)
_CHUNK = 1000
_MOST_SHOWN = 12
# Bytes of memory for a byte and for a line of text, without and with near duplicates (2026-11-18:
# 2.0 and 540 for texts of 5 to 1,000 characters; 3.3 and 4,200).
_COSTS, _NEAR_COSTS = (2.0, 540), (3.3, 4_200)


@dataclass(frozen=True)
class Duplicate:
    """A row whose text is already in an earlier row of the same file, or file of the folder."""

    source: str
    row: int
    first_row: int
    first_source: str


@dataclass(frozen=True)
class Cut:
    """How many texts are longer than `max_length`, counted in `unit`."""

    max_length: int
    unit: Literal["tokens", "words"]
    num_cut: int
    share: float


@dataclass(frozen=True)
class FileProfile:
    """What is in one file or folder. `words` maps p5 .. p95 and max to the words of a text.

    `empty_sources` are the files of `empty_rows`: others than `source` in a folder.
    """

    source: str
    role: Role | None
    num_rows: int
    empty_rows: tuple[int, ...]
    empty_sources: tuple[str, ...]
    duplicates: tuple[Duplicate, ...]
    label_counts: dict[str, int]
    num_unlabelled: int
    words: dict[str, int]
    cut: Cut


@dataclass(frozen=True)
class Profile:
    """All files in the order train, valid, test, the leaks between them, and warnings."""

    files: tuple[FileProfile, ...]
    leaks: tuple[Leak, ...]
    near_checked: bool
    warnings: tuple[str, ...]

    def leak_counts(self) -> list[dict[str, Any]]:
        """For each pair of sources, the rows of the later one that are in the earlier one."""
        counts = Counter((leak.source, leak.other_source, leak.kind) for leak in self.leaks)
        pairs = dict.fromkeys((leak.source, leak.other_source) for leak in self.leaks)
        return [
            {
                "source": source,
                "other_source": other,
                "exact": counts[source, other, "exact"],
                "near": counts[source, other, "near"],
            }
            for source, other in pairs
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values, ready for JSON."""
        return {**dataclasses.asdict(self), "leak_counts": self.leak_counts()}


def profile(
    paths: Sequence[str | Path],
    *,
    data: DataSettings,
    token_lengths: TokenLengths | None = None,
    near: bool = True,
    progress: Progress = SILENT,
) -> Profile:
    """Read every file whole and describe it, and the leaks between splits.

    Files of one role form one split, train before valid before test. If the role of any file cannot
    be read from its name, each file is its own split, in the order given.
    """
    for path in paths:
        check_present(Path(path))
    ordered = ordered_by_role([Path(path) for path in paths])
    byte_cost, row_cost = _NEAR_COSTS if near and len(ordered) > 1 else _COSTS
    files_read = [path for path, _ in ordered]
    say_memory(files_read, byte_cost=byte_cost, row_cost=row_cost, progress=progress)
    splits: dict[str, list[Document | Example]] = {}
    files, warnings = [], []
    for path, role in ordered:
        rows = list(read_rows(path, data=data, need_label=False))
        if not any(row.text.strip() for row in rows):
            raise all_empty_error(path, data=data)
        records = [_record(row, data=data) for row in rows]
        check_class_labels(
            [
                Example(row.text, name, row.source, row.row)
                for row in rows
                for name in label_names(row, data=data)
            ]
        )
        lengths = _lengths(rows, token_lengths=token_lengths, progress=progress)
        files.append(
            _file_profile(source_name(path), role=role, rows=rows, lengths=lengths, data=data)
        )
        splits.setdefault(role or source_name(path), []).extend(records)
        examples = [record for record in records if isinstance(record, Example)]
        if not examples and (columns := _columns_without_label(path, data=data)):
            warnings.append(
                f"{source_name(path)}: there is no column {data.label_column!r}, so labels were "
                f"not counted. Its columns are {columns}. Pass --label-column NAME."
            )
        warnings += [f"{source_name(path)}: {warning}" for warning in label_warnings(examples)]
    leaks = find_leaks(list(splits.values()), near=near, progress=progress)
    return Profile(tuple(files), tuple(leaks), near, (*_warnings(files), *warnings))


def _columns_without_label(path: Path, *, data: DataSettings) -> str:
    """The columns of a table, if there is none of labels; empty for other files."""
    if path == STANDARD_INPUT or path.is_dir():
        return ""
    first = next(read_rows(path, data=data, need_label=False, whole=True))
    names = [name for name in first.cells or () if isinstance(name, str)]
    if not names or data.label_column in names or names == [data.text_column]:
        return ""
    return ", ".join(map(repr, names[:_MOST_SHOWN]))


def ordered_by_role(paths: Sequence[Path]) -> list[tuple[Path, Role | None]]:
    """The files with their roles: train, valid, test if every name has a role, else as given."""
    roles = [_role_of(path) for path in paths]
    if any(role is None for role in roles):
        return [(path, None) for path in paths]
    pairs = list(zip(paths, roles, strict=True))
    return sorted(pairs, key=lambda pair: _ROLES.index(pair[1] or "train"))


def _role_of(path: Path) -> Role | None:
    words = re.split(r"[^a-z]+", path.name.lower())
    return next((_ROLE_WORDS[word] for word in words if word in _ROLE_WORDS), None)


def _record(row: Row, *, data: DataSettings) -> Document | Example:
    if row.label:
        return example_of(row, data=data)
    return Document(row.text, row.source, row.row, row.pair)


def _file_profile(
    source: str, *, role: Role | None, rows: Sequence[Row], lengths: "_Lengths", data: DataSettings
) -> FileProfile:
    num_cut = sum(length > data.max_length for length in lengths.of_cut)
    labels = Counter(name for row in rows for name in label_names(row, data=data))
    empty = [row for row in rows if not row.text.strip()]
    return FileProfile(
        source=source,
        role=role,
        num_rows=len(rows),
        empty_rows=tuple(row.row for row in empty),
        empty_sources=tuple(row.source for row in empty),
        duplicates=tuple(_duplicates(rows)),
        label_counts=dict(sorted(labels.items())),
        num_unlabelled=sum(not row.label for row in rows),
        words=_quantiles(lengths.words),
        cut=Cut(data.max_length, lengths.unit, num_cut, num_cut / len(rows)),
    )


def _duplicates(rows: Sequence[Row]) -> list[Duplicate]:
    first_by_key: dict[str, Row] = {}
    duplicates = []
    for row in rows:
        key = duplicate_key(row.text, row.pair)
        first = first_by_key.setdefault(key, row)
        if key and first is not row:
            duplicates.append(Duplicate(row.source, row.row, first.row, first.source))
    return duplicates


@dataclass(frozen=True)
class _Lengths:
    words: list[int]
    of_cut: list[int]
    unit: Literal["tokens", "words"]


def _lengths(
    rows: Sequence[Row], *, token_lengths: TokenLengths | None, progress: Progress
) -> _Lengths:
    words = [len(f"{row.text} {row.pair or ''}".split()) for row in rows]
    if token_lengths is None:
        return _Lengths(words, words, "words")
    tokens: list[int] = []
    progress.start("token lengths", total=len(rows))
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        lengths = token_lengths([row.text for row in chunk])
        seconds = token_lengths([row.pair or "" for row in chunk])
        # A pair has one more special token than its two texts together.
        tokens += [
            length if row.pair is None else length + second + 1
            for row, length, second in zip(chunk, lengths, seconds, strict=True)
        ]
        progress.advance(len(chunk))
    progress.finish()
    return _Lengths(words, tokens, "tokens")


def _quantiles(lengths: Sequence[int]) -> dict[str, int]:
    """Nearest-rank quantiles: each is the length of an actual text."""
    ranked = sorted(lengths)
    last = len(ranked) - 1
    ranks = {f"p{q}": max(0, math.ceil(q / 100 * len(ranked)) - 1) for q in _QUANTILES}
    return {name: ranked[rank] for name, rank in {**ranks, "max": last}.items()}


def _warnings(files: Sequence[FileProfile]) -> list[str]:
    known = files[0].label_counts if files else {}
    found = []
    for file in files:
        if file.label_counts and file.num_unlabelled:
            found.append(f"{file.source}: {file.num_unlabelled} rows have no label.")
        if len(file.label_counts) == 1:
            found.append(f"{file.source}: only one label, {next(iter(file.label_counts))!r}.")
        unknown = [label for label in file.label_counts if known and label not in known]
        if unknown:
            names = ", ".join(repr(label) for label in unknown[:5])
            found.append(f"{file.source}: labels that do not occur in {files[0].source}: {names}.")
    return found
