"""The labels given by a person, in a plain csv that `regraft fit --train` reads.

Each label is on disk before its key press is answered, and survives a crash. Undo cuts the last
record off the file. One process holds a file at a time.
"""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from regraft.apps.studio.next_text import Query, Use
from regraft.errors import DataError
from regraft.runtime import disk_error, hold_lock, output_path, read_json, sync_folder, write_json

# Behind the text, whose column has the name it has in the file of texts.
COLUMNS = ("label", "use", "query", "row")


@dataclass(frozen=True)
class LabelRecord:
    """One text with its label; `row` is its place in the file of texts, `cells` the rest of it."""

    text: str
    label: str
    use: Use
    query: Query
    row: int
    cells: Mapping[str, str] = field(default_factory=dict)


class LabelFile:
    """A csv that only grows at its end, or loses its last record."""

    def __init__(self, path: Path, *, text_column: str = "text", more: Sequence[str] = ()) -> None:
        """`more` are further columns of the texts; a file that exists keeps those it has."""
        self.path = path = output_path(path)
        self._columns = (text_column, *COLUMNS)
        self._more = tuple(more)
        self.records: list[LabelRecord] = []
        # Where each record begins, so that the last one can be taken off.
        self._starts: list[int] = []
        busy = DataError(
            f"{path} is being written by another studio.",
            "Two of them would mix their labels.",
            remedy="Close the other one, or give another --out.",
        )
        self._lock = hold_lock(path.with_name(f".{path.name}.lock"), busy=busy).lock
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            self._lock.release()
            raise disk_error(path, error) from error
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def append(self, record: LabelRecord) -> None:
        """Write one record at the end; it is on disk when this returns."""
        start = os.lseek(self._handle, 0, os.SEEK_END)
        fields = (record.text, record.label, record.use, record.query, record.row)
        self._write(_line((*fields, *(record.cells.get(name, "") for name in self._more))))
        self._starts.append(start)
        self.records.append(record)

    def undo(self) -> LabelRecord | None:
        """Take the last record off the file; None if there is none."""
        if not self.records:
            return None
        try:
            # One call of the system: there is no moment at which an earlier record is missing.
            os.ftruncate(self._handle, self._starts[-1])
            os.fsync(self._handle)
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._starts.pop()
        return self.records.pop()

    def close(self) -> None:
        """Release the file."""
        os.close(self._handle)
        self._lock.release()

    @property
    def classes_path(self) -> Path:
        """The classes have their own file: some may have no label yet."""
        return self.path.with_suffix(".classes.json")

    def load_classes(self) -> tuple[str, ...]:
        """The classes chosen earlier, if any."""
        try:
            values = read_json(self.classes_path)
            return tuple(str(name) for name in values["classes"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.classes_path} cannot be read: {error}.",
                'It holds {"classes": ["a", "b"]}.',
                remedy="Fix it, or remove it and pass --labels.",
            ) from error

    def save_classes(self, classes: Sequence[str]) -> None:
        """Keep the classes for the next start."""
        write_json(self.classes_path, {"classes": list(classes)})

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            data = file.read()
        if not data:
            self._write(_line((*self._columns, *self._more)))
            sync_folder(self.path.parent)
            return
        start, is_quoted = 0, False
        ends = []
        for place, byte in enumerate(data):
            if byte == 0x22:  # a quote inside a text is written twice: it opens and closes
                is_quoted = not is_quoted
            elif byte == 0x0A and not is_quoted:
                ends.append(place + 1)
        for number, end in enumerate(ends):
            fields = self._fields(data[start:end], number=number)
            if not number:
                self._more = tuple(fields[len(self._columns) :])
            else:
                self._starts.append(start)
                self.records.append(self._record(fields, number=number))
            start = end
        if start < len(data):
            # A power cut in the middle of a record, whose key press was never answered.
            os.ftruncate(self._handle, start)
            os.fsync(self._handle)
        if not ends:
            self._write(_line((*self._columns, *self._more)))

    def _fields(self, line: bytes, *, number: int) -> list[str]:
        try:
            fields = next(csv.reader(io.StringIO(line.decode("utf-8"), newline=""), strict=True))
        except (UnicodeDecodeError, csv.Error, StopIteration) as error:
            raise self._damaged(number, str(error) or "it is empty") from error
        if number == 0 and tuple(fields[: len(self._columns)]) != self._columns:
            raise DataError(
                f"{self.path} begins with {','.join(fields)!r:.80}.",
                f"A file of labels begins with {','.join(self._columns)}.",
                remedy="Give another --out; this file stays as it is.",
            )
        return fields

    def _record(self, fields: Sequence[str], *, number: int) -> LabelRecord:
        num_columns = len(self._columns) + len(self._more)
        if len(fields) != num_columns:
            raise self._damaged(number, f"it has {len(fields)} fields, not {num_columns}")
        text, label, use, query, row, *cells = fields
        if use not in get_args(Use) or query not in get_args(Query) or not row.isdecimal():
            raise self._damaged(number, f"{use!r:.20}, {query!r:.20}, {row!r:.20} is not ours")
        more = dict(zip(self._more, cells, strict=True))
        return LabelRecord(text, label, cast(Use, use), cast(Query, query), int(row), more)

    def _damaged(self, number: int, why: str) -> DataError:
        return DataError(
            f"{self.path} record {number} cannot be read: {why}.",
            remedy="Fix or remove that record, or choose another --out.",
        )

    def _write(self, line: bytes) -> None:
        end = os.lseek(self._handle, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._handle, line[written:])
            os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, end)
            raise disk_error(self.path, error) from error


def _line(fields: Sequence[object]) -> bytes:
    file = io.StringIO(newline="")
    # All quoted: a bare carriage return would end the record when it is read.
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow(fields)
    return file.getvalue().encode("utf-8")
