"""Kills commands at random moments, repeats them, and compares what they leave.

Commands run in forked children of one process that has imported everything, so that a kill costs
about as much as the work it interrupts. Each child leads a process group of its own.
"""

import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.folders import broken_files, content, different, litter
from chaos.scenarios import Scenario, Words, output_of, remove

# Kills in one folder before the command may run to its end.
MOST_KILLS = 4
_SECONDS_TO_NOTICE = 3.0


@dataclass
class Tally:
    """What has happened in one scenario."""

    name: str
    seconds: float = 0.0
    kills: int = 0
    endings: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Child:
    """A command in a process of its own."""

    pid: int
    log: Path

    def wait(self) -> int:
        """Its exit code; negative if it was killed."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self, *, group: bool) -> int:
        """SIGKILL; the exit code, which is 0 if it had ended before."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)
        return self.wait()


def start(words: Words, *, log: Path, temporary: Path, num_processes: int = 1) -> Child:
    """Start a command, with its own folder for temporary files."""
    temporary.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    pid = os.fork()
    if pid:
        return Child(pid, log)
    code = 70
    try:
        os.setsid()
        handle = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        os.environ["LOKY_MAX_CPU_COUNT"] = str(num_processes)
        sys.argv = ["regraft", *map(str, words)]
        from regraft.apps.cli import main

        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        log.with_suffix(".modules").write_text("\n".join(sys.modules))
        os._exit(code)


def import_as(child: Child) -> None:
    """Import what a child has imported, so that the next one need not."""
    for name in child.log.with_suffix(".modules").read_text().splitlines():
        if name not in sys.modules and not name.startswith("_"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


class KillLoop:
    """One scenario, as often as asked for."""

    def __init__(self, scenario: Scenario, folder: Path, *, source: random.Random) -> None:
        self._scenario, self._folder, self._source = scenario, folder, source
        self._temporary = folder / "tmp"
        self._cache = folder / "cache"
        self.tally = Tally(scenario.name)
        folder.mkdir(parents=True)
        os.environ["REGRAFT_CACHE"] = str(self._cache)
        self._expected = self._straight("first")
        began = time.monotonic()
        second = self._straight("second")
        self.tally.seconds = time.monotonic() - began
        if second != self._expected:
            self._blame(f"two runs differ: {different(self._expected, second)}")
        if not self._expected:
            raise AssertionError(f"{scenario.name} wrote nothing")

    def run(self, num_kills: int, *, until: float) -> None:
        """Kill until it has been killed that often, time is over, or something is wrong."""
        while self.tally.kills < num_kills and not self.tally.problems and time.monotonic() < until:
            out = self._folder / "killed" / "out"
            shutil.rmtree(out.parent, ignore_errors=True)
            shutil.rmtree(self._cache, ignore_errors=True)
            out.parent.mkdir(parents=True)
            for _ in range(min(MOST_KILLS, num_kills - self.tally.kills)):
                if not self._killed(out):
                    break
            self._finish(out)
            self._compare(out)
            self.tally.endings += 1

    def _straight(self, name: str) -> dict[str, Any]:
        out = self._folder / name / "out"
        import_as(self._finish(out))
        return content(output_of(self._scenario, out))

    def _start(self, out: Path) -> Child:
        result = output_of(self._scenario, out)
        if self._scenario.is_whole and result.is_dir():
            remove(result)  # it is complete, and would not be replaced
        os.environ["REGRAFT_CACHE"] = str(self._cache)
        return start(
            self._scenario.words(out),
            log=self._folder / "log.txt",
            temporary=self._temporary,
            num_processes=self._scenario.num_processes,
        )

    def _killed(self, out: Path) -> bool:
        """Start it and kill it somewhere; False if it was quicker."""
        child = self._start(out)
        time.sleep(self._source.uniform(0, self.tally.seconds))
        is_group = self._source.random() < 0.5
        code = child.kill(group=is_group)
        if code == 0:
            return False
        if code != -signal.SIGKILL:
            self._blame(f"exit code {code} before it was killed", child)
            return False
        self.tally.kills += 1
        if not is_group and self._scenario.num_processes > 1:
            time.sleep(_SECONDS_TO_NOTICE)  # until its workers have noticed
        broken = broken_files(out.parent)
        if broken:
            self._blame(f"half-written: {broken}")
        result = output_of(self._scenario, out)
        if self._scenario.is_whole and result.exists() and content(result) != self._expected:
            self._blame(f"{result.name} is neither absent nor whole")
        return True

    def _finish(self, out: Path) -> Child:
        child = self._start(out)
        code = child.wait()
        if code:
            self._blame(f"exit code {code} when it was repeated", child)
        return child

    def _compare(self, out: Path) -> None:
        if self.tally.problems:
            return
        found = content(output_of(self._scenario, out))
        if found != self._expected:
            self._blame(f"different: {different(found, self._expected)}")
        left = litter(out.parent, self._temporary, self._cache, self._cache / "archives")
        if left:
            self._blame(f"litter: {left[:5]}")

    def _blame(self, problem: str, child: Child | None = None) -> None:
        said = "" if child is None else child.log.read_text(errors="replace")[-2_000:]
        self.tally.problems.append(f"{problem} {said}".strip())


def shares(loops: Sequence[Tally], num_kills: int) -> list[int]:
    """Kills for each scenario: the quicker it is, the more, and at least a few."""
    weights = [1 / max(tally.seconds, 0.5) ** 0.5 for tally in loops]
    return [max(round(num_kills * weight / sum(weights)), 2) for weight in weights]
