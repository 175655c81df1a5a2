"""Progress and messages on stderr, results on stdout; bars.py draws the progress.

rich is imported only when something is drawn, so that `regraft --help` stays fast.
"""

import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from regraft.apps.cli.bars import Bars
from regraft.runtime import SILENT, Progress, ProgressLines, is_first_process

_LONG_WORD = 20


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
        yield ProgressLines()


@contextlib.contextmanager
def interruption_names(folder: Path) -> Iterator[None]:
    """Name the folder on Ctrl-C and SIGTERM, if anything is in it yet."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not folder.is_dir() or not any(folder.iterdir()):
            raise
        raise KeyboardInterrupt(folder) from interrupt


class Messages:
    """The messages of a Progress, without its tasks."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, name: str, *, total: float | None) -> None: ...
    def advance(self, amount: float = 1, *, note: str = "") -> None: ...
    def finish(self) -> None: ...

    def say(self, message: str) -> None:
        self._progress.say(message)


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
    right: Sequence[str] = (),
) -> None:
    """A table on stdout; columns in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
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
    """The least width at which words stay whole, but for much longer ones, as in a path."""
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
