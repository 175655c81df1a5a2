"""`regraft fit --bases`: the same bytes, on a busy machine too, however often it is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chaos.folders import content
from conftest import make_examples

SMALL = {
    "model.width": 16,
    "model.num_pairs": 200,
    "tokenizer.size": 400,
    "data.max_length": 64,
    "train.batch_size": 1,
    "train.checkpoint_every": 3,
    "objective.group_size": 4,
}
NUM_KILLS = 4


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    text, train = tmp_path / "text.txt", tmp_path / "train.jsonl"
    text.write_text("".join(f"{text} {text}\n" for text, _ in make_examples(260, seed=1)))
    rows = [{"text": text, "label": label} for text, label in make_examples(40, seed=2)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [f"--set={key}={value}" for key, value in SMALL.items()]
    files = ["--text", str(text), "--train", str(train)]
    return [sys.executable, "-m", "regraft", "fit", *files, "--bases", "3", "--seed", "5", *given]


def start(command: list[str], out: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*command, "--out", str(out), "--resume"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": "2"},
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> None:
    try:
        _, stderr = process.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, stderr


@pytest.mark.slow
def test_kills_at_random_moments_and_a_busy_machine_change_nothing(tmp_path, command):
    began = time.monotonic()
    finish(start(command, tmp_path / "straight"))
    seconds = time.monotonic() - began
    source = random.Random(11)
    for number in range(NUM_KILLS):
        process = start(command, tmp_path / "killed")
        time.sleep(source.uniform(0.3, 1.0) * seconds)
        # The whole group, or the command alone, whose workers then notice.
        (os.killpg if number % 2 else os.kill)(process.pid, signal.SIGKILL)
        process.communicate()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        finish(start(command, tmp_path / "killed"))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    straight = content(tmp_path / "straight")
    assert content(tmp_path / "killed") == straight
    assert any(name.endswith(".safetensors") for name in straight), "weights are compared, too"
