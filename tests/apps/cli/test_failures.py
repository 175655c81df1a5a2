"""No traceback reaches a user: causes are named, bugs are saved."""

import errno
import stat
from pathlib import Path

import pytest
from commands import run

from regraft.apps.cli.failures import bug_report, explained


class LibraryError(Exception):
    """What a library raises instead of OSError."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The disk is full"),
        (LibraryError("I/O error: No space left on device (os error 28)"), "The disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "a.csv"), "a.csv: Permission denied"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: ..."), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    ],
)
def test_failures_of_the_machine_are_named(error, words, monkeypatch):
    cause = explained(error)
    assert cause is not None
    assert words in cause.problem
    assert cause.remedy

    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("regraft.config.read_setting_help", fail)
    result = run("settings")
    assert result.exit_code == 2
    assert result.stderr == f"error: {cause}\n"


def test_bug_is_saved_for_a_report(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("regraft.config.read_setting_help", fail)
    result = run("settings")
    assert result.exit_code == 70
    assert "Traceback" not in result.output
    assert "This is a bug in regraft: ZeroDivisionError: division by zero." in result.stderr
    [path] = tmp_path.iterdir()
    assert str(path) in result.stderr
    assert "in fail" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_bug_that_cannot_be_saved_is_still_reported(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(Path("/nowhere")))
    assert "could not be saved" in bug_report(ValueError("why"))
