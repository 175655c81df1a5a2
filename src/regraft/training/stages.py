"""The stages of pre-training: words, documents, language, or the last two in one step.

A stage is an objective, rows for it and a length; it starts from the weights that the stage before
left on disk, so a resumed run and one that was never interrupted take the same way. Runs the loop
of one stage; what a run folder holds in the end is decided in pretraining.py.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from regraft.config import Settings, TrainSettings, resolve
from regraft.data import (
    FEWEST_TOKENS_TO_HALVE,
    HalfRows,
    Rows,
    Tokenizer,
    TokenStore,
    are_alike,
    num_divisible,
    pretraining_rows,
)
from regraft.errors import DataError
from regraft.models import Model, Pooling
from regraft.runtime import Progress, device, in_percent, read_json, world, write_json
from regraft.training.checkpoint import kept_steps
from regraft.training.document_objectives import documents, documents_and_language
from regraft.training.loaded_run import write_tensors
from regraft.training.loop import StepRecord, TrainState, build_state
from regraft.training.masking import Corruption, build_corruption
from regraft.training.objectives import (
    TOKEN_LOSS,
    Objective,
    build_objective,
    build_validation,
    contrast,
    readings,
)
from regraft.training.run_folder import RunFolder
from regraft.training.sampled_softmax import TokenSampler, build_sampler
from regraft.training.sharding import whole
from regraft.training.word_stage import build_bag, of_bag, start_as_bags

# Enough for a steady validation loss (its standard error is then about 0.03 nats), few enough to
# cost seconds even with a vocabulary of 50,000. Their time counts against a budget in minutes.
# Where only some of the tokens are predicted, more of them are read.
VALID_TOKENS = 10_000
VALID_TOKENS_MASKED = 30_000
VALIDATIONS = 8

# Steps averaged into one line of metrics.jsonl.
LOG_EVERY = 10

# Fewer documents that can be halved teach nothing by contrast.
FEWEST_TO_CONTRAST = 100
# Fewer tokens of two bytes or more are letters and scraps, not words.
FEWEST_WORDS = 100

# The stage words reads a text until it has seen about so many tokens, twice at most: on 4.5 million
# tokens of French reviews, logistic regression on the vectors had 80.5, 82.0, 81.2 and 79.3 % in
# cross-validation after 1, 2, 3 and 6 passes (2026-11-18). That takes seconds; with few minutes or
# on a busy machine it is still worth half of them.
WORDS_TOKENS = 9_000_000
WORDS_PASSES = 2
WORDS_SHARE = 0.5

# Groups of documents a step; draws of groups that a run in steps or minutes goes through.
_GROUPS_PER_STEP = 1
_DRAWS = 8


@dataclass(frozen=True)
class Corpus:
    """The text of a run, as all its stages read it."""

    tokenizer: Tokenizer
    train: TokenStore
    valid: TokenStore
    counts_V: NDArray[np.int64]
    bits: Callable[[float], float]


@dataclass(frozen=True)
class StageSummary:
    """What one stage did; kept in run.json."""

    name: str
    num_steps: int
    num_tokens: int
    num_slots: int
    seconds: float
    num_threads: int | None
    readings: dict[str, float] = field(default_factory=dict)


def possible_stages(
    names: Sequence[str], *, store: TokenStore, tokenizer: Tokenizer, progress: Progress
) -> tuple[str, ...]:
    """The stages that the text and the vocabulary allow; reports what is left out."""
    if not any(map(_contrasts, names)):
        return tuple(names)
    num_documents = num_divisible(store)
    short_share = 1 - num_documents / store.num_documents
    problem = None
    if num_documents < FEWEST_TO_CONTRAST:
        problem = (
            f"{num_documents:,} documents have {FEWEST_TOKENS_TO_HALVE} tokens or more, to be cut "
            f"into halves; contrast needs {FEWEST_TO_CONTRAST}"
        )
    elif are_alike(store):
        problem = "all documents are alike, and contrast finds nothing"
    if problem is not None:
        progress.say(f"note: {problem}. Going on to language.")
        return ("language",)
    if short_share > 0:
        progress.say(
            f"{in_percent(short_share)} of the documents have fewer than {FEWEST_TOKENS_TO_HALVE} "
            "tokens and cannot be halved: contrast leaves them out."
        )
    num_words = sum(size >= 2 for size in tokenizer.token_bytes)
    if "words" in names and num_words < FEWEST_WORDS:
        progress.say(
            f"note: the vocabulary has {num_words} tokens of two bytes or more, hence no words. "
            "Going on without the stage words."
        )
        names = [name for name in names if name != "words"] or ["language"]
    return tuple(names)


def _contrasts(name: str) -> bool:
    return name != "language"


@dataclass(frozen=True)
class _Validation:
    """Held-out rows and what is asked about them."""

    asked: dict[str, tuple[Rows, Objective]]
    is_causal: bool
    bits: Callable[[float], float]

    def readings(self, model: Model) -> dict[str, float]:
        """All answers by name, such as `valid_loss`; bits per byte where there is a causal loss."""
        max_tokens = VALID_TOKENS if self.is_causal else VALID_TOKENS_MASKED
        found = {
            f"{name}_{reading}": value
            for name, (rows, objective) in self.asked.items()
            for reading, value in readings(
                model, rows, objective=objective, max_tokens=max_tokens
            ).items()
        }
        causal_loss = found.get(f"{'valid' if self.is_causal else 'valid_causal'}_{TOKEN_LOSS}")
        if causal_loss is not None:
            found["valid_bits_per_byte"] = self.bits(causal_loss)
        return found


# How rows are made of documents, and what is asked about them.
Question = tuple[Callable[[TokenStore], Rows], Objective]


@dataclass(frozen=True)
class _Lesson:
    """What a stage learns from which rows, and what validation asks."""

    rows: Rows
    objective: Objective
    questions: Mapping[str, Question]
    is_causal: bool = False


@dataclass(frozen=True)
class _Stage:
    """One stage, ready to run."""

    name: str
    rows: Rows
    objective: Objective
    validation: _Validation
    train: TrainSettings


def run_stages(
    names: Sequence[str],
    *,
    build_model: Callable[[], Model],
    corpus: Corpus,
    folder: RunFolder,
    settings: Settings,
    progress: Progress,
) -> tuple[Model, list[StageSummary]]:
    """(the model after the last stage, what each stage did); finished ones are not run again."""
    model, summaries = build_model(), list[StageSummary]()
    for number, name in enumerate(names):
        is_last = number == len(names) - 1
        path = folder.stages_dir / f"{number + 1}-{name}"
        if _is_finished(path):
            summaries.append(_read_summary(path))
            continue
        if number:
            # From disk even where it was in memory a moment ago: a resumed run has nothing else.
            model = build_model()
            model.load_state_dict(load_file(_previous(folder, names, number)))
        if len(names) > 1:
            progress.say(f"Stage {number + 1} of {len(names)}: {name}.")
        if name == "words":
            summary = _run_words(
                path,
                names,
                model=model,
                corpus=corpus,
                folder=folder,
                settings=settings,
                progress=progress,
            )
        else:
            stage = _build_stage(
                name,
                names,
                corpus=corpus,
                settings=settings,
                words_seconds=sum(done.seconds for done in summaries if done.name == "words"),
                progress=progress,
            )
            summary = _run(
                stage,
                model=model,
                checkpoint_name="" if len(names) == 1 else path.name,
                num_steps_before=sum(done.num_steps for done in summaries),
                folder=folder,
                progress=progress,
            )
        summaries.append(summary)
        if not is_last:
            _keep(model, path, summary=summary)
    return model, summaries


def _run_words(
    path: Path,
    names: Sequence[str],
    *,
    model: Model,
    corpus: Corpus,
    folder: RunFolder,
    settings: Settings,
    progress: Progress,
) -> StageSummary:
    """Train bags one after the other and let the model start from them."""
    num_bags = settings.objective.num_bags
    parts = [path.with_name(f"{path.name}-{number + 1}") for number in range(num_bags)]
    summaries: list[StageSummary] = []
    for number, part in enumerate(parts):
        if not _is_finished(part):
            own = of_bag(settings, number)
            bag = build_bag(
                settings.model.width, vocab_size=corpus.tokenizer.vocab_size, seed=own.train.seed
            )
            summary = _run(
                _build_stage(
                    "words",
                    names,
                    corpus=corpus,
                    settings=own,
                    progress=progress,
                ),
                model=bag,
                checkpoint_name=part.name,
                place=f" {number + 1} of {num_bags}",
                num_steps_before=sum(summary.num_steps for summary in summaries),
                folder=folder,
                progress=progress,
            )
            _keep(bag, part, summary=summary)
        summaries.append(_read_summary(part))
    start_as_bags(
        model,
        [_weights_path(part) for part in parts],
        store=corpus.train,
        max_length=settings.data.max_length,
        pooling=_pooling(settings),
        seed=settings.train.seed,
    )
    return StageSummary(
        name="words",
        num_steps=sum(summary.num_steps for summary in summaries),
        num_tokens=sum(summary.num_tokens for summary in summaries),
        num_slots=sum(summary.num_slots for summary in summaries),
        seconds=sum(summary.seconds for summary in summaries),
        num_threads=summaries[-1].num_threads,
        readings=summaries[-1].readings,
    )


def _build_stage(
    name: str,
    names: Sequence[str],
    *,
    corpus: Corpus,
    settings: Settings,
    words_seconds: float = 0.0,
    progress: Progress,
) -> _Stage:
    train = _train_settings(
        name, names, settings=settings, corpus=corpus, words_seconds=words_seconds
    )
    lesson = _LESSONS[name](settings, corpus)
    validation = _validation(
        lesson.questions, corpus=corpus, is_causal=lesson.is_causal, progress=progress
    )
    return _Stage(name, lesson.rows, lesson.objective, validation, train)


def _words_lesson(settings: Settings, corpus: Corpus) -> _Lesson:
    max_length = resolve("pretrain", preset="bag").data.max_length
    rows = partial(_half_rows, tokenizer=corpus.tokenizer, settings=settings, max_length=max_length)
    return _Lesson(rows(corpus.train), contrast, {"valid": (rows, contrast)})


def _language_lesson(settings: Settings, corpus: Corpus) -> _Lesson:
    return _Lesson(
        pretraining_rows(corpus.train, tokenizer=corpus.tokenizer, settings=settings),
        build_objective(settings, tokenizer=corpus.tokenizer, sampler=_sampler(settings, corpus)),
        _language_questions(settings, corpus),
        is_causal=settings.objective.traits.is_causal,
    )


def _documents_lesson(settings: Settings, corpus: Corpus) -> _Lesson:
    rows = partial(_half_rows, tokenizer=corpus.tokenizer, settings=settings)
    objective = partial(documents, pooling=_pooling(settings))
    drawn = rows(corpus.train, num_draws=settings.train.epochs or _DRAWS)
    return _Lesson(drawn, objective, {"valid": (rows, objective)})


def _joint_lesson(settings: Settings, corpus: Corpus) -> _Lesson:
    """Documents and language in one step."""
    rows = partial(_half_rows, tokenizer=corpus.tokenizer, settings=settings)
    drawn = rows(corpus.train, num_draws=settings.train.epochs or _DRAWS, tells_next=True)
    is_causal, pooling = settings.objective.traits.is_causal, _pooling(settings)
    objective = documents_and_language(
        settings.objective,
        corruption=None if is_causal else _corruption(settings, corpus),
        sampler=_sampler(settings, corpus),
        pooling=pooling,
        tokens_per_document=drawn.tokens_per_document,
    )
    about_documents: Question = (rows, partial(documents, pooling=pooling))
    questions = {**_language_questions(settings, corpus), "valid_documents": about_documents}
    return _Lesson(drawn, objective, questions, is_causal=is_causal)


_LESSONS = {
    "words": _words_lesson,
    "language": _language_lesson,
    "documents": _documents_lesson,
    "documents+language": _joint_lesson,
}


def _language_questions(settings: Settings, corpus: Corpus) -> dict[str, Question]:
    rows = partial(pretraining_rows, tokenizer=corpus.tokenizer, settings=settings)
    objectives = build_validation(settings, tokenizer=corpus.tokenizer)
    return {name: (rows, objective) for name, objective in objectives.items()}


def _pooling(settings: Settings) -> Pooling:
    """What the classifier reads; a learned mean starts as the mean."""
    pooling = settings.head.pooling
    return "mean" if pooling == "attention" else pooling


def _sampler(settings: Settings, corpus: Corpus) -> TokenSampler | None:
    num_tokens = settings.objective.sampled_tokens
    if num_tokens is None or not samples_tokens(settings, corpus=corpus):
        return None
    return build_sampler(corpus.counts_V, num_tokens=num_tokens)


def samples_tokens(settings: Settings, *, corpus: Corpus) -> bool:
    """Is the vocabulary so large that sampling from it saves work?"""
    num_tokens = settings.objective.sampled_tokens
    return num_tokens is not None and 2 * num_tokens < corpus.tokenizer.vocab_size


def _corruption(settings: Settings, corpus: Corpus) -> Corruption:
    return build_corruption(settings.objective, tokenizer=corpus.tokenizer)


def _half_rows(
    store: TokenStore,
    *,
    tokenizer: Tokenizer,
    settings: Settings,
    max_length: int | None = None,
    num_draws: int = 1,
    tells_next: bool = False,
) -> HalfRows:
    longest = min(settings.objective.half_length + tokenizer.num_framing, settings.data.max_length)
    return HalfRows(
        store,
        tokenizer=tokenizer,
        max_length=max_length or longest,
        group_size=settings.objective.group_size,
        seed=settings.train.seed,
        num_draws=num_draws,
        tells_next=tells_next,
    )


def _validation(
    questions: Mapping[str, Question],
    *,
    corpus: Corpus,
    is_causal: bool,
    progress: Progress,
) -> _Validation:
    """Questions about the documents held out; where these make no rows, about the others."""
    rows: dict[str, tuple[Rows, Objective]] = {}
    for name, (build_rows, objective) in questions.items():
        try:
            rows[name] = build_rows(corpus.valid), objective
        except DataError as error:
            progress.say(f"Of the documents held out: {error.problem} Validation reads the others.")
            rows[name] = build_rows(corpus.train), objective
    return _Validation(rows, is_causal, corpus.bits)


def _train_settings(
    name: str, names: Sequence[str], *, settings: Settings, corpus: Corpus, words_seconds: float
) -> TrainSettings:
    """Length, rate and batch of a stage. Words takes a few passes, the others share the rest."""
    train = settings.train
    if name == "words":
        own = resolve("pretrain", preset="bag").train
        passes = min(max(round(WORDS_TOKENS / corpus.train.num_tokens), 1), WORDS_PASSES)
        return dataclasses.replace(
            train,
            steps=None,
            epochs=passes,
            # With both, what is over first ends it.
            minutes=None
            if train.minutes is None
            else WORDS_SHARE * train.minutes / settings.objective.num_bags,
            # What bags are trained with needs whole tables.
            optimizer=own.optimizer if train.parallel == "ddp" else "adamw",
            lr=own.lr,
            batch_size=own.batch_size,
            micro_batch_tokens=own.micro_batch_tokens,
            warmup_steps=own.warmup_steps,
            layer_decay=None,
        )
    others = [other for other in names if other != "words"]
    share = 1 / len(others)
    if name != "language":
        # All draws make one pass here: with epochs there are as many draws as epochs.
        epochs = None if train.epochs is None else 1
        train = dataclasses.replace(train, batch_size=_GROUPS_PER_STEP, epochs=epochs)
    if train.minutes is not None:
        minutes = (train.minutes - words_seconds / 60) * share
        return dataclasses.replace(train, minutes=minutes)
    if train.steps is not None:
        return dataclasses.replace(train, steps=max(round(train.steps * share), 1))
    return train


def _run(
    stage: _Stage,
    *,
    model: Model,
    checkpoint_name: str,
    num_steps_before: int,
    folder: RunFolder,
    progress: Progress,
    place: str = "",
) -> StageSummary:
    """Train one stage to its end, from its last checkpoint if there is one; validate and log."""
    train = stage.train
    state = build_state(model.to(device()), settings=train, num_rows=len(stage.rows.lengths))
    checkpoints = folder.checkpoints(keep=train.keep_checkpoints, name=checkpoint_name)
    extra = checkpoints.load(state, progress=progress) or {"recent": [], "num_records": None}
    here = num_steps_before + state.step
    # The end is validated after its checkpoint: a kill in between must not log it twice.
    num_records = folder.truncate_metrics(after=here if here else -1, most=extra["num_records"])
    if state.step:
        progress.say(f"Resuming {folder.run_dir} after step {here:,}.")
    recent = [StepRecord(**values) for values in extra["recent"]]
    latest = {"valid": ""}
    label = {"stage": stage.name} if checkpoint_name else {}

    def log(values: dict[str, Any]) -> None:
        nonlocal num_records
        num_records += 1
        folder.log({**values, "step": num_steps_before + values["step"], **label})

    for record in kept_steps(
        state,
        rows=stage.rows,
        objective=stage.objective,
        settings=train,
        checkpoints=checkpoints,
        extra=lambda: {
            "recent": [dataclasses.asdict(entry) for entry in recent],
            "num_records": num_records,
        },
        name=f"pre-train {stage.name}{place}" if checkpoint_name else "pre-train",
        note=lambda record: (
            f"loss {record.loss:.3f}  {latest['valid']}{record.tokens_per_second:,.0f} tokens/s"
        ),
        progress=progress,
    ):
        recent.append(record)
        if _is_validation(record, state=state, settings=train):
            validation_start = time.perf_counter()
            found = stage.validation.readings(state.model)
            latest["valid"] = _validation_note(found)
            log({"step": record.step, **found})
            # As the steps' own time: the mean over processes.
            seconds = time.perf_counter() - validation_start
            state.seconds += world().sums(seconds)[0] / world().size
        if len(recent) == LOG_EVERY:
            log(_log_entry(recent))
            recent.clear()
    if recent:
        log(_log_entry(recent))
    found = stage.validation.readings(model)
    log({"step": state.step, **found})
    return StageSummary(
        name=stage.name,
        num_steps=state.step,
        num_tokens=state.num_tokens,
        num_slots=state.num_slots,
        seconds=state.seconds,
        num_threads=state.num_threads,
        readings=found,
    )


def _validation_note(found: dict[str, float]) -> str:
    """The readings of a validation as a bar shows them."""
    summary = f"valid {found['valid_loss']:.3f}  "
    if "valid_bits_per_byte" in found:
        summary = f"{summary.rstrip()} = {found['valid_bits_per_byte']:.2f} bits/byte  "
    if "valid_pair_accuracy" in found:
        summary += f"pairs {in_percent(found['valid_pair_accuracy'], digits=0)}  "
    for name in ("valid_halves_found", "valid_documents_halves_found"):
        if name in found:
            summary += f"halves {in_percent(found[name], digits=0)}  "
    if "valid_found" in found:
        summary += f"found {in_percent(found['valid_found'], digits=0)}  "
    return summary


def _is_validation(record: StepRecord, *, state: TrainState, settings: TrainSettings) -> bool:
    """Did this step cross one of VALIDATIONS equal marks? The end has its own validation."""
    if settings.minutes is not None:
        now, before = state.seconds, state.seconds - record.seconds
        length = settings.minutes * 60
    else:
        assert record.total_steps is not None
        now, before, length = record.step, record.step - 1, record.total_steps
    mark = int(VALIDATIONS * now / length)
    return int(VALIDATIONS * before / length) < mark < VALIDATIONS


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


def _weights_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.safetensors")


def _summary_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _previous(folder: RunFolder, names: Sequence[str], number: int) -> Path:
    return _weights_path(folder.stages_dir / f"{number}-{names[number - 1]}")


def _is_finished(path: Path) -> bool:
    return _summary_path(path).exists()


def _keep(model: Model, path: Path, *, summary: StageSummary) -> None:
    """Leave the weights for the next stage; the summary comes last and says that they are there."""
    tensors = {name: whole(tensor) for name, tensor in model.state_dict().items()}
    if world().is_first:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(_weights_path(path), tensors)
        write_json(_summary_path(path), dataclasses.asdict(summary))
    world().wait()


def _read_summary(path: Path) -> StageSummary:
    return StageSummary(**read_json(_summary_path(path)))
