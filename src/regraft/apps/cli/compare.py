"""`regraft compare`: was pre-training worth it?"""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regraft.apps.cli import options, results
from regraft.apps.cli.finetune import note_assumed_heads
from regraft.apps.cli.options import BASES, check_preset_of, option, settings_from
from regraft.config import ARMS, DEFAULT_ARMS
from regraft.errors import ConfigError

if TYPE_CHECKING:
    from regraft.comparison import Comparison

_ARMS = "; ".join(f"`{name}`: {text}" for name, text in ARMS.items())


class Inputs(options.Group):
    """The bases and files of a comparison."""

    bases: Annotated[
        list[str] | None,
        option(
            "--base",
            f"{BASES}; repeat it for more: their arms are called pretrained:NAME.",
            "[NAME=]BASE",
        ),
    ] = None
    train: Annotated[Path | None, option("--train", "Labelled examples to train on.", "FILE")] = (
        None
    )
    valid: options.ValidFile = None
    test: options.TestFile = None
    text: Annotated[
        list[Path] | None,
        option(
            "--text",
            "Unlabelled text, for the latent and fit arms and to search for test examples; "
            "repeatable.",
            "FILE",
            callback=options.existing_texts,
        ),
    ] = None

    def files(self) -> dict[str, Any]:
        """The labelled files that were given."""
        files = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: path for name, path in files.items() if path is not None}


class Design(options.Group):
    """What a comparison compares."""

    seeds: Annotated[int | None, option("--seeds", "Number of seeds per arm (default 3).", "K")] = (
        None
    )
    arms: Annotated[
        str | None,
        option(
            "--arms",
            f"Arms to compare, separated by commas (default {','.join(DEFAULT_ARMS)}). {_ARMS}.",
            "NAMES",
        ),
    ] = None
    labels: Annotated[
        str | None,
        option(
            "--labels",
            "Numbers of labels for a learning curve, such as 50,200,all (default all).",
            "SIZES",
        ),
    ] = None
    grid: Annotated[
        Literal["none", "small"] | None,
        option(
            "--grid",
            "small: networks choose among three learning rates on the validation set, as shallow "
            "arms choose their regularization; none: they keep theirs, at a third of the cost "
            "(default small).",
        ),
    ] = None
    fit_minutes: Annotated[
        float | None,
        option(
            "--fit-minutes", "Time budget of each run of the fit arm in minutes (default 10).", "M"
        ),
    ] = None


class Budget(options.SettingsGroup):
    """How long every arm trains."""

    section = "train"

    steps: options.Steps = None
    epochs: options.Epochs = None
    # Hidden because it is always refused; but with the reason, not as an unknown option.
    minutes: Annotated[
        float | None, typer.Option("--minutes", hidden=True, help="Refused: not a fair budget.")
    ] = None
    seed: options.Seed = None


class Execution(options.Group):
    """Where the runs of a comparison take place."""

    out: Annotated[
        Path | None,
        option("--out", "Folder to write (default runs/comparison; --from: runs/again).", "DIR"),
    ] = None
    jobs: Annotated[
        int | None, option("--jobs", "Number of parallel runs (default: one per core).", "N")
    ] = None
    cluster: Annotated[
        str | None,
        option(
            "--cluster",
            "Dask scheduler whose workers do the runs, such as tcp://host:8786.",
            "ADDRESS",
        ),
    ] = None

    def arguments(self, default_name: str) -> dict[str, Any]:
        """The arguments of a comparison, with this command."""
        return {
            "out": self.out or Path("runs") / default_name,
            "jobs": self.jobs if self.jobs is not None else os.cpu_count() or 1,
            "cluster": self.cluster,
            "command": shlex.join(["regraft", *sys.argv[1:]]),
        }


@options.grouped
def compare(
    like: Annotated[
        Path | None,
        option(
            "--from",
            "Repeat the comparison of a report; file options name files that have moved since.",
            "report.json",
        ),
    ] = None,
    documents: options.Documents = None,
    # Accepted because other commands have it: a comparison continues in any case.
    resume: options.Resume = False,
    *,
    inputs: Inputs,
    design: Design,
    execution: Execution,
    budget: Budget,
    reading: options.LabelReading,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Find out whether pre-training was worth it.

    Trains all arms on the same batches with the same budget and several seeds, tests the paired
    differences, and states a verdict. Repeat the command to continue after an interruption.

    \b
    Example:
      regraft compare --base runs/base --train train.csv --valid valid.csv --test test.csv \\
        --seeds 3 --out runs/comparison
      regraft compare --base runs/base --train train.csv --valid valid.csv --test test.csv \\
        --arms pretrained,linear,latent --labels 100,400,all --out runs/curve
    """
    if like is None:
        how = execution.arguments("comparison")
        comparison = _compare(
            inputs, design, documents, how, budget, reading, choices=choices, output=output
        )
    else:
        how = execution.arguments("again")
        given = {**vars(design), **vars(budget), **vars(reading), "documents": documents}
        options.refuse_repeated("comparison", given, choices=choices)
        comparison = _repeat(like, inputs=inputs, how=how, output=output)
    from regraft.report import comparison_to_dict, write_report

    written = write_report(comparison, how["out"])
    report_path = written["report.html"]
    output.show(
        comparison_to_dict(comparison),
        lambda: results.show_comparison(comparison, report_path=report_path),
        is_saved=True,
    )


def _compare(
    inputs: Inputs,
    design: Design,
    documents: str | None,
    how: dict[str, Any],
    *groups: options.SettingsGroup,
    choices: options.Choices,
    output: options.Output,
) -> "Comparison":
    for name, what in (("train", "train on"), ("valid", "validate on"), ("test", "test on")):
        if name not in inputs.files():
            raise options.missing(f"--{name}", f"the examples to {what}")
    (_, base), *more_bases = _named_bases(inputs.bases).items()
    check_preset_of(base, choices)
    settings = settings_from(
        "finetune", *groups, choices=choices, base=base, flags={"data.documents": documents}
    )
    from regraft.comparison import DEFAULT_FIT_MINUTES
    from regraft.comparison import compare as run
    from regraft.data import parse_sizes

    with output.progress(how["out"]) as progress:
        note_assumed_heads(base, settings=settings, progress=progress)
        return run(
            base=base,
            more_bases=dict(more_bases),
            **inputs.files(),
            seeds=3 if design.seeds is None else design.seeds,
            settings=settings,
            arms=None if design.arms is None else _split(design.arms),
            labels=(None,) if design.labels is None else parse_sizes(design.labels),
            grid=design.grid or "small",
            texts=inputs.text or (),
            fit_minutes=DEFAULT_FIT_MINUTES if design.fit_minutes is None else design.fit_minutes,
            progress=progress,
            **how,
        )


def _repeat(
    report: Path, *, inputs: Inputs, how: dict[str, Any], output: options.Output
) -> "Comparison":
    """Repeat the comparison of a report; the inputs name what has moved since."""
    from regraft.comparison import load_comparison, read_request, relocated, run_request

    like = load_comparison(report, remedy="Check the path of --from.")
    request = relocated(
        read_request(like, source=report),
        bases=dict(_named_base(word) for word in inputs.bases or ()),
        texts=inputs.text or [],
        files=inputs.files(),
        report_dir=report.parent,
    )
    with output.progress(how["out"]) as progress:
        return run_request(request, like=like, progress=progress, **how)


def _named_base(word: str) -> tuple[str, Path]:
    """`NAME=PATH` as name and path; the name of a mere path is empty."""
    name, equals, path = word.partition("=")
    # A path may contain the sign.
    return ("", Path(word)) if not equals or Path(word).exists() else (name, Path(path))


def _named_bases(words: list[str] | None) -> dict[str, Path]:
    """Paths by name; the first base needs none, others are named after their folder."""
    if not words:
        raise options.missing("--base", "the pre-trained model")
    named: dict[str, Path] = {}
    for number, (name, path) in enumerate(map(_named_base, words)):
        name = (name or path.stem) if number else ""
        if name in named or (number and not name):
            raise ConfigError(
                f"Two bases are called {name!r}.",
                "Every base after the first needs its own name.",
                remedy="Name it: --base NAME=PATH.",
            )
        named[name] = path
    return named


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
