"""A comparison that is killed, and one that outgrows its machine: the report is the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, write_examples

from regraft.config import resolve, settings_to_dict
from regraft.evidence import Comparison
from regraft.request import load_comparison

FLAGS = [f"--set={key}={value}" for key, value in TINY.items() if key.startswith(("data", "train"))]
ARMS = "pretrained,scratch,linear,nbsvm,latent,embedding"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    sizes = {"train": 32, "valid": 16, "test": 24}
    return {
        name: write_examples(folder / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate(sizes.items(), start=3)
    }


def command(base: Path, files: dict[str, Path], out: Path, *more: object) -> list[str]:
    given = [f"--{name}={path}" for name, path in files.items()]
    words = ["compare", "--base", base, *given, "--out", out, "--seeds", 2, "--epochs", 2]
    words += ["--labels", "8,all", "--arms", ARMS, *FLAGS, "--set=train.threads=1", *more]
    return [sys.executable, "-m", "regraft", *map(str, words)]


def told(out: Path) -> dict[str, Any]:
    """What a report says and its outcomes, without times and the name of its folder."""
    values = json.loads((out / "report.json").read_text(encoding="utf-8"))
    values["outcomes"] = (out / "outcomes.json").read_text(encoding="utf-8")
    for name in ("created", "command"):
        del values[name]
    for part in (*values["arms"], *values["curve"]):
        del part["seconds"]
    assert len(values["openings"]) == 1
    del values["openings"]
    return values


def run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


# Compares in forked children of one process that has torch in memory already. Each is killed some
# milliseconds after it has left so many files, wherever it is then; the last one lives to the end.
KILLER = """
import json, os, pathlib, signal, sys, time
import torch
from regraft.compare import compare
from regraft.config import settings_from_dict
from regraft.report import write_report

# The first optimiser of a process imports a compiler: seconds, paid here once for all children.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
arguments = json.loads(sys.argv[1])
inputs = {**arguments["inputs"], "settings": settings_from_dict(arguments["settings"])}

def begin(out):
    child = os.fork()
    if child == 0:
        write_report(compare(**inputs, out=out, command="regraft compare"), out)
        os._exit(0)
    return child

def num_kept(out):
    kept = pathlib.Path(out, "arms").glob("*/*-*.*")
    return sum(path.suffix in (".json", ".answers") for path in kept)

killed = 0
for num_files, seconds in arguments["moments"]:
    child = begin(arguments["killed"])
    status = None
    while num_kept(arguments["killed"]) < num_files:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.001)
    else:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
for out in (arguments["killed"], arguments["straight"]):
    if not pathlib.Path(out, "report.json").exists():
        _, status = os.waitpid(begin(out), 0)
        assert status == 0, status
print(killed)
"""


@pytest.mark.slow
def test_killed_comparison_ends_in_the_same_report(
    shared_base: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    straight, out = tmp_path / "a" / "out", tmp_path / "b" / "out"
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 2, "train.threads": 1})
    source = random.Random(1)
    inputs = {**{name: str(path) for name, path in files.items()}, "base": str(shared_base)}
    inputs |= {"arms": ARMS.split(","), "seeds": 2, "labels": [8, None]}
    # 20 cells, each of which leaves a sign and then its answers.
    moments = [(number, source.uniform(0, 0.03)) for number in (1, 3, 6, 9, 13, 17, 20, 23, 30, 40)]
    arguments = {
        "inputs": inputs,
        "settings": settings_to_dict(settings),
        "moments": moments,
        "killed": str(out),
        "straight": str(straight),
    }
    done = subprocess.run(
        [sys.executable, "-c", KILLER, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8
    assert told(out) == told(straight)
    assert not (straight / "arms").exists()


def num_kept(out: Path) -> int:
    """Cells that are finished, and answers to the test file."""
    kept = (out / "arms").glob("*/*-*.*")
    return sum(path.suffix in (".json", ".answers") for path in kept)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """A Dask scheduler and two workers, each a process, on ports of their own."""
    pytest.importorskip("distributed")
    address_path = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        start = "from distributed.cli.dask_scheduler import main; main()"
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        words = [sys.executable, "-c", start, *options, "--scheduler-file", str(address_path)]
        processes.append(subprocess.Popen(words, **quiet, env=environment, cwd=tmp_path))
        while not address_path.exists() or not address_path.read_text():
            assert processes[0].poll() is None
            time.sleep(0.05)
        address = json.loads(address_path.read_text())["address"]
        start = "from distributed.cli.dask_worker import main; main()"
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        words = [sys.executable, "-c", start, address, *options, "--local-directory", str(tmp_path)]
        processes += [
            subprocess.Popen(words, **quiet, env=environment, cwd=tmp_path) for _ in range(2)
        ]
        yield address, processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_cluster_with_a_killed_worker_gives_the_same_report(
    shared_base: Path,
    files: dict[str, Path],
    tmp_path: Path,
    cluster: tuple[str, list["subprocess.Popen[bytes]"]],
) -> None:
    address, workers = cluster
    straight, out = tmp_path / "a" / "out", tmp_path / "b" / "out"
    wait_for_workers(address, num_workers=2)
    process = subprocess.Popen(
        command(shared_base, files, out, "--cluster", address),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while process.poll() is None and num_kept(out) < 4:
        time.sleep(0.01)
    workers[0].send_signal(signal.SIGKILL)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    run(command(shared_base, files, straight, "--jobs", 1))
    assert told(out) == told(straight)


def wait_for_workers(address: str, *, num_workers: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(num_workers, timeout=120)


def test_report_of_a_command_can_be_read_again(
    shared_base: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "out"
    words = command(shared_base, files, out, "--jobs", 2)
    words[words.index(ARMS)] = "linear,nbsvm"
    run(words)
    comparison = load_comparison(out / "report.json")
    assert isinstance(comparison, Comparison)
    assert [arm.num_seeds for arm in comparison.arms] == [1, 1]
    assert comparison.request is not None
    assert comparison.request["labels"] == [8, "all"]
