"""A classifier behind HTTP: texts a second at concurrency 16, and the time of a single answer.

`regraft serve` in a process of its own, asked over loopback, beside peers on the exported same
model that need no network at all: the pipeline of transformers, called by 16 threads as a handler
of requests would, one after the other, or with lists in batches of 16, and bare onnxruntime. The
model has the default shape (modern, d 256, 3 layers) and random weights; texts are single sentences
and reviews of about 110 words, made up. Each turn asks one text after the other (p50, p99), then 16
at once. Every contender must give the same labels. Processor time is reported as well: it is the
same however busy the machine is; ours is that of the server. The limit is how many texts a second
the machine could classify if it did nothing but their products, at the speed of large ones measured
in the same run: nobody can be faster than that, whatever the ratio. Cost: five minutes on two
cores.

    .venv/bin/python benchmarks/serve.py [--texts N] [--json FILE] [--plot FILE]

Memory of `regraft serve` is that of the server, less what a process with torch alone holds.
"""

import argparse
import asyncio
import atexit
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvloop
from _turns import Contender, Result, Turn, add_arguments, publish, take_turns
from torch.utils.flop_counter import FlopCounterMode

from regraft.config import TokenizerSettings, resolve
from regraft.data import ExampleRows, synthetic_reviews, train_tokenizer
from regraft.export import export_huggingface, export_onnx
from regraft.models import build_classifier
from regraft.runtime import share_cores
from regraft.training import RunFolder, RunInfo, load_run

CONCURRENCY = 16
REVIEWS_EACH = 3
# By their length.
Texts = dict[str, list[str]]
OURS, BARE = "regraft serve over HTTP", f"bare onnxruntime, {CONCURRENCY} threads"
PIPELINE = f"transformers pipeline, {CONCURRENCY} threads"
PIPELINE_LISTS = f"transformers pipeline, batches of {CONCURRENCY}"


def write_model(folder: Path) -> None:
    """One model in three forms: a run folder, and both of its exports."""
    settings = resolve("finetune", preset="modern")
    reviews = [review.text for review in synthetic_reviews(num_documents=2_000, seed=1)]
    tokenizer = train_tokenizer(reviews, settings=TokenizerSettings(size=8_192))
    model = build_classifier(
        settings.model,
        vocab_size=tokenizer.vocab_size,
        num_classes=2,
        pooling=settings.head.pooling,
    )
    (folder / "run").mkdir(parents=True)
    info = RunInfo(kind="classifier", status="training", labels=("negative", "positive"))
    run = RunFolder(folder / "run")
    info = run.start(info, settings=settings, tokenizer=tokenizer, resume=False)
    run.finish(info, model=model)
    export_huggingface(folder / "run", out=folder / "hf")
    export_onnx(folder / "run", out=folder / "onnx")


def mean_flops(folder: Path, texts: Sequence[str]) -> float:
    """Of the products that one text takes."""
    run = load_run(folder / "run")
    data = run.settings.data
    rows = ExampleRows(texts, targets=[0] * len(texts), tokenizer=run.tokenizer, data=data)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        for number in range(len(texts)):
            batch = rows.batch(np.array([number]))
            run.model(batch.ids_BT, real_BT=batch.real_BT)
    return counter.get_total_flops() / len(texts)


def make_texts(num_texts: int) -> Texts:
    """A sentence each, and reviews as long as those of people are."""
    reviews = [r.text for r in synthetic_reviews(num_documents=num_texts * REVIEWS_EACH, seed=2)]
    return {
        "sentences": [review.partition(".")[0] + "." for review in reviews[:num_texts]],
        "reviews": [" ".join(reviews[number::num_texts]) for number in range(num_texts)],
    }


@dataclass(frozen=True)
class Notes:
    """What a contender reports besides its speed, in a file for the parent."""

    path: Path

    def add(self, **values: Any) -> None:
        """One more line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines."""
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


def take_turn(
    texts: Texts,
    notes: Notes,
    *,
    one_by_one: Callable[[Sequence[str]], tuple[list[float], list[str]]],
    together: Callable[[Sequence[str]], None],
    cpu_seconds: Callable[[], float],
) -> tuple[float, float]:
    """Both kinds of texts, alone and together; speed is that of sentences together."""
    taken = {}
    for kind, those in texts.items():
        seconds, labels = one_by_one(those)
        cpu_start, start = cpu_seconds(), time.perf_counter()
        together(those)
        taken[kind] = time.perf_counter() - start
        notes.add(
            kind=kind,
            seconds=seconds,
            labels=labels,
            together_seconds=taken[kind],
            cpu_seconds=cpu_seconds() - cpu_start,
        )
    return len(texts["sentences"]), taken["sentences"]


def timed(ask: Callable[[str], str], texts: Sequence[str]) -> tuple[list[float], list[str]]:
    """Texts one after the other: the seconds of each, and its label."""
    seconds, labels = [], []
    for text in texts:
        start = time.perf_counter()
        labels.append(ask(text))
        seconds.append(time.perf_counter() - start)
    return seconds, labels


def pipeline(folder: Path, texts: Texts, notes: Notes, *, batch_size: int) -> Turn:
    """As the documentation of transformers calls it: by many threads, or with a list of texts."""
    import transformers

    transformers.logging.set_verbosity_error()
    pipe = transformers.pipeline("text-classification", model=str(folder / "hf"))
    threads = ThreadPoolExecutor(CONCURRENCY)

    def ask(text: str) -> str:
        return str(pipe(text, truncation=True)[0]["label"])

    def together(those: Sequence[str]) -> None:
        if batch_size == 1:
            list(threads.map(ask, those))
        else:
            pipe(list(those), truncation=True, batch_size=batch_size)

    return partial(
        take_turn,
        texts,
        notes,
        one_by_one=partial(timed, ask),
        together=together,
        cpu_seconds=time.process_time,
    )


def bare_onnxruntime(folder: Path, texts: Texts, notes: Notes) -> Turn:
    """Tokenizer and session as the card of the export uses them."""
    import onnxruntime
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "onnx" / "tokenizer.json"))
    session = onnxruntime.InferenceSession(
        folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    labels = json.loads((folder / "onnx" / "config.json").read_text())["labels"]
    threads = ThreadPoolExecutor(CONCURRENCY)

    def ask(text: str) -> str:
        encoding = tokenizer.encode(text)
        given = {
            "input_ids": np.array([encoding.ids]),
            "attention_mask": np.array([encoding.attention_mask]),
        }
        return str(labels[session.run(["logits"], given)[0][0].argmax()])

    return partial(
        take_turn,
        texts,
        notes,
        one_by_one=partial(timed, ask),
        together=lambda those: list(threads.map(ask, those)),
        cpu_seconds=time.process_time,
    )


class Connection:
    """One kept open to the server: as little work as asking over HTTP can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes) -> str:
        """The label of the one text in a request."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        body = await self._reader.readexactly(int(length[1]))
        return str(json.loads(body)["predictions"][0]["label"])


def request_of(text: str) -> bytes:
    """All bytes of a request."""
    body = json.dumps({"texts": text}).encode()
    head = (
        "POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def regraft_serve(folder: Path, texts: Texts, notes: Notes) -> Turn:
    """The command itself, and askers over loopback."""
    idle_bytes = _resident_bytes(os.getpid(), "VmRSS")
    command = [sys.executable, "-m", "regraft", "serve", str(folder / "run"), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # A contender is ended by SIGTERM, at which nothing of Python's would be called.
    atexit.register(server.kill)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    assert server.stderr is not None
    said = ""
    while "Ctrl-C stops it" not in said:
        said = server.stderr.readline()
        assert said, "the server ended before it was ready"
    assert "onnxruntime" in said, said
    found = re.search(r":(\d+);", said)
    assert found is not None
    port = int(found[1])

    async def connected(num: int) -> list[Connection]:
        return [Connection(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(num)]

    async def one_by_one(those: Sequence[str]) -> tuple[list[float], list[str]]:
        connection = (await connected(1))[0]
        seconds, labels = [], []
        for request in map(request_of, those):
            start = time.perf_counter()
            labels.append(await connection.ask(request))
            seconds.append(time.perf_counter() - start)
        return seconds, labels

    async def together(those: Sequence[str]) -> None:
        waiting = map(request_of, those)

        async def ask(connection: Connection) -> None:
            for request in waiting:
                await connection.ask(request)

        await asyncio.gather(*map(ask, await connected(CONCURRENCY)))

    def turn() -> tuple[float, float]:
        done = take_turn(
            texts,
            notes,
            one_by_one=lambda those: uvloop.run(one_by_one(those)),
            together=lambda those: uvloop.run(together(those)),
            cpu_seconds=partial(_cpu_seconds, server.pid),
        )
        notes.add(memory_bytes=_resident_bytes(server.pid, "VmHWM") - idle_bytes)
        return done

    return turn


def _cpu_seconds(process_id: int) -> float:
    """Of all threads of a process, as the system counts it in hundredths."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(process_id: int, name: str) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest over the rounds."""
    return {"median": float(np.median(values)), "low": min(values), "high": max(values)}


def kind_table(
    summary: dict[str, list[dict[str, Any]]], kind: str, *, limit: float
) -> dict[str, Any]:
    """Of one kind of text: what each contender did in the rounds that count, beside ours.

    `limit` is the texts a second that the machine's arithmetic allows.
    """
    rounds = {
        name: [line for line in lines if _is(line, kind)][1:]  # the first warms up
        for name, lines in summary.items()
    }

    def medians(name: str) -> list[float]:
        return [float(np.median(line["seconds"])) * 1000 for line in rounds[name]]

    def ratios(name: str, key: str) -> list[float]:
        pairs = zip(rounds[name], rounds[OURS], strict=True)
        return [float(theirs[key] / ours[key]) for theirs, ours in pairs]

    rows = {}
    for name, lines in rounds.items():
        num_texts = len(lines[0]["labels"])
        rows[name] = {
            "p50_ms": spread(medians(name)),
            "p99_ms": spread([float(np.percentile(x["seconds"], 99)) * 1000 for x in lines]),
            "texts_per_second": spread([num_texts / x["together_seconds"] for x in lines]),
            "cpu_ms_per_text": spread([x["cpu_seconds"] / num_texts * 1000 for x in lines]),
            "our_speed_ratio": spread(ratios(name, "together_seconds")),
            # Ours together beside theirs one after the other, as behind a lock.
            "our_ratio_to_single_file": spread(
                [
                    float(sum(theirs["seconds"]) / ours["together_seconds"])
                    for theirs, ours in zip(lines, rounds[OURS], strict=True)
                ]
            ),
            "our_cpu_ratio": spread(ratios(name, "cpu_seconds")),
        }
    more = [ours - bare for ours, bare in zip(medians(OURS), medians(BARE), strict=True)]
    return {
        "contenders": rows,
        "our_p50_less_bare_ms": spread(more),
        "limit_texts_per_second": limit,
    }


@dataclass(frozen=True)
class ServeResult(Result):
    """Throughput of sentences, and tables of both kinds of text beside it."""

    tables: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**super().to_dict(), **self.tables}


def show(kind: str, table: dict[str, Any]) -> None:
    """One line a contender."""
    print(
        f"\n{kind:36}    p50      p99    texts/s   ours is   low - high    cpu/text   ours is"
        "   one by one, ours is"
    )
    for name, row in table["contenders"].items():
        ratio = row["our_speed_ratio"]
        print(
            f"{name:37}{row['p50_ms']['median']:6.2f} ms{row['p99_ms']['median']:6.1f} ms"
            f"{row['texts_per_second']['median']:9.1f}{ratio['median']:9.2f}x"
            f"{ratio['low']:6.2f} - {ratio['high']:<5.2f}"
            f"{row['cpu_ms_per_text']['median']:7.2f} ms{row['our_cpu_ratio']['median']:8.2f}x"
            f"{row['our_ratio_to_single_file']['median']:14.2f}x"
        )
    print(f"the machine's limit: {table['limit_texts_per_second']:.0f} texts/s")
    more = table["our_p50_less_bare_ms"]
    print(
        f"our p50 less that of {BARE}: {more['median']:+.2f} ms "
        f"({more['low']:+.2f} to {more['high']:+.2f})"
    )


def main() -> None:
    """Take turns and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=200, help="a turn (default 200)")
    add_arguments(parser)
    arguments = parser.parse_args()
    share_cores()  # for all contenders: they inherit it
    texts = make_texts(arguments.texts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        flops = {kind: mean_flops(folder, those) for kind, those in texts.items()}
        builds: dict[str, Callable[..., Turn]] = {
            PIPELINE: partial(pipeline, batch_size=1),
            PIPELINE_LISTS: partial(pipeline, batch_size=CONCURRENCY),
            BARE: bare_onnxruntime,
            OURS: regraft_serve,
        }
        notes = {name: Notes(folder / f"{number}.jsonl") for number, name in enumerate(builds)}
        imports = {OURS: ("torch",), BARE: ("onnxruntime", "tokenizers")}
        contenders = [
            Contender(
                name,
                partial(build, folder, texts, notes[name]),
                imports.get(name, ("torch", "transformers")),
            )
            for name, build in builds.items()
        ]
        result = take_turns(
            contenders,
            title=f"Sentences classified, {CONCURRENCY} asked for at once",
            unit="texts/s",
            rounds=arguments.rounds,
        )
        summary = {name: note.read() for name, note in notes.items()}
    for kind in texts:
        found = {tuple(x["labels"]) for lines in summary.values() for x in lines if _is(x, kind)}
        assert len(found) == 1, "contenders disagree about a label"
    memory_bytes = dict(result.memory_bytes)
    memory_bytes[OURS] = max(line.get("memory_bytes", 0) for line in summary[OURS])
    tables = {
        kind: kind_table(summary, kind, limit=result.matrix_flops / flops[kind]) for kind in texts
    }
    values = {**vars(result), "memory_bytes": memory_bytes}
    publish(ServeResult(**values, tables=tables), arguments=arguments)
    for kind, table in tables.items():
        show(kind, table)


def _is(line: dict[str, Any], kind: str) -> bool:
    return line.get("kind") == kind


if __name__ == "__main__":
    main()
