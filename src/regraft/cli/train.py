"""The commands that train: `regraft pretrain`, `finetune`, `compare`, `bench` and `demo`."""

import itertools
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import data_flags, settings_from, train_flags
from regraft.config import Settings
from regraft.errors import ConfigError
from regraft.presets import ARMS
from regraft.runtime import Progress

SCRATCH = "scratch"
_BASES = "Pre-trained run folder, Hugging Face folder, or the lab's .pt file"

_TRAIN = typer.Option("--train", metavar="FILE", help="Examples to learn from.", show_default=False)
_VALID = typer.Option("--valid", metavar="FILE", help="Examples to watch.", show_default=False)


def pretrain(
    texts: options.Texts,
    out: options.RunOut,
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
    """
    settings = settings_from(
        "pretrain",
        preset=preset,
        size=size,
        config=config,
        assignments=assignments,
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

    with terminal.progress_on_stderr(quiet=quiet) as progress:
        result = run(
            texts,
            out=out,
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
            help=f"{_BASES}; or `{SCRATCH}` for random weights.",
            show_default=False,
        ),
    ],
    train: Annotated[Path, _TRAIN],
    out: options.RunOut,
    valid: Annotated[Path | None, _VALID] = None,
    tokenizer: options.TokenizerPath = None,
    size: options.Size = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.Seed = None,
    checkpoint_every: options.CheckpointEvery = None,
    text: options.TextColumn = None,
    label: options.LabelColumn = None,
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
    """
    if base != SCRATCH:
        for flag, value, what in (
            ("--size", size, "shape"),
            ("--tokenizer", tokenizer, "tokenizer"),
        ):
            if value is not None:
                raise ConfigError(
                    f"{flag} {value} cannot change the {what} of the base {base}.",
                    remedy=f"Leave {flag} away, or start from --base {SCRATCH}.",
                )
    base_path = None if base == SCRATCH else Path(base)
    _check_preset(base_path, preset=preset, config=config)
    settings = settings_from(
        "finetune",
        preset=preset,
        size=size,
        config=config,
        assignments=assignments,
        base=base_path,
        flags={
            **data_flags(text=text, label=label, encoding=encoding),
            **train_flags(
                steps=steps,
                epochs=epochs,
                minutes=minutes,
                seed=seed,
                checkpoint_every=checkpoint_every,
            ),
        },
    )
    from regraft.finetune import finetune as run

    with terminal.progress_on_stderr(quiet=quiet) as progress:
        _tell_assumed(base_path, settings=settings, progress=progress)
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
        results.show_finetuned(result)


def compare(
    base: Annotated[
        Path,
        typer.Option("--base", metavar="BASE", help=f"{_BASES}.", show_default=False),
    ],
    train: Annotated[Path, _TRAIN],
    valid: Annotated[Path, _VALID],
    test: Annotated[
        Path,
        typer.Option(
            "--test", metavar="FILE", help="Examples opened once, at the end.", show_default=False
        ),
    ],
    out: options.FolderOut,
    seeds: Annotated[int, typer.Option("--seeds", metavar="K", help="Runs of each arm.")] = 3,
    arms: Annotated[
        str, typer.Option("--arms", metavar="NAMES", help="Arms to compare, between commas.")
    ] = ",".join(ARMS),
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            help="Runs at a time; by default one for each core.",
            show_default=False,
        ),
    ] = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    # Hidden, for it is always refused; but with the reason, not as an unknown option.
    minutes: Annotated[
        float | None, typer.Option("--minutes", hidden=True, help="Refused: not a fair budget.")
    ] = None,
    seed: options.Seed = None,
    text: options.TextColumn = None,
    label: options.LabelColumn = None,
    encoding: options.Encoding = None,
    config: options.Config = None,
    preset: options.Preset = None,
    assignments: options.Assignments = None,
    resume: options.Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prove whether pre-training paid.

    Arms on the same batches and budget, several seeds, a paired test, a verdict in one sentence.
    Runs that are finished outlive an interruption: with --resume only the others are trained.

    \b
    Example:
      regraft compare --base runs/base --train train.csv --valid valid.csv --test test.csv \\
        --seeds 3 --out runs/comparison
    """
    _check_preset(base, preset=preset, config=config)
    settings = settings_from(
        "finetune",
        preset=preset,
        config=config,
        assignments=assignments,
        base=base,
        flags={
            **data_flags(text=text, label=label, encoding=encoding),
            **train_flags(
                steps=steps, epochs=epochs, minutes=minutes, seed=seed, checkpoint_every=None
            ),
        },
    )
    from regraft.compare import compare as run
    from regraft.report import comparison_to_dict, write_report

    with terminal.progress_on_stderr(quiet=quiet) as progress:
        _tell_assumed(base, settings=settings, progress=progress)
        comparison = run(
            base=base,
            train=train,
            valid=valid,
            test=test,
            out=out,
            seeds=seeds,
            settings=settings,
            arms=[name.strip() for name in arms.split(",") if name.strip()],
            jobs=jobs if jobs is not None else os.cpu_count() or 1,
            resume=resume,
            progress=progress,
            command=shlex.join(["regraft", *sys.argv[1:]]),
        )
        written = write_report(comparison, out)
    if json:
        terminal.show_json(comparison_to_dict(comparison))
    else:
        results.show_comparison(comparison, report_path=written["report.html"])


def _check_preset(base: Path | None, *, preset: str | None, config: Path | None) -> None:
    """Where neither a flag nor a file chooses the preset, the base does."""
    if base is not None and preset is None and config is None:
        from regraft.bases import check_preset

        check_preset(base)


def _tell_assumed(base: Path | None, *, settings: Settings, progress: Progress) -> None:
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
