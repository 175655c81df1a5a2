"""The sealed test file: opened by one function, once every choice is frozen, and written down.

Comes in: the path of a test file. Goes out: its examples, and every opening of that file which the
ledger beside the run knows of; whether a run was trained on the very file. Knows no model.
"""

import contextlib
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from regraft.config import DataSettings
from regraft.errors import RegraftError, RunFolderError
from regraft.evidence import Opening
from regraft.finetune import VALID_SHARE, examples_fingerprint
from regraft.runfolder import read_info, read_settings
from regraft.runtime import write_json
from regraft.text import (
    Document,
    Example,
    load_examples,
    read_documents,
    split_examples,
)
from regraft.text.lines import STANDARD_INPUT

LEDGER_NAME = "openings.json"
# A ledger is written in milliseconds: who holds it longer is stuck. A finished classifier's score
# waits for nobody; a comparison must count all openings, and does.
SECONDS_TO_NOTE = 5.0
_WITHOUT_END = -1.0  # filelock's word for it


@dataclass(frozen=True)
class Opened:
    """A test file after its seal was broken, and all openings of it so far, this one last."""

    examples: list[Example]
    fingerprint: str
    openings: tuple[Opening, ...]


def sealed_texts(path: str | Path, *, data: DataSettings) -> list[Document]:
    """The texts of a test file that can be read twice, without their labels; of others none."""
    return [] if Path(path) == STANDARD_INPUT else list(read_documents([path], data=data))


def open_sealed(
    path: str | Path,
    *,
    data: DataSettings,
    choices: str,
    command: str,
    ledger_path: Path | None,
    seconds: float = _WITHOUT_END,
) -> Opened:
    """Read the test file, and write down that it was read.

    `choices` is a hash of all that was chosen before. Who reads it again for the same choices, as
    an interrupted comparison does that goes on, learns nothing new: that is one opening. Waits so
    many seconds for a ledger that another command holds.
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
    return Opened(
        examples, opening.fingerprint, _write_down(opening, choices, ledger_path, seconds=seconds)
    )


def note_opening(
    path: str | Path, *, data: DataSettings, choices: str, command: str, ledger_path: Path
) -> None:
    """Write down that somebody looked at the labels of a file, where a ledger can be written.

    Whoever scores a finished classifier does not fail for want of a ledger, nor wait long for one:
    a lock that stays held is an OSError, too.
    """
    if Path(path) != STANDARD_INPUT:
        with contextlib.suppress(OSError, RegraftError):
            open_sealed(
                path,
                data=data,
                choices=choices,
                command=command,
                ledger_path=ledger_path,
                seconds=SECONDS_TO_NOTE,
            )


def _write_down(
    opening: Opening, choices: str, ledger_path: Path, *, seconds: float
) -> tuple[Opening, ...]:
    """All openings of this file that the ledger knows, this one among them."""
    ledger_path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(ledger_path.with_suffix(".lock"), timeout=seconds):
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
