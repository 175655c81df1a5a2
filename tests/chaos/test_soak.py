"""`make soak` in small: a few kills, a few requests, a few changes of run folders; all is well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def soak(*words: object) -> str:
    command = [sys.executable, "-m", "chaos.soak", *map(str, words)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_killed_commands_leave_nothing_half_or_different():
    table = soak("--kills", 8, "--only", "predict,pretrain,studio labels")
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == [
        "predict",
        "pretrain",
        "studio labels",
        "all",
    ]
    assert int(table.splitlines()[-1].split("|")[3]) >= 6


@pytest.mark.slow
def test_good_and_bad_requests_get_their_answers_until_the_server_stops():
    table = soak("--requests", 1_000)
    for line in table.splitlines()[2:]:
        assert "429" not in line
        assert line.endswith("| 0 |")
        assert line.split("|")[6].strip() == "0"  # accepted and unanswered
