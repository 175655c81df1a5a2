"""How long-running functions report progress; the library is silent unless it is passed one."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from regraft.runtime.quantities import duration, in_percent

SECONDS_BETWEEN_LINES = 10.0
# Work reported within this time of the start was done earlier: the run is resumed.
SECONDS_AT_ONCE = 0.1


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of a recipe. One task is open at a time."""

    def start(self, name: str, *, total: float | None) -> None:
        """Open a task; `total` has the unit of `advance`, None if unknown."""

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        """Advance the open task; `note` replaces the text after the bar."""

    def finish(self) -> None:
        """Close the open task."""

    def say(self, message: str) -> None:
        """Show one line that stays after the bar is gone."""


class Silent:
    """The default Progress of the library: shows nothing."""

    def start(self, name: str, *, total: float | None) -> None: ...
    def advance(self, amount: float = 1, *, note: str = "") -> None: ...
    def finish(self) -> None: ...
    def say(self, message: str) -> None: ...


SILENT = Silent()


class ProgressLines:
    """Progress for notebooks, logs and pipes, on stderr: messages, a line every ten seconds and one
    at the end of a task, with elapsed and remaining time."""

    def __init__(self) -> None:
        self._name = ""
        self._note = ""
        self._total: float | None = None
        self._done = self._done_before = 0.0
        self._start = self._last = 0.0

    def start(self, name: str, *, total: float | None) -> None:
        self._name, self._total, self._note = name, total, ""
        self._done = self._done_before = 0.0
        self._start = self._last = time.monotonic()

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        now = time.monotonic()
        if now - self._start < SECONDS_AT_ONCE:
            self._done_before = self._done
        if now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            self.say(self._line(now - self._start))

    def finish(self) -> None:
        if self._name:
            seconds = time.monotonic() - self._start
            self.say(f"{self._name}: done in {duration(seconds)}{self._tail()}")
        self._name = ""

    def say(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        done_now = self._done - self._done_before
        if not self._total or done_now <= 0:  # a forecast may have moved it back
            return f"{self._name}: {duration(seconds)} gone{self._tail()}"
        share = in_percent(min(self._done / self._total, 1.0), digits=0)
        left = duration(max(self._total - self._done, 0) * seconds / done_now)
        return f"{self._name}: {share}, {duration(seconds)} gone, {left} left{self._tail()}"

    def _tail(self) -> str:
        return f" ({self._note})" if self._note else ""


def tracked(
    items: Iterable[Any], *, name: str, total: float | None, progress: Progress
) -> Iterator[Any]:
    """The same items, with a task that advances by one for each."""
    progress.start(name, total=total)
    try:
        for item in items:
            yield item
            progress.advance()
    finally:
        progress.finish()
