"""The terminal: numbers and words stay whole, whatever the width; colours; finished bars."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from regraft.apps.cli import terminal

HEADS = ["member", "valid", "weight"]
ROWS = [("features of all bases, and of their neighbours", "87.0 % (81.6 to 91.5)", "0.88")]


@pytest.mark.parametrize("width", [30, 48, 60, 80, 120])
def test_table_never_cuts_numbers_and_words(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, so that its width counts
    terminal.show_table(HEADS, ROWS, right=HEADS[1:])
    shown = capsys.readouterr().out
    for whole in (*HEADS, "87.0 % (81.6 to 91.5)", "0.88", "features", "neighbours"):
        assert whole in shown


def in_terminal(code: str, *, width: int = 40, **environment: str) -> str:
    """What code prints on a terminal of its own, with its escape sequences."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", f"from regraft.apps.cli import terminal\n{code}"],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**kept, "TERM": "xterm", **environment},
    )
    os.close(child)
    parts = []
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the last writer has closed it
            break
        if not part:
            break
        parts.append(part)
    os.close(parent)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


ERROR = "terminal.show_error('There is no file such/a/path.csv, so nothing was read. Check it.')"


def test_error_is_red_and_wrapped_at_words():
    shown = in_terminal(ERROR)
    assert shown.startswith("\x1b[1;31merror:\x1b[0m There is no file")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert all(len(line) <= 40 for line in plain.split("\n"))
    assert " ".join(plain.split()).endswith("such/a/path.csv, so nothing was read. Check it.")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_error_has_no_colour_where_none_is_wanted(environment):
    assert "\x1b" not in in_terminal(ERROR, **environment)


def test_commands_in_messages_stay_whole():
    command = "regraft fit --text reviews.txt --train labels.csv --out runs/reviews --resume"
    shown = in_terminal(f"terminal.show_message('Interrupted. Continue with:\\n  {command}')")
    assert f"\n  {command}\n" in shown


@pytest.mark.parametrize("total", [None, 8.0])
def test_finished_bar_ends_full_with_the_time_it_took(total):
    code = (
        "bars = terminal.Bars()\n"
        f"bars.start('bases', total={total})\n"
        "bars.advance(4, note='a note that is longer than the terminal is wide')\n"
        "bars.finish()"
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", in_terminal(code, width=70))
    last = re.split("[\r\n]", shown.rstrip())[-1]
    assert "100 %" in last
    assert "in 0 s" in last or "in 1 s" in last
    assert "left" not in last
