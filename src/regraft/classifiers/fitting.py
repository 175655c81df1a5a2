"""The default recipe, `regraft fit`: text and a few labels in, a blend of classifiers out.

What the recipe consists of, and what each part is worth: docs/concepts/recipe.md.
"""

import functools
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from regraft.classifiers.abstention import ALWAYS_ANSWER, Abstention
from regraft.classifiers.blend import baselines_dir
from regraft.classifiers.embeddings import bases_dir
from regraft.classifiers.fit_members import (
    DOCUMENTS_LOOKED_AT,
    Ingredients,
    fit_members,
    read_corpus,
)
from regraft.classifiers.fit_plan import Clock, FitLimit, read_plan
from regraft.classifiers.fit_result import FitResult, read_finished
from regraft.classifiers.judging import judge
from regraft.config import SINGLE_TEXTS, Settings, check_task, replace, resolve
from regraft.data import (
    Example,
    Labels,
    Tokenizer,
    check_labels_known,
    check_trainable,
    examples_fingerprint,
    known_share,
    label_warnings,
    labels_of,
    load_examples,
    load_tokenizer,
    read_documents,
    source_fingerprint,
    spellings_of,
    train_tokenizer,
    with_text,
)
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.runtime import SILENT, Progress, check_files, in_percent, num_processes
from regraft.training import (
    LoadedRun,
    RunFolder,
    RunInfo,
    load_base,
    open_run,
    read_info,
    read_settings,
)

# Fewer labels cannot show which member is better.
FEWEST_LABELS = 10

# Each has a vector of a hundred thousand weights: with more, members need gigabytes and hours.
MOST_CLASSES = 1_000

# Of classes with one example.
_MOST_LISTED = 5

# A vocabulary of whole words that covers a smaller share of the text is replaced by subwords.
LEAST_KNOWN = 0.7


def fit(
    texts: Sequence[str | Path] = (),
    *,
    train: str | Path,
    valid: str | Path | None = None,
    out: str | Path,
    base: str | Path | None = None,
    settings: Settings | None = None,
    minutes: float | None = None,
    bases: int | None = None,
    abstain_below: float | None = None,
    target_accuracy: float | None = None,
    keep_baselines: bool = False,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """Make a classifier from the examples in `train` and all `texts` in about `minutes` (30).

    With a number of `bases` instead, the result does not depend on how busy the machine is. Without
    `texts` the labelled texts are the text. `base` is an encoder on disk (a Hugging Face folder or
    a pre-trained run folder), which becomes one more member: a regression on its vectors.
    `settings` are those of pre-training, by default the preset `bag`. Without `valid` everything is
    chosen by cross-validation, so that members learn from all labels. Below the confidence
    `abstain_below` the classifier does not answer; `target_accuracy` chooses that confidence on
    held-out examples. `keep_baselines` keeps the members of weight 0, which only `compare_fitted`
    reads, until `remove_baselines` is called.
    """
    return _fit_files(
        texts,
        train=train,
        valid=valid,
        out=out,
        base=base,
        settings=settings or resolve("fit", preset="bag"),
        limit=FitLimit.of(minutes=minutes, bases=bases),
        abstention=Abstention(abstain_below, target_accuracy),
        keep_baselines=keep_baselines,
        resume=resume,
        progress=progress,
    )


def fit_again(
    like: str | Path,
    *,
    out: str | Path,
    texts: Sequence[str | Path] = (),
    train: str | Path | None = None,
    valid: str | Path | None = None,
    base: str | Path | None = None,
    keep_baselines: bool = False,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """Repeat the fit in the folder `like` with its settings, seed, number of bases and passes.

    `texts`, `train`, `valid` and `base` name what has moved since.
    """
    check_files(Path(like), read_info(Path(like)).files)
    before, plan = read_finished(Path(like)), read_plan(Path(like))
    if before is None or not before.files:
        raise RunFolderError(
            f"{like} is no finished run of `regraft fit`.",
            "Only such a run can be repeated.",
            remedy="Check the path of --from; continue an unfinished run with --resume.",
        )
    if before.update is not None:
        raise RunFolderError(
            f"{like} was made by --update.",
            "Only a fit from the start can be repeated.",
            remedy=f"Repeat that of {before.update.run_dir}, then update it.",
        )
    encoders = before.files.get("base", [])
    if base is not None and not encoders:
        raise ConfigError(
            f"--base {base} cannot change a fit that is repeated: {like} has no encoder.",
            remedy="Omit --base, or run a new fit without --from.",
        )
    given = {"text": texts, "train": [train] if train else (), "valid": [valid] if valid else ()}
    _check_files({name: before.files[name] for name in given if not given[name]}, like=like)
    files = {name: paths or before.files[name] for name, paths in given.items()}
    return _fit_files(
        files["text"],
        train=files["train"][0],
        valid=next(iter(files["valid"]), None),
        out=out,
        base=base or next(iter(encoders), None),
        settings=read_settings(Path(like)),
        limit=FitLimit.like(plan, minutes=before.minutes),
        abstention=Abstention(before.abstain_below),
        keep_baselines=keep_baselines,
        fingerprints=read_info(Path(like)).fingerprints,
        resume=resume,
        progress=progress,
    )


def _check_files(files: Mapping[str, Sequence[str | Path]], *, like: str | Path) -> None:
    """Refuse to repeat a fit whose files are not where it names them."""
    for name, paths in files.items():
        for path in paths:
            if not Path(path).exists():
                raise DataError(
                    f"{like} was made from {str(path)!r}, and there is no such file here.",
                    "A run names its files as they were given, seen from the folder of that time.",
                    remedy=f"Repeat it from that folder, or pass --{name} FILE.",
                )


def _fit_files(
    texts: Sequence[str | Path],
    *,
    train: str | Path,
    valid: str | Path | None,
    out: str | Path,
    base: str | Path | None,
    settings: Settings,
    limit: FitLimit,
    abstention: Abstention,
    fingerprints: dict[str, str] | None = None,
    keep_baselines: bool,
    resume: bool,
    progress: Progress,
) -> FitResult:
    """The recipe for files; `fingerprints` are those of the data that they must hold."""
    if Path("-") in map(Path, texts):
        raise ConfigError(
            "--text is standard input, and the recipe reads its text more than once.",
            remedy="Save it to a file and pass that.",
        )
    load = functools.partial(load_examples, data=settings.data, progress=progress)
    examples = load(train)
    valid_examples = [] if valid is None else load(valid)
    encoder = None if base is None else load_base(Path(base))
    if fingerprints is not None:
        now = _fingerprints(examples, valid_examples, texts=[*texts, train], encoder=encoder)
        _refuse_other_data(now, before=fingerprints)
    files = {
        "text": texts,
        "train": [train],
        "valid": [] if valid is None else [valid],
        "base": [] if base is None else [base],
    }
    return fit_examples(
        examples,
        valid_examples=valid_examples,
        texts=texts,
        labelled=train,
        encoder=encoder,
        out=out,
        settings=settings,
        limit=limit,
        files={name: list(map(str, paths)) for name, paths in files.items()},
        abstention=abstention,
        keep_baselines=keep_baselines,
        resume=resume,
        progress=progress,
    )


def fit_examples(
    examples: Sequence[Example],
    *,
    valid_examples: Sequence[Example],
    texts: Sequence[str | Path],
    labelled: str | Path,
    encoder: LoadedRun | None = None,
    out: str | Path,
    settings: Settings,
    limit: FitLimit,
    files: dict[str, list[str]] | None = None,
    abstention: Abstention = ALWAYS_ANSWER,
    keep_baselines: bool = False,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """The recipe for examples in memory; `labelled` is a file with their texts.

    `files` are noted in the result.
    """
    if num_processes() > 1:
        raise ConfigError(
            "regraft fit starts its own processes, on one machine.",
            remedy="Start it without torchrun; `regraft pretrain` runs in many.",
        )
    abstention.check(settings.data)
    check_fit_task(settings)
    examples, valid_examples = (
        with_text(part, progress=progress) for part in (examples, valid_examples)
    )
    check_examples(examples, valid_examples)
    for warning in label_warnings(examples, separator=settings.data.label_separator):
        progress.say(f"note: {labelled if files else examples[0].source}: {warning}")
    with open_run(out, resume=resume) as (folder, resume):
        if files:  # else the folder is a temporary one
            progress.say(f"Run folder: {folder.run_dir}")
        return _fit(
            [*texts, labelled],
            examples=examples,
            valid_examples=valid_examples,
            encoder=encoder,
            folder=folder,
            settings=settings,
            limit=limit,
            files=files or {},
            abstention=abstention,
            keep_baselines=keep_baselines,
            resume=resume,
            progress=progress,
        )


def check_fit_task(settings: Settings) -> None:
    """Raise ConfigError for a task, or an option, that the recipe does not support."""
    check_task(settings.data, supported=SINGLE_TEXTS, by="`regraft fit`")
    if settings.data.label_separator is not None and settings.train.class_weight is not None:
        raise ConfigError(
            "train.class_weight needs one label per text, and data.label_separator allows several.",
            "With several labels, each has its own threshold, which is chosen for you.",
            remedy="Omit train.class_weight.",
        )


def check_examples(examples: Sequence[Example], valid_examples: Sequence[Example]) -> None:
    """Raise DataError if there are too few examples, in all or of a class."""
    check_trainable(examples)
    source = examples[0].source
    if len(examples) < FEWEST_LABELS:
        raise DataError(
            f"{source} holds {len(examples)} examples.",
            f"At least {FEWEST_LABELS} are needed to learn something that can be checked.",
            remedy="Label a few more texts.",
        )
    counts = Counter(name for example in examples for name in example.names)
    if len(counts) > MOST_CLASSES:
        raise DataError(
            f"{source} has {len(counts):,} classes for {len(examples):,} examples.",
            f"`regraft fit` takes up to {MOST_CLASSES:,}.",
            remedy="Check --label-column (is it a column of ids?), group the classes, or use "
            "`regraft finetune`.",
        )
    rare = sorted(name for name, count in counts.items() if count < 2)
    has_sets = any(example.labels is not None for example in examples)
    if rare and not valid_examples and not has_sets:
        more = len(rare) - _MOST_LISTED
        listed = ", ".join(map(repr, rare[:_MOST_LISTED])) + (f" and {more:,} more" * (more > 0))
        are_ids = 2 * len(rare) > len(examples)
        ids = "Is this a column of ids, not of labels? Else label" if are_ids else "Label"
        raise DataError(
            f"{source} has one example only of {listed}.",
            "Cross-validation trains on some examples of a class and tests on others.",
            remedy=f"{_meant(rare, counts)}{ids} one more of each, or pass --valid.",
        )
    check_labels_known(valid_examples, labels_of(examples))


def _meant(rare: Sequence[str], counts: Mapping[str, int]) -> str:
    """The classes that rare ones are spelled like, as a question; empty if there are none."""
    meant = {
        max(names, key=lambda name: counts[name])
        for names in spellings_of(counts)
        if not set(rare).isdisjoint(names)
    }
    names = [f"{name!r} ({counts[name]:,} examples)" for name in sorted(meant) if counts[name] > 1]
    return f"Did you mean {' and '.join(names)}? " if names else ""


def _fit(
    texts: Sequence[str | Path],
    *,
    examples: Sequence[Example],
    valid_examples: Sequence[Example],
    encoder: LoadedRun | None,
    folder: RunFolder,
    settings: Settings,
    limit: FitLimit,
    files: dict[str, list[str]],
    abstention: Abstention,
    keep_baselines: bool,
    resume: bool,
    progress: Progress,
) -> FitResult:
    clock = Clock(folder.run_dir)
    fingerprints = _fingerprints(examples, valid_examples, texts=texts, encoder=encoder)
    tokenizer, settings = _begin(
        texts,
        labels=labels_of(examples),
        fingerprints=fingerprints,
        folder=folder,
        settings=settings,
        resume=resume,
        progress=progress,
    )
    if (finished := read_finished(folder.run_dir)) is not None:
        # A crash may have come before.
        _remove_leftovers(folder, clock, keep_baselines=keep_baselines)
        progress.say(f"{folder.run_dir} is complete already.")
        return finished
    clock.save()
    ingredients = Ingredients(
        texts=texts,
        examples=examples,
        valid_examples=valid_examples,
        encoder=encoder,
        folder=folder,
        tokenizer=tokenizer,
        settings=settings,
        limit=limit,
        clock=clock,
        progress=progress,
    )
    corpus = read_corpus(ingredients)
    members, passes = fit_members(corpus, ingredients)
    judged = judge(
        members,
        examples=examples,
        valid_examples=valid_examples,
        run_dir=folder.run_dir,
        settings=settings,
        abstention=abstention,
        progress=progress,
    )
    result = FitResult(
        **vars(judged),
        run_dir=str(folder.run_dir),
        num_documents=corpus.store.num_documents,
        num_tokens=corpus.store.num_tokens,
        num_alike=None if corpus.domain is None else corpus.num_documents,
        num_bases=len(passes),
        passes=passes,
        minutes=limit.minutes,
        seconds=clock.seconds,
        files=files,
    )
    folder.complete(result.to_dict())
    _remove_leftovers(folder, clock, keep_baselines=keep_baselines)
    return result


def _remove_leftovers(folder: RunFolder, clock: Clock, *, keep_baselines: bool) -> None:
    """Remove what only the making of a classifier needs: clock, tokens, bases.

    Members of weight 0, too, unless they will be compared.
    """
    clock.remove()
    shutil.rmtree(folder.tokens_dir, ignore_errors=True)
    # Members have their own: a folded table, or copies.
    shutil.rmtree(bases_dir(folder.run_dir), ignore_errors=True)
    if not keep_baselines:
        remove_baselines(folder.run_dir)


def remove_baselines(run_dir: str | Path) -> None:
    """Remove the members of weight 0 that a finished fit has kept."""
    shutil.rmtree(baselines_dir(Path(run_dir)), ignore_errors=True)


def _begin(
    texts: Sequence[str | Path],
    *,
    labels: Labels,
    fingerprints: dict[str, str],
    folder: RunFolder,
    settings: Settings,
    resume: bool,
    progress: Progress,
) -> tuple[Tokenizer, Settings]:
    """Start the folder; the tokenizer, and the settings with its kind."""
    if resume and folder.exists:
        tokenizer = load_tokenizer(folder.run_dir)
        kind = read_settings(folder.run_dir).tokenizer.kind
        settings = replace(settings, "tokenizer", kind=kind)
    else:
        tokenizer, settings = _train_tokenizer(texts, settings=settings, progress=progress)
    info = RunInfo(kind="blend", status="training", labels=labels.names, fingerprints=fingerprints)
    folder.start(info, settings=settings, tokenizer=tokenizer, resume=resume)
    return tokenizer, settings


def _fingerprints(
    examples: Sequence[Example],
    valid_examples: Sequence[Example],
    *,
    texts: Sequence[str | Path],
    encoder: LoadedRun | None,
) -> dict[str, str]:
    """Hashes of all that the recipe learns from; the last of the `texts` holds the examples."""
    valid = {"valid": examples_fingerprint(valid_examples)} if valid_examples else {}
    base = {} if encoder is None else {"base": encoder.fingerprint}
    text = source_fingerprint(texts) or "standard input"
    return {"train": examples_fingerprint(examples), "text": text, **valid, **base}


def _refuse_other_data(now: dict[str, str], *, before: dict[str, str]) -> None:
    if changed := [name for name in {**now, **before} if now.get(name) != before.get(name)]:
        raise DataError(
            f"The data differ from those of the run to repeat: {', '.join(changed)}.",
            "A fit is repeated on the same text and the same examples.",
            remedy="Restore the files, or pass their new places with --text, --train, --valid and "
            "--base.",
        )


def _train_tokenizer(
    texts: Sequence[str | Path], *, settings: Settings, progress: Progress
) -> tuple[Tokenizer, Settings]:
    """Whole words if they cover the text, else subwords (Chinese has no spaces)."""

    def documents() -> Iterator[str]:
        return (document.text for document in read_documents(texts, data=settings.data))

    tokenizer = train_tokenizer(documents(), settings=settings.tokenizer, progress=progress)
    if settings.tokenizer.kind == "words":
        known = known_share(tokenizer, list(itertools.islice(documents(), DOCUMENTS_LOOKED_AT)))
        if known < LEAST_KNOWN:
            progress.say(
                f"A vocabulary of {tokenizer.vocab_size:,} whole words covers "
                f"{in_percent(known, digits=0)} of the text: subwords are used instead."
            )
            settings = replace(settings, "tokenizer", kind="bpe")
            tokenizer = train_tokenizer(documents(), settings=settings.tokenizer, progress=progress)
    return tokenizer, settings
