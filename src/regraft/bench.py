"""Recipe: what this machine can do, and how long a corpus would take it.

Comes in: settings, maybe files. Goes out: a `BenchResult`: the speed of a plain matrix product, and
of real training steps at several sizes beside it. Trains on random tokens and keeps nothing.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regraft.batches import Rows
from regraft.config import Settings, with_size
from regraft.heads import build_language_model
from regraft.ledger import ledger
from regraft.objectives import build_objective
from regraft.pairs import pretraining_rows
from regraft.presets import SIZES
from regraft.runtime import SILENT, Progress, device, matrix_speed, seeded
from regraft.store import TokenStore
from regraft.text import read_documents
from regraft.trainer import build_state, steps, use_threads
from regraft.vocabulary import numbered_tokenizer, train_tokenizer

# Each shape trains this long: enough for a median of many steps of a small model, few of a large.
SECONDS_PER_SHAPE = 4.0
MOST_STEPS = 200

# Text of a corpus from which its bytes a token are told.
SAMPLE_BYTES = 2_000_000


@dataclass(frozen=True)
class Speed:
    """How fast one shape trains here."""

    name: str
    width: int
    num_layers: int
    num_parameters: int
    num_threads: int
    tokens_per_second: float
    share_of_limit: float
    corpus_seconds: float | None


@dataclass(frozen=True)
class BenchResult:
    """What was measured; times for a corpus are for one pass over it."""

    device: str
    matrix_flops_per_second: float
    vocab_size: int
    corpus_bytes: int | None
    corpus_tokens: int | None
    speeds: tuple[Speed, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)


def bench(
    texts: Sequence[str | Path] = (),
    *,
    settings: Settings,
    seconds_per_shape: float = SECONDS_PER_SHAPE,
    progress: Progress = SILENT,
) -> BenchResult:
    """Measure training at the settings' own shape and at every size; with `texts`, their cost."""
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
    # The first step touches memory for the first time.
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
    """A few batches of tokens drawn at random: as hard to compute with as any others."""
    tokenizer = numbered_tokenizer(vocab_size)
    num_rows = settings.train.batch_size * 4
    # Documents framed by a start and an end, as long as just fits a row of pairs, which has one
    # special token more: a longer one would be cut into two halves.
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
    """(bytes, tokens), the tokens by a tokenizer trained on a sample from the beginning."""
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
