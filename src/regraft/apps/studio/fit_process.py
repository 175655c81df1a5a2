"""Training on the labels of a session: `regraft fit` in a child process, one at a time.

The first training is a fit, each later one adds the new labels to the run before (`fit --update`).
Nothing is kept here: a studio that starts again finds the runs of its labels in their folders.
"""

import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regraft.apps.serve.limits import RefusedError
from regraft.classifiers import FEWEST_LABELS, FitResult, expected_gain, read_finished
from regraft.errors import RegraftError
from regraft.report import interval_in_words, points_in_words
from regraft.runtime import in_points
from regraft.training import is_running, read_info

# The time budget of the first training; later ones keep its bases and take seconds.
TRAINING_MINUTES = 5.0
# The newest trainings are listed.
MOST_LISTED = 8
# What the forecast is made for: about five minutes of labelling.
NUM_MORE = 20
# Less than this is hardly worth them.
_LITTLE_GAIN = 0.002
_MOST_CHARACTERS = 300
# A child that does not end when it is asked to is killed.
_SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class Trainer:
    """How the labels in a file are trained on: `flags` are the options of a first fit.

    `first_run` is a fitted classifier that the first training updates, if there is one.
    """

    folder: Path
    labels_path: Path
    flags: Sequence[str]
    column_flags: Sequence[str] = ()
    minutes: float = TRAINING_MINUTES
    first_run: Path | None = None

    def words(self) -> list[str]:
        """The next command."""
        out = str(self._free_folder())
        train = ["--train", str(self.labels_path), *self.column_flags]
        earlier = next((run_dir for run_dir, _ in self.runs()), self.first_run)
        if earlier is not None:
            return ["fit", "--update", str(earlier), *train, "--out", out]
        return ["fit", *self.flags, *train, "--minutes", f"{self.minutes:g}", "--out", out]

    def runs(self) -> list[tuple[Path, FitResult]]:
        """The finished trainings on these labels, the newest first."""
        found = []
        for run_dir in self._folders():
            with contextlib.suppress(RegraftError, OSError, KeyError, TypeError, ValueError):
                if (result := read_finished(run_dir)) is not None:
                    found.append((run_dir, result))
        return [run for run in found if self._has_trained(run[1])]

    def is_interrupted(self) -> bool:
        """Did the newest training end before it was finished?"""
        newest = next(iter(self._folders()), None)
        if newest is None or is_running(newest):
            return False
        try:
            return read_info(newest).status == "training"
        except (RegraftError, OSError):
            return False

    @property
    def _stem(self) -> str:
        return self.labels_path.stem.removesuffix("-labels")

    def _folders(self) -> list[Path]:
        """The folders named by the labels, the highest number first."""
        found = {}
        for path in self.folder.glob("*/run.json"):
            stem, _, number = path.parent.name.rpartition("-")
            if stem == self._stem and number.isdecimal():
                found[int(number)] = path.parent
        return [found[number] for number in sorted(found, reverse=True)]

    def _free_folder(self) -> Path:
        number = 1
        while (path := self.folder / f"{self._stem}-{number}").exists():
            number += 1
        return path

    def _has_trained(self, result: FitResult) -> bool:
        ours = os.path.realpath(self.labels_path)
        return any(os.path.realpath(path) == ours for path in result.files.get("train", ()))


class Training:
    """The child process that trains, and what the page shows of it."""

    def __init__(self, trainer: Trainer, *, on_run: Callable[[Path], None]) -> None:
        """`on_run` receives the folder of every finished training, in its own thread."""
        self._trainer, self._on_run = trainer, on_run
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._status: Literal["", "running", "stopping", "stopped", "failed", "interrupted"] = ""
        self._line = ""
        self._began = 0.0
        # Read again when a training has ended, not with every request.
        self._runs: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._command = ""

    def begin(self) -> None:
        """Find the runs of earlier sessions."""
        self._look()
        if self._trainer.is_interrupted():
            self._status = "interrupted"
        newest = next((run_dir for run_dir, _ in self._trainer.runs()), self._trainer.first_run)
        if newest is not None:
            self._thread = threading.Thread(target=self._on_run, args=(newest,), daemon=True)
            self._thread.start()

    def start(self, *, num_labels: int, num_classes: int) -> None:
        """Train on all labels there are; 409 while a training is running."""
        if num_labels < FEWEST_LABELS or num_classes < 2:
            raise RefusedError(
                409,
                f"There are {num_labels:,} labels of {num_classes} classes.",
                f"A training needs {FEWEST_LABELS} labels of two classes.",
                remedy="Label some more texts.",
            )
        with self._lock:
            if self._child is not None:
                raise RefusedError(
                    409, "A training is running.", remedy="Wait for it to end, or stop it."
                )
            words = self._trainer.words()
            self._status, self._line, self._began = "running", "Starting.", time.monotonic()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "regraft.apps.studio.child", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # Its workers end with it, and Ctrl-C is for the studio.
                start_new_session=True,
            )
            self._thread = threading.Thread(
                target=self._follow, args=(self._child, Path(words[-1])), daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Ask the child to end, and kill it if it does not."""
        with self._lock:
            child = self._child
            if child is None:
                return
            self._status = "stopping"
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS_TO_STOP)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def close(self) -> None:
        """No training outlives the studio."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def state(self) -> dict[str, Any]:
        """What the page shows."""
        with self._lock:
            is_running = self._child is not None
            return {
                "status": self._status,
                "line": self._line,
                "seconds": time.monotonic() - self._began if is_running else 0.0,
                "runs": self._runs,
                "notes": self._notes,
                "command": self._command,
            }

    def _follow(self, child: "subprocess.Popen[str]", run_dir: Path) -> None:
        """The work of the thread: read what the child says until it ends."""
        assert child.stderr is not None
        with child.stderr:
            for line in child.stderr:
                if line.strip():
                    self._line = line.strip()[-_MOST_CHARACTERS:]
        code = child.wait()
        if code == 0:
            self._line = "Reading all texts with the new classifier."
            self._on_run(run_dir)
        self._look()
        with self._lock:
            was_stopped = self._status == "stopping"
            self._child = None
            self._status = "" if code == 0 else "stopped" if was_stopped else "failed"

    def _look(self) -> None:
        runs = self._trainer.runs()
        rows = [
            {
                "name": run_dir.name,
                "num_labels": result.num_train,
                "score": interval_in_words(result.scores["blend"].accuracy),
            }
            for run_dir, result in runs[:MOST_LISTED]
        ]
        command = shlex.join(["regraft", *self._trainer.words()])
        notes = score_notes(runs[0][1]) if runs else []
        with self._lock:
            self._runs, self._notes, self._command = rows, notes, command


def score_notes(result: FitResult) -> list[str]:
    """What the newest training changed, and what more labels would."""
    notes = []
    change = next(iter(result.update.changes if result.update else ()), None)
    if change is not None:
        notes.append(
            f"On the same {change.num_texts:,} texts: {points_in_words(change.difference)} points "
            "since the training before."
        )
    gain = expected_gain(result.label_curve, num_more=NUM_MORE)
    if gain is None:
        return [*notes, "There are too few labels to forecast what more would add."]
    notes.append(f"{NUM_MORE} more labels: {in_points(gain)} points expected.")
    if gain < _LITTLE_GAIN and math.isfinite(gain):
        notes.append("That is little: this may be the time to stop.")
    return notes
