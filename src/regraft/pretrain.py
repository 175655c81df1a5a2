"""Recipe: a pile of text becomes a run folder with a language model in it, the base of a graft.

Comes in: files, settings, a folder. Goes out: the folder and a `PretrainResult`. Composes the rooms
above it; the loop, the objective and the file formats are theirs.
"""

import contextlib
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.bases import load_base, read_base_settings
from regraft.batches import Rows
from regraft.checkpoint import kept_steps
from regraft.config import (
    DataSettings,
    Settings,
    TrainSettings,
    replace,
    resolve,
    with_base,
    with_size,
)
from regraft.errors import ConfigError, DataError
from regraft.evaluate import readings
from regraft.heads import Model, build_language_model, tell_frequencies, tell_pairs
from regraft.ledger import size_for_budget
from regraft.metrics import bits_per_byte, unigram_entropy
from regraft.objectives import TOKEN_LOSS, Objective, build_objective, build_validation
from regraft.pairs import pretraining_rows
from regraft.parallel import world
from regraft.runfolder import LoadedRun, RunFolder, RunInfo, open_run, read_info, read_settings
from regraft.runtime import SILENT, Progress, device, matrix_speed, seeded
from regraft.shards import source_fingerprint, write_store
from regraft.store import TokenStore, is_store, open_store
from regraft.text import read_documents
from regraft.tokenizer import Tokenizer, load_tokenizer
from regraft.trainer import StepRecord, TrainState, build_state
from regraft.vocabulary import train_tokenizer

# Enough for a steady validation loss (its standard error is then about 0.03 nats), few enough to
# cost seconds even with a vocabulary of 50,000. Their time counts against a budget in minutes.
# Where only some of the tokens are predicted, more of them are read.
VALID_TOKENS = 10_000
VALID_TOKENS_MASKED = 30_000
VALIDATIONS = 8

# What a size decides.
_SHAPE = ("width", "num_layers", "num_heads", "feedforward_width")

# Steps averaged into one line of metrics.jsonl.
LOG_EVERY = 10


@dataclass(frozen=True)
class PretrainResult:
    """What a pre-training run gave; losses in nats a token, or of contrast in nats a document.

    Bits per byte are known of causal models only: other losses are not those of a whole text. With
    the frequencies of tokens an objective is compared that predicts tokens.
    """

    run_dir: str
    num_steps: int
    num_tokens: int
    num_documents: int
    vocab_size: int
    seconds: float
    tokens_per_second: float
    padding_share: float
    num_threads: int | None
    num_processes: int
    valid_loss: float
    unigram_entropy: float | None
    bits_per_byte: float | None
    beats_unigram: bool | None
    objective: str = "causal"
    readings: dict[str, float] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)


def pretrain(
    texts: Sequence[str | Path],
    *,
    out: str | Path,
    base: str | Path | None = None,
    settings: Settings | None = None,
    tokenizer_path: str | Path | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> PretrainResult:
    """Train a language model on the files `texts` and leave it in the folder `out`.

    Without `tokenizer_path` a tokenizer is trained on the same text first. A `base`, the run folder
    of a language model, brings weights, tokenizer and objective, and learns this text, too. With
    `resume` the run in `out` goes on from its last checkpoint; a finished one is returned as it is.
    """
    settings = settings or resolve(
        "pretrain", base=None if base is None else read_base_settings(Path(base))
    )
    if base is not None and tokenizer_path is not None:
        raise ConfigError(
            f"The base {base} has a tokenizer of its own; {tokenizer_path} cannot replace it.",
            "Its weights know the ids of the tokenizer it was pre-trained with.",
            remedy="Leave the tokenizer away, or pre-train without a base.",
        )
    with open_run(out, resume=resume) as (folder, resume), _without_standard_input(texts) as files:
        return _pretrain(
            files,
            folder=folder,
            base=None if base is None else _load_language_model(Path(base)),
            settings=settings,
            tokenizer_path=base or tokenizer_path,
            resume=resume,
            progress=progress if world().is_first else SILENT,
        )


def _pretrain(
    texts: Sequence[str | Path],
    *,
    folder: RunFolder,
    base: LoadedRun | None,
    settings: Settings,
    tokenizer_path: str | Path | None,
    resume: bool,
    progress: Progress,
) -> PretrainResult:
    if base is not None:
        settings = with_base(settings, base.settings)
    settings = _sized(settings, folder=folder, resume=resume, progress=progress)
    tokenizer, info = _begin(
        texts,
        folder=folder,
        base=base,
        settings=settings,
        tokenizer_path=tokenizer_path,
        resume=resume,
        progress=progress,
    )
    if info.status == "complete":
        progress.say(f"{folder.run_dir} is complete already.")
        return PretrainResult(**info.result)
    store = _store(texts, folder=folder, tokenizer=tokenizer, data=settings.data, progress=progress)

    train_store, valid_store = _split(store, settings=settings, progress=progress)
    counts_V = train_store.counts(vocab_size=tokenizer.vocab_size)
    entropy = _entropy_to_beat(counts_V, kind=settings.objective.kind, tokenizer=tokenizer)
    line = (
        ""
        if entropy is None
        else f" Unigram entropy, the line to beat: {entropy:.3f} nats a token."
    )
    progress.say(
        f"{store.num_documents:,} documents, {store.num_tokens:,} tokens, vocabulary "
        f"{tokenizer.vocab_size:,}.{line}"
    )
    with seeded(settings.train.seed, stream="weights"):
        model = build_language_model(
            settings.model, vocab_size=tokenizer.vocab_size, objective=settings.objective
        )
    if base is None:
        tell_frequencies(model, counts_V)
        tell_pairs(model, train_store)
    else:
        model.load_state_dict(base.model.state_dict())
    rows = pretraining_rows(train_store, tokenizer=tokenizer, settings=settings)
    state = build_state(model.to(device()), settings=settings.train, num_rows=len(rows.lengths))
    try:
        valid_rows = pretraining_rows(valid_store, tokenizer=tokenizer, settings=settings)
    except DataError as error:
        progress.say(f"Of the documents held out: {error.problem} Validation reads the others.")
        valid_rows = rows
    validation = _Validation(
        valid_rows,
        objectives=build_validation(settings, tokenizer=tokenizer),
        is_causal=settings.objective.kind == "causal",
        bits=lambda loss: bits_per_byte(
            loss, num_tokens=store.num_targets, num_bytes=store.num_bytes
        ),
    )
    _train(
        state,
        folder=folder,
        rows=rows,
        objective=build_objective(settings, tokenizer=tokenizer),
        validation=validation,
        settings=settings,
        progress=progress,
    )

    found = validation.readings(model)
    folder.log({"step": state.step, **found})
    valid_loss = found["valid_loss"]
    result = PretrainResult(
        run_dir=str(folder.run_dir),
        num_steps=state.step,
        num_tokens=state.num_tokens,
        num_documents=store.num_documents,
        vocab_size=tokenizer.vocab_size,
        seconds=state.seconds,
        tokens_per_second=state.num_tokens / state.seconds,
        padding_share=state.padding_share,
        num_threads=state.num_threads,
        num_processes=world().size,
        valid_loss=valid_loss,
        unigram_entropy=entropy,
        bits_per_byte=found.get("valid_bits_per_byte"),
        beats_unigram=None if entropy is None else valid_loss < entropy,
        objective=settings.objective.kind,
        readings=found,
    )
    folder.finish(dataclasses.replace(info, result=result.to_dict()), model=model)
    return result


def _entropy_to_beat(
    counts_V: NDArray[np.int64], *, kind: str, tokenizer: Tokenizer
) -> float | None:
    """Nats a token of who knows frequencies only; None where no tokens are predicted."""
    if kind == "contrast":
        return None
    predicted_V = counts_V.copy()
    if kind != "causal":  # which predicts the ends of documents, too
        predicted_V[sorted(tokenizer.special_ids)] = 0
    return unigram_entropy(predicted_V)


@dataclass(frozen=True)
class _Validation:
    """Held-out rows and what is asked about them."""

    rows: Rows
    objectives: dict[str, Objective]
    is_causal: bool
    bits: Callable[[float], float]

    def readings(self, model: Model) -> dict[str, float]:
        """All answers by name, such as `valid_loss`; bits per byte where there is a causal loss."""
        max_tokens = VALID_TOKENS if self.is_causal else VALID_TOKENS_MASKED
        found = {
            f"{name}_{reading}": value
            for name, objective in self.objectives.items()
            for reading, value in readings(
                model, self.rows, objective=objective, max_tokens=max_tokens
            ).items()
        }
        causal_loss = found.get(f"{'valid' if self.is_causal else 'valid_causal'}_{TOKEN_LOSS}")
        if causal_loss is not None:
            found["valid_bits_per_byte"] = self.bits(causal_loss)
        return found


def _sized(settings: Settings, *, folder: RunFolder, resume: bool, progress: Progress) -> Settings:
    """Settings with a shape: where it was left open, the one the run has or its budget allows."""
    if settings.model.size is None:
        return settings
    if resume and folder.exists:
        there = read_settings(folder.run_dir).model
        shape = {name: getattr(there, name) for name in _SHAPE}
        return replace(settings, "model", size=None, **shape)
    # The first process measures for all: they must build the same model.
    speed = world().sums(matrix_speed() if world().is_first else 0.0)[0] * world().size
    size = size_for_budget(settings, flops_per_second=speed)
    settings = with_size(settings, size)
    progress.say(
        f"Size for {settings.train.minutes:g} min at {speed / 1e9:,.0f} GFLOP/s: {size} (width "
        f"{settings.model.width}, {settings.model.num_layers} layers)."
    )
    return settings


def _load_language_model(path: Path) -> LoadedRun:
    """A base that can go on with what it learned: it has the head that it learned with."""
    base = load_base(path)
    if base.info.kind != "language-model":
        raise ConfigError(
            f"The base {path} has no head for its objective: it can be fine-tuned, nothing more.",
            "Pre-training goes on with a language model that was trained here.",
            remedy="Take the run folder of `regraft pretrain`.",
        )
    return base


def _begin(
    texts: Sequence[str | Path],
    *,
    folder: RunFolder,
    base: LoadedRun | None,
    settings: Settings,
    tokenizer_path: str | Path | None,
    resume: bool,
    progress: Progress,
) -> tuple[Tokenizer, RunInfo]:
    """The run folder with its tokenizer in it, made by the first process for all."""
    if world().is_first:
        tokenizer = _tokenizer(
            texts,
            path=folder.run_dir if resume and folder.exists else tokenizer_path,
            settings=settings,
            progress=progress,
        )
        fingerprints = {
            "text": _text_fingerprint(texts, tokenizer=tokenizer),
            "tokenizer": tokenizer.fingerprint,
        }
        if base is not None:
            fingerprints["base"] = base.fingerprint
        info = RunInfo(
            kind="language-model",
            status="training",
            base=None if base is None else {"run_dir": str(base.run_dir)},
            fingerprints=fingerprints,
        )
        folder.start(info, settings=settings, tokenizer=tokenizer, resume=resume)
    world().wait()
    return load_tokenizer(folder.run_dir), read_info(folder.run_dir)


def _tokenizer(
    texts: Sequence[str | Path],
    *,
    path: str | Path | None,
    settings: Settings,
    progress: Progress,
) -> Tokenizer:
    """The tokenizer given, else the token store's own, else one trained on the text."""
    if path is None and _is_store(texts):
        path = texts[0]
    if path is not None:
        return load_tokenizer(path)
    documents = read_documents(texts, data=settings.data)
    return train_tokenizer(
        (document.text for document in documents), settings=settings.tokenizer, progress=progress
    )


def _is_store(texts: Sequence[str | Path]) -> bool:
    return len(texts) == 1 and is_store(texts[0])


def _text_fingerprint(texts: Sequence[str | Path], *, tokenizer: Tokenizer) -> str:
    if _is_store(texts):
        return open_store(texts[0], tokenizer=tokenizer).fingerprint
    fingerprint = source_fingerprint(texts)
    assert fingerprint is not None, "standard input was saved to a file"
    return fingerprint


def _store(
    texts: Sequence[str | Path],
    *,
    folder: RunFolder,
    tokenizer: Tokenizer,
    data: DataSettings,
    progress: Progress,
) -> TokenStore:
    """The token store given, or one in the run folder, written once: each process maps it."""
    if _is_store(texts):
        return open_store(texts[0], tokenizer=tokenizer)
    if world().is_first:
        write_store(
            texts, data=data, tokenizer=tokenizer, store_dir=folder.tokens_dir, progress=progress
        )
    world().wait()
    return open_store(folder.tokens_dir, tokenizer=tokenizer)


@contextlib.contextmanager
def _without_standard_input(texts: Sequence[str | Path]) -> Iterator[list[str | Path]]:
    """The same paths with standard input saved to a file: text is read more than once."""
    if Path("-") not in map(Path, texts):
        yield list(texts)
        return
    with tempfile.TemporaryDirectory() as folder:
        # The kind that `-` has by its first character.
        first = sys.stdin.buffer.read(1)
        path = Path(folder) / f"standard-input{'.jsonl' if first == b'{' else '.txt'}"
        with path.open("wb") as file:
            file.write(first)
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield [path if Path(text) == Path("-") else text for text in texts]


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
    objective: Objective,
    validation: _Validation,
    settings: Settings,
    progress: Progress,
) -> None:
    """Consume the loop: validate and log."""
    train = settings.train
    checkpoints = folder.checkpoints(keep=train.keep_checkpoints)
    extra = checkpoints.load(state, progress=progress) or {"recent": []}
    folder.truncate_metrics(after=state.step if state.step else -1)
    if state.step:
        progress.say(f"Resuming {folder.run_dir} after step {state.step:,}.")
    recent = [StepRecord(**values) for values in extra["recent"]]
    latest = {"valid": ""}
    for record in kept_steps(
        state,
        rows=rows,
        objective=objective,
        settings=train,
        checkpoints=checkpoints,
        extra=lambda: {"recent": [dataclasses.asdict(entry) for entry in recent]},
        name="pre-train",
        note=lambda record: (
            f"loss {record.loss:.3f}  {latest['valid']}{record.tokens_per_second:,.0f} tokens/s"
        ),
        progress=progress,
    ):
        recent.append(record)
        if _is_validation(record, state=state, settings=train):
            validation_start = time.perf_counter()
            found = validation.readings(state.model)
            latest["valid"] = _told(found)
            folder.log({"step": record.step, **found})
            # As the steps' own time: the mean over processes.
            seconds = time.perf_counter() - validation_start
            state.seconds += world().sums(seconds)[0] / world().size
        if len(recent) == LOG_EVERY:
            folder.log(_log_entry(recent))
            recent.clear()
    if recent:
        folder.log(_log_entry(recent))


def _told(found: dict[str, float]) -> str:
    """The readings of a validation as a bar shows them."""
    told = f"valid {found['valid_loss']:.3f}  "
    if "valid_bits_per_byte" in found:
        told = f"{told.rstrip()} = {found['valid_bits_per_byte']:.2f} bits/byte  "
    if "valid_pair_accuracy" in found:
        told += f"pairs {found['valid_pair_accuracy']:.0%}  "
    if "valid_halves_found" in found:
        told += f"halves {found['valid_halves_found']:.0%}  "
    if "valid_found" in found:
        told += f"found {found['valid_found']:.0%}  "
    return told


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
