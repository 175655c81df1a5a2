"""How long will it take? The time left of a comparison, from what its first runs took.

Comes in: the work of every job, roughly, and the seconds of those that have ended. Goes out: the
seconds left, and a Progress that shows them for the whole. Knows no model and no clock of its own.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from regraft.runtime import Progress

Key = Any

# What is guessed of the machine until the first job ends.
GUESSED_FLOPS = 1e10
# Of less than this share of a job, the time it takes tells more about its beginning than its pace.
_TELLING_SHARE = 0.1
# Unless it has gone on for so long: of an hour's job the first minute tells, too.
_TELLING_SECONDS = 15.0
# A bar that moves sooner than this is thought to be resumed, and reckons from where it then stands.
_SECONDS_AT_ONCE = 0.2


class Forecast:
    """Seconds left of jobs of several kinds, several at a time.

    Work is guessed in seconds. How wrong the guess is, is learned for every kind from its jobs that
    have ended; a kind of which none has ended is thought to be as wrong as the others.
    """

    def __init__(
        self, work: Mapping[Key, float], *, kinds: Mapping[Key, str], num_jobs: int
    ) -> None:
        self._work, self._kinds, self._num_jobs = dict(work), dict(kinds), num_jobs
        self._taken: dict[Key, float] = {}
        self._begun: dict[Key, tuple[float, float]] = {}

    def end(self, key: Key, *, seconds: float) -> None:
        """A job has ended, and took so long."""
        self._taken[key] = seconds
        self._begun.pop(key, None)

    def move(self, key: Key, *, share: float, seconds: float) -> None:
        """A share of a job is done, and took so long. What has ended is not moved any more."""
        if key not in self._taken:
            self._begun[key] = share, seconds

    @property
    def num_ended(self) -> int:
        """How many jobs have ended."""
        return len(self._taken)

    def left(self) -> float:
        """Seconds until the last job ends, about."""
        factors = self._factors()
        others = math.exp(sum(map(math.log, factors.values())) / len(factors)) if factors else 1.0
        left = [
            work * factors.get(self._kinds[key], others) * (1 - self._begun.get(key, (0.0, 0))[0])
            for key, work in self._work.items()
            if key not in self._taken
        ]
        return max(sum(left) / self._num_jobs, max(left, default=0.0))

    def _factors(self) -> dict[str, float]:
        """How many times its guess a kind takes."""
        taken: dict[str, float] = {}
        guessed: dict[str, float] = {}
        told = {key: (1.0, seconds) for key, seconds in self._taken.items()}
        told |= {
            key: (share, seconds)
            for key, (share, seconds) in self._begun.items()
            if share >= _TELLING_SHARE or (share > 0 and seconds >= _TELLING_SECONDS)
        }
        for key, (share, seconds) in told.items():
            kind = self._kinds[key]
            taken[kind] = taken.get(kind, 0.0) + seconds
            guessed[kind] = guessed.get(kind, 0.0) + share * self._work[key]
        tiny = 1e-6
        return {kind: max(taken[kind], tiny) / max(guessed[kind], tiny) for kind in taken}


class Forecasting:
    """A bar for many jobs whose time left is the forecast's, whatever its own pace says.

    Jobs in other processes are heard in another thread: one at a time moves it.
    """

    def __init__(
        self,
        progress: Progress,
        forecast: Forecast,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._forecast, self._clock = progress, forecast, clock
        self._start = clock()
        self._shown = 0.0
        self._lock = threading.Lock()

    def start(self, name: str) -> None:
        """Open the bar."""
        self._start, self._shown = self._clock(), 0.0
        self._progress.start(name, total=1.0)

    def end(self, key: Key, *, seconds: float, note: str) -> None:
        """A job has ended."""
        with self._lock:
            self._forecast.end(key, seconds=seconds)
            self._show(note)

    def move(self, key: Key, *, share: float, seconds: float, note: str) -> None:
        """A share of a job is done, and took so long."""
        with self._lock:
            self._forecast.move(key, share=share, seconds=seconds)
            self._show(note)

    def _show(self, note: str) -> None:
        """Move the bar to where its own reckoning of time left gives the forecast."""
        gone, left = self._clock() - self._start, self._forecast.left()
        share = gone / (gone + left) if gone >= _SECONDS_AT_ONCE else 0.0
        self._progress.advance(share - self._shown, note=note)
        self._shown = share

    def of(self, key: Key, *, name: str, num_tasks: int = 1) -> Progress:
        """A Progress for one job, which is so many tasks of equal length."""
        return _Within(
            self,
            self._progress,
            key,
            name=name,
            num_tasks=num_tasks,
            clock=self._clock,
        )

    def finish(self) -> None:
        """Close the bar."""
        self._progress.finish()


class _Within:
    """What a job reports moves the bar of the whole."""

    def __init__(
        self,
        bar: Forecasting,
        progress: Progress,
        key: Key,
        *,
        name: str,
        num_tasks: int,
        clock: Callable[[], float],
    ) -> None:
        self._num_tasks, self._num_started = num_tasks, 0
        self._bar, self._key, self._name = bar, key, name
        self._clock, self._start = clock, 0.0
        self._total: float | None = None
        self._done = 0.0
        self.say = progress.say

    def start(self, name: str, *, total: float | None) -> None:
        if not self._num_started:  # what came before, imports for one, is not its pace
            self._start = self._clock()
        self._total, self._done = total, 0.0
        self._num_started += 1

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self._done += amount
        if self._total:
            num_done = self._num_started - 1 + min(self._done / self._total, 1.0)
            share, seconds = min(num_done / self._num_tasks, 1.0), self._clock() - self._start
            told = f"{self._name}: {note}" if note else self._name
            self._bar.move(self._key, share=share, seconds=seconds, note=told)

    def finish(self) -> None: ...
