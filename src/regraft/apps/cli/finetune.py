"""`regraft finetune`: a classifier on top of a base."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regraft.apps.cli import options, results
from regraft.apps.cli.options import (
    BASES,
    SCRATCH,
    check_base_fixes,
    check_preset_of,
    option,
    settings_from,
)
from regraft.config import Settings
from regraft.errors import ConfigError
from regraft.runtime import Progress, is_first_process, num_processes


class Methods(options.Group):
    """Methods that learn from unlabelled text before or between fine-tuning."""

    text: options.Text = None
    adapt: Annotated[
        float | None,
        option(
            "--adapt",
            "First continue pre-training on the texts of --train and --text for this long.",
            "MINUTES",
        ),
    ] = None
    self_train: Annotated[
        int | None,
        option(
            "--self-train",
            "Label --text with a first classifier, then train on its confident predictions too.",
            "ROUNDS",
            min=1,
        ),
    ] = None
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence", metavar="P", help="--self-train: lowest probability of a new label."
        ),
    ] = 0.9


@options.grouped
def finetune(
    base: Annotated[str, option("--base", f"{BASES}; or `{SCRATCH}` for random weights.", "BASE")],
    train: options.TrainFile,
    out: options.RunOut,
    valid: options.ValidFile = None,
    tokenizer: options.TokenizerPath = None,
    size: options.Size = None,
    resume: options.Resume = False,
    *,
    methods: Methods,
    answering: options.Answering,
    training: options.Training,
    reading: options.TaskReading,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Put a classifier on a base and train it on examples.

    \b
    Example:
      regraft finetune --base runs/base --train train.csv --valid valid.csv --out runs/reviews
      regraft finetune --base scratch --train train.csv --out runs/scratch --size tiny
      regraft finetune --base runs/base --train pairs.csv --text-column question \\
        --pair-column answer --out runs/answers
      regraft finetune --base runs/base --train tags.csv --label-separator "|" --out runs/tags
      regraft finetune --base runs/base --train train.csv --out runs/sure --target-accuracy 0.95
      regraft finetune --base runs/base --train train.csv --out runs/more --adapt 5 \\
        --text reviews.txt --self-train 1
    """
    base_path = None if base == SCRATCH else Path(base)
    check_base_fixes(base_path, size=size, tokenizer=tokenizer, remedy=f"use --base {SCRATCH}")
    _check_methods(base_path, methods)
    check_preset_of(base_path, choices)
    settings = settings_from(
        "finetune", reading, training, choices=choices, size=size, base=base_path
    )
    from regraft.classifiers import finetune as run
    from regraft.classifiers import self_train as run_rounds
    from regraft.training import adapt as adapt_base

    texts = methods.text or []
    given: dict[str, Any] = {
        "train": train,
        "valid": valid,
        "out": out,
        "tokenizer_path": tokenizer,
        **vars(answering),
    }
    with output.progress(out) as progress:
        note_assumed_heads(base_path, settings=settings, progress=progress)
        how: dict[str, Any] = {"settings": settings, "resume": resume, "progress": progress}
        if methods.adapt is not None and base_path is not None:
            base_path = adapt_base(
                base_path, texts=[train, *texts], minutes=methods.adapt, out=out, **how
            )
        if methods.self_train is None:
            result = run(base=base_path, **given, **how)
        else:
            result = run_rounds(
                base=base_path,
                unlabelled=texts,
                rounds=methods.self_train,
                confidence=methods.confidence,
                **given,
                **how,
            )
    linear = None if output.json or output.quiet else _linear_score(train, valid, settings=settings)
    output.show(result, lambda: results.show_finetuned(result, linear=linear), is_saved=True)


def _check_methods(base: Path | None, methods: Methods) -> None:
    """Refuse text that nothing reads, and methods that lack their text or their base."""
    text, adapt, self_train = methods.text, methods.adapt, methods.self_train
    if text and adapt is None and self_train is None:
        raise ConfigError(
            f"--text {text[0]} would not be used.",
            remedy="Add --adapt MINUTES or --self-train ROUNDS, or omit --text.",
        )
    if self_train is not None and not text:
        raise ConfigError("--self-train needs unlabelled text.", remedy="Add --text FILE.")
    if adapt is not None and base is None:
        raise ConfigError(
            f"--adapt {adapt:g} continues pre-training, but --base {SCRATCH} has none.",
            remedy="Choose a pre-trained base, or omit --adapt.",
        )


def note_assumed_heads(base: Path | None, *, settings: Settings, progress: Progress) -> None:
    """Report what a checkpoint of the lab does not record and is assumed."""
    from regraft.training import assumed_heads

    note = None if base is None else assumed_heads(base, settings=settings)
    # Under torchrun every process is here.
    if note is not None and is_first_process():
        progress.say(note)


def _linear_score(train: Path, valid: Path | None, *, settings: Settings) -> float | None:
    """The baseline of a task that `regraft compare` does not take; other tasks compare."""
    data = settings.data
    if data.pair_column is None and data.label_separator is None:
        return None
    # Standard input has been read already, and under torchrun every process would do it.
    if Path("-") in (train, valid) or num_processes() > 1:
        return None
    from regraft.classifiers import linear_score, load_splits
    from regraft.data import labels_of
    from regraft.runtime import SILENT

    examples, held_out = load_splits(train, valid=valid, settings=settings, progress=SILENT)
    seed = settings.train.seed
    return linear_score(examples, held_out, labels=labels_of(examples), seed=seed)
