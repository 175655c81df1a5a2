"""A small Dask cluster on this machine: a scheduler and two workers, each a process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def local_cluster(folder: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """Its address and its workers; ports are its own."""
    pytest.importorskip("distributed")
    address_path = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        start = "from distributed.cli.dask_scheduler import main; main()"
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        words = [sys.executable, "-c", start, *options, "--scheduler-file", str(address_path)]
        processes.append(subprocess.Popen(words, **quiet, env=environment, cwd=folder))
        while not address_path.exists() or not address_path.read_text():
            assert processes[0].poll() is None
            time.sleep(0.05)
        address = json.loads(address_path.read_text())["address"]
        start = "from distributed.cli.dask_worker import main; main()"
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        words = [sys.executable, "-c", start, address, *options, "--local-directory", str(folder)]
        processes += [
            subprocess.Popen(words, **quiet, env=environment, cwd=folder) for _ in range(2)
        ]
        wait_for_workers(address, num_workers=2)
        yield address, processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def wait_for_workers(address: str, *, num_workers: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(num_workers, timeout=120)
