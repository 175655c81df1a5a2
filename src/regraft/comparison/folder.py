"""The folder of a comparison in progress: finished runs survive Ctrl-C, a crash or a bad test file.

Knows where files are, not what they mean; removed when the report is written.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from regraft.comparison.plan import Cell, Setup
from regraft.config import settings_to_dict
from regraft.errors import RunFolderError
from regraft.runtime import disk_error, hold_lock, is_held, read_object, write_json, write_whole
from regraft.training import refuse_changes


@dataclass(frozen=True)
class TrainedCell:
    """A finished run, ready for the test file.

    `seconds` is the training time; `wall_seconds` includes the evaluations on valid. `chosen` are
    the hyperparameters chosen on valid, if any.
    """

    cell: Cell
    valid_accuracy: tuple[float, ...]
    seconds: float
    wall_seconds: float
    chosen: dict[str, Any]

    @property
    def kept_accuracy(self) -> float:
        """Accuracy on valid of the weights that were kept."""
        epoch: int = self.chosen.get("epoch", -1)
        return self.valid_accuracy[epoch]


class ArmsFolder:
    """Finished runs on disk: the model in `ARM/LABELS-SEED/`, then `ARM/LABELS-SEED.json`."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.path = out_dir / "arms"

    @property
    def setup_path(self) -> Path:
        """The file with everything that the runs depend on."""
        return self.path / "setup.json"

    @contextlib.contextmanager
    def opened(self, facts: Mapping[str, Any]) -> Iterator[None]:
        """Refuse runs of another setup and a second process; leave no empty folder behind.

        `facts` (see `setup_facts`) are everything that a run depends on.
        """
        is_new = not self.out_dir.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(self.path, error) from error
        # Within the lock: files of another process must not be removed.
        with self._locked():
            try:
                if self.finished():
                    refuse_other_setup(self.out_dir, before=self._read_setup(), now=facts)
                else:
                    self._discard_shared()
                write_json(self.setup_path, facts)
                yield
            finally:
                if not self.finished():
                    self.discard()
                    with contextlib.suppress(OSError):  # not empty: it has files of the user
                        if is_new:
                            self.out_dir.rmdir()

    @property
    def is_running(self) -> bool:
        """Does a process of this machine work on it?"""
        return is_held(self.path / "lock")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        busy = RunFolderError(
            f"Another process is working on the comparison in {self.out_dir}.",
            remedy="Wait for it, or choose another --out.",
        )
        with hold_lock(self.path / "lock", busy=busy):
            yield

    def finished(self) -> dict[Cell, TrainedCell]:
        """The runs that need no training."""
        runs = {}
        for path in sorted(self.path.glob("*/*-*.json")):
            try:
                facts = read_object(path)
                cell = Cell(**facts.pop("cell"))
                curve = tuple(facts.pop("valid_accuracy"))
                run = TrainedCell(cell=cell, valid_accuracy=curve, **facts)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if self.model_dir(cell).is_dir():
                runs[cell] = run
        return runs

    def mark_finished(self, run: TrainedCell) -> None:
        """Record a run whose model is saved."""
        write_json(self._place(run.cell, ".json"), dataclasses.asdict(run))

    def model_dir(self, cell: Cell) -> Path:
        """The folder of the model of a run."""
        return self._place(cell, "")

    def shared_dir(self, arm: str) -> Path:
        """The folder for what all runs of an arm share: vectors of texts, a latent space."""
        return self.path / _file_name(arm) / "shared"

    def save_answers(self, cell: Cell, answers: Mapping[str, NDArray[Any]], *, test: str) -> None:
        """Keep the probabilities for `valid` and for the test file with this fingerprint."""
        data = save({name: np.ascontiguousarray(each) for name, each in answers.items()})
        write_whole(self._place(cell, f".{test}.answers"), lambda file: file.write(data))

    def load_answers(self, cell: Cell, *, test: str) -> dict[str, NDArray[Any]] | None:
        """What `save_answers` kept, or None."""
        try:
            arrays = load_file(self._place(cell, f".{test}.answers"))
            return {name: arrays[name] for name in ("valid", "test")}
        except (OSError, KeyError, SafetensorError):
            return None

    def discard(self) -> None:
        """Remove everything: the report is written, or no run has finished."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _discard_shared(self) -> None:
        """Vectors left by a killed process may be of other texts, or of another base."""
        for path in self.path.glob("*/shared"):
            shutil.rmtree(path, ignore_errors=True)

    def _place(self, cell: Cell, ending: str) -> Path:
        return self.path / _file_name(cell.arm) / f"{cell.num_labels}-{cell.seed}{ending}"

    def _read_setup(self) -> dict[str, Any]:
        try:
            return read_object(self.setup_path)
        except (OSError, ValueError):
            return {}


def _file_name(arm: str) -> str:
    """Windows forbids colons in file names."""
    return arm.replace(":", "+")


def setup_facts(setup: Setup) -> dict[str, Any]:
    """Everything that the weights of a run depend on, ready for JSON."""
    others = {
        name: settings_to_dict(start.settings) for name, start in setup.starts.items() if name
    }
    return {
        "settings": settings_to_dict(setup.start.settings),
        "more": {
            "grid": setup.grid,
            "fit_minutes": setup.fit_minutes,
            **({"bases": others} if others else {}),
        },
        "fingerprints": setup.fingerprints,
    }


def refuse_other_setup(out_dir: Path, *, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue with other settings or data than `before`; the seed is in file names."""
    then, wanted = ({**part.get("settings", {}), **part.get("more", {})} for part in (before, now))
    refuse_changes(
        out_dir,
        settings=(then, wanted),
        fingerprints=(before.get("fingerprints", {}), now["fingerprints"]),
        may_change=["train.seed"],
    )
