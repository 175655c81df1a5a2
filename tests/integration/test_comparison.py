"""A comparison that outgrows its machine: the report is the same."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import local_cluster
from comparisons import told
from conftest import TINY, write_examples

from regraft.comparison.plan import load_comparison
from regraft.comparison.results import Comparison

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
    words = [
        "compare",
        "--base",
        base,
        *given,
        "--out",
        out,
        "--seeds",
        2,
        "--epochs",
        2,
        "--grid=none",
    ]
    words += ["--labels", "8,all", "--arms", ARMS, *FLAGS, "--set=train.threads=1", *more]
    return [sys.executable, "-m", "regraft", *map(str, words)]


def run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def num_kept(out: Path) -> int:
    """Cells that are finished, and answers to the test file."""
    kept = (out / "arms").glob("*/*-*.*")
    return sum(path.suffix in (".json", ".answers") for path in kept)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    with local_cluster(tmp_path) as started:
        yield started


@pytest.mark.slow
def test_cluster_with_a_killed_worker_gives_the_same_report(
    shared_base: Path,
    files: dict[str, Path],
    tmp_path: Path,
    cluster: tuple[str, list["subprocess.Popen[bytes]"]],
) -> None:
    address, workers = cluster
    straight, out = tmp_path / "a" / "out", tmp_path / "b" / "out"
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
