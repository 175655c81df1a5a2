"""`regraft serve` as a process of its own: its start, its end, and ten thousand requests."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import make_examples
from random_runs import write_run
from typer.testing import CliRunner, Result

from regraft.classifier import load_classifier, prediction
from regraft.cli import app
from regraft.errors import ConfigError
from regraft.serve.server import bound_socket, read_key

TEXTS = [text for text, _ in make_examples(200, seed=7)]
# What an interrupted connection looks like when no byte of an answer has come.
NOT_ACCEPTED = (http.client.RemoteDisconnected, ConnectionError)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("process") / "reviews"
    return write_run(folder, preset="modern", objective="masked", pooling="mean")


@pytest.fixture(scope="module")
def expected(run_dir) -> dict[str, dict[str, Any]]:
    """What `regraft predict` says of each text."""
    classifier = load_classifier(run_dir)
    rows = classifier.predict_proba(TEXTS).tolist()
    labels = [str(label) for label in classifier.classes_]
    return {text: prediction(labels, row) for text, row in zip(TEXTS, rows, strict=True)}


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


@contextlib.contextmanager
def served(run_dir: Path, *options: object) -> Iterator[Served]:
    command = [sys.executable, "-m", "regraft", "serve", run_dir, "--port", 0, *options]
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


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same label and probabilities; digits beyond the fifth depend on a text's neighbours."""
    assert found["label"] == expected["label"]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_ten_thousand_requests_are_all_answered_right(run_dir, expected):
    num_requests, num_clients = 10_000, 64
    with served(run_dir, "--runtime", "auto") as server:

        def ask(first: int) -> list[tuple[str, int, dict[str, Any]]]:
            client = server.client()
            asked = [TEXTS[number % len(TEXTS)] for number in range(first, last, num_clients)]
            answers = [(text, *client.classify(text)) for text in asked]
            client.close()
            return answers

        def ask_all() -> list[tuple[str, int, dict[str, Any]]]:
            with ThreadPoolExecutor(num_clients) as threads:
                parts = threads.map(ask, range(num_clients))
            return [answer for part in parts for answer in part]

        last = 1_000
        ask_all()  # what a process of torch and its libraries needs, it has by then
        before = server.resident_bytes()
        last = num_requests
        answers = ask_all()
        grown = server.resident_bytes() - before
        said = server.end()
    assert len(answers) == num_requests
    for text, status, answer in answers:
        assert status == 200
        assert_equal(answer["predictions"][0], expected[text])
    assert grown < 64 << 20
    assert "Stopped after 11,000 requests, all of them answered." in said


@pytest.mark.slow
def test_sigterm_under_load_loses_no_accepted_request(run_dir, expected):
    num_clients = 8
    num_answered = [0] * num_clients
    has_begun = threading.Event()
    with served(run_dir, "--runtime", "torch") as server:

        def ask(number: int) -> None:
            client = server.client()
            for place in range(1_000_000):
                text = TEXTS[(number + place) % len(TEXTS)]
                try:
                    status, answer = client.classify(text)
                except NOT_ACCEPTED:
                    client.close()
                    return
                assert status == 200
                assert_equal(answer["predictions"][0], expected[text])
                num_answered[number] += 1
                if place == 20:
                    has_begun.set()

        with ThreadPoolExecutor(num_clients) as threads:
            asking = [threads.submit(ask, number) for number in range(num_clients)]
            assert has_begun.wait(120)
            said = server.end()
        for done in asking:
            done.result()
    # An answer that was begun and broken off would have raised; the server counts the same.
    assert f"Stopped after {sum(num_answered):,} requests, all of them answered." in said


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_port_in_use_is_told_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", tmp_path, "--port", port)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: Cannot listen on port {port} of 127.0.0.1: Address already in use. Stop who uses "
        "it, or choose another --port; 0 takes one that is free.\n"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_are_let_in_only_with_a_key(host, tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_API_KEY", raising=False)
    result = run("serve", tmp_path, "--host", host, "--port", 0)
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: --host {host} would let other machines in, and there is no key. Without a key "
        "only this machine is served. Set the environment variable REGRAFT_API_KEY, or leave "
        "--host away.\n"
    )


def test_with_a_key_any_address_is_taken():
    with bound_socket("0.0.0.0", 0, has_key=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_host_that_is_none_is_refused(tmp_path):
    result = run("serve", tmp_path, "--host", "no such host", "--port", 0)
    assert result.exit_code == 2
    assert "--host no such host is no address of a machine." in result.stderr


@pytest.mark.parametrize("key", ["", " key", "kéy", "a\nb"])
def test_key_that_no_header_carries_is_refused(key):
    with pytest.raises(ConfigError, match="is set, but is no key that a header could carry"):
        read_key({"REGRAFT_API_KEY": key})


def test_no_key_is_none():
    assert read_key({}) is None
    assert read_key({"REGRAFT_API_KEY": "a key"}) == "a key"


def test_folder_that_is_no_run_is_refused(tmp_path):
    result = run("serve", tmp_path, "--port", 0)
    assert result.exit_code == 2
    assert "is not a complete run folder: run.json is missing." in result.stderr


def test_missing_extra_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("regraft.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = run("serve", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: `regraft serve` needs fastapi, which is not installed. Run "
        "`pip install 'regraft[serve]'`.\n"
    )
