"""What should stay on this machine does: an attempt to connect fails, and is recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_examples, write_examples
from servers import served
from tiny_blends import light_blend

# Python imports it at its start, in workers as well. What a program may swallow stays in the file.
HOOK = """
import os, socket, sys

ALLOWED = (None, "", "127.0.0.1", b"127.0.0.1", "localhost")

def refuse(event, arguments):
    if event == "socket.connect" and arguments[0].family == socket.AF_UNIX:
        return
    if event == "socket.getaddrinfo" and arguments[0] in ALLOWED:
        return
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname",
                 "socket.gethostbyaddr", "urllib.Request", "http.client.connect", "ftplib.connect"):
        with open(os.environ["CONNECTIONS"], "a") as file:
            file.write(f"{event} {arguments[1:]}\\n")
        raise PermissionError(f"{event} is forbidden")

sys.addaudithook(refuse)
"""


@pytest.fixture
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of all attempts; programs that are started from now on are under the hook."""
    folder = tmp_path / "hook"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOOK)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([before] if before else [])]))
    monkeypatch.setenv("CONNECTIONS", str(tmp_path / "connections.txt"))
    path = tmp_path / "connections.txt"
    path.write_text("")
    return path


def regraft(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "regraft", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_hook_sees_a_connection(connections):
    code = "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.returncode == 1
    assert connections.read_text().startswith("socket.connect")


def test_predict_and_the_start_of_serve_connect_to_nothing(connections, tmp_path):
    light_blend().save(tmp_path / "run")
    new = write_examples(tmp_path / "new.csv", 20)
    result = regraft("predict", tmp_path / "run", new, "--json", "--quiet")
    assert (result.returncode, len(json.loads(result.stdout))) == (0, 20), result.stderr
    with served(tmp_path / "run") as server:
        client = server.client()
        status, _ = client.classify("A charming book.")
        client.close()
        assert status == 200
        assert "all of them answered" in server.end()
    assert connections.read_text() == ""


@pytest.mark.slow
def test_fit_connects_to_nothing(connections, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{text} {text}\n" for text, _ in make_examples(260, seed=1)))
    train = write_examples(tmp_path / "train.csv", 40, seed=2)
    small = ("model.width=16", "model.num_pairs=200", "tokenizer.size=400", "data.max_length=64")
    more = ("train.batch_size=1", "objective.group_size=4")
    result = regraft(
        *("fit", "--text", text, "--train", train, "--bases", 2, "--out", tmp_path / "run"),
        *(word for setting in (*small, *more) for word in ("--set", setting)),
    )
    assert result.returncode == 0, result.stderr
    assert connections.read_text() == ""
