"""Progress and messages on stderr, results on stdout.

rich is imported only when something is drawn, so that `regraft --help` stays fast.
"""

import contextlib
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regraft.runtime import SILENT, Progress, duration, in_percent, is_first_process

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import Task, TaskID

SECONDS_BETWEEN_LINES = 10.0
# Work reported within this time of the start was done earlier: the run is resumed.
SECONDS_AT_ONCE = 0.1
_LONG_WORD = 20
_BAR_WIDTH = 24


def silence_other_processes() -> None:
    """Under torchrun every process runs the command; only the first one prints its result."""
    if not is_first_process():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 # open until the end


@contextlib.contextmanager
def exit_at_once_under_torchrun() -> Iterator[None]:
    """Under torchrun, end the process as soon as the command has ended.

    Threads of gloo outlive the command while the FSDP model holds their group. A thread that needs
    Python during interpreter shutdown aborts the process although its work is done (torch 2.13,
    about one run in a hundred on busy cores).
    """
    try:
        yield
    except SystemExit as end:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


@contextlib.contextmanager
def progress_on_stderr(*, quiet: bool) -> Iterator[Progress]:
    """Bars on a terminal, plain lines elsewhere, nothing when quiet."""
    if quiet:
        yield SILENT
    elif sys.stderr.isatty():
        bars = Bars()
        try:
            yield bars
        finally:
            bars.close()
    else:
        yield Lines()


@contextlib.contextmanager
def interruption_names(folder: Path) -> Iterator[None]:
    """Name the folder on Ctrl-C and SIGTERM, if anything is in it yet."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not folder.is_dir() or not any(folder.iterdir()):
            raise
        raise KeyboardInterrupt(folder) from interrupt


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

        class Note(progress.ProgressColumn):
            """Cut where a narrow terminal ends, so that nothing before it is."""

            def render(self, task: "Task") -> Text:
                used = len(f"{task.description} 100 % {_time(task)} ") + _BAR_WIDTH + 2
                note = Text(str(task.fields["note"]), style="dim", no_wrap=True)
                note.truncate(max(width - used, 0), overflow="ellipsis")
                return note

        self.close()
        width = self._console.width
        self._drawn = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=_BAR_WIDTH),
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


class Messages:
    """The messages of a Progress, without its tasks."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, name: str, *, total: float | None) -> None: ...
    def advance(self, amount: float = 1, *, note: str = "") -> None: ...
    def finish(self) -> None: ...

    def say(self, message: str) -> None:
        self._progress.say(message)


class Lines:
    """Progress for logs and pipes: a line every ten seconds and one at the end of a task."""

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


def show_error(message: str) -> None:
    """An error, on stderr; its first word is red on a terminal that has colours."""
    word, _, rest = _wrapped(f"error: {message}", is_terminal=sys.stderr.isatty()).partition(" ")
    has_colours = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if has_colours and not os.environ.get("NO_COLOR"):
        word = f"\033[1;31m{word}\033[0m"
    print(f"{word} {rest}", file=sys.stderr)


def show_message(text: str) -> None:
    """A message on stderr: not part of the result."""
    print(_wrapped(text, is_terminal=sys.stderr.isatty()), file=sys.stderr)


def show_line(text: str = "") -> None:
    """One line of the result, on stdout; wrapped at words on a terminal, never coloured."""
    print(_wrapped(text, is_terminal=sys.stdout.isatty()))


def _wrapped(text: str, *, is_terminal: bool) -> str:
    """Lines that fit the terminal; one that is indented is a command, and stays whole."""
    if not is_terminal:
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        line
        if line.startswith("  ")
        else textwrap.fill(
            line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        for line in text.split("\n")
    )


def show_json(value: Any) -> None:
    """The result for other programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Sequence[str] = (),
) -> None:
    """A table on stdout; columns in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    # One column is wrapped: the last, or the first if the last holds numbers. Numbers stay whole.
    wrapped = columns[0] if columns[-1] in right else columns[-1]
    for column in columns:
        table.add_column(
            Text(column),
            justify="right" if column in right else "left",
            no_wrap=column != wrapped,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    if console.width < _least_width(columns, rows, wrapped=columns.index(wrapped)):
        _show_records(columns, rows)
    else:
        console.print(table)


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[object]], *, wrapped: int) -> int:
    """Of a table whose words stay whole; a longer word than most, as in a path, is folded."""
    width = 2 + 2 * (len(columns) - 1)
    for place, cells in enumerate(zip(columns, *rows, strict=True)):
        texts = [str(cell) for cell in cells]
        words = [word for text in texts for word in text.split()]
        longest = max(map(len, words), default=0)
        width += min(longest, _LONG_WORD) if place == wrapped else max(map(len, texts))
    return width


def _show_records(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A row as a few lines, for a terminal that is too narrow for the table."""
    name, *others = columns
    for row in rows:
        show_line()
        show_line(f"{name}: {row[0]}" if name else str(row[0]))
        for column, cell in zip(others, row[1:], strict=True):
            if str(cell):
                show_line(f"  {column}: {cell}" if column else f"  {cell}")
    show_line()
