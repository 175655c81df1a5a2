"""Pre-training: from text files to a run folder with a language model, the base of a graft.

Prepares tokenizer, token store and model, then runs the stages. Knows no loss and no loop.
"""

import contextlib
import dataclasses
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.config import (
    DataSettings,
    ObjectiveSettings,
    Settings,
    replace,
    resolve,
    stage_names,
    with_base,
    with_size,
)
from regraft.data import (
    Tokenizer,
    TokenStore,
    is_store,
    load_tokenizer,
    open_store,
    read_documents,
    source_fingerprint,
    train_tokenizer,
    write_store,
)
from regraft.errors import ConfigError
from regraft.models import Model, build_language_model, set_frequency_bias, size_for_budget
from regraft.runtime import SILENT, Plain, Progress, matrix_speed, scratch_folder, seeded, world
from regraft.stats import bits_per_byte, unigram_entropy
from regraft.training.bases import load_base, read_base_settings
from regraft.training.loaded_run import LoadedRun
from regraft.training.run_folder import RunFolder, RunInfo, open_run, read_info, read_settings
from regraft.training.stages import (
    Corpus,
    StageSummary,
    possible_stages,
    run_stages,
    samples_tokens,
)

# What a size decides.
_SHAPE = ("width", "num_layers", "num_heads", "feedforward_width")


@dataclass(frozen=True)
class PretrainResult(Plain):
    """The result of pre-training; losses in nats per token, of contrast in nats per document.

    Bits per byte exist for causal models only: other losses do not cover the whole text. The
    unigram entropy exists for objectives that predict tokens.
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
    stages: list[dict[str, Any]] = dataclasses.field(default_factory=list)


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
    of a language model, provides weights, tokenizer and objective. With `resume` the run in `out`
    continues from its last checkpoint; a finished one is returned as it is.
    """
    settings = settings or resolve(
        "pretrain", base=None if base is None else read_base_settings(Path(base))
    )
    if base is not None and tokenizer_path is not None:
        raise ConfigError(
            f"The base {base} has its own tokenizer; {tokenizer_path} cannot replace it.",
            "Its weights know the ids of the tokenizer it was pre-trained with.",
            remedy="Omit the tokenizer, or pre-train without a base.",
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
        settings = with_base(settings, base.settings, has_own_stages=True)
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
    entropy = _entropy_to_beat(counts_V, settings=settings.objective, tokenizer=tokenizer)
    line = (
        ""
        if entropy is None
        else f" Unigram entropy, the line to beat: {entropy:.3f} nats a token."
    )
    names = possible_stages(
        stage_names(settings.objective), store=train_store, tokenizer=tokenizer, progress=progress
    )
    progress.say(
        f"{store.num_documents:,} documents, {store.num_tokens:,} tokens, vocabulary "
        f"{tokenizer.vocab_size:,}.{line}"
    )
    corpus = Corpus(
        tokenizer=tokenizer,
        train=train_store,
        valid=valid_store,
        counts_V=counts_V,
        bits=lambda loss: bits_per_byte(
            loss, num_tokens=store.num_targets, num_bytes=store.num_bytes
        ),
    )
    model, stages = run_stages(
        names,
        build_model=partial(_build_model, settings, corpus=corpus, base=base),
        corpus=corpus,
        folder=folder,
        settings=settings,
        progress=progress,
    )
    result = _result(stages, folder=folder, store=store, settings=settings, corpus=corpus)
    folder.finish(dataclasses.replace(info, result=result.to_dict()), model=model)
    return result


def _build_model(settings: Settings, *, corpus: Corpus, base: LoadedRun | None) -> Model:
    """The model before the first stage."""
    with seeded(settings.train.seed, stream="weights"):
        model = build_language_model(
            settings.model, vocab_size=corpus.tokenizer.vocab_size, objective=settings.objective
        )
    if base is not None:
        model.load_state_dict(base.model.state_dict())
        return model
    # A sampled softmax hardly sees rare tokens; it cannot learn from zero how rare they are.
    set_frequency_bias(
        model, corpus.counts_V, includes_untied=samples_tokens(settings, corpus=corpus)
    )
    model.backbone.prepare(corpus.train)
    return model


def _result(
    stages: Sequence[StageSummary],
    *,
    folder: RunFolder,
    store: TokenStore,
    settings: Settings,
    corpus: Corpus,
) -> PretrainResult:
    last = stages[-1]
    entropy = None
    if last.name.endswith("language"):
        entropy = _entropy_to_beat(
            corpus.counts_V, settings=settings.objective, tokenizer=corpus.tokenizer
        )
    num_tokens, seconds = sum(s.num_tokens for s in stages), sum(s.seconds for s in stages)
    valid_loss = last.readings["valid_loss"]
    return PretrainResult(
        run_dir=str(folder.run_dir),
        num_steps=sum(stage.num_steps for stage in stages),
        num_tokens=num_tokens,
        num_documents=store.num_documents,
        vocab_size=corpus.tokenizer.vocab_size,
        seconds=seconds,
        tokens_per_second=num_tokens / seconds,
        padding_share=1 - num_tokens / max(sum(stage.num_slots for stage in stages), 1),
        num_threads=last.num_threads,
        num_processes=world().size,
        valid_loss=valid_loss,
        unigram_entropy=entropy,
        bits_per_byte=last.readings.get("valid_bits_per_byte"),
        beats_unigram=None if entropy is None else valid_loss < entropy,
        objective=settings.objective.kind,
        readings=last.readings,
        stages=[dataclasses.asdict(stage) for stage in stages],
    )


def _entropy_to_beat(
    counts_V: NDArray[np.int64], *, settings: ObjectiveSettings, tokenizer: Tokenizer
) -> float | None:
    """Unigram entropy in nats per token; None for objectives that predict no tokens."""
    if settings.traits.head == "none":
        return None
    predicted_V = counts_V.copy()
    if not settings.traits.is_causal:  # causal models also predict the ends of documents
        predicted_V[sorted(tokenizer.special_ids)] = 0
    return unigram_entropy(predicted_V)


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
    """A base that pre-training can continue: it still has its language-model head."""
    base = load_base(path)
    if not base.info.is_language_model:
        raise ConfigError(
            f"The base {path} has no language-model head: it can only be fine-tuned.",
            "Pre-training continues only a language model trained by regraft.",
            remedy="Pass a run folder of `regraft pretrain`.",
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
    texts: Sequence[str | Path], *, path: str | Path | None, settings: Settings, progress: Progress
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
    with scratch_folder("text") as folder:
        # The kind that `-` has by its first character.
        first = sys.stdin.buffer.read(1)
        path = folder / f"standard-input{'.jsonl' if first == b'{' else '.txt'}"
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
