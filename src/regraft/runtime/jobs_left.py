"""Time left of the jobs of a comparison, from estimates of their work and the times so far.

One bar stands for all jobs. The time left of a plain bar is computed in apps/cli/bars.py.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from regraft.runtime.progress import Progress

Key = Any

# Assumed speed of the machine until the first job ends.
GUESSED_FLOPS = 1e10
# A running job counts once this share of it is done; before, start-up dominates its time.
_LEAST_SHARE = 0.1
# Or once it has run for this long.
_LEAST_SECONDS = 15.0
# A bar that moves sooner than this is resumed: its share so far says nothing about the pace.
_SECONDS_AT_ONCE = 0.2


class Forecast:
    """Seconds left of jobs of several kinds, `num_jobs` of them at a time.

    `work` is an estimate in seconds. Each kind has a correction factor, learned from its jobs so
    far; a kind without any takes the mean factor of the others.
    """

    def __init__(
        self, work: Mapping[Key, float], *, kinds: Mapping[Key, str], num_jobs: int
    ) -> None:
        self._work, self._kinds, self._num_jobs = dict(work), dict(kinds), num_jobs
        self._taken: dict[Key, float] = {}
        self._begun: dict[Key, tuple[float, float]] = {}

    def end(self, key: Key, *, seconds: float) -> None:
        """A job has ended after so many seconds."""
        self._taken[key] = seconds
        self._begun.pop(key, None)

    def move(self, key: Key, *, share: float, seconds: float) -> None:
        """A share of a running job is done after so many seconds."""
        if key not in self._taken:
            self._begun[key] = share, seconds

    def left(self) -> float:
        """Approximate seconds until the last job ends."""
        factors = self._factors()
        mean_factor = (
            math.exp(sum(map(math.log, factors.values())) / len(factors)) if factors else 1.0
        )
        left = [
            work
            * factors.get(self._kinds[key], mean_factor)
            * (1 - self._begun.get(key, (0.0, 0))[0])
            for key, work in self._work.items()
            if key not in self._taken
        ]
        return max(sum(left) / self._num_jobs, max(left, default=0.0))

    def _factors(self) -> dict[str, float]:
        """Time taken over estimated work, for each kind."""
        taken: dict[str, float] = {}
        estimated: dict[str, float] = {}
        measured = {key: (1.0, seconds) for key, seconds in self._taken.items()}
        measured |= {
            key: (share, seconds)
            for key, (share, seconds) in self._begun.items()
            if share >= _LEAST_SHARE or (share > 0 and seconds >= _LEAST_SECONDS)
        }
        for key, (share, seconds) in measured.items():
            kind = self._kinds[key]
            taken[kind] = taken.get(kind, 0.0) + seconds
            estimated[kind] = estimated.get(kind, 0.0) + share * self._work[key]
        tiny = 1e-6
        return {kind: max(taken[kind], tiny) / max(estimated[kind], tiny) for kind in taken}


class Forecasting:
    """One progress bar for many jobs, which shows the forecast's time left.

    Thread-safe, because jobs in other processes report through a thread.
    """

    def __init__(
        self, progress: Progress, forecast: Forecast, *, clock: Callable[[], float] = time.monotonic
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
        """Move the bar so that its own estimate of the time left equals the forecast."""
        elapsed, left = self._clock() - self._start, self._forecast.left()
        share = elapsed / (elapsed + left) if elapsed >= _SECONDS_AT_ONCE else 0.0
        self._progress.advance(share - self._shown, note=note)
        self._shown = share

    def of(self, key: Key, *, name: str, num_tasks: int = 1) -> Progress:
        """A Progress for one job that has `num_tasks` tasks of equal length."""
        return _Within(self, self._progress, key, name=name, num_tasks=num_tasks, clock=self._clock)

    def finish(self) -> None:
        """Close the bar."""
        self._progress.finish()


class _Within:
    """The Progress of one job, which moves the common bar."""

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
        if not self._num_started:  # imports and other start-up do not count
            self._start = self._clock()
        self._total, self._done = total, 0.0
        self._num_started += 1

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self._done += amount
        if self._total:
            num_done = self._num_started - 1 + min(self._done / self._total, 1.0)
            share, seconds = min(num_done / self._num_tasks, 1.0), self._clock() - self._start
            note = f"{self._name}: {note}" if note else self._name
            self._bar.move(self._key, share=share, seconds=seconds, note=note)

    def finish(self) -> None: ...
