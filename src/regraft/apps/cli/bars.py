"""Progress bars, which show elapsed and remaining time; in a log, ProgressLines shows it.

They know one task at a time. The time left of many jobs is forecast in runtime/jobs_left.py. rich
is imported only when something is drawn, so that `regraft --help` stays fast.
"""

from typing import TYPE_CHECKING

from regraft.runtime import duration

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import Task, TaskID
    from rich.progress_bar import ProgressBar

_BAR_WIDTH = 24
_LEAST_BAR_WIDTH = 6


class Bars:
    """Progress drawn by rich: name, bar, share, note, elapsed and remaining time."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._drawn: RichProgress | None = None
        self._task: TaskID | None = None

    def start(self, name: str, *, total: float | None) -> None:
        from rich import progress
        from rich.text import Text

        class Time(progress.ProgressColumn):
            def render(self, task: "Task") -> Text:
                return Text(_time(task), style="progress.elapsed", no_wrap=True)

        def room(task: "Task") -> int:
            """What a line has for the bar and the note."""
            return width - len(f"{task.description} 100 % {_time(task)} ") - 2

        class Bar(progress.BarColumn):
            """Shorter in a narrow terminal, for the note."""

            def render(self, task: "Task") -> "ProgressBar":
                free = room(task) - len(str(task.fields["note"]))
                self.bar_width = max(min(free, _BAR_WIDTH), _LEAST_BAR_WIDTH)
                return super().render(task)

        class Note(progress.ProgressColumn):
            """Cut where a narrow terminal ends, so that nothing before it is."""

            def render(self, task: "Task") -> Text:
                note = Text(str(task.fields["note"]), style="dim", no_wrap=True)
                least = max(room(task) - _LEAST_BAR_WIDTH, 0)
                note.truncate(least, overflow="ellipsis")
                return note

        self.close()
        width = self._console.width
        self._drawn = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            Bar(),
            progress.TaskProgressColumn("[progress.percentage]{task.percentage:>3.0f} %"),
            Time(),
            Note(),
            console=self._console,
        )
        self._task = self._drawn.add_task(name, total=total, note="")
        self._drawn.start()

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        if self._drawn is None or self._task is None:
            return
        if note:
            self._drawn.update(self._task, advance=amount, note=note)
        else:
            self._drawn.update(self._task, advance=amount)

    def finish(self) -> None:
        """Stop drawing a full bar, whatever its total was thought to be."""
        if self._drawn is not None and self._task is not None:
            done = self._drawn.tasks[0].completed or 1
            self._drawn.update(self._task, total=done, completed=done)
        self.close()

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        """Stop drawing, and leave the bar as it is."""
        if self._drawn is not None:
            self._drawn.stop()
        self._drawn = self._task = None


def _time(task: "Task") -> str:
    """`1 min 05 s, 20 s left`; when it is finished, `in 1 min 25 s`."""
    elapsed, left = (
        None if seconds is None else duration(seconds) if seconds >= 10 else f"{seconds:.0f} s"
        for seconds in (task.elapsed, task.time_remaining)
    )
    if task.finished:
        return f"in {elapsed}"
    return f"{elapsed}" if left is None else f"{elapsed}, {left} left"
