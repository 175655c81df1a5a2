"""Connections with limits: how many, how long a head may take, how large it may be.

uvicorn limits neither time nor size of a head, counts connections only when a whole head is there,
and closes those that wait for a request at once when it stops; hypercorn's timeouts start again
with every byte; granian limits the time of a head, but runs its own processes. So uvicorn's
protocol is extended here, for `serve` and the studio.
"""

import asyncio
import contextlib
import functools
import ipaddress
import json
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from regraft.apps.serve.limits import Limits, RefusedError
from regraft.runtime import counted

# Of a head, and of everything else in a request that is not its body.
MAX_HEAD_BYTES = 1 << 16
# Requests that a client may send before the first is answered.
_MAX_AHEAD = 100
# So long a server that stops waits for a request that may be on its way.
_LAST_SECONDS = 1.0
# The size line of a chunk and its two line ends.
_CHUNK_BYTES = 16


def limited_server(app: ASGIApp, *, limits: Limits, stop_seconds: float) -> uvicorn.Server:
    """A server for an application, not yet running; `stop_seconds` are for requests in progress."""
    protocol: Any = functools.partial(LimitedProtocol, limits=limits, clients=Clients())
    config = uvicorn.Config(
        app,
        http=protocol,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(stop_seconds),
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def quiet_signals() -> Iterator[None]:
    """uvicorn stops at a signal and then raises it again, which would kill the process."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Clients:
    """The open connections of each client."""

    num_open: "Counter[str]" = field(default_factory=Counter)
    # Each of them may send one more request.
    is_stopping: bool = False

    def refusal(self, client: str, *, limits: Limits) -> RefusedError | None:
        """Why one more connection of a client is not accepted, if so."""
        if self.num_open.total() >= limits.max_connections:
            return RefusedError(
                503,
                f"{counted(limits.max_connections, 'connection')} are open.",
                "The server accepts no more.",
                remedy="Try again later.",
                headers={"Retry-After": "1"},
            )
        if self.num_open[client] >= limits.max_client_connections:
            return RefusedError(
                429,
                f"{counted(limits.max_client_connections, 'connection')} from your address are "
                "open.",
                "The server accepts no more from one client.",
                remedy="Use them again, or close some.",
                headers={"Retry-After": "1"},
            )
        return None

    def add(self, client: str) -> None:
        self.num_open[client] += 1

    def remove(self, client: str) -> None:
        self.num_open[client] -= 1
        if not self.num_open[client]:
            del self.num_open[client]


def client_of(address: tuple[str, int] | None) -> str:
    """Whom an address belongs to: in IPv6, one client has a whole /64 network."""
    try:
        host = ipaddress.ip_address((address or ("", 0))[0].partition("%")[0])
    except ValueError:  # a Unix socket has none
        return ""
    if isinstance(host, ipaddress.IPv6Address):
        if host.ipv4_mapped is not None:
            return str(host.ipv4_mapped)
        return str(ipaddress.ip_network((int(host) >> 64 << 64, 64)))
    return str(host)


class LimitedProtocol(HttpToolsProtocol):
    """One connection. A refusal that comes before a whole head closes it."""

    def __init__(self, *args: Any, limits: Limits, clients: Clients, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits = limits
        self._clients = clients
        self._client: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        # Of the request that is being answered; uvicorn knows the one parsed last.
        self._answered: RequestResponseCycle | None = None
        # Bytes that may still come without being part of a body.
        self._room = MAX_HEAD_BYTES

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or refuse it. uvloop's transports are no asyncio.Transport."""
        super().connection_made(transport)
        client = client_of(self.client)
        refusal = self._clients.refusal(client, limits=self._limits)
        if refusal is not None:
            self._refuse(refusal)
            return
        self._clients.add(client)
        self._client = client
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        super().connection_lost(exc)
        self._abandon()
        self._unset_keepalive_if_required()
        self._stop_timers()
        if self._client is not None:
            self._clients.remove(self._client)
            self._client = None

    def data_received(self, data: bytes) -> None:
        """Parse the next bytes, if they are still wanted."""
        if self.transport.is_closing():
            return
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        self._room -= len(data)
        super().data_received(data)
        if self._room < 0 and not self.transport.is_closing():
            self._refuse(_large_head())

    def send_400_response(self, msg: str) -> None:
        """The parser understands nothing of it; `msg` is uvicorn's."""
        if not self.transport.is_closing():
            self._refuse(
                RefusedError(
                    400, "The request is not valid HTTP/1.1.", remedy="Correct the request."
                )
            )

    def on_message_begin(self) -> None:
        """The first byte of a head has come."""
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        """A whole head has come."""
        self._is_in_head = False
        self._room = MAX_HEAD_BYTES
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(_large_head())
            raise ValueError("the head is too large")  # so that the parser stops
        super().on_headers_complete()
        if self._clients.is_stopping:
            self.cycle.keep_alive = False
        if len(self.pipeline) > _MAX_AHEAD:
            raise ValueError("too many requests at once")

    def shutdown(self) -> None:
        """Answer what is in progress or on its way, say that it is the last, and close."""
        self._clients.is_stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(_LAST_SECONDS, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        """The size of a chunk has come."""
        self._room += _CHUNK_BYTES

    def on_body(self, body: bytes) -> None:
        """Bytes of a body have come."""
        self._room += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """A response is written, but a client that reads nothing may not have it yet."""
        super().on_response_complete()
        if self._is_in_head and self._head_timer is None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._await_head()
        if self.transport.get_write_buffer_size():
            self._await_reader()

    def pause_writing(self) -> None:
        """A client reads more slowly than it is answered."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_head(self) -> None:
        self._room = MAX_HEAD_BYTES
        self._head_timer = self.loop.call_later(self._limits.head_seconds, self._head_is_late)

    def _await_reader(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.seconds, self._reader_is_late)

    def _close_if_idle(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self.transport.is_closing():
            self._close()

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_in_head:
            self._close()
            return
        seconds = counted(self._limits.head_seconds, "second")
        self._refuse(
            RefusedError(
                408,
                f"The head of the request did not arrive within {seconds}.",
                remedy="Send it again.",
            )
        )

    def _reader_is_late(self) -> None:
        self._write_timer = None
        if self.transport.get_write_buffer_size():
            self._abandon()
            self.transport.abort()

    def _refuse(self, refusal: RefusedError) -> None:
        """Answer without the application, which knows of no request yet."""
        content = json.dumps(refusal.to_dict()).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Connection": "close",
            **refusal.headers,
        }
        lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        # In the middle of another response it would be read as a part of that one.
        if self._answered is None or self._answered.response_complete:
            self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", content]))
        self._close()

    def _close(self) -> None:
        self._abandon()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._await_reader()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _abandon(self) -> None:
        """Nobody reads the answers in progress: without this, writing them would fail."""
        self.pipeline.clear()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None


def _large_head() -> RefusedError:
    return RefusedError(
        431,
        f"The head of the request has more than {MAX_HEAD_BYTES:,} bytes.",
        remedy="Send fewer and shorter headers.",
    )
