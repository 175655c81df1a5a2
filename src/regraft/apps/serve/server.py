"""The process that serves a run: address, key, start and shutdown.

It listens once the run is loaded and tested, and finishes accepted requests before it stops.
"""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn

from regraft.apps.serve.app import build_app
from regraft.apps.serve.batching import BatchQueue
from regraft.apps.serve.connections import limited_server, quiet_signals
from regraft.apps.serve.engine import Engine, Runtime, load_engine
from regraft.apps.serve.guard import LOCAL_NAMES
from regraft.apps.serve.limits import Limits
from regraft.apps.serve.metrics import Metrics
from regraft.apps.serve.reload import WATCH_SECONDS, Reloader
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress, counted

KEY_NAME = "REGRAFT_API_KEY"
# Extra time for a request that was accepted just before shutdown.
_FAREWELL_SECONDS = 5


def serve(
    run_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    runtime: Runtime = "auto",
    limits: Limits | None = None,
    allowed_hosts: Sequence[str] = (),
    progress: Progress = SILENT,
) -> None:
    """Serve a run until SIGTERM or Ctrl-C. The key, if any, is in the environment.

    On a loopback address, `allowed_hosts` are names it answers to besides its own.
    """
    limits = limits or Limits()
    api_key = read_key(os.environ)
    # Before the run is loaded, so that a port in use is reported at once.
    with bound_socket(host, port, has_key=api_key is not None) as listener:
        engine = load_engine(run_dir, runtime=runtime, progress=progress)
        metrics = Metrics()
        server = build_server(
            engine,
            run_dir=run_dir,
            runtime=runtime,
            limits=limits,
            api_key=api_key,
            metrics=metrics,
            hosts=local_hosts(listener, allowed_hosts),
            progress=progress,
        )
        _listen(listener)
        address = _shown_address(listener)
        progress.say(
            f"Serving {engine.model} with {engine.runtime} on {address}; Ctrl-C stops it.\n"
            f"{_exactness(engine)}"
        )
        with quiet_signals():
            server.run(sockets=[listener])
    progress.say(f"Stopped after {counted(metrics.num_requests, 'request')}, all of them answered.")


def build_server(
    engine: Engine,
    *,
    run_dir: Path,
    runtime: Runtime,
    limits: Limits,
    api_key: str | None,
    metrics: Metrics,
    hosts: Sequence[str] | None = None,
    progress: Progress = SILENT,
    watch_seconds: float = WATCH_SECONDS,
) -> uvicorn.Server:
    """The server with all its parts, not yet running; None as `hosts` lets in any host."""
    queue = BatchQueue(engine, limits=limits, on_batch=metrics.add_batch)
    reloader = Reloader(
        run_dir, queue=queue, runtime=runtime, say=progress.say, watch_seconds=watch_seconds
    )
    app = build_app(
        queue, limits=limits, metrics=metrics, reloader=reloader, api_key=api_key, hosts=hosts
    )
    return limited_server(app, limits=limits, stop_seconds=limits.seconds + _FAREWELL_SECONDS)


def local_hosts(listener: socket.socket, allowed: Sequence[str]) -> list[str] | None:
    """The names to answer to: this machine's and `allowed`; None for all, off loopback."""
    address = str(listener.getsockname()[0])
    return [*LOCAL_NAMES, *allowed] if _is_loopback(address) else None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def read_key(environment: Mapping[str, str]) -> str | None:
    """The key in REGRAFT_API_KEY; None if there is none."""
    key = environment.get(KEY_NAME)
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise ConfigError(
            f"{KEY_NAME} is set, but is no key that a header could carry.",
            "A key has visible ASCII characters, none of them a space at an end.",
            remedy=f"Set another, for example {KEY_NAME}=$(openssl rand -hex 32), or unset it.",
        )
    return key


@contextlib.contextmanager
def bound_socket(host: str, port: int, *, has_key: bool) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet; other machines need a key."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host} is no address of a machine.", remedy="Take 127.0.0.1 or 0.0.0.0."
        ) from error
    family, kind, protocol, _, address = addresses[0]
    if not has_key and not _is_loopback(str(address[0])):
        raise ConfigError(
            f"--host {host} would let other machines in, and there is no key.",
            "Without a key only this machine is served.",
            remedy=f"Set the environment variable {KEY_NAME}, or omit --host.",
        )
    with socket.socket(family, kind, protocol) as listener:
        # A port that a server has just released is free; one in use is not.
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _taken(host, port, error) from error
        yield listener


def _listen(listener: socket.socket) -> None:
    try:
        listener.listen()
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _taken(host, port, error) from error


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"Cannot listen on port {port} of {host}: {error.strerror}.",
        remedy="Stop the program that uses it, or choose another --port; 0 picks a free one.",
    )


def _shown_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _exactness(engine: Engine) -> str:
    calibrated = "calibrated" if engine.is_calibrated else "as training left them, not calibrated"
    exact = f" and differ from torch's by at most {engine.difference:.1e}"
    return (
        f"Probabilities are {calibrated}{exact * (engine.runtime == 'onnxruntime')}."
        f"{f' {engine.note}' if engine.note else ''}"
    )
