"""Killed, killed again, spread over processes: the weights at the end are the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, make_examples, write_examples
from safetensors.torch import load_file

from regraft.classifiers.finetuning import finetune
from regraft.config.resolution import resolve
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import read_metrics

# Trains in forked children of one process that has torch in memory already. Each is killed some
# milliseconds after it has taken some steps, wherever it is then; the last one lives to the end.
KILLER = """
import json, os, signal, sys, time
import torch
from regraft.config import settings_from_dict
from regraft.training.pretraining import pretrain
from regraft.runtime.progress import Silent

# The first optimiser of a process imports a compiler: seconds, paid here once for all children.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
arguments = json.loads(sys.argv[1])
settings = settings_from_dict(arguments["settings"])
reader, writer = os.pipe()

class Steps(Silent):
    def advance(self, amount=1, *, note=""):
        if "loss" in note:
            os.write(writer, b".")

killed = 0
for num_steps, seconds in [*arguments["moments"], (None, None)]:
    child = os.fork()
    if child == 0:
        text, out = arguments["text"], arguments["out"]
        pretrain([text], out=out, settings=settings, resume=True, progress=Steps())
        os._exit(0)
    if num_steps is not None:
        for _ in range(num_steps):
            os.read(reader, 1)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.write(writer, b"|")
    while os.read(reader, 1) != b"|":
        pass
    killed += os.WIFSIGNALED(status)
    assert num_steps is not None or status == 0, status
print(killed)
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{text}\n" for text, _ in make_examples(120, seed=1)))
    return path


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "model.safetensors")


# The bias of a key moves every score of a row alike: its gradient is nothing but rounding, which
# Adam turns into steps. A small rate keeps those below the tolerance.
def assert_equal(one: Path, other: Path, *, atol: float = 0.0) -> None:
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(other)[name], tensor, atol=atol, rtol=0)


def losses(run_dir: Path) -> list[float]:
    return [record["loss"] for record in read_metrics(run_dir) if "loss" in record]


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tmp_path, text):
    overrides = {**TINY, "train.steps": 150, "train.checkpoint_every": 2, "train.threads": 1}
    settings = resolve("pretrain", overrides=overrides)
    pretrain([text], out=tmp_path / "straight", settings=settings)
    source = random.Random(7)
    arguments = {
        "settings": json.loads((tmp_path / "straight" / "config.json").read_text()),
        "text": str(text),
        "out": str(tmp_path / "killed"),
        "moments": [(source.randrange(8), source.uniform(0, 0.06)) for _ in range(22)],
    }
    done = subprocess.run(
        [sys.executable, "-c", KILLER, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
    assert_equal(tmp_path / "straight", tmp_path / "killed")
    assert losses(tmp_path / "straight") == losses(tmp_path / "killed")


def launch(
    num_processes: int, *arguments: object, restarts: int = 0, **more: str
) -> "subprocess.Popen[str]":
    """`torchrun --nproc-per-node N -m regraft ...`, on this machine and no port but its own."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *(f"--nproc-per-node={num_processes}", f"--max-restarts={restarts}", "-m", "regraft"),
        *(str(argument) for argument in arguments),
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **more},
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    try:
        stdout, stderr = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, stderr
    return stdout


def command(text: Path, out: Path, *, steps: int = 40, **changes: Any) -> list[object]:
    values = {**TINY, "model.dropout": 0, "train.lr": 1e-4, **changes}
    given = [f"--set={key}={value}" for key, value in values.items()]
    return ["pretrain", text, "--out", out, "--steps", steps, *given]


@pytest.fixture
def alone(tmp_path: Path, text: Path) -> Path:
    """The same training by one process."""
    overrides = {**TINY, "model.dropout": 0, "train.lr": 1e-4, "train.steps": 40}
    pretrain([text], out=tmp_path / "alone", settings=resolve("pretrain", overrides=overrides))
    return tmp_path / "alone"


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one_at_the_same_batch(tmp_path, text, alone, parallel):
    arguments = command(text, tmp_path / parallel, **{"train.parallel": parallel})
    stdout = finish(launch(2, *arguments, "--json"))
    # The first process alone speaks.
    assert json.loads(stdout)["num_processes"] == 2
    assert losses(tmp_path / parallel) == pytest.approx(losses(alone), rel=1e-5)
    assert_equal(alone, tmp_path / parallel, atol=1e-5)


# Groups of four documents, so that there are several for two processes.
BAG = {"model.num_layers": 0, "model.num_pairs": 200, "objective.group_size": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "kind", "shape"),
    [("bert", "replaced", {}), ("bert", "bert", {}), ("bag", "contrast", BAG)],
)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_learn_any_objective_as_one(tmp_path, text, parallel, preset, kind, shape):
    more = {"objective.kind": kind, **shape}
    if preset == "bag" and parallel == "fsdp":  # rowwise, its default, needs whole tables
        more["train.optimizer"] = "adamw"
    changes = {"model.dropout": 0, "train.lr": 1e-4, "train.steps": 6, **more}
    settings = resolve("pretrain", preset=preset, overrides={**TINY, **changes})
    pretrain([text], out=tmp_path / "alone", settings=settings)
    arguments = command(text, tmp_path / "two", steps=6, **more, **{"train.parallel": parallel})
    finish(launch(2, *arguments, "--preset", preset))
    assert_equal(tmp_path / "alone", tmp_path / "two", atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_fine_tune_and_calibrate_as_one(tmp_path, parallel):
    train, valid = (
        write_examples(tmp_path / f"{name}.csv", size, seed=size)
        for name, size in (("train", 32), ("valid", 150))
    )
    changes = {**TINY, "model.dropout": 0, "train.lr": 1e-4, "train.epochs": 1}
    settings = resolve("finetune", overrides=changes)
    alone = finetune(base=None, train=train, valid=valid, out=tmp_path / "alone", settings=settings)
    given = [
        f"--set={key}={value}" for key, value in {**changes, "train.parallel": parallel}.items()
    ]
    files = ["--train", train, "--valid", valid, "--out", tmp_path / "two"]
    result = json.loads(
        finish(launch(2, "finetune", "--base", "scratch", *files, *given, "--json"))
    )
    assert alone.temperature is not None
    assert abs(alone.temperature - 1) > 0.01
    assert result["temperature"] == pytest.approx(alone.temperature, rel=1e-3)
    assert_equal(tmp_path / "alone", tmp_path / "two", atol=1e-3)


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)


def workers(process: "subprocess.Popen[str]") -> list[int]:
    """The processes that torchrun has started, by rank."""
    found = subprocess.run(
        ["pgrep", "-P", str(process.pid), "-f", "regraft pretrain"],
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(map(int, found.stdout.split()))


def status(run_dir: Path) -> str:
    value: str = json.loads((run_dir / "run.json").read_text())["status"]
    return value


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, text, alone, parallel):
    out = tmp_path / "run"
    changes = {"train.parallel": parallel, "train.checkpoint_every": 1}
    process = launch(2, *command(text, out, **changes))
    wait_for(out / "checkpoints" / "00000002", process)
    # The agent first: it would report, and the workers, in sessions of their own, outlive it.
    doomed = workers(process)
    process.kill()
    for worker in doomed:
        os.kill(worker, signal.SIGKILL)
    process.communicate()
    assert status(out) == "training"
    finish(launch(1 if parallel == "fsdp" else 3, *command(text, out, **changes), "--resume"))
    assert status(out) == "complete"
    assert_equal(alone, out, atol=1e-5)


@pytest.mark.slow
def test_torchrun_restarts_after_a_killed_worker(tmp_path, text):
    changes = {"train.checkpoint_every": 2}
    finish(launch(2, *command(text, tmp_path / "straight", **changes)))
    out = tmp_path / "killed"
    process = launch(2, *command(text, out, **changes), restarts=2)
    wait_for(out / "checkpoints" / "00000004", process)
    os.kill(workers(process)[-1], signal.SIGKILL)
    assert status(out) == "training"
    finish(process)
    assert_equal(tmp_path / "straight", out)
