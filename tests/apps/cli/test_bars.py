"""Progress bars: share, time left, messages; a finished bar is full."""

import re

import pytest
from terminals import in_terminal

from regraft.apps.cli import bars


def test_bars_show_task_and_messages(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = bars.Bars()
    drawn.start("pretrain [x]", total=2)
    drawn.advance(1, note="loss [3]")
    drawn.say("the line to beat")
    drawn.advance(1)
    drawn.finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the line to beat" in captured.err
    assert "pretrain [x]" in captured.err
    assert "loss [3]" in captured.err


def test_bar_is_shorter_in_a_narrow_terminal_and_the_note_whole():
    code = (
        "drawn = bars.Bars()\n"
        "drawn.start('bases', total=4)\n"
        "drawn.advance(4, note='2 of 2 bases were made')\n"
        "drawn.finish()"
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", in_terminal(code, width=56))
    assert "100 % in 0 s 2 of 2 bases were made" in " ".join(shown.split())


@pytest.mark.parametrize("total", [None, 8.0])
def test_finished_bar_ends_full_with_the_time_it_took(total):
    code = (
        "drawn = bars.Bars()\n"
        f"drawn.start('bases', total={total})\n"
        "drawn.advance(4, note='a note that is longer than the terminal is wide')\n"
        "drawn.finish()"
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", in_terminal(code, width=70))
    last = re.split("[\r\n]", shown.rstrip())[-1]
    assert "100 %" in last
    assert "in 0 s" in last or "in 1 s" in last
    assert "left" not in last
