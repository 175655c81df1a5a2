"""Every JSON value of a run folder in turn is replaced by hostile ones.

Once as a careless hand does it, which the checksums find; once by someone who computes new
checksums, where only what the parts mean is left to check.
"""

import json
import resource
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tampering import accept_files

from regraft.classifiers.base import load_classifier
from regraft.errors import RegraftError
from regraft.runtime.manifest import with_checksum

# Of address space: what asks for more than this breaks something.
_MOST_BYTES = 6 << 30
HOSTILE: tuple[Any, ...] = (None, True, -1, 0, 10**9, 1e308, "", "../../etc", [], {}, [[[[]]]])
TEXTS = ["A fine book.", "No."]


@dataclass
class Outcomes:
    """Changes of one run folder; `changed`: other answers, but valid ones."""

    name: str
    has_new_checksums: bool
    refused: int = 0
    harmless: int = 0
    changed: int = 0
    crashed: int = 0
    # Which changes gave other answers, and which broke something.
    changes: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return self.refused + self.harmless + self.changed + self.crashed

    def add(self, outcome: str, *, change: str) -> None:
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome == "changed":
            self.changes.append(change)
        elif outcome == "crashed":
            self.crashes.append(change)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a JSON value; of a long list, to its first two parts."""
    if path:
        yield path
    parts = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        parts = list(enumerate(value))[:2]
    for key, part in parts:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def json_files(folder: Path) -> list[Path]:
    """Those that loading reads, without the long list of words."""
    listed = json.loads((folder / "run.json").read_text())["files"]
    names = ["run.json", *(name for name in listed if name.endswith(".json"))]
    return [folder / name for name in names if "vocabulary" not in name]


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def outcome(folder: Path, before: np.ndarray) -> str:
    """Refused, harmless (the same answers), changed (other, valid answers), or crashed."""
    try:
        probabilities = load_classifier(folder).predict_proba(TEXTS)
    except RegraftError as error:
        cause = error.__cause__
        is_late = isinstance(cause, MemoryError) or "allocate memory" in str(cause)
        return "crashed" if is_late else "refused"
    except KeyboardInterrupt:
        raise
    except BaseException:  # a panic of a library in Rust is no Exception
        return "crashed"
    if not np.isfinite(probabilities).all() or not np.allclose(probabilities.sum(axis=1), 1):
        return "crashed"
    is_same = probabilities.shape == before.shape and np.allclose(probabilities, before, atol=1e-9)
    return "harmless" if is_same else "changed"


def mutate(source: Path, folder: Path, *, with_new_checksums: bool, every: int = 1) -> Outcomes:
    """Replace every value (or one in `every`) by each hostile one, and count what comes of it."""
    before = load_classifier(source).predict_proba(TEXTS)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, limits[1]))
    counts = Outcomes(source.name, with_new_checksums)
    number = 0
    shutil.copytree(source, folder)
    for path in json_files(folder):
        text = path.read_text()
        listing = (folder / "run.json").read_text()
        value = json.loads(text)
        for place in places(value):
            for new in HOSTILE:
                number += 1
                changed = replaced(value, place, new)
                if number % every or same(changed, value):
                    continue
                if with_new_checksums and "checksum" in value:
                    changed = with_checksum(changed)
                path.write_text(json.dumps(changed))
                if with_new_checksums and path.name != "run.json":
                    accept_files(folder)
                change = f"{path.relative_to(folder)} {place} = {new!r}"
                counts.add(outcome(folder, before), change=change)
                (folder / "run.json").write_text(listing)
        path.write_text(text)
        (folder / "run.json").write_text(listing)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    return counts


def mutation_table(found: Sequence[Outcomes]) -> str:
    lines = [
        "| run folder | new checksums | tried | refused | harmless | other answers | crashed |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {'yes' if one.has_new_checksums else 'no'} | {one.tried:,} | "
        f"{one.refused:,} | {one.harmless:,} | {one.changed:,} | {one.crashed} |"
        for one in found
    ]
    return "\n".join(lines)
