"""What `predict` has computed so far, in a hidden folder next to its output, to resume from.

A record per chunk, with a checksum: after a kill or a power cut everything up to the first damaged
record counts.
"""

import contextlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from regraft.errors import ConfigError
from regraft.runtime import disk_error, hold_lock, read_object, write_json

# Rows, rows that were cut, checksum; then a float64 for every row and label.
_HEAD = struct.Struct("<QQI")


@dataclass(frozen=True)
class ChunkAnswer:
    """The probabilities of a chunk, NaN for rows without text, and how many texts were cut."""

    probabilities_NC: NDArray[np.float64]
    num_cut: int


def _checksum(num_rows: int, num_cut: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(struct.pack("<QQ", num_rows, num_cut)))


def journal_folder(out: Path) -> Path:
    """Where the journal of an output is."""
    return out.with_name(f".{out.name}.unfinished")


class Journal:
    """Locks its folder inside a `with` block; kept after an error if there is anything in it.

    `about` says what is predicted by what: a journal of something else is not continued.
    """

    def __init__(self, out: Path, *, about: Mapping[str, Any], num_labels: int) -> None:
        self.folder = journal_folder(out)
        self._about, self._num_labels = dict(about), num_labels
        self._file: IO[bytes] | None = None
        self.num_chunks = self.num_rows = self.num_cut = 0
        self._is_finished = False

    @property
    def _path(self) -> Path:
        return self.folder / "chunks"

    def __enter__(self) -> "Journal":
        busy = ConfigError(
            f"Another process is writing the output of {self.folder}.",
            remedy="Wait for it, or choose another --out.",
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(self.folder, error) from error
        self._lock = hold_lock(self.folder / "lock", busy=busy)
        return self

    def open(self, *, resume: bool) -> bool:
        """Continue what is there, or begin; True if something else was thrown away."""
        about_path = self.folder / "about.json"
        try:
            was_there = self._path.exists() and self._path.stat().st_size > 0
            if resume and was_there:
                self._check_same(about_path)
                for answer in self.answers():
                    self._count(answer)
            else:
                self._path.unlink(missing_ok=True)
                write_json(about_path, self._about)
            end = self._end_of(self.num_chunks)
            self._file = open(self._path, "r+b" if self._path.exists() else "wb")  # noqa: SIM115
            self._file.truncate(end)
            self._file.seek(end)
        except OSError as error:
            raise disk_error(self._path, error) from error
        return was_there and not resume

    def append(self, answer: ChunkAnswer) -> None:
        """Add the answer to the next chunk."""
        assert self._file is not None, "the journal is not open"
        content = np.ascontiguousarray(answer.probabilities_NC, dtype="<f8").tobytes()
        counts = len(answer.probabilities_NC), answer.num_cut
        head = _HEAD.pack(*counts, _checksum(*counts, content))
        try:
            self._file.write(head + content)
            self._file.flush()
        except OSError as error:
            raise disk_error(self._path, error) from error
        self._count(answer)

    def answers(self) -> Iterator[ChunkAnswer]:
        """All whole records in order."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                num_rows, num_cut, checksum = _HEAD.unpack(head)
                num_bytes = num_rows * self._num_labels * 8
                if num_bytes > os.fstat(file.fileno()).st_size:
                    return
                content = file.read(num_bytes)
                if len(content) < num_bytes or _checksum(num_rows, num_cut, content) != checksum:
                    return
                probabilities = np.frombuffer(content, dtype="<f8").reshape(
                    num_rows, self._num_labels
                )
                yield ChunkAnswer(probabilities, num_cut)

    def remove(self) -> None:
        """At the end of the `with` block: everything was written to the output."""
        self._is_finished = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        has_answers = self._path.exists() and self._path.stat().st_size > 0
        if self._is_finished or not has_answers:
            # Before the lock is free: the next process makes its own folder. The answers go
            # first: what is left by a kill in between is a journal that has none.
            self._path.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.lock.release()

    def _count(self, answer: ChunkAnswer) -> None:
        self.num_chunks += 1
        self.num_rows += len(answer.probabilities_NC)
        self.num_cut += answer.num_cut

    def _end_of(self, num_chunks: int) -> int:
        return num_chunks * _HEAD.size + self.num_rows * self._num_labels * 8

    def _check_same(self, about_path: Path) -> None:
        try:
            before = read_object(about_path)
        except (OSError, ValueError):
            before = {}
        expected = json.loads(json.dumps(self._about))
        different = [name for name, value in expected.items() if before.get(name) != value]
        if different:
            raise ConfigError(
                f"The unfinished output in {self.folder} cannot be continued: it has another "
                f"{', '.join(different)}.",
                "--resume repeats the command that was stopped.",
                remedy="Repeat that command, or omit --resume to start over.",
            )
