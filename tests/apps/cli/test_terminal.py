"""Tables on the terminal: numbers stay whole, whatever the width."""

import pytest

from regraft.apps.cli import terminal

HEADS = ["member", "valid", "weight"]


@pytest.mark.parametrize("width", ["48", "120"])
def test_table_never_cuts_numbers(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, so that its width counts
    rows = [("features of all bases, and of their neighbours", "87.0% (81.6% to 91.5%)", "0.88")]
    terminal.show_table(HEADS, rows, right=HEADS[1:])
    shown = capsys.readouterr().out
    assert "87.0% (81.6% to 91.5%)" in shown
    assert "0.88" in shown
    assert "neighbours" in shown
