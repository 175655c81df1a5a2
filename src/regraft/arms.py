"""The arms of a comparison: who takes part, what all are given, and what is kept of them on disk.

Comes in: names of arms, bases, labelled examples. Goes out: a `Task`, the same for all, and an
`ArmsFolder` in which each finished cell (an arm, a number of labels, a seed) outlives Ctrl-C, a
crash or a bad test file. Trains nothing (cells.py does); knows no test file.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from regraft.batches import ExampleRows, example_rows
from regraft.config import flat, settings_to_dict
from regraft.errors import ConfigError, RunFolderError
from regraft.finetune import Start, examples_fingerprint
from regraft.presets import ARMS, ARMS_OF_A_BASE, NETWORKS
from regraft.runtime import disk_error, write_json, write_whole
from regraft.text import Example, Labels, labels_of

# Settings that cannot change the weights of a run; seeds are told by the names of the files.
_MAY_CHANGE = {"train.seed", "train.checkpoint_every", "train.keep_checkpoints"}
# The name of the base that was given first.
FIRST = ""


@dataclass(frozen=True)
class Arm:
    """One arm: its name, the kind of it (a key of ARMS), and the base it is made with."""

    name: str
    kind: str
    base: str

    @property
    def is_neural(self) -> bool:
        """Is it trained by gradients, so that a seed decides its weights?"""
        return self.kind in NETWORKS


def parse_arms(names: Sequence[str], *, bases: Sequence[str]) -> tuple[Arm, ...]:
    """Arms by name, `KIND` or `KIND:BASE`; `bases` are the names of all but the first base."""
    arms = []
    for name in names:
        kind, colon, base = name.partition(":")
        is_known = kind in ARMS and (not colon or (kind in ARMS_OF_A_BASE and base in bases))
        if not is_known or names.count(name) > 1:
            break
        arms.append(Arm(name, kind, base))
    else:
        if arms:
            return tuple(arms)
    more = f" Of a base with a name: {', '.join(ARMS_OF_A_BASE)} with :NAME." if bases else ""
    raise ConfigError(
        f"Cannot compare the arms {', '.join(map(repr, names)) or 'none'}.",
        f"Arms are {', '.join(ARMS)}, each at most once.{more}",
        remedy="Mend --arms.",
    )


@dataclass(frozen=True)
class Cell:
    """One training: an arm, a number of labels, a seed."""

    arm: str
    num_labels: int
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}, {self.num_labels:,} labels, seed {self.seed}"


def plan_cells(
    arms: Sequence[Arm], *, sizes: Sequence[int], seeds: Sequence[int], num_train: int
) -> list[Cell]:
    """All cells, seed by seed and the cheapest first: soon there is something of every arm.

    A shallow arm knows no seed but that of its subset: of all labels there is one run.
    """
    return [
        Cell(arm.name, size, seed)
        for seed in seeds
        for size in sizes
        for arm in arms
        if arm.is_neural or size < num_train or seed == seeds[0]
    ]


@dataclass(frozen=True)
class Task:
    """What every arm is given: bases by name, labels, examples, and the examples as rows.

    `rows` holds train and valid for each base, for each has a tokenizer of its own.
    `text_paths` are files of text without labels, and `text` is their fingerprint.
    """

    starts: Mapping[str, Start]
    labels: Labels
    train: Sequence[Example]
    valid: Sequence[Example]
    rows: Mapping[str, tuple[ExampleRows, ExampleRows]]
    text_paths: tuple[Path, ...] = ()
    text: str = ""

    @property
    def start(self) -> Start:
        """The base that was given first: its settings read the files."""
        return self.starts[FIRST]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of all that the arms learn from."""
        bases = {
            f"base:{name}" if name else "base": start.fingerprint
            for name, start in self.starts.items()
        }
        return {
            "train": examples_fingerprint(self.train),
            "valid": examples_fingerprint(self.valid),
            "tokenizer": self.start.tokenizer.fingerprint,
            **bases,
            **({"unlabelled": self.text} if self.text_paths else {}),
        }


def build_task(
    starts: Mapping[str, Start],
    *,
    train: Sequence[Example],
    valid: Sequence[Example],
    text_paths: Sequence[Path] = (),
    text: str = "",
) -> Task:
    """The task of learning `train`, watched on `valid`."""
    labels = labels_of(train)
    rows = {}
    for name, start in starts.items():
        tokenizer, data = start.tokenizer, start.settings.data
        rows[name] = (
            example_rows(train, labels=labels, tokenizer=tokenizer, data=data),
            example_rows(valid, labels=labels, tokenizer=tokenizer, data=data),
        )
    return Task(starts, labels, train, valid, rows, tuple(text_paths), text)


@dataclass(frozen=True)
class TrainedCell:
    """A finished cell, ready for the test file.

    `seconds` is what it cost; `wall_seconds` also counts the watching. `chosen` is what was chosen
    for it on valid, where there was something to choose.
    """

    cell: Cell
    valid_accuracy: tuple[float, ...]
    seconds: float
    wall_seconds: float
    chosen: dict[str, Any]

    @property
    def kept_accuracy(self) -> float:
        """On valid, of the weights that are kept."""
        epoch: int = self.chosen.get("epoch", -1)
        return self.valid_accuracy[epoch]


class ArmsFolder:
    """Finished cells on disk: `ARM/LABELS-SEED.safetensors` or a folder, then `.json` as a sign."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.path = out_dir / "arms"

    @property
    def task_path(self) -> Path:
        """What the cells are trained on: here from the first moment, gone with the report."""
        return self.path / "task.json"

    @contextlib.contextmanager
    def opened(self, facts: Mapping[str, Any]) -> Iterator[None]:
        """Refuse finished cells of another task, and a second process; leave no empty folder.

        `facts` (see `task_facts`) are all that decides what a cell becomes.
        """
        is_new = not self.out_dir.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(self.path, error) from error
        # All within the lock: what another process is making is not ours to remove.
        with self._locked():
            try:
                if self.finished():
                    refuse_changes(self.out_dir, before=self._read_task(), now=facts)
                else:
                    self._discard_shared()
                write_json(self.task_path, facts)
                yield
            finally:
                if not self.finished():
                    self.discard()
                    with contextlib.suppress(OSError):  # not empty: it was the user's before
                        if is_new:
                            self.out_dir.rmdir()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock is the system's: it dies with its owner."""
        lock = FileLock(self.path / "lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise RunFolderError(
                f"Another process is working on the comparison in {self.out_dir}.",
                remedy="Wait for it, or choose another --out.",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def finished(self) -> dict[Cell, TrainedCell]:
        """The cells that need not be trained again."""
        found = {}
        for path in sorted(self.path.glob("*/*-*.json")):
            try:
                facts = json.loads(path.read_text(encoding="utf-8"))
                cell = Cell(**facts.pop("cell"))
                curve = tuple(facts.pop("valid_accuracy"))
                run = TrainedCell(cell=cell, valid_accuracy=curve, **facts)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
            if self.weights_path(cell).exists() or self.member_path(cell).is_dir():
                found[cell] = run
        return found

    def save_weights(self, cell: Cell, weights: bytes) -> None:
        """Keep the weights of a neural cell."""
        write_whole(self.weights_path(cell), lambda file: file.write(weights))

    def sign(self, run: TrainedCell) -> None:
        """Say that a cell is finished: what it became lies there already."""
        write_json(self._place(run.cell, ".json"), dataclasses.asdict(run))

    def weights_path(self, cell: Cell) -> Path:
        """Where the weights of a neural cell lie."""
        return self._place(cell, ".safetensors")

    def member_path(self, cell: Cell) -> Path:
        """The folder of a shallow cell's member."""
        return self._place(cell, "")

    def answers_path(self, cell: Cell, *, test: str) -> Path:
        """Where the answers of a cell to the test file of this fingerprint lie."""
        return self._place(cell, f".{test}.answers")

    def shared_path(self, arm: str) -> Path:
        """What all cells of an arm read: vectors of texts, a latent space."""
        return self.path / _file_name(arm) / "shared"

    def discard(self) -> None:
        """Remove what was kept: its report is written, or there is nothing worth keeping."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _discard_shared(self) -> None:
        """Vectors that a killed process left may be of other texts, or of another base."""
        for path in self.path.glob("*/shared"):
            shutil.rmtree(path, ignore_errors=True)

    def _place(self, cell: Cell, ending: str) -> Path:
        return self.path / _file_name(cell.arm) / f"{cell.num_labels}-{cell.seed}{ending}"

    def _read_task(self) -> dict[str, Any]:
        try:
            facts = json.loads(self.task_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            facts = {}
        return facts if isinstance(facts, dict) else {}


def _file_name(arm: str) -> str:
    """Windows knows no colon in the name of a file."""
    return arm.replace(":", "+")


def task_facts(task: Task, *, grid: str) -> dict[str, Any]:
    """What decides the weights of a cell, ready for JSON."""
    others = {name: settings_to_dict(start.settings) for name, start in task.starts.items() if name}
    return {
        "settings": settings_to_dict(task.start.settings),
        "more": {"grid": grid, **({"bases": others} if others else {})},
        "fingerprints": task.fingerprints,
    }


def refuse_changes(out_dir: Path, *, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings or data than `before`, naming what changed."""
    changed = []
    for section in ("settings", "more"):
        then, values = flat(before.get(section, {})), flat(now[section])
        changed += [
            f"{key} was {then.get(key)!r} and is {values.get(key)!r}"
            for key in {**values, **then}
            if key not in _MAY_CHANGE and then.get(key) != values.get(key)
        ]
    fingerprints = before.get("fingerprints", {})
    changed += [
        f"{name} has changed"
        for name in {**now["fingerprints"], **fingerprints}
        if fingerprints.get(name) != now["fingerprints"].get(name)
    ]
    if changed:
        raise RunFolderError(
            f"{out_dir} was started otherwise: {'; '.join(changed)}.",
            "A resumed comparison must equal one that was never interrupted.",
            remedy="Go on with the same settings and data, or choose another --out.",
        )
