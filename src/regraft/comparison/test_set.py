"""The sealed test file: which of its texts leaked, and the one function that reads its labels.

Labels are read after every choice is made, and every reading is recorded in a ledger next to the
run folder. The leak rule of `Seen` decides which examples count, for `compare` and `fit` alike.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.comparison.results import Opening
from regraft.config import DataSettings
from regraft.data import (
    STANDARD_INPUT,
    Document,
    Example,
    duplicate_key,
    examples_fingerprint,
    find_leaks,
    load_examples,
    read_documents,
)
from regraft.errors import DataError, RegraftError, RunFolderError
from regraft.runtime import SILENT, Progress, file_sha256, hold_lock, read_json, write_json

LEDGER_NAME = "openings.json"
# The ledger is written in milliseconds; a lock held longer is stuck. The score of a finished
# classifier does not wait for it; a comparison must count all openings, and does.
SECONDS_TO_NOTE = 5.0

# Test texts that occur in the unlabelled text are excluded as long as this many others remain.
# With fewer, an accuracy has an interval of 18 points or more, and less than a tenth is no fair
# sample of the file. A smaller file must keep half of its examples.
FEWEST_DECIDING = 30
SMALLEST_DECIDING_SHARE = 0.1
# Documents in memory at a time.
_CHUNK = 20_000


@dataclass(frozen=True)
class Seen:
    """Leaks: which of N test texts and V texts of valid were seen during training.

    `labelled_N` are also in train or valid and `text_N` in the unlabelled text, exactly or as near
    duplicates; `text_N` is None where there was no text to search. `repeat_N` repeat an earlier
    text of the test file. `valid_V` are also in train.
    """

    texts: tuple[str, ...]
    labelled_N: NDArray[np.bool_]
    text_N: NDArray[np.bool_] | None
    repeat_N: NDArray[np.bool_]
    valid_V: NDArray[np.bool_]

    @property
    def clean_N(self) -> NDArray[np.bool_]:  # noqa: N802
        """The examples that decide: not seen before, each text once.

        If too few are left, those that occur in the unlabelled text count as well.
        """
        distinct_N = ~(self.labelled_N | self.repeat_N)
        if self.text_N is None:
            return distinct_N
        unread_N = distinct_N & ~self.text_N
        num_distinct = int(distinct_N.sum())
        fewest = max(
            SMALLEST_DECIDING_SHARE * num_distinct, min(FEWEST_DECIDING, num_distinct / 2), 1
        )
        return unread_N if unread_N.sum() >= fewest else distinct_N

    @property
    def num_unread(self) -> int:
        """Test texts not seen before, each once, whether they are enough to decide or not."""
        in_text_N = np.zeros_like(self.labelled_N) if self.text_N is None else self.text_N
        return int((~(self.labelled_N | self.repeat_N | in_text_N)).sum())

    @property
    def num_read_deciding(self) -> int:
        """Test texts that decide although they occur in the unlabelled text."""
        return 0 if self.text_N is None else int((self.clean_N & self.text_N).sum())


def find_seen(
    test: Sequence[Example | Document],
    *,
    train: Sequence[Example],
    valid: Sequence[Example],
    documents: Iterable[Document] | None,
    progress: Progress = SILENT,
) -> Seen:
    """Search train, valid and text for test texts, and train for texts of valid; ignores labels."""
    num_valid = len(valid)
    in_train = leaked([*valid, *test], train, progress=progress)
    keys = [duplicate_key(record.text, record.pair) for record in test]
    firsts = {key: place for place, key in reversed(list(enumerate(keys)))}
    return Seen(
        texts=tuple(record.text for record in test),
        labelled_N=in_train[num_valid:] | leaked(test, valid, progress=progress),
        text_N=None if documents is None else leaked(test, documents, progress=progress),
        repeat_N=np.array([firsts[key] != place for place, key in enumerate(keys)], dtype=np.bool_),
        valid_V=in_train[:num_valid],
    )


def refuse_seen(seen: Seen, path: str | Path, *, remedy: str) -> None:
    """Refuse a test file with no new example."""
    if seen.labelled_N.all():
        raise DataError(
            f"Every example of {path} also occurs in train or valid, exactly or nearly.",
            "A test on examples that were trained on shows nothing.",
            remedy=remedy,
        )


def leaked(
    test: Sequence[Example | Document],
    seen: Iterable[Example | Document],
    *,
    progress: Progress = SILENT,
) -> NDArray[np.bool_]:
    """Which test texts occur, exactly or as near duplicates, among those seen."""
    leaked_rows: set[tuple[str, int]] = set()
    for chunk in _chunks(seen):
        leaks = find_leaks([chunk, test], progress=progress)
        leaked_rows |= {(leak.source, leak.row) for leak in leaks}
    return np.array(
        [(example.source, example.row) in leaked_rows for example in test], dtype=np.bool_
    )


def _chunks(items: Iterable[Example | Document]) -> Iterator[list[Example | Document]]:
    rest = iter(items)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        yield chunk


@dataclass(frozen=True)
class Opened:
    """The examples of a test file, and all openings of it so far, this one last."""

    examples: list[Example]
    fingerprint: str
    openings: tuple[Opening, ...]


def sealed_texts(path: str | Path, *, data: DataSettings) -> list[Document]:
    """The texts of a test file without their labels; none if it can be read only once."""
    if Path(path) == STANDARD_INPUT:
        return []
    return [text for text in read_documents([path], data=data) if text.text.strip()]


def open_sealed(
    path: str | Path,
    *,
    data: DataSettings,
    choices: str,
    command: str,
    ledger_path: Path | None,
    must_record: bool = True,
    progress: Progress = SILENT,
) -> Opened:
    """Read the test file, and record the reading in the ledger.

    `choices` is a hash of everything chosen before. Another reading for the same choices, as by an
    interrupted comparison that continues, reveals nothing new and is not counted. Where the
    reading need not be recorded, a ledger that is locked or cannot be written is ignored.
    """
    examples = load_examples(path, data=data, progress=progress)
    opening = Opening(
        test=str(path),
        fingerprint=examples_fingerprint(examples),
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
    )
    openings: tuple[Opening, ...] = (opening,)
    if ledger_path is not None and Path(path) != STANDARD_INPUT:
        seconds = None if must_record else SECONDS_TO_NOTE
        try:
            openings = _record(opening, choices, ledger_path, seconds=seconds)
        except (OSError, RegraftError):
            if must_record:
                raise
    return Opened(examples, opening.fingerprint, openings)


def note_opening(
    path: str | Path, *, data: DataSettings, choices: str, command: str, ledger_path: Path
) -> None:
    """Record that the labels of a file were read elsewhere, where a ledger can be written."""
    if Path(path) != STANDARD_INPUT:
        with contextlib.suppress(OSError, RegraftError):
            open_sealed(
                path,
                data=data,
                choices=choices,
                command=command,
                ledger_path=ledger_path,
                must_record=False,
            )


def _record(
    opening: Opening, choices: str, ledger_path: Path, *, seconds: float | None
) -> tuple[Opening, ...]:
    """Add an opening to the ledger; all openings of the same file."""
    busy = RunFolderError(
        f"{ledger_path} is in use by another process.", remedy="Wait for it and try again."
    )
    with hold_lock(ledger_path.with_suffix(".lock"), busy=busy, wait_seconds=seconds):
        entries = _read_ledger(ledger_path)
        entry = {**dataclasses.asdict(opening), "choices": choices}
        same = ("fingerprint", "choices")
        if not any(all(known.get(key) == entry[key] for key in same) for known in entries):
            entries.append(entry)
            write_json(ledger_path, entries)
    names = [field.name for field in dataclasses.fields(Opening)]
    return tuple(
        Opening(**{name: str(known.get(name, "")) for name in names})
        for known in entries
        if known.get("fingerprint") == opening.fingerprint
    )


def _read_ledger(path: Path) -> list[dict[str, Any]]:
    try:
        entries = read_json(path)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("it is not a list of openings")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}.",
            "It records how often test files were opened.",
            remedy="Restore the file, or move it away and mention that when you publish results.",
        ) from error
    return entries


def file_fingerprint(path: str | Path) -> str:
    """A hash of the bytes of a file, or of the files in a folder."""
    path = Path(path)
    if path == STANDARD_INPUT:
        return "standard input"
    files = sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]
    return file_sha256(*files)[:16]
