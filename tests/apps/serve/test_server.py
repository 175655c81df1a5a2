"""Where a server listens and who may ask it: told before anything is loaded."""

import socket
import sys

import pytest
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.apps.serve.server import bound_socket, read_key
from regraft.errors import ConfigError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_port_in_use_is_told_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", tmp_path, "--port", port)
    assert result.exit_code == 2
    assert f"port {port} of 127.0.0.1: Address already in use." in result.stderr
    assert "--port" in result.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_are_let_in_only_with_a_key(host, tmp_path, monkeypatch):
    monkeypatch.delenv("REGRAFT_API_KEY", raising=False)
    result = run("serve", tmp_path, "--host", host, "--port", 0)
    assert result.exit_code == 2
    assert f"--host {host} " in result.stderr
    assert "REGRAFT_API_KEY" in result.stderr


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
    for name in [name for name in sys.modules if name.startswith("regraft.apps.serve.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = run("serve", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: `regraft serve` needs fastapi, which is not installed. The extra `serve` brings "
        "it. In your clone of regraft, run `pip install '.[serve]'`.\n"
    )
