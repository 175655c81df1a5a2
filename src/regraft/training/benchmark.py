"""Measures training speed on this machine at several model sizes, and the time for a corpus.

Trains on random tokens and writes nothing.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from regraft.config import SIZES, Settings, with_size
from regraft.data import (
    Rows,
    TokenStore,
    numbered_tokenizer,
    pretraining_rows,
    read_documents,
    train_tokenizer,
)
from regraft.models import build_language_model, ledger
from regraft.runtime import SILENT, Plain, Progress, device, matrix_speed, seeded
from regraft.training.loop import build_state, steps, use_threads
from regraft.training.objectives import build_objective

# Training time per shape: many steps of a small model, few of a large one.
SECONDS_PER_SHAPE = 4.0
MOST_STEPS = 200

# Bytes of a corpus from which its bytes per token are estimated.
SAMPLE_BYTES = 2_000_000


@dataclass(frozen=True)
class Speed:
    """The training speed of one shape."""

    name: str
    width: int
    num_layers: int
    num_parameters: int
    num_threads: int
    tokens_per_second: float
    share_of_limit: float
    corpus_seconds: float | None


@dataclass(frozen=True)
class BenchResult(Plain):
    """The measurements; times for a corpus are for one epoch."""

    device: str
    matrix_flops_per_second: float
    vocab_size: int
    corpus_bytes: int | None
    corpus_tokens: int | None
    speeds: tuple[Speed, ...]


def bench(
    texts: Sequence[str | Path] = (),
    *,
    settings: Settings,
    seconds_per_shape: float = SECONDS_PER_SHAPE,
    progress: Progress = SILENT,
) -> BenchResult:
    """Measure training at the shape of the settings and at every size; with `texts`, their time."""
    corpus_bytes, corpus_tokens = None, None
    if texts:
        corpus_bytes, corpus_tokens = _corpus_size(texts, settings=settings, progress=progress)
    limit = matrix_speed()
    shapes = {settings.preset: settings, **{size: with_size(settings, size) for size in SIZES}}
    speeds = []
    progress.start("measure", total=len(shapes))
    for name, shaped in shapes.items():
        speed = _speed(name, settings=shaped, limit=limit, seconds=seconds_per_shape)
        if corpus_tokens is not None:
            corpus_seconds = corpus_tokens / speed.tokens_per_second
            speed = dataclasses.replace(speed, corpus_seconds=corpus_seconds)
        speeds.append(speed)
        progress.advance(note=f"{name}: {speed.tokens_per_second:,.0f} tokens/s")
    progress.finish()
    return BenchResult(
        device=str(device()),
        matrix_flops_per_second=limit,
        vocab_size=settings.tokenizer.size,
        corpus_bytes=corpus_bytes,
        corpus_tokens=corpus_tokens,
        speeds=tuple(speeds),
    )


def _speed(name: str, *, settings: Settings, limit: float, seconds: float) -> Speed:
    train = dataclasses.replace(settings.train, steps=MOST_STEPS, epochs=None, minutes=None)
    vocab_size = settings.tokenizer.size
    with seeded(train.seed, stream="weights"):
        model = build_language_model(
            settings.model, vocab_size=vocab_size, objective=settings.objective
        )
    rows = random_rows(vocab_size, settings=settings)
    state = build_state(model.to(device()), settings=train, num_rows=len(rows.lengths))
    most_threads = torch.get_num_threads()
    objective = build_objective(settings, tokenizer=numbered_tokenizer(vocab_size))
    use_threads(state, rows=rows, objective=objective, settings=train)
    begin = time.perf_counter()
    records = []
    for record in steps(state, rows=rows, objective=objective, settings=train):
        records.append(record)
        if time.perf_counter() - begin > seconds and len(records) > 2:
            break
    torch.set_num_threads(most_threads)
    counted = ledger(
        settings.model,
        vocab_size=vocab_size,
        max_length=settings.data.max_length,
        batch_size=train.batch_size,
        objective=settings.objective,
    )
    # The first step also pays for fresh memory.
    tokens_per_second = float(np.median([record.tokens_per_second for record in records[1:]]))
    assert state.num_threads is not None
    return Speed(
        name=name,
        width=settings.model.width,
        num_layers=settings.model.num_layers,
        num_parameters=counted.language_model,
        num_threads=state.num_threads,
        tokens_per_second=tokens_per_second,
        share_of_limit=tokens_per_second * counted.flops_forward_backward / limit,
        corpus_seconds=None,
    )


def random_rows(vocab_size: int, *, settings: Settings) -> Rows:
    """A few batches of random tokens, as expensive as real ones."""
    tokenizer = numbered_tokenizer(vocab_size)
    num_rows = settings.train.batch_size * 4
    # Documents with start and end token that just fit into a row of sentence pairs, which has one
    # more special token: a longer one would be split.
    shape = (2 * num_rows, settings.data.max_length - 1)
    num_special = len(tokenizer.special_ids)
    ids = np.random.default_rng(0).integers(num_special, vocab_size, size=shape, dtype=np.uint32)
    ids[:, 0], ids[:, -1] = tokenizer.start_id, tokenizer.end_id
    offsets = np.arange(len(ids) + 1) * ids.shape[1]
    store = TokenStore.from_arrays(ids.flatten(), offsets, num_bytes=ids.size)
    return pretraining_rows(store, tokenizer=tokenizer, settings=settings)


def _corpus_size(
    texts: Sequence[str | Path], *, settings: Settings, progress: Progress
) -> tuple[int, int]:
    """(bytes, tokens); the tokenizer is trained on a sample from the start."""
    sample: list[str] = []
    num_bytes = sample_bytes = 0
    for document in read_documents(texts, data=settings.data):
        size = len(document.text.encode("utf-8", "surrogatepass"))
        num_bytes += size
        if sample_bytes < SAMPLE_BYTES:
            sample.append(document.text)
            sample_bytes += size
    trained = train_tokenizer(sample, settings=settings.tokenizer, progress=progress)
    num_tokens = sum(len(ids) for ids in trained.encode_batch(sample))
    return num_bytes, round(num_bytes * num_tokens / max(sample_bytes, 1))
