"""Tokenising a large text: megabytes per second, regraft against `map` of the `datasets` library.

Both encode the same file with the same tokenizer (8,192 tokens, trained on it) on two processes,
and frame every document. Counted for the peer is `map` alone, with the fast call of the tokenizer
and two bytes an id; reading the text into its own format before is not. Counted for regraft is all,
from the text file to the store. The text is repeated up to the size asked for, which helps a memory
of words: --megabytes 0 takes it once. Memory is that of all processes of a contender together,
pages they share counted once. Cost: 15 minutes on two cores.

    .venv/bin/python benchmarks/tokenising.py [TEXT ...] [--megabytes 1000] [--json FILE]

Without TEXT, the reviews of the corpus imdb-50k, or made-up ones if it cannot be fetched.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from _turns import MATRIX, Result, add_arguments, publish

from regraft.config import DataSettings, TokenizerSettings
from regraft.data import load_tokenizer, read_documents, train_tokenizer
from regraft.errors import CorpusError

PEER, OURS = "datasets.map, 2 processes", "regraft"
DEFAULT_CORPUS = "imdb-50k"
TEXT_NAME, TOKENIZER_NAME = "text.txt", "tokenizer.json"
SECONDS_BETWEEN_SAMPLES = 0.1


def peer_turn(folder: Path) -> tuple[int, float]:
    """(tokens, seconds) of encoding the text with `datasets`."""
    import datasets
    import tokenizers

    datasets.disable_progress_bars()
    inner = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_NAME))
    inner.encode_special_tokens = True
    ours = load_tokenizer(folder / TOKENIZER_NAME)
    start_id, end_id = ours.start_id, ours.end_id

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encodings = inner.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"ids": [[start_id, *encoding.ids, end_id] for encoding in encodings]}

    with tempfile.TemporaryDirectory(dir=folder) as cache_dir:
        text = datasets.load_dataset(
            "text", data_files=str(folder / TEXT_NAME), split="train", cache_dir=cache_dir
        )
        ids = datasets.Features({"ids": datasets.Sequence(datasets.Value("uint16"))})
        start = time.perf_counter()
        encoded = text.map(encode, batched=True, num_proc=2, remove_columns="text", features=ids)
        seconds = time.perf_counter() - start
        batches = encoded.with_format("arrow").iter(batch_size=10_000)
        return sum(len(batch["ids"].combine_chunks().flatten()) for batch in batches), seconds


def our_turn(folder: Path) -> tuple[int, float]:
    """(tokens, seconds) of encoding the text with regraft."""
    from regraft.data import write_store

    tokenizer = load_tokenizer(folder / TOKENIZER_NAME)
    with tempfile.TemporaryDirectory(dir=folder) as store_dir:
        start = time.perf_counter()
        written = write_store(
            [folder / TEXT_NAME], data=DataSettings(), tokenizer=tokenizer, store_dir=store_dir
        )
        return written.num_new_tokens, time.perf_counter() - start


TURNS = {PEER: peer_turn, OURS: our_turn}


def take_turn(name: str, folder: Path) -> tuple[int, float, int]:
    """(tokens, seconds, peak memory) of one contender in a process of its own."""
    import psutil

    command = [sys.executable, __file__, "--turn", name, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        root = psutil.Process(process.pid)
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(map(_memory, [root, *_children(root)])))
            time.sleep(SECONDS_BETWEEN_SAMPLES)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{name} failed.")
    tokens, seconds = json.loads(output.splitlines()[-1])
    return tokens, seconds, peak


def _children(root: object) -> list:
    import psutil

    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def _memory(process: object) -> int:
    """Resident bytes, shared pages divided among those who share them where the system tells."""
    import psutil

    try:
        memory = process.memory_full_info()
        return getattr(memory, "pss", memory.rss)
    except psutil.Error:
        return 0  # it has just ended


def texts_of(paths: list[Path]) -> Iterator[str]:
    """The documents of files, or of a corpus, or of our own making."""
    if not paths:
        from regraft.data import corpora

        try:
            paths = list(corpora.fetch(DEFAULT_CORPUS).files.values())
        except CorpusError as error:
            from regraft.data import synthetic_reviews

            print(f"Made-up text: {error}", file=sys.stderr)
            reviews = synthetic_reviews(num_documents=50_000, seed=0)
            return (review.text for review in reviews)
    return (document.text for document in read_documents(paths, data=DataSettings()))


def write_lines(texts: Iterable[str], *, path: Path) -> None:
    """A document a line, blank space made single spaces."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{' '.join(text.split())}\n" for text in texts if text.strip())


def repeat(path: Path, *, num_bytes: int) -> None:
    """Make the file at least this long by repeating it."""
    once = path.read_bytes()
    with path.open("ab") as file:
        for _ in itertools.count():
            if file.tell() >= num_bytes:
                break
            file.write(once)


def main() -> None:
    """Prepare text and tokenizer, take turns, publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", type=Path, metavar="TEXT")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--turn", nargs=2, help=argparse.SUPPRESS)
    add_arguments(parser)
    parser.set_defaults(rounds=3)
    arguments = parser.parse_args()
    if arguments.turn:
        name, folder = arguments.turn
        print(json.dumps(TURNS[name](Path(folder))))
        return
    speeds: dict[str, list[float]] = {name: [] for name in TURNS}
    memory_bytes = dict.fromkeys(TURNS, 0)
    operations, seconds = MATRIX.build()()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        path = folder / TEXT_NAME
        write_lines(texts_of(arguments.texts), path=path)
        size = path.stat().st_size
        with path.open(encoding="utf-8") as lines:
            settings = TokenizerSettings(size=8192, sample_bytes=20_000_000)
            train_tokenizer(lines, settings=settings).save(folder / TOKENIZER_NAME)
        repeat(path, num_bytes=int(arguments.megabytes * 1e6))
        path_size = path.stat().st_size
        megabytes = path_size / 1e6
        for number in range(1, arguments.rounds + 1):
            counts = set()
            for name in TURNS:
                num_tokens, turn_seconds, peak = take_turn(name, folder)
                counts.add(num_tokens)
                speeds[name].append(megabytes / turn_seconds)
                memory_bytes[name] = max(memory_bytes[name], peak)
            assert len(counts) == 1, f"the contenders disagree: {counts}"
            print(f"round {number} of {arguments.rounds} is done", file=sys.stderr)
    publish(
        Result(
            title=f"Tokenising {megabytes:,.0f} MB, {path_size / size:.1f} times the same text",
            unit="MB/s",
            speeds=speeds,
            memory_bytes=memory_bytes,
            matrix_flops=operations / seconds,
            flops_per_unit=None,
        ),
        arguments=arguments,
    )


if __name__ == "__main__":
    main()
