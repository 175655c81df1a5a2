"""A server in a thread or in another process, and an engine whose answers wait for a test."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import uvicorn
from numpy.typing import NDArray

from regraft.apps.serve.engine import Engine
from regraft.apps.serve.limits import Limits
from regraft.apps.serve.metrics import Metrics
from regraft.apps.serve.server import bound_socket, build_server
from regraft.classifiers.base import Classifier
from regraft.runtime.progress import SILENT, Progress

LABELS = ("short", "long")


class Gated(Classifier):
    """Says how long texts are, when its gate is open; "bad" makes it fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[str]] = []
        self.threads: list[int] = []

    labels = LABELS

    def renamed(self, labels: Sequence[str]) -> "Gated":
        raise NotImplementedError

    def save(self, run_dir: Path) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, run_dir: Path) -> "Gated":
        raise NotImplementedError

    def predict_proba(
        self, contents: Sequence[Any], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        texts = contents
        self.batches.append(list(texts))
        self.threads.append(threading.get_ident())
        assert self.gate.wait(60)
        if "bad" in texts:
            raise ValueError("a bad text")
        long = np.array([min(len(text), 10) / 10 for text in texts])
        return np.stack([1 - long, long], axis=1)


def engine_of(classifier: Gated, *, model: str = "run@1", seconds_a_byte: float = 1.0) -> Engine:
    return Engine(
        model=model,
        fingerprint=model,
        kind="blend",
        labels=LABELS,
        runtime="torch",
        is_calibrated=True,
        classifier=classifier,
        original=classifier,
        difference=0.0,
        seconds_a_byte=seconds_a_byte,
        note="",
    )


@dataclass(frozen=True)
class Running:
    """A server in a thread of this process, and a client to ask it."""

    client: httpx2.Client
    url: str

    def classify(self, texts: object, **more: Any) -> httpx2.Response:
        return self.client.post("/v1/classify", json={"texts": texts}, **more)

    def ready(self) -> dict[str, Any]:
        return self.client.get("/readyz").json()

    def wait_until(self, **expected: Any) -> None:
        """Until /readyz says so."""
        for _ in range(2_000):
            told = self.ready()
            if all(told[name] == value for name, value in expected.items()):
                return
            time.sleep(0.02)
        raise AssertionError(f"{told} never became {expected}")


@contextlib.contextmanager
def running(
    engine: Engine,
    *,
    run_dir: Path,
    limits: Limits | None = None,
    api_key: str | None = None,
    hosts: Sequence[str] | None = None,
    watch_seconds: float = 0.05,
) -> Iterator[Running]:
    server = build_server(
        engine,
        run_dir=run_dir,
        runtime="torch",
        limits=limits or Limits(),
        api_key=api_key,
        metrics=Metrics(),
        hosts=hosts,
        watch_seconds=watch_seconds,
    )
    with listening(server) as running_server:
        yield running_server


@contextlib.contextmanager
def listening(server: uvicorn.Server) -> Iterator[Running]:
    """Any server, in a thread of this process."""
    with bound_socket("127.0.0.1", 0, has_key=False) as listener:
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
                yield Running(client, url)
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class Served:
    """A server in another process. `end` stops it and returns what it said."""

    process: "subprocess.Popen[str]"
    port: int

    def client(self) -> "Client":
        return Client(self.port)

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return said

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024


class Client:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def classify(self, text: str) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/classify", json.dumps({"texts": text}), headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()


REGRAFT = (sys.executable, "-m", "regraft")


@contextlib.contextmanager
def served(
    run_dir: Path, *options: object, program: Sequence[object] = REGRAFT
) -> Iterator[Served]:
    command = [*program, "serve", run_dir, "--port", 0, *options]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        while "Ctrl-C stops it" not in said:
            said = process.stderr.readline()
            assert said, "the server ended before it was ready"
        yield Served(process, port=int(re.search(r":(\d+);", said).group(1)))
    finally:
        process.kill()
        process.communicate()
