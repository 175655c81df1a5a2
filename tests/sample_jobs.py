"""Jobs for tests of runtime/jobs: a child process can import this module by its name."""

import atexit
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regraft.runtime.jobs import results
from regraft.runtime.progress import SILENT, Progress


@dataclass(frozen=True)
class Square:
    """A job that any process can do."""

    number: int

    def run(self, *, progress: Progress = SILENT) -> tuple[int, int]:
        progress.say(f"{self.number}")
        return self.number**2, os.getpid()


@dataclass(frozen=True)
class Blocked:
    """A job that says which signals its process does not hear."""

    def run(self, *, progress: Progress = SILENT) -> list[int]:
        return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


@dataclass(frozen=True)
class Killed:
    """A job during which the process dies."""

    def run(self, *, progress: Progress = SILENT) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Sleeping:
    """A job that writes down who does it, and would take an hour."""

    folder: Path

    def run(self, *, progress: Progress = SILENT) -> None:
        (self.folder / str(os.getpid())).touch()
        time.sleep(3_600)


@dataclass(frozen=True)
class SlowToEnd:
    """A job after which the process takes long to end."""

    seconds: ClassVar[float] = 120.0

    def run(self, *, progress: Progress = SILENT) -> int:
        atexit.register(time.sleep, self.seconds)
        return os.getpid()


@dataclass(frozen=True)
class Counting:
    """A job of two tasks that takes its time."""

    name: str

    def run(self, *, progress: Progress = SILENT) -> str:
        for task in range(2):
            progress.start("count", total=4)
            for number in range(4):
                time.sleep(0.25)
                progress.advance(note=f"{task}.{number}")
            progress.finish()
        return self.name


@dataclass(frozen=True)
class Where:
    """A job that returns its working directory."""

    def run(self, *, progress: Progress = SILENT) -> str:
        return os.getcwd()


def sleep_in_processes(folder: str) -> None:
    jobs = [Sleeping(Path(folder)) for _ in range(3)]
    list(
        results(jobs, num_jobs=2, num_threads=1, cluster=None, progress_of=lambda job: SILENT),
    )
