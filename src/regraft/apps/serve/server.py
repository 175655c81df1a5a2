"""The process that serves a run: address, key, start and shutdown.

It listens once the run is loaded and tested, and finishes accepted requests before it stops.
"""

import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import uvicorn

from regraft.apps.serve.app import build_app
from regraft.apps.serve.engine import Engine, Runtime, load_engine
from regraft.apps.serve.limits import Limits
from regraft.apps.serve.metrics import Metrics
from regraft.apps.serve.queue import BatchQueue
from regraft.apps.serve.reload import WATCH_SECONDS, Reloader
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress, counted

KEY_NAME = "REGRAFT_API_KEY"
# Connections at once; further ones get 503. A process may usually open 1,024 files.
_MAX_CONNECTIONS = 800
# Extra time for a request that was accepted just before shutdown.
_FAREWELL_SECONDS = 5


def serve(
    run_dir: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    runtime: Runtime = "auto",
    limits: Limits | None = None,
    progress: Progress = SILENT,
) -> None:
    """Serve a run until SIGTERM or Ctrl-C. The key, if any, is in the environment."""
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
            progress=progress,
        )
        _listen(listener)
        address = _shown_address(listener)
        progress.say(
            f"Serving {engine.model} with {engine.runtime} on {address}; Ctrl-C stops it.\n"
            f"{_exactness(engine)}"
        )
        with _quiet_signals():
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
    progress: Progress = SILENT,
    watch_seconds: float = WATCH_SECONDS,
) -> uvicorn.Server:
    """The server with all its parts, not yet running."""
    queue = BatchQueue(engine, limits=limits, on_batch=metrics.add_batch)
    reloader = Reloader(
        run_dir, queue=queue, runtime=runtime, say=progress.say, watch_seconds=watch_seconds
    )
    app = build_app(queue, limits=limits, metrics=metrics, reloader=reloader, api_key=api_key)
    config = uvicorn.Config(
        app,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=round(limits.seconds) + _FAREWELL_SECONDS,
    )
    return uvicorn.Server(config)


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
    if not has_key and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
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


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """uvicorn stops at a signal and then raises it again, which would kill the process."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
