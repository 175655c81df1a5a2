"""The default recipe: text and a few labels in, the best classifier that they give out.

Comes in: files of text, labelled examples, minutes. Goes out: a folder with bases, members and the
weights of their blend, and what each was worth, on texts that it had not seen. What the recipe is
made of, and what each part is worth: docs/concepts/recipe.md.
"""

import dataclasses
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.baselines import fit_latent, fit_linear
from regraft.blend import blended, choose_weights
from regraft.config import Settings, replace, resolve
from regraft.errors import ConfigError, DataError
from regraft.features import document_vectors
from regraft.finetune import examples_fingerprint
from regraft.fitted import Member, base_dir
from regraft.halves import SHORTEST, num_divisible
from regraft.heads import build_language_model
from regraft.metrics import Interval, accuracy_interval, fit_temperature
from regraft.objectives import build_objective
from regraft.pairs import pretraining_rows
from regraft.pretrain import pretrain
from regraft.regression import NUM_FOLDS, fit_regression, stratified_folds
from regraft.runfolder import (
    LoadedRun,
    RunFolder,
    RunInfo,
    load_run,
    open_run,
    read_info,
)
from regraft.runtime import SILENT, Progress, device, write_json
from regraft.shards import source_fingerprint, write_store
from regraft.store import TokenStore, open_store
from regraft.text import (
    Example,
    Labels,
    check_labels_known,
    check_trainable,
    labels_of,
    load_examples,
    read_documents,
)
from regraft.tokenizer import Tokenizer, load_tokenizer
from regraft.trainer import build_state, steps, steps_per_epoch
from regraft.vocabulary import train_tokenizer

# Fewer labels cannot say which member is the better one.
FEWEST_LABELS = 10

# A year: more is a slip of the finger.
MOST_MINUTES = 525_600

# How many bases a recipe makes, decided once: it lies in the folder while it runs and after.
PLAN_NAME = "plan.json"

# Bases that differ in their seed alone, side by side: the more the better, each adding less.
MOST_BASES = 4

# Share of the minutes that pre-training may take; the rest is for the members.
BASES_SHARE = 0.7

# Texts without labels that the latent member reads at most: it holds their words in memory.
LATENT_TEXTS = 50_000

# Labelled texts whose tokens are shorter than this share of the usual are called unlike the text.
FOREIGN_SHARE = 0.6

# Fewer documents that can be halved teach a base nothing; the other members do without.
FEWEST_DOCUMENTS = 200

# Steps that tell how long a pass over the text will take.
_PACE_STEPS = 6


@dataclass(frozen=True)
class MemberScore:
    """What one member, or the blend, is worth on texts that it was not fitted on."""

    accuracy: Interval
    weight: float | None
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """What `regraft fit` made, and how good it is as far as the labels given can tell."""

    run_dir: str
    labels: tuple[str, ...]
    num_train: int
    num_valid: int
    num_documents: int
    num_tokens: int
    num_bases: int
    passes: float
    scores: dict[str, MemberScore]
    weights: dict[str, float]
    temperature: float
    minutes: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "FitResult":
        """The result again from JSON."""
        scores = {
            name: MemberScore(
                Interval(**score["accuracy"]), weight=score["weight"], seconds=score["seconds"]
            )
            for name, score in values["scores"].items()
        }
        return cls(**{**values, "labels": tuple(values["labels"]), "scores": scores})


def fit(
    texts: Sequence[str | Path],
    *,
    train: str | Path,
    valid: str | Path | None = None,
    out: str | Path,
    settings: Settings | None = None,
    minutes: float = 30.0,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """Make a classifier of the examples in `train` with the help of all `texts`, in `minutes`.

    `settings` are those of pre-training, by default the preset `bag`. Without `valid` everything is
    chosen by cross-validation: no label is held back from the members.
    """
    settings = settings or resolve("pretrain", preset="bag")
    if Path("-") in map(Path, texts):
        raise ConfigError(
            "--text is standard input, and the recipe reads its text more than once.",
            remedy="Save it to a file, and give that.",
        )
    examples = load_examples(train, data=settings.data)
    watched = [] if valid is None else load_examples(valid, data=settings.data)
    return fit_examples(
        examples,
        watched=watched,
        texts=texts,
        labelled=train,
        out=out,
        settings=settings,
        minutes=minutes,
        resume=resume,
        progress=progress,
    )


def fit_examples(
    examples: Sequence[Example],
    *,
    watched: Sequence[Example],
    texts: Sequence[str | Path],
    labelled: str | Path,
    out: str | Path,
    settings: Settings,
    minutes: float,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """The recipe for examples that are read already; `labelled` is a file with their texts."""
    clock = _Clock(time.perf_counter(), minutes * 60)
    if not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(
            f"--minutes is {minutes:g}.",
            f"It is more than 0 and at most {MOST_MINUTES:,}.",
            remedy="Give a minute at least, for a large text half an hour.",
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "regraft fit runs in one process.",
            remedy="Start it without torchrun; `regraft pretrain` runs in many.",
        )
    _check_examples(examples, watched)
    with open_run(out, resume=resume) as (folder, resume):
        return _fit(
            [*texts, labelled],
            examples=examples,
            watched=watched,
            folder=folder,
            settings=settings,
            clock=clock,
            resume=resume,
            progress=progress,
        )


@dataclass(frozen=True)
class _Clock:
    """When the recipe began, and how long it may take."""

    began: float
    budget_seconds: float

    @property
    def gone(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left_for_bases(self) -> float:
        return BASES_SHARE * self.budget_seconds - self.gone


def _check_examples(examples: Sequence[Example], watched: Sequence[Example]) -> None:
    check_trainable(examples)
    source = examples[0].source
    if len(examples) < FEWEST_LABELS:
        raise DataError(
            f"{source} holds {len(examples)} examples.",
            f"With fewer than {FEWEST_LABELS} nothing can be learned that could be checked.",
            remedy="Label a few more texts.",
        )
    counts = Counter(example.label for example in examples)
    rare = sorted(name for name, count in counts.items() if count < 2)
    if rare and not watched:
        raise DataError(
            f"{source} has one example only of {', '.join(map(repr, rare))}.",
            "Cross-validation learns from some examples of a class and is asked about others.",
            remedy="Label one more of each, or give --valid.",
        )
    check_labels_known(watched, labels_of(examples))


def _fit(
    texts: Sequence[str | Path],
    *,
    examples: Sequence[Example],
    watched: Sequence[Example],
    folder: RunFolder,
    settings: Settings,
    clock: _Clock,
    resume: bool,
    progress: Progress,
) -> FitResult:
    labels = labels_of(examples)
    tokenizer = _begin(
        texts,
        examples=examples,
        labels=labels,
        folder=folder,
        settings=settings,
        resume=resume,
        progress=progress,
    )
    there = read_finished(folder)
    if there is not None:
        progress.say(f"{folder.run_dir} is complete already.")
        return there
    write_store(
        texts,
        data=settings.data,
        tokenizer=tokenizer,
        store_dir=folder.tokens_dir,
        progress=progress,
    )
    store = open_store(folder.tokens_dir, tokenizer=tokenizer)
    _warn_of_language(examples, store=store, tokenizer=tokenizer, progress=progress)
    num_bases, passes = 0, 0.0
    if _has_bases(store, settings=settings, progress=progress):
        num_bases, passes = _make_bases(
            store,
            folder=folder,
            settings=settings,
            tokenizer=tokenizer,
            clock=clock,
            progress=progress,
        )
    bases = [load_run(base_dir(folder.run_dir, number)) for number in range(num_bases)]
    members = _fit_members(
        # Without the labelled examples, which are added there.
        texts[:-1],
        examples=examples,
        watched=watched,
        labels=labels,
        bases=bases,
        num_documents=store.num_documents,
        settings=settings,
        progress=progress,
    )
    targets_N = labels.targets(watched or examples)
    chances_MNC = np.stack([_judged(member) for member in members.values()])
    weights_M = choose_weights(chances_MNC, targets_N)
    temperature = fit_temperature(blended(chances_MNC, weights_M), targets_N)
    weights = dict(zip(members, weights_M.tolist(), strict=True))
    for name, member in members.items():
        member.save(folder.run_dir / "members" / name)
    result = FitResult(
        run_dir=str(folder.run_dir),
        labels=labels.names,
        num_train=len(examples),
        num_valid=len(watched),
        num_documents=store.num_documents,
        num_tokens=store.num_tokens,
        num_bases=len(bases),
        passes=passes,
        scores=_scores(members, weights=weights, targets_N=targets_N, seed=settings.train.seed),
        weights=weights,
        temperature=temperature,
        minutes=clock.budget_seconds / 60,
        seconds=clock.gone,
    )
    folder.finish_blend(result.to_dict())
    return result


def _begin(
    texts: Sequence[str | Path],
    *,
    examples: Sequence[Example],
    labels: Labels,
    folder: RunFolder,
    settings: Settings,
    resume: bool,
    progress: Progress,
) -> Tokenizer:
    """The folder with its tokenizer in it."""
    if resume and folder.exists:
        tokenizer = load_tokenizer(folder.run_dir)
    else:
        documents = (document.text for document in read_documents(texts, data=settings.data))
        tokenizer = train_tokenizer(documents, settings=settings.tokenizer, progress=progress)
    source = source_fingerprint(texts)
    fingerprints = {"train": examples_fingerprint(examples), "text": source or "standard input"}
    info = RunInfo(kind="blend", status="training", labels=labels.names, fingerprints=fingerprints)
    folder.start(info, settings=settings, tokenizer=tokenizer, resume=resume)
    return tokenizer


def read_finished(folder: RunFolder) -> FitResult | None:
    """The result of a recipe that has come to its end in this folder."""
    info = read_info(folder.run_dir)
    is_done = info.kind == "blend" and info.status == "complete"
    return FitResult.from_dict(info.result) if is_done else None


def _has_bases(store: TokenStore, *, settings: Settings, progress: Progress) -> bool:
    """Whether the text can teach bases by contrast; if it cannot, say so."""
    if settings.objective.kind != "contrast":
        return True
    num_documents = num_divisible(store)
    if num_documents < FEWEST_DOCUMENTS:
        progress.say(
            f"{num_documents:,} documents of the text have {SHORTEST} tokens or more; a base needs "
            f"{FEWEST_DOCUMENTS}. Going on without one: give more or longer text."
        )
    return num_documents >= FEWEST_DOCUMENTS


def _make_bases(
    store: TokenStore,
    *,
    folder: RunFolder,
    settings: Settings,
    tokenizer: Tokenizer,
    clock: _Clock,
    progress: Progress,
) -> tuple[int, float]:
    """(number of bases, passes of each over the text): as many as the time allows, one at least."""
    plan_path = folder.run_dir / PLAN_NAME
    if plan_path.exists():
        # A resumed recipe goes on as it was planned, however fast the machine is now.
        plan = json.loads(plan_path.read_text(encoding="utf-8"))
    else:
        plan = _plan(store, settings=settings, tokenizer=tokenizer, clock=clock, progress=progress)
        write_json(plan_path, plan)
    lengths = {"steps": None, "epochs": None, "minutes": None, **plan["length"]}
    for number in range(plan["num_bases"]):
        pretrain(
            [folder.tokens_dir],
            out=base_dir(folder.run_dir, number),
            settings=replace(settings, "train", seed=settings.train.seed + number, **lengths),
            resume=True,
            progress=progress,
        )
    return plan["num_bases"], plan["passes"]


def _plan(
    store: TokenStore,
    *,
    settings: Settings,
    tokenizer: Tokenizer,
    clock: _Clock,
    progress: Progress,
) -> dict[str, Any]:
    """How many bases, and how long each learns: one pass, or as much of it as the time allows."""
    pass_seconds = _pass_seconds(store, settings=settings, tokenizer=tokenizer)
    passes = 1.0
    length: dict[str, float] = {"epochs": 1}
    if pass_seconds > clock.left_for_bases:
        # One base that does not see all of the text: better than none.
        minutes = max(clock.left_for_bases, 0.1 * clock.budget_seconds) / 60
        passes = min(minutes * 60 / pass_seconds, 1.0)
        progress.say(
            f"A pass over the text would take {pass_seconds / 60:.1f} min; in {minutes:.1f} min "
            f"the base sees about {passes:.0%} of it. More --minutes would help."
        )
        length = {"minutes": minutes}
    num_bases = 1
    if passes == 1.0:
        num_bases = min(max(int(clock.left_for_bases / (1.15 * pass_seconds)), 1), MOST_BASES)
        told = "1 base" if num_bases == 1 else f"{num_bases} bases"
        progress.say(
            f"A pass over the text takes about {pass_seconds:.0f} s: {told}, one pass each."
        )
    return {"num_bases": num_bases, "passes": passes, "length": length}


def _pass_seconds(store: TokenStore, *, settings: Settings, tokenizer: Tokenizer) -> float:
    """Measured on a few steps of a model that is thrown away."""
    model = build_language_model(
        settings.model, vocab_size=tokenizer.vocab_size, objective=settings.objective
    ).to(device())
    rows = pretraining_rows(store, tokenizer=tokenizer, settings=settings)
    trial = dataclasses.replace(settings.train, epochs=None, minutes=None, steps=_PACE_STEPS)
    state = build_state(model, settings=trial, num_rows=len(rows.lengths))
    loop = steps(
        state,
        rows=rows,
        objective=build_objective(settings, tokenizer=tokenizer),
        settings=trial,
    )
    records = list(loop)
    per_token = float(np.median([record.seconds / record.num_tokens for record in records]))
    num_steps = steps_per_epoch(len(rows.lengths), settings=settings.train)
    # By tokens as by steps: a step of long documents takes longer than one of short ones.
    num_tokens = min(store.num_tokens, int(rows.lengths.sum()))
    return max(per_token * num_tokens, num_steps * min(r.seconds for r in records))


def _fit_members(
    texts: Sequence[str | Path],
    *,
    examples: Sequence[Example],
    watched: Sequence[Example],
    labels: Labels,
    bases: Sequence[LoadedRun],
    num_documents: int,
    settings: Settings,
    progress: Progress,
) -> dict[str, Member]:
    seed = settings.train.seed
    told = "linear, latent, and one on the vectors of the bases" if bases else "linear, latent"
    progress.say(f"Fitting the members: {told}.")
    linear = fit_linear(examples, watched, labels=labels, seed=seed)
    documents = read_documents(texts, data=settings.data)
    stride = -(-num_documents // LATENT_TEXTS)
    unlabelled = (document.text for document in itertools.islice(documents, 0, None, stride))
    latent = fit_latent(
        examples,
        watched,
        labels=labels,
        texts=unlabelled,
        seed=seed,
        progress=progress,
    )
    members: dict[str, Member] = {"linear": linear, "latent": latent}
    if not bases:
        return members
    members["features"] = fit_regression(
        document_vectors(bases, [e.text for e in examples], progress=progress),
        labels.targets(examples),
        labels=labels,
        valid=_watched_vectors(bases, watched, labels=labels, progress=progress),
        seed=seed,
    )
    return members


def _watched_vectors(
    bases: Sequence[LoadedRun], watched: Sequence[Example], *, labels: Labels, progress: Progress
) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
    if not watched:
        return None
    vectors_ND = document_vectors(bases, [e.text for e in watched], progress=progress)
    return vectors_ND, labels.targets(watched)


def _judged(member: Member) -> NDArray[np.float64]:
    assert member.judged_NC is not None, "a class of one example was refused"
    return member.judged_NC


def _scores(
    members: dict[str, Member],
    *,
    weights: dict[str, float],
    targets_N: NDArray[np.int64],
    seed: int,
) -> dict[str, MemberScore]:
    """The blend and its members, on texts that none of them was fitted on.

    The weights of the blend that is scored come from other folds than the examples it answers. That
    members chose their C by the same examples makes all scores slightly too good.
    """
    chances_MNC = np.stack([_judged(member) for member in members.values()])
    mixed_NC = np.zeros_like(chances_MNC[0])
    folds_N = stratified_folds(targets_N, num_folds=NUM_FOLDS, seed=seed)
    for fold in np.unique(folds_N):
        is_asked_N = folds_N == fold
        others_M = choose_weights(chances_MNC[:, ~is_asked_N], targets_N[~is_asked_N])
        mixed_NC[is_asked_N] = blended(chances_MNC[:, is_asked_N], others_M)
    scores = {"blend": MemberScore(_interval(mixed_NC, targets_N), weight=None, seconds=0.0)}
    for name, member in members.items():
        accuracy = _interval(_judged(member), targets_N)
        scores[name] = MemberScore(accuracy, weight=weights[name], seconds=member.seconds)
    return scores


def _interval(chances_NC: NDArray[np.float64], targets_N: NDArray[np.int64]) -> Interval:
    return accuracy_interval((chances_NC.argmax(axis=1) == targets_N)[None])


def _warn_of_language(
    examples: Sequence[Example], *, store: TokenStore, tokenizer: Tokenizer, progress: Progress
) -> None:
    """Say so if the labelled texts break into far more pieces than the text itself."""
    num_bytes = sum(len(example.text.encode()) for example in examples)
    encoded = tokenizer.encode_batch([example.text for example in examples])
    bytes_per_token = num_bytes / max(sum(map(len, encoded)), 1)
    usual = store.num_bytes / max(store.num_tokens, 1)
    if bytes_per_token < FOREIGN_SHARE * usual:
        progress.say(
            f"The labelled texts have {bytes_per_token:.1f} bytes a token, the text {usual:.1f}: "
            "they look like another language or kind of text, and the text will help little."
        )
