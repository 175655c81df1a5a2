"""Good and bad requests, mixed, from many clients at once; each kind has its right answer."""

import asyncio
import gzip
import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import make_examples
from servers import Served, served

from regraft.classifiers.base import load_classifier, prediction

TEXTS = [text for text, _ in make_examples(200, seed=6)]
NUM_CLIENTS = 64
# A client that leaves waits for no answer.
LEAVES = 0


@dataclass(frozen=True)
class Kind:
    """A kind of request: its bytes, and the status it should get.

    `closes`: the client leaves, or is refused before the application sees the request.
    """

    weight: int
    status: int
    make: Callable[[random.Random], bytes]
    closes: bool = False


@dataclass
class Traffic:
    """What has happened."""

    model: str
    num_sent: int = 0
    statuses: "Counter[int]" = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    # After SIGTERM: connections that the server did not accept, and requests on accepted ones.
    num_not_accepted: int = 0
    num_unanswered: int = 0
    # Answers of the application, and those that its clients may not have read to their end.
    num_answered: int = 0
    num_unread: int = 0
    megabytes: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def memory(self) -> tuple[float, float]:
        """Megabytes after a tenth of the requests, and at the end."""
        return (self.megabytes or [0.0])[:2][-1], (self.megabytes or [0.0])[-1]


def message(
    body: bytes, *, route: str = "/v1/classify", method: str = "POST", **headers: str
) -> bytes:
    values = {"Host": "127.0.0.1", "Content-Type": "application/json"}
    values |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in values.items())
    start = f"{method} {route} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return start.encode() + body


def texts(source: random.Random, size: int) -> bytes:
    return message(json.dumps({"texts": source.sample(TEXTS, size)}).encode())


GOOD = json.dumps({"texts": TEXTS[0]}).encode()
KINDS: Mapping[str, Kind] = {
    "one text": Kind(60, 200, lambda source: texts(source, 1)),
    "three texts": Kind(15, 200, lambda source: texts(source, 3)),
    "health": Kind(3, 200, lambda _: message(b"", route="/healthz", method="GET")),
    "metrics": Kind(1, 200, lambda _: message(b"", route="/metrics", method="GET")),
    "no JSON": Kind(2, 400, lambda source: message(GOOD[: source.randrange(len(GOOD))])),
    "random bytes": Kind(2, 400, lambda source: message(source.randbytes(50))),
    "surrogate": Kind(1, 400, lambda _: message(b'{"texts": "\\ud800"}')),
    "key twice": Kind(2, 400, lambda _: message(b'{"texts": "a", "texts": "b"}')),
    "NUL": Kind(2, 422, lambda _: message(b'{"texts": "a\\u0000"}')),
    "blank": Kind(1, 422, lambda _: message(b'{"texts": ["a", " "]}')),
    "unknown field": Kind(1, 422, lambda _: message(b'{"texts": "a", "path": "/etc"}')),
    "too many texts": Kind(1, 422, lambda _: message(json.dumps({"texts": ["a"] * 300}).encode())),
    "nested": Kind(1, 400, lambda _: message(b"[" * 10_000)),
    "form": Kind(1, 415, lambda _: message(b"texts=a", Content_Type="text/plain")),
    "gzip": Kind(1, 415, lambda _: message(gzip.compress(GOOD), Content_Encoding="gzip")),
    "large": Kind(1, 413, lambda _: message(b"x" * 1_100_000)),
    "route": Kind(1, 404, lambda _: message(GOOD, route="/v2/%2e%2e/etc")),
    "method": Kind(1, 405, lambda _: message(b"", method="GET")),
    "host": Kind(1, 421, lambda _: message(GOOD, Host="evil.example")),
    "origin": Kind(1, 403, lambda _: message(GOOD, Origin="http://evil.example")),
    "no HTTP": Kind(1, 400, lambda source: b"\x16\x03\x01" + source.randbytes(60), closes=True),
    "long head": Kind(1, 431, lambda _: message(GOOD, X=70_000 * "x"), closes=True),
    "half a head": Kind(1, LEAVES, lambda _: message(GOOD)[:40], closes=True),
    "half a body": Kind(1, LEAVES, lambda _: message(GOOD)[:-5], closes=True),
}


class Client:
    """One connection, opened again when it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        # Requests answered on the connection that is open.
        self.num_answers = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, kind: Kind, data: bytes) -> tuple[int, bytes] | None:
        """Status and body; None if the server has closed the connection without an answer."""
        if self._streams is None:
            self.num_answers = 0
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            writer.write(data)
            await writer.drain()
            if kind.status == LEAVES:
                return LEAVES, b""
            head = await reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            await self.close()
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                raise
            return None
        finally:
            if kind.closes:
                await self.close()
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        names = {name.lower(): value for name, value in fields.items()}
        body = await reader.readexactly(int(names.get("content-length", 0)))
        self.num_answers += 1
        if names.get("connection") == "close":
            await self.close()
        return int(head.split(b" ", 2)[1]), body

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def check(data: bytes, body: bytes, expected: Mapping[str, Any]) -> str:
    """What is wrong with the answer to a good request, if anything."""
    asked = json.loads(data.partition(b"\r\n\r\n")[2])["texts"]
    found = json.loads(body)["predictions"]
    for text, one in zip(asked, found, strict=True):
        right = expected[text]
        if one["label"] != right["label"]:
            return f"{text!r} is {one['label']}, not {right['label']}"
        for label, value in right["probabilities"].items():
            if abs(one["probabilities"][label] - value) > 1e-5:
                return f"{text!r}: {label} has {one['probabilities'][label]}, not {value}"
    return ""


async def drive(
    traffic: Traffic, server: Served, expected: Mapping[str, Any], *, total: int, seed: int
) -> None:
    """Send `total` requests, then go on until the server, told to stop, has closed everything."""
    is_stopping = asyncio.Event()
    names = list(KINDS)
    weights = [kind.weight for kind in KINDS.values()]

    async def work(number: int) -> None:
        source, client = random.Random(seed * 1_000 + number), Client(server.port)
        while not traffic.problems:
            (name,) = source.choices(names, weights)
            kind = KINDS[name]
            data = kind.make(source)
            traffic.num_sent += 1
            if traffic.num_sent % max(total // 20, 1) == 0:
                traffic.megabytes.append(server.resident_bytes() / 1e6)
            if traffic.num_sent == total:
                is_stopping.set()
            try:
                answer = await client.ask(kind, data)
            except OSError:
                answer = None
            except asyncio.IncompleteReadError:
                answer = None
                if not kind.closes:  # else the server closes while we still send
                    traffic.problems.append(f"{name}: the answer was broken off")
                    return
            if answer is None:
                traffic.num_unread += kind.status == 413  # we were still sending
                if is_stopping.is_set():
                    is_late = client.num_answers > 0 and not kind.closes and kind.status != 413
                    traffic.num_unanswered += is_late
                    traffic.num_not_accepted += not is_late
                    return
                if not kind.closes and kind.status != 413:
                    traffic.problems.append(f"{name}: no answer")
                continue
            status, body = answer
            traffic.statuses[status] += 1
            traffic.num_answered += not kind.closes
            if status != kind.status and not (status == 429 and kind.status == 200):
                traffic.problems.append(
                    f"{name}: {status} instead of {kind.status}: {body[:200]!r}"
                )
            elif status == 200 and b'"texts"' in data and (wrong := check(data, body, expected)):
                traffic.problems.append(f"{name}: {wrong}")

    async def stop() -> None:
        await is_stopping.wait()
        server.process.send_signal(signal.SIGTERM)

    stopping = asyncio.create_task(stop())
    await asyncio.gather(*(work(number) for number in range(NUM_CLIENTS)))
    if stopping.cancel():  # something is wrong: that it stops all the same is looked at, too
        server.process.send_signal(signal.SIGTERM)


def run_traffic(run_dir: Path, *, total: int, seed: int, say: Callable[[str], None]) -> Traffic:
    """Requests to a run in another process, until SIGTERM under load."""
    traffic = Traffic(run_dir.name)
    classifier = load_classifier(run_dir)
    rows = classifier.predict_proba(TEXTS).tolist()
    expected = {
        text: prediction(classifier.labels, row) for text, row in zip(TEXTS, rows, strict=True)
    }
    began = time.monotonic()
    with served(run_dir) as server:
        asyncio.run(drive(traffic, server, expected, total=total, seed=seed))
        traffic.seconds = time.monotonic() - began
        _, said = server.process.communicate(timeout=120)
        stopped = re.search(r"Stopped after ([\d,]+) requests, all of them answered", said)
        if server.process.returncode != 0 or stopped is None:
            traffic.problems.append(f"exit code {server.process.returncode}: {said[-2_000:]}")
        else:
            lost = int(stopped[1].replace(",", "")) - traffic.num_answered
            if not 0 <= lost <= traffic.num_unread or traffic.num_unanswered:
                traffic.problems.append(
                    f"the server answered {lost} requests more than its clients have read "
                    f"({traffic.num_unread} at most), and closed {traffic.num_unanswered} "
                    "connections on which a request came"
                )
        if "Traceback" in said:
            traffic.problems.append(f"traceback in the log: {said[-2_000:]}")
    first, last = traffic.memory
    if last - first > 64:
        traffic.problems.append(f"memory grew from {first:.0f} to {last:.0f} MB")
    say(f"{traffic.model}: {traffic.num_sent} requests in {traffic.seconds:.0f} s")
    return traffic


def traffic_table(found: Sequence[Traffic]) -> str:
    lines = [
        "| classifier | requests | statuses | requests a second | memory, first to last | "
        "accepted and unanswered | not accepted after SIGTERM | problems |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for traffic in found:
        statuses = ", ".join(
            f"{'left' if status == LEAVES else status}: {count:,}"
            for status, count in sorted(traffic.statuses.items())
        )
        memory = "{:.0f} to {:.0f} MB".format(*traffic.memory)
        pace = traffic.num_sent / max(traffic.seconds, 1e-9)
        lines.append(
            f"| {traffic.model} | {traffic.num_sent:,} | {statuses} | {pace:.0f} | {memory} | "
            f"{traffic.num_unanswered} | {traffic.num_not_accepted} | {len(traffic.problems)} |"
        )
    return "\n".join(lines)
