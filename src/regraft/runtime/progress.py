"""How long-running functions report progress; the command line shows it, the library is silent."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable


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
