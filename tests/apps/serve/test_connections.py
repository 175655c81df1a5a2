"""Connections that are held open, come in numbers, or from a web page elsewhere."""

import contextlib
import gzip
import json
import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers import Gated, Running, engine_of, listening, running
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from regraft.apps.serve import connections
from regraft.apps.serve.connections import MAX_HEAD_BYTES, client_of, limited_server
from regraft.apps.serve.guard import LOCAL_NAMES
from regraft.apps.serve.limits import Limits
from regraft.apps.serve.server import bound_socket, local_hosts

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
QUICK = Limits(head_seconds=0.2)
JSON_TYPE = {"content-type": "application/json"}


@contextlib.contextmanager
def serving(limits: Limits = QUICK, **more: object) -> Iterator[Running]:
    with running(
        engine_of(Gated()), run_dir=Path("nowhere"), limits=limits, watch_seconds=60, **more
    ) as server:
        yield server


@contextlib.contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    """A connection; where a server before these limits would wait for ever, it waits a minute."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        yield connection


def received(connection: socket.socket) -> bytes:
    """All until the server closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def is_dropped(connection: socket.socket, *, sending: bytes) -> bool:
    """Whether the server stops taking this, again and again, and ends the connection."""
    with contextlib.suppress(ConnectionError):
        for _ in range(10_000):
            connection.sendall(sending)
        return False
    return True


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def await_place(server: Running) -> None:
    """Until one more connection is accepted."""
    for _ in range(1_000):
        with connected(server) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(HEAD + b"\r\n")
            if status_of(connection.recv(1 << 16)) == 200:
                return
        time.sleep(0.02)
    raise AssertionError("nobody is let in")


def answer_on(connection: socket.socket) -> int:
    """The status of a request on a connection that stays open."""
    connection.sendall(HEAD + b"\r\n")
    return status_of(connection.recv(1 << 16))


@pytest.mark.parametrize("start", [HEAD, HEAD + b"\r\n" + HEAD], ids=["first", "second"])
def test_half_a_head_is_refused_when_its_time_is_over(start):
    with serving() as server, connected(server) as connection:
        connection.sendall(start)
        answer = received(connection)
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    assert last.startswith(b"408")
    assert json.loads(last.partition(b"\r\n\r\n")[2])["problem"].endswith("within 0.2 seconds.")


def test_head_that_comes_line_by_line_has_no_more_time():
    with serving() as server, connected(server) as connection:
        connection.sendall(HEAD)
        connection.settimeout(0.02)
        for _ in range(3_000):
            try:
                connection.sendall(b"a: b\r\n")
                answer = connection.recv(1 << 16)
                break
            except TimeoutError:
                continue
    assert status_of(answer) == 408


def test_what_is_not_http_is_refused_as_json():
    with serving() as server, connected(server) as connection:
        connection.sendall(b"GGGG")
        answer = received(connection)
    assert status_of(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["problem"].startswith("The request is not")


def test_silent_connection_is_closed():
    with serving() as server, connected(server) as connection:
        assert received(connection) == b""


def test_body_after_its_answer_does_not_hold_a_connection():
    with serving() as server, connected(server) as connection:
        connection.sendall(b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
        assert status_of(connection.recv(1 << 16)) == 405
        connection.sendall(b"x")
        assert b"HTTP/1.1" not in received(connection)  # the rest of that answer at most


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["half", "whole"])
def test_large_head_is_refused(end):
    with serving() as server, connected(server) as connection:
        connection.sendall(HEAD + b"a: " + b"b" * MAX_HEAD_BYTES + end)
        assert status_of(received(connection)) == 431


def test_endless_trailers_are_refused():
    start = b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with serving() as server, connected(server) as connection:
        connection.sendall(start + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\na: ")
        assert is_dropped(connection, sending=b"b" * MAX_HEAD_BYTES)


def test_small_chunks_are_a_body_all_the_same():
    body = b'{"texts": "' + b"a" * 10_000 + b'"}'
    with serving() as server:

        def parts() -> Iterator[bytes]:
            for place in range(len(body)):
                yield body[place : place + 1]

        answer = server.client.post("/v1/classify", content=parts(), headers=JSON_TYPE)
        assert answer.status_code == 200


def test_client_that_reads_nothing_is_dropped():
    app = Starlette(routes=[Route("/healthz", lambda request: Response(bytes(64 << 20)))])
    limits = replace(QUICK, seconds=0.2, max_connections=1)
    slow = limited_server(app, limits=limits, stop_seconds=60)
    with listening(slow) as server, connected(server) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(10) == b"HTTP/1.1 2"
        await_place(server)


def test_request_on_its_way_when_a_server_stops_is_answered(monkeypatch):
    monkeypatch.setattr(connections, "_LAST_SECONDS", 60.0)
    app = Starlette(routes=[Route("/healthz", lambda request: Response())])
    stopping = limited_server(app, limits=Limits(), stop_seconds=60)
    with listening(stopping) as server, connected(server) as connection:
        assert answer_on(connection) == 200
        stopping.should_exit = True
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                with connected(server):
                    time.sleep(0.02)
        connection.sendall(HEAD + b"\r\n")
        answer = received(connection)
    assert status_of(answer) == 200
    assert b"connection: close" in answer


def test_requests_without_end_are_not_kept(caplog):
    with serving() as server, connected(server) as connection:
        connection.sendall((HEAD + b"\r\n") * 50)
        assert connection.recv(1 << 16)
        assert is_dropped(connection, sending=(HEAD + b"\r\n") * 1_000)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


@pytest.mark.parametrize(
    ("limits", "status"),
    [(Limits(max_client_connections=2), 429), (Limits(max_connections=2), 503)],
)
def test_one_connection_too_many_is_refused_until_another_ends(limits, status):
    with serving(limits) as server, connected(server) as first:
        assert answer_on(first) == 200
        with connected(server) as second:
            assert answer_on(second) == 200
            with connected(server) as third:
                answer = received(third)
            assert status_of(answer) == status
            assert b"2 connections" in answer
        await_place(server)  # until the server has noticed that the second is gone


def test_client_is_an_address_or_a_network_of_ipv6():
    assert client_of(("203.0.113.7", 1)) == client_of(("::ffff:203.0.113.7", 2)) == "203.0.113.7"
    assert client_of(("2001:db8::1", 1)) == client_of(("2001:db8::2", 1)) == "2001:db8::/64"
    assert client_of(("2001:db8:0:1::1", 1)) != client_of(("2001:db8::1", 1))
    assert client_of(None) == ""


def test_half_sent_heads_do_not_keep_others_out():
    limits = replace(QUICK, max_connections=20)
    with serving(limits) as server, contextlib.ExitStack() as open_connections:
        for _ in range(limits.max_connections):
            open_connections.enter_context(connected(server)).sendall(HEAD)
        await_place(server)


def test_client_that_leaves_is_no_error_of_ours(caplog):
    caplog.set_level(logging.WARNING)
    with serving() as server:
        with connected(server) as connection:
            connection.sendall(
                b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
        for _ in range(1_000):
            if 'status="499"' in server.client.get("/metrics").text:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("the server never noticed")
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_compressed_body_is_refused(encoding):
    body = gzip.compress(b'{"texts": "a"}')
    with serving() as server:
        headers = {**JSON_TYPE, "content-encoding": encoding}
        answer = server.client.post("/v1/classify", content=body, headers=headers)
        plain = server.classify("a", headers={"content-encoding": "identity"})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert repr(encoding) in answer.json()["problem"]
    assert plain.status_code == 200


@pytest.fixture(scope="module")
def local() -> Iterator[Running]:
    with serving(Limits(), hosts=[*LOCAL_NAMES, "texts.example"]) as server:
        yield server


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1:1", ""])
@pytest.mark.parametrize("route", ["/", "/readyz", "/v1/classify"])
def test_name_of_another_machine_is_refused(local, host, route):
    answer = local.client.get(route, headers={"host": host})
    assert answer.status_code == 421
    assert repr(host) in answer.json()["problem"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "texts.example", "origin": "https://evil.example"},
    ],
)
def test_request_of_another_page_is_refused(local, headers):
    assert local.classify("a", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost"},
        {"host": "texts.example"},
        {"host": "texts.example:443", "origin": "https://texts.example:443"},
    ],
)
def test_our_own_names_and_those_of_a_proxy_are_let_in(local, headers):
    assert local.classify("a", headers=headers).status_code == 200


def test_names_are_checked_on_this_machine_only():
    with bound_socket("127.0.0.1", 0, has_key=False) as listener:
        assert local_hosts(listener, ["a.example"]) == [*LOCAL_NAMES, "a.example"]
    with bound_socket("0.0.0.0", 0, has_key=True) as listener:
        assert local_hosts(listener, []) is None
