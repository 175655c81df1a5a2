"""The sealed test file: opened by one function, once every choice is frozen, and written down.

Comes in: the path of a test file. Goes out: its examples, and every opening of that file which the
ledger beside the run knows of; which of its texts were seen before, and whether a run was trained
on the very file. Knows no model.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from regraft.config import DataSettings
from regraft.errors import RegraftError, RunFolderError
from regraft.evidence import Opening
from regraft.finetune import VALID_SHARE, examples_fingerprint
from regraft.runfolder import read_info, read_settings
from regraft.runtime import SILENT, Progress, write_json
from regraft.text import (
    Document,
    Example,
    find_leaks,
    load_examples,
    normalised,
    read_documents,
    split_examples,
)
from regraft.text.lines import STANDARD_INPUT

LEDGER_NAME = "openings.json"
# Test texts that were in the text without labels are left out while so many others decide: with
# fewer, an accuracy is known to within 18 points at best, and less than a tenth is no fair sample
# of the file. A file of fewer than twice as many must keep half of what it has.
FEWEST_DECIDING = 30
SMALLEST_DECIDING_SHARE = 0.1
# Documents of running text that are held in memory at a time.
_CHUNK = 20_000


@dataclass(frozen=True)
class Opened:
    """A test file after its seal was broken, and all openings of it so far, this one last."""

    examples: list[Example]
    fingerprint: str
    openings: tuple[Opening, ...]


@dataclass(frozen=True)
class Seen:
    """Which texts were seen before they should be. N test texts, V of valid.

    `labelled_N` are also in train or valid and `text_N` in the text without labels, exactly or
    nearly; None where there was none to search. `repeat_N` stand earlier in the test file.
    `valid_V` are also in train.
    """

    texts: tuple[str, ...]
    labelled_N: NDArray[np.bool_]
    text_N: NDArray[np.bool_] | None
    repeat_N: NDArray[np.bool_]
    valid_V: NDArray[np.bool_]

    @property
    def clean_N(self) -> NDArray[np.bool_]:  # noqa: N802
        """Seen nowhere before, each text once; if too few are left, those in the text pass."""
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
        """Test texts seen nowhere before, each once, whether they are enough to decide or not."""
        in_text_N = np.zeros_like(self.labelled_N) if self.text_N is None else self.text_N
        return int((~(self.labelled_N | self.repeat_N | in_text_N)).sum())

    @property
    def num_read_deciding(self) -> int:
        """Test texts that decide although they were in the text: too few others are left."""
        return 0 if self.text_N is None else int((self.clean_N & self.text_N).sum())


def sealed_texts(path: str | Path, *, data: DataSettings) -> list[Document]:
    """The texts of a test file that can be read twice, without their labels; of others none."""
    return [] if Path(path) == STANDARD_INPUT else list(read_documents([path], data=data))


def find_seen(
    test: Sequence[Example | Document],
    *,
    train: Sequence[Example],
    valid: Sequence[Example],
    documents: Iterable[Document] | None,
    progress: Progress = SILENT,
) -> Seen:
    """Search train, valid and text for test texts, and train for those of valid. Asks no label."""
    num_valid = len(valid)
    in_train = leaked([*valid, *test], train, progress=progress)
    keys = [normalised(record.text) for record in test]
    firsts = {key: place for place, key in reversed(list(enumerate(keys)))}
    return Seen(
        texts=tuple(record.text for record in test),
        labelled_N=in_train[num_valid:] | leaked(test, valid, progress=progress),
        text_N=None if documents is None else leaked(test, documents, progress=progress),
        repeat_N=np.array([firsts[key] != place for place, key in enumerate(keys)], dtype=np.bool_),
        valid_V=in_train[:num_valid],
    )


def open_sealed(
    path: str | Path,
    *,
    data: DataSettings,
    choices: str,
    command: str,
    ledger_path: Path | None,
) -> Opened:
    """Read the test file, and write down that it was read.

    `choices` is a hash of all that was chosen before. Who reads it again for the same choices, as
    an interrupted comparison does that goes on, learns nothing new: that is one opening.
    """
    examples = load_examples(path, data=data)
    opening = Opening(
        test=str(path),
        fingerprint=examples_fingerprint(examples),
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command,
    )
    if ledger_path is None:
        return Opened(examples, opening.fingerprint, (opening,))
    return Opened(examples, opening.fingerprint, _write_down(opening, choices, ledger_path))


def note_opening(
    path: str | Path, *, data: DataSettings, choices: str, command: str, ledger_path: Path
) -> None:
    """Write down that somebody looked at the labels of a file, where a ledger can be written.

    Whoever scores a finished classifier does not fail for want of a ledger.
    """
    if Path(path) != STANDARD_INPUT:
        with contextlib.suppress(OSError, RegraftError):
            open_sealed(path, data=data, choices=choices, command=command, ledger_path=ledger_path)


def _write_down(opening: Opening, choices: str, ledger_path: Path) -> tuple[Opening, ...]:
    """All openings of this file that the ledger knows, this one among them."""
    ledger_path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(ledger_path.with_suffix(".lock")):
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
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("it holds no list of openings")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}.",
            "It says how often test files were opened.",
            remedy="Restore the file, or move it away and say so in what you publish.",
        ) from error
    return entries


def file_fingerprint(path: str | Path) -> str:
    """A hash of a file's bytes, or of a folder's files: no label is looked at."""
    path = Path(path)
    if path == STANDARD_INPUT:
        return "standard input"
    files = sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def part_in_training(
    run_dir: Path, path: str | Path, *, data: DataSettings
) -> Literal["train", "valid"] | None:
    """What a labelled file was when a run was trained, as far as run.json tells: None if nothing.

    Hashes of the examples in order are all that a run keeps: a part of its file, or the file in
    another order, is not known again.
    """
    known = read_info(run_dir).fingerprints
    if Path(path) == STANDARD_INPUT:  # can be read once only
        return None
    examples = load_examples(path, data=data)
    # Where no valid was given, the run knows the file without what was held out.
    seed = read_settings(run_dir).train.seed
    rest, _ = split_examples(examples, share=VALID_SHARE, seed=seed)
    if known.get("train") in [examples_fingerprint(part) for part in (examples, rest)]:
        return "train"
    return "valid" if known.get("valid") == examples_fingerprint(examples) else None


def leaked(
    test: Sequence[Example | Document],
    seen: Iterable[Example | Document],
    *,
    progress: Progress = SILENT,
) -> NDArray[np.bool_]:
    """Which test texts are also, exactly or nearly, among those seen; these may be many."""
    found: set[tuple[str, int]] = set()
    for chunk in _chunks(seen):
        leaks = find_leaks([chunk, test], progress=progress)
        found |= {(leak.source, leak.row) for leak in leaks}
    return np.array([(example.source, example.row) in found for example in test], dtype=np.bool_)


def _chunks(items: Iterable[Example | Document]) -> Iterator[list[Example | Document]]:
    rest = iter(items)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        yield chunk
