"""The terminal: numbers and words stay whole, whatever the width; colours."""

import re

import pytest
from terminals import in_terminal

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
