"""Progress in lines: share, time left, messages."""

import pytest

from regraft.runtime import ProgressLines, progress


def test_lines_report_share_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 4.0, 20.0, 80.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = ProgressLines()
    lines.start("pretrain", total=8)
    lines.advance(1, note="loss 9.1")
    lines.advance(1, note="loss 8.2")
    lines.finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "pretrain: 25 %, 20 s gone, 1 min 00 s left (loss 8.2)",
        "pretrain: done in 1 min 20 s (loss 8.2)",
    ]


def test_time_left_of_a_resumed_task_counts_its_own_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    lines = ProgressLines()
    lines.start("pretrain", total=100)
    lines.advance(80)
    lines.advance(10)
    assert capsys.readouterr().err == "pretrain: 90 %, 20 s gone, 20 s left\n"
