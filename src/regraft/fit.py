"""The default recipe: text and a few labels in, the best classifier that they give out.

Comes in: files of text, labelled examples, minutes. Goes out: a folder with bases, members and the
weights of their blend, and what each was worth, on texts that it had not seen. What the recipe is
made of, and what each part is worth: docs/concepts/recipe.md.
"""

import dataclasses
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.baselines import fit_latent, fit_linear
from regraft.blend import blended, choose_weights
from regraft.config import Settings, replace, resolve
from regraft.ensemble import Clock, can_teach, make_bases
from regraft.errors import ConfigError, DataError
from regraft.features import document_vectors
from regraft.finetune import examples_fingerprint
from regraft.fitted import Member, base_dir, load_recipe_base
from regraft.metrics import Interval, accuracy_interval, fit_temperature
from regraft.regression import NUM_FOLDS, fit_regression, stratified_folds
from regraft.runfolder import (
    LoadedRun,
    RunFolder,
    RunInfo,
    open_run,
    read_info,
    read_settings,
)
from regraft.runtime import SILENT, Progress
from regraft.selection import Domain, find_domain
from regraft.shards import source_fingerprint, write_store, write_view
from regraft.store import open_store
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
from regraft.vocabulary import known_share, train_tokenizer

# Fewer labels cannot say which member is the better one.
FEWEST_LABELS = 10

# A year: more is a slip of the finger.
MOST_MINUTES = 525_600

# Texts without labels that the latent member reads at most: it holds their words in memory.
LATENT_TEXTS = 50_000

# Labelled texts whose tokens know less than this share of the usual are called unlike the text.
FOREIGN_SHARE = 0.6

# A vocabulary of whole words that knows a smaller share of the text is no use.
LEAST_KNOWN = 0.7
_LOOKED_AT = 2_000


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
    # Documents like the labelled ones, where they are only a part of the text.
    num_alike: int | None = None

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
    clock = Clock(time.perf_counter(), minutes * 60)
    if not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(
            f"--minutes is {minutes:g}.",
            f"It is more than 0 and at most {MOST_MINUTES:,}.",
            remedy="Give a minute at least, for a large text half an hour.",
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "regraft fit starts processes of its own, on one machine.",
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
    clock: Clock,
    resume: bool,
    progress: Progress,
) -> FitResult:
    labels = labels_of(examples)
    tokenizer, settings = _begin(
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
    _warn_of_language(
        examples, texts=texts[:-1], settings=settings, tokenizer=tokenizer, progress=progress
    )
    found = find_domain(
        store, [e.text for e in examples], tokenizer=tokenizer, seed=settings.train.seed
    )
    store_dir, domain = folder.tokens_dir, None
    if found is not None:
        domain, alike = found
        progress.say(
            f"{alike.num_documents:,} of {store.num_documents:,} documents, "
            f"{alike.num_tokens / store.num_tokens:.0%} of the tokens, are like the labelled ones; "
            "the rest is left aside."
        )
        store_dir = folder.tokens_dir / "alike"
        write_view(alike, tokenizer=tokenizer, store_dir=store_dir)
    num_documents = store.num_documents if found is None else found[1].num_documents
    num_bases, passes = 0, 0.0
    if can_teach(store, settings=settings, progress=progress):
        num_bases, passes = make_bases(
            store_dir,
            folder=folder,
            settings=settings,
            tokenizer=tokenizer,
            num_documents=min(num_documents, LATENT_TEXTS),
            clock=clock,
            progress=progress,
        )
    bases = [load_recipe_base(base_dir(folder.run_dir, number)) for number in range(num_bases)]
    members = _fit_members(
        # Without the labelled examples, which are added there.
        texts[:-1],
        examples=examples,
        watched=watched,
        labels=labels,
        bases=bases,
        tokenizer=tokenizer,
        domain=domain,
        num_documents=num_documents,
        settings=settings,
        progress=progress,
    )
    targets_N = labels.targets(watched or examples)
    speakers = _speakers(members)
    chances_MNC = np.stack([_judged(members[name]) for name in speakers])
    weights_M = choose_weights(chances_MNC, targets_N)
    temperature = fit_temperature(blended(chances_MNC, weights_M), targets_N)
    weights = dict.fromkeys(members, 0.0) | dict(zip(speakers, weights_M.tolist(), strict=True))
    for name, member in members.items():
        member.save(folder.run_dir / "members" / name)
    result = FitResult(
        run_dir=str(folder.run_dir),
        labels=labels.names,
        num_train=len(examples),
        num_valid=len(watched),
        num_documents=store.num_documents,
        num_tokens=store.num_tokens,
        num_alike=None if found is None else found[1].num_documents,
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
) -> tuple[Tokenizer, Settings]:
    """The folder with its tokenizer in it, and the settings with the kind of it."""
    if resume and folder.exists:
        tokenizer = load_tokenizer(folder.run_dir)
        kind = read_settings(folder.run_dir).tokenizer.kind
        settings = replace(settings, "tokenizer", kind=kind)
    else:
        tokenizer, settings = _train_tokenizer(texts, settings=settings, progress=progress)
    source = source_fingerprint(texts)
    fingerprints = {"train": examples_fingerprint(examples), "text": source or "standard input"}
    info = RunInfo(kind="blend", status="training", labels=labels.names, fingerprints=fingerprints)
    folder.start(info, settings=settings, tokenizer=tokenizer, resume=resume)
    return tokenizer, settings


def _train_tokenizer(
    texts: Sequence[str | Path], *, settings: Settings, progress: Progress
) -> tuple[Tokenizer, Settings]:
    """Whole words where the text has them, else parts of words (Chinese has no spaces)."""

    def documents() -> Iterator[str]:
        return (document.text for document in read_documents(texts, data=settings.data))

    tokenizer = train_tokenizer(documents(), settings=settings.tokenizer, progress=progress)
    if settings.tokenizer.kind == "words":
        known = known_share(tokenizer, list(itertools.islice(documents(), _LOOKED_AT)))
        if known < LEAST_KNOWN:
            progress.say(
                f"A vocabulary of {tokenizer.vocab_size:,} whole words knows {known:.0%} of the "
                "text: parts of words are taken instead."
            )
            settings = replace(settings, "tokenizer", kind="bpe")
            tokenizer = train_tokenizer(documents(), settings=settings.tokenizer, progress=progress)
    return tokenizer, settings


def read_finished(folder: RunFolder) -> FitResult | None:
    """The result of a recipe that has come to its end in this folder."""
    info = read_info(folder.run_dir)
    is_done = info.kind == "blend" and info.status == "complete"
    return FitResult.from_dict(info.result) if is_done else None


def _fit_members(
    texts: Sequence[str | Path],
    *,
    examples: Sequence[Example],
    watched: Sequence[Example],
    labels: Labels,
    bases: Sequence[LoadedRun],
    tokenizer: Tokenizer,
    domain: Domain | None,
    num_documents: int,
    settings: Settings,
    progress: Progress,
) -> dict[str, Member]:
    seed = settings.train.seed
    told = "linear, latent, and one on the vectors of the bases" if bases else "linear, latent"
    progress.say(f"Fitting the members: {told}.")
    linear = fit_linear(examples, watched, labels=labels, seed=seed)
    documents: Iterable[str] = (d.text for d in read_documents(texts, data=settings.data))
    if domain is not None:
        documents = domain.texts(documents, tokenizer=tokenizer)
    stride = -(-num_documents // LATENT_TEXTS)
    latent = fit_latent(
        examples,
        watched,
        labels=labels,
        texts=itertools.islice(documents, 0, None, stride),
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


def _speakers(members: dict[str, Member]) -> list[str]:
    """The members that are blended.

    Where there are bases, the latent member says nothing that they do not say better, and only
    stands beside them to be beaten. French book reviews, accuracy on valid with 50 / 100 labels,
    ten draws: with it 74.1 / 78.0 %, without it 75.2 / 78.5 % (2026-11-17).
    """
    return [name for name in members if name != "latent" or "features" not in members]


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
    chances_MNC = np.stack([_judged(members[name]) for name in _speakers(members)])
    mixed_NC = np.zeros_like(chances_MNC[0])
    folds_N = stratified_folds(targets_N, num_folds=NUM_FOLDS, seed=seed)
    for fold in np.unique(folds_N):
        is_asked_N = folds_N == fold
        others_M = choose_weights(chances_MNC[:, ~is_asked_N], targets_N[~is_asked_N])
        mixed_NC[is_asked_N] = blended(chances_MNC[:, is_asked_N], others_M)
    scores = {"blend": MemberScore(_interval(mixed_NC, targets_N), weight=None, seconds=0.0)}
    says = _says(members, weights=weights, targets_N=targets_N)
    for name, member in members.items():
        accuracy = _interval(_judged(member), targets_N)
        scores[name] = MemberScore(accuracy, weight=says[name], seconds=member.seconds)
    return scores


def _says(
    members: dict[str, Member], *, weights: dict[str, float], targets_N: NDArray[np.int64]
) -> dict[str, float]:
    """How much each has to say: a weight also makes a timid member bolder, which is left out."""
    parts = {
        name: weights[name] * fit_temperature(_judged(member), targets_N)
        for name, member in members.items()
    }
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()}


def _interval(chances_NC: NDArray[np.float64], targets_N: NDArray[np.int64]) -> Interval:
    return accuracy_interval((chances_NC.argmax(axis=1) == targets_N)[None])


def _warn_of_language(
    examples: Sequence[Example],
    *,
    texts: Sequence[str | Path],
    settings: Settings,
    tokenizer: Tokenizer,
    progress: Progress,
) -> None:
    """Say so if the labelled texts are far less known to the tokenizer than the text is."""
    documents = itertools.islice(read_documents(texts, data=settings.data), _LOOKED_AT)
    usual = _knowledge(tokenizer, [document.text for document in documents])
    here = _knowledge(tokenizer, [example.text for example in examples])
    if here < FOREIGN_SHARE * usual:
        progress.say(
            f"A token of the labelled texts stands for {here:.1f} known bytes, one of the text for "
            f"{usual:.1f}: they look like another language or kind of text, and the text will help "
            "little."
        )


def _knowledge(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Bytes a token, times the share of tokens that are known: what is foreign has little of it."""
    num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    num_tokens = sum(map(len, tokenizer.encode_batch(texts)))
    return num_bytes / max(num_tokens, 1) * known_share(tokenizer, texts)
