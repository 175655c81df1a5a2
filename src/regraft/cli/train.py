"""The commands that train: `regraft pretrain`, `finetune`, `bench` and `demo`."""

import itertools
import os
from pathlib import Path
from typing import Annotated

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import data_flags, settings_from, train_flags
from regraft.config import Settings
from regraft.errors import ConfigError
from regraft.runtime import Progress

SCRATCH = "scratch"
BASES = "Pre-trained run folder, Hugging Face folder, or the lab's .pt file"

TRAIN = typer.Option("--train", metavar="FILE", help="Examples to learn from.", show_default=False)
VALID = typer.Option("--valid", metavar="FILE", help="Examples to watch.", show_default=False)


def pretrain(
    texts: options.Texts,
    out: options.RunOut,
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            metavar="RUN",
            help="Pre-trained run folder to go on from: its weights, tokenizer and objective.",
            show_default=False,
        ),
    ] = None,
    tokenizer: options.TokenizerPath = None,
    objective: options.Objective = None,
    size: options.Size = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.Seed = None,
    checkpoint_every: options.CheckpointEvery = None,
    text: options.TextColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    config: options.Config = None,
    preset: options.Preset = None,
    assignments: options.Assignments = None,
    resume: options.Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Pre-train a language model on text without labels.

    \b
    Example:
      regraft pretrain reviews.txt --out runs/base --minutes 10
      regraft pretrain reviews.txt --out runs/base --minutes 10 --resume
      regraft pretrain books.txt --base runs/base --out runs/books --minutes 5
    """
    _check_shape(base, size=size, tokenizer=tokenizer, remedy="pre-train without a base")
    check_preset_of(base, preset=preset, config=config)
    settings = settings_from(
        "pretrain",
        preset=preset,
        size=size,
        config=config,
        assignments=assignments,
        base=base,
        flags={
            "objective.kind": objective,
            **data_flags(text=text, encoding=encoding, documents=documents),
            **train_flags(
                steps=steps,
                epochs=epochs,
                minutes=minutes,
                seed=seed,
                checkpoint_every=checkpoint_every,
            ),
        },
    )
    from regraft.pretrain import pretrain as run

    with terminal.progress_on_stderr(quiet=quiet) as progress, terminal.told_when_interrupted(out):
        result = run(
            texts,
            out=out,
            base=base,
            settings=settings,
            tokenizer_path=tokenizer,
            resume=resume,
            progress=progress,
        )
    if json:
        terminal.show_json(result.to_dict())
    else:
        results.show_pretrained(result)


def bench(
    texts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TEXT", help="Files whose cost is asked.", show_default=False),
    ] = None,
    objective: options.Objective = None,
    text: options.TextColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    config: options.Config = None,
    preset: options.Preset = None,
    assignments: options.Assignments = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what this machine can train, and how long a corpus would take.

    Real training steps at several sizes, a few seconds each, beside a plain matrix product.

    \b
    Example:
      regraft bench
      regraft bench reviews.txt --preset lab
    """
    settings = settings_from(
        "pretrain",
        preset=preset,
        config=config,
        assignments=assignments,
        flags={
            "objective.kind": objective,
            **data_flags(text=text, encoding=encoding, documents=documents),
        },
    )
    from regraft.bench import bench as run

    with terminal.progress_on_stderr(quiet=quiet) as progress:
        result = run(texts or [], settings=settings, progress=progress)
    if json:
        terminal.show_json(result.to_dict())
    else:
        results.show_bench(result)


def finetune(
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="BASE",
            help=f"{BASES}; or `{SCRATCH}` for random weights.",
            show_default=False,
        ),
    ],
    train: Annotated[Path, TRAIN],
    out: options.RunOut,
    valid: Annotated[Path | None, VALID] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            "--unlabelled",
            metavar="FILE",
            help="Text without labels, for --adapt and --self-train; repeatable.",
            show_default=False,
        ),
    ] = None,
    adapt: Annotated[
        float | None,
        typer.Option(
            "--adapt",
            metavar="MINUTES",
            help="Let the base first learn the texts of --train and --unlabelled for so long.",
            show_default=False,
        ),
    ] = None,
    self_train: Annotated[
        int | None,
        typer.Option(
            "--self-train",
            min=1,
            metavar="ROUNDS",
            help="Label --unlabelled by a classifier and learn from its sure answers, too.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option("--confidence", metavar="P", help="--self-train: how sure an answer must be."),
    ] = 0.9,
    tokenizer: options.TokenizerPath = None,
    size: options.Size = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.Seed = None,
    checkpoint_every: options.CheckpointEvery = None,
    text: options.TextColumn = None,
    text_pair: options.PairColumn = None,
    label: options.LabelColumn = None,
    label_separator: options.LabelSeparator = None,
    encoding: options.Encoding = None,
    config: options.Config = None,
    preset: options.Preset = None,
    assignments: options.Assignments = None,
    resume: options.Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Graft a classifier onto a base and train it on examples.

    \b
    Example:
      regraft finetune --base runs/base --train train.csv --valid valid.csv --out runs/reviews
      regraft finetune --base scratch --train train.csv --out runs/scratch --size tiny
      regraft finetune --base runs/base --train pairs.csv --text question --text-pair answer \\
        --out runs/answers
      regraft finetune --base runs/base --train tags.csv --label-separator "|" --out runs/tags
      regraft finetune --base runs/base --train train.csv --out runs/more --adapt 5 \\
        --unlabelled reviews.txt --self-train 1
    """
    base_path = None if base == SCRATCH else Path(base)
    _check_shape(base_path, size=size, tokenizer=tokenizer, remedy=f"start from --base {SCRATCH}")
    if unlabelled and adapt is None and self_train is None:
        raise ConfigError(
            f"--unlabelled {unlabelled[0]} is given, and nothing reads it.",
            remedy="Add --adapt MINUTES or --self-train ROUNDS, or leave it away.",
        )
    if self_train is not None and not unlabelled:
        raise ConfigError(
            "--self-train labels texts, and there are none.", remedy="Give them with --unlabelled."
        )
    if adapt is not None and base_path is None:
        raise ConfigError(
            f"--adapt {adapt:g} lets a base learn more, and --base is {SCRATCH}.",
            remedy="Give a base, or leave --adapt away.",
        )
    check_preset_of(base_path, preset=preset, config=config)
    settings = settings_from(
        "finetune",
        preset=preset,
        size=size,
        config=config,
        assignments=assignments,
        base=base_path,
        flags={
            **data_flags(
                text=text,
                text_pair=text_pair,
                label=label,
                label_separator=label_separator,
                encoding=encoding,
            ),
            **train_flags(
                steps=steps,
                epochs=epochs,
                minutes=minutes,
                seed=seed,
                checkpoint_every=checkpoint_every,
            ),
        },
    )
    from regraft.adaptation import adapt as adapt_base
    from regraft.finetune import finetune as run
    from regraft.selftraining import self_train as run_rounds

    with terminal.progress_on_stderr(quiet=quiet) as progress, terminal.told_when_interrupted(out):
        tell_assumed(base_path, settings=settings, progress=progress)
        if adapt is not None and base_path is not None:
            base_path = adapt_base(
                base_path,
                texts=[train, *(unlabelled or [])],
                minutes=adapt,
                out=out,
                settings=settings,
                resume=resume,
                progress=progress,
            )
        if self_train is not None:
            result = run_rounds(
                base=base_path,
                train=train,
                valid=valid,
                unlabelled=unlabelled or [],
                out=out,
                settings=settings,
                tokenizer_path=tokenizer,
                rounds=self_train,
                confidence=confidence,
                resume=resume,
                progress=progress,
            )
        else:
            result = run(
                base=base_path,
                train=train,
                valid=valid,
                out=out,
                settings=settings,
                tokenizer_path=tokenizer,
                resume=resume,
                progress=progress,
            )
    if json:
        terminal.show_json(result.to_dict())
    else:
        results.show_finetuned(result, linear=_linear_beside(train, valid, settings=settings))


def _linear_beside(train: Path, valid: Path | None, *, settings: Settings) -> float | None:
    """The line to beat in a task that `regraft compare` does not take; other tasks compare."""
    data = settings.data
    if data.pair_column is None and data.label_separator is None:
        return None
    # Standard input is read already, and of many processes each would do it.
    if Path("-") in (train, valid) or os.environ.get("WORLD_SIZE", "1") != "1":
        return None
    from regraft.baselines import linear_score
    from regraft.finetune import load_splits
    from regraft.runtime import SILENT
    from regraft.text import labels_of

    examples, watched = load_splits(train, valid=valid, settings=settings, progress=SILENT)
    seed = settings.train.seed
    return linear_score(examples, watched, labels=labels_of(examples), seed=seed)


def _check_shape(
    base: Path | None, *, size: str | None, tokenizer: Path | None, remedy: str
) -> None:
    """A base has a shape and a tokenizer already."""
    for flag, value, what in (("--size", size, "shape"), ("--tokenizer", tokenizer, "tokenizer")):
        if base is not None and value is not None:
            raise ConfigError(
                f"{flag} {value} cannot change the {what} of the base {base}.",
                remedy=f"Leave {flag} away, or {remedy}.",
            )


def check_preset_of(base: Path | None, *, preset: str | None, config: Path | None) -> None:
    """Where neither a flag nor a file chooses the preset, the base does, if it can."""
    if base is not None and preset is None and config is None:
        from regraft.bases import check_preset

        check_preset(base)


def tell_assumed(base: Path | None, *, settings: Settings, progress: Progress) -> None:
    """Say what a checkpoint of the lab does not tell and was assumed."""
    from regraft.bases import assumed_heads

    note = None if base is None else assumed_heads(base, settings=settings)
    # Under torchrun every process is here.
    if note is not None and os.environ.get("RANK", "0") == "0":
        progress.say(note)


def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.pt", help="Checkpoint of the lab.", show_default=False),
    ],
    out: options.RunOut,
    tokenizer: options.TokenizerPath = None,
    heads: Annotated[
        int | None,
        typer.Option(
            "--heads",
            min=1,
            metavar="H",
            help="Number of attention heads, which the file does not tell; by default the lab's.",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a run folder of a checkpoint from the lab.

    The shape is read off its tensors, and its vocabulary is the dict.txt beside it or --tokenizer.
    With a head over the vocabulary it can generate, with one over classes it can predict.

    \b
    Example:
      regraft import pretrained_model_4layers.pt --tokenizer cls-books --out runs/lab
    """
    from regraft.bases import assumed_heads, import_lab_file

    run = import_lab_file(file, out=out, tokenizer_path=tokenizer, num_heads=heads)
    num_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    if json:
        told = {"run_dir": str(out), "kind": run.info.kind, "num_parameters": num_parameters}
        terminal.show_json(told)
    elif not quiet:
        terminal.show_message(
            f"{out} holds a {run.info.kind} with {num_parameters:,} parameters from {file}."
        )
        if heads is None and (note := assumed_heads(file, settings=run.settings)):
            terminal.show_message(note)


def demo(
    offline: Annotated[
        bool, typer.Option("--offline", help="A small synthetic corpus; no network, two minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder to write; by default the first free of runs/demo, runs/demo-2 ...",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tell the whole story on real reviews, in ten minutes.

    Fetch, pre-train, graft, compare, predict; the synthetic corpus stands in without a network.

    \b
    Example:
      regraft demo
      regraft demo --offline --out runs/demo
    """
    from regraft.demo import demo as run

    with terminal.progress_on_stderr(quiet=quiet) as progress:
        result = run(out=out or free_folder(), offline=offline, progress=progress)
    if json:
        terminal.show_json(results.demo_to_dict(result))
    else:
        results.show_demo(result)


def free_folder() -> Path:
    """`make demo` must work a second time, too."""
    names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
    folders = (Path("runs") / name for name in names)
    return next(folder for folder in folders if not folder.exists())
