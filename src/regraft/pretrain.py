"""Recipe: a pile of text becomes a run folder with a language model in it, the base of a graft.

Comes in: files, settings, a folder. Goes out: the folder and a `PretrainResult`. Composes the rooms
above it; the loop, the objective and the file formats are theirs.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.batches import Rows, TokenStore, build_token_store, language_model_rows
from regraft.checkpoint import RunFolder, RunInfo
from regraft.config import Settings, TrainSettings, resolve
from regraft.evaluate import language_model_loss
from regraft.heads import build_language_model
from regraft.metrics import bits_per_byte, unigram_entropy
from regraft.objectives import causal
from regraft.runtime import SILENT, Progress, device, interruptible, seeded
from regraft.text import Document, read_documents
from regraft.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from regraft.trainer import StepRecord, TrainState, build_state, steps

# Enough for a steady validation loss (its standard error is then about 0.03 nats), few enough to
# cost seconds even with a vocabulary of 50,000. Their time counts against a budget in minutes.
VALID_TOKENS = 10_000
VALIDATIONS = 8

# Steps averaged into one line of metrics.jsonl.
LOG_EVERY = 10


@dataclass(frozen=True)
class PretrainResult:
    """What a pre-training run gave; losses in nats a token."""

    run_dir: str
    num_steps: int
    num_tokens: int
    num_documents: int
    vocab_size: int
    seconds: float
    tokens_per_second: float
    valid_loss: float
    unigram_entropy: float
    bits_per_byte: float
    beats_unigram: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)


def pretrain(
    texts: Sequence[str | Path],
    *,
    out: str | Path,
    settings: Settings | None = None,
    tokenizer_path: str | Path | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> PretrainResult:
    """Train a language model on the files `texts` and leave it in the folder `out`.

    Without `tokenizer_path` a tokenizer is trained on the same text first. With `resume` the run in
    `out` goes on from its last checkpoint; a finished one is returned as it is.
    """
    settings = settings or resolve("pretrain")
    folder = RunFolder(Path(out))
    folder.check_free(resume=resume)
    documents = list(read_documents(texts, data=settings.data))
    if resume and folder.exists:
        tokenizer = load_tokenizer(folder.run_dir / "tokenizer.json")
    else:
        tokenizer = _tokenizer(documents, path=tokenizer_path, settings=settings, progress=progress)
    store = build_token_store(documents, tokenizer=tokenizer, progress=progress)
    fingerprints = {"text": store.fingerprint, "tokenizer": tokenizer.fingerprint}
    info = RunInfo(kind="language-model", status="training", fingerprints=fingerprints)
    info = folder.start(info, settings=settings, tokenizer=tokenizer, resume=resume)
    if info.status == "complete":
        progress.say(f"{folder.run_dir} is complete already.")
        return PretrainResult(**info.result)

    train_store, valid_store = _split(store, settings=settings, progress=progress)
    entropy = unigram_entropy(train_store.counts(vocab_size=tokenizer.vocab_size))
    progress.say(
        f"{store.num_documents:,} documents, {len(store.ids):,} tokens, vocabulary "
        f"{tokenizer.vocab_size:,}. Unigram entropy, the line to beat: {entropy:.3f} nats a token."
    )
    with seeded(settings.train.seed, stream="weights"):
        model = build_language_model(settings.model, vocab_size=tokenizer.vocab_size)
    rows = language_model_rows(train_store, tokenizer=tokenizer, data=settings.data)
    valid_rows = language_model_rows(valid_store, tokenizer=tokenizer, data=settings.data)
    state = build_state(model.to(device()), settings=settings.train, num_rows=len(rows.lengths))
    _train(
        state,
        folder=folder,
        rows=rows,
        valid_rows=valid_rows,
        settings=settings,
        tokens_per_byte=len(store.ids) / store.num_bytes,
        progress=progress,
    )

    valid_loss = language_model_loss(model, valid_rows, max_tokens=VALID_TOKENS)
    result = PretrainResult(
        run_dir=str(folder.run_dir),
        num_steps=state.step,
        num_tokens=state.num_tokens,
        num_documents=store.num_documents,
        vocab_size=tokenizer.vocab_size,
        seconds=state.seconds,
        tokens_per_second=state.num_tokens / state.seconds,
        valid_loss=valid_loss,
        unigram_entropy=entropy,
        bits_per_byte=bits_per_byte(
            valid_loss, num_tokens=len(store.ids), num_bytes=store.num_bytes
        ),
        beats_unigram=valid_loss < entropy,
    )
    folder.finish(dataclasses.replace(info, result=result.to_dict()), model=model)
    return result


def _tokenizer(
    documents: Sequence[Document],
    *,
    path: str | Path | None,
    settings: Settings,
    progress: Progress,
) -> Tokenizer:
    if path is not None:
        return load_tokenizer(Path(path))
    texts = (document.text for document in documents)
    return train_tokenizer(texts, settings=settings.tokenizer, progress=progress)


def _split(
    store: TokenStore, *, settings: Settings, progress: Progress
) -> tuple[TokenStore, TokenStore]:
    """Hold out documents; with too few of them, validate on the training text and say so."""
    train_store, valid_store = store.split(
        share=settings.train.valid_share, seed=settings.train.seed
    )
    if valid_store.num_documents == 0 or train_store.num_documents == 0:
        progress.say(
            f"Too few documents to hold any out (train.valid_share is "
            f"{settings.train.valid_share:g}): validation reads the training text."
        )
        return store, store
    return train_store, valid_store


def _train(
    state: TrainState,
    *,
    folder: RunFolder,
    rows: Rows,
    valid_rows: Rows,
    settings: Settings,
    tokens_per_byte: float,
    progress: Progress,
) -> None:
    """Consume the loop: log, validate, save. Ctrl-C and SIGTERM save before they leave."""
    train = settings.train
    recent: list[StepRecord] = []
    if (extra := folder.load_checkpoint(state)) is not None:
        recent = [StepRecord(**values) for values in extra.get("recent", [])]
        progress.say(f"Resuming {folder.run_dir} after step {state.step:,}.")
    budget_seconds = None if train.minutes is None else train.minutes * 60
    progress.start("pre-train", total=budget_seconds or state.total_steps)
    progress.advance(state.seconds if budget_seconds else state.step)
    valid_note = ""
    with interruptible() as interruption:
        for record in steps(state, rows=rows, objective=causal, settings=train):
            recent.append(record)
            validation_seconds = 0.0
            if _is_validation(record, state=state, settings=train):
                validation_start = time.perf_counter()
                valid_loss = language_model_loss(state.model, valid_rows, max_tokens=VALID_TOKENS)
                validation_seconds = time.perf_counter() - validation_start
                state.seconds += validation_seconds
                bits = valid_loss * tokens_per_byte / math.log(2)
                valid_note = f"valid {valid_loss:.3f} = {bits:.2f} bits/byte  "
                folder.log(
                    {"step": record.step, "eval_loss": valid_loss, "eval_bits_per_byte": bits}
                )
            if len(recent) == LOG_EVERY:
                folder.log(_log_entry(recent))
                recent = []
            progress.advance(
                record.seconds + validation_seconds if budget_seconds else 1,
                note=f"loss {record.loss:.3f}  {valid_note}"
                f"{record.tokens_per_second:,.0f} tokens/s",
            )
            due = train.checkpoint_every and record.step % train.checkpoint_every == 0
            if due or interruption.requested:
                unlogged = [dataclasses.asdict(entry) for entry in recent]
                folder.save_checkpoint(
                    state, keep=train.keep_checkpoints, extra={"recent": unlogged}
                )
            if interruption.requested:
                progress.finish()
                raise KeyboardInterrupt
    if recent:
        folder.log(_log_entry(recent))
    progress.finish()


def _is_validation(record: StepRecord, *, state: TrainState, settings: TrainSettings) -> bool:
    """Did this step cross one of VALIDATIONS equal marks? The end has a validation of its own."""
    if settings.minutes is not None:
        now, before = state.seconds, state.seconds - record.seconds
        whole = settings.minutes * 60
    else:
        assert record.total_steps is not None
        now, before, whole = record.step, record.step - 1, record.total_steps
    mark = int(VALIDATIONS * now / whole)
    return int(VALIDATIONS * before / whole) < mark < VALIDATIONS


def _log_entry(recent: list[StepRecord]) -> dict[str, Any]:
    last = recent[-1]
    return {
        "step": last.step,
        "epoch": last.epoch,
        "loss": sum(record.loss for record in recent) / len(recent),
        "lr": last.lr,
        "gradient_norm": last.gradient_norm,
        "tokens_per_second": sum(r.num_tokens for r in recent) / sum(r.seconds for r in recent),
    }
