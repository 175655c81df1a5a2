"""`regraft fit`: the whole recipe in one command."""

import functools
import itertools
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import BASES, option, settings_from
from regraft.config import Settings
from regraft.errors import ConfigError, DataError
from regraft.runtime import Progress

if TYPE_CHECKING:
    from regraft.classifiers import FitResult


class Inputs(options.Group):
    """The files of a fit."""

    text: options.Text = None
    train: Annotated[
        Path | None,
        option(
            "--train",
            "Labelled examples to train on: csv, tsv, jsonl, xlsx, parquet, lines of fastText, or "
            "a folder of files CLASS/NAME.txt.",
            "FILE",
        ),
    ] = None
    valid: Annotated[
        Path | None,
        option("--valid", "Labelled examples for validation (default: cross-validation).", "FILE"),
    ] = None

    base: Annotated[
        Path | None,
        option("--base", f"An encoder whose vectors become one more member. {BASES}.", "PATH"),
    ] = None

    def required(self) -> tuple[list[Path], Path]:
        """The text, if there is any, and the examples that every new fit needs."""
        if self.train is None:
            raise options.missing("--train", "the examples to train on")
        return self.text or [], self.train


class Amount(options.Group):
    """How much is made."""

    minutes: Annotated[
        float | None, option("--minutes", "Time budget in minutes (default 30).", "M")
    ] = None
    bases: Annotated[
        int | None,
        option(
            "--bases",
            "Number of bases, instead of a time budget: the same result on a busy machine.",
            "N",
        ),
    ] = None
    seed: options.Seed = None


class Earlier(options.Group):
    """A run of an earlier fit."""

    like: Annotated[
        Path | None,
        option(
            "--from",
            "Repeat the fit of this run folder; file options name files that have moved since.",
            "RUN",
        ),
    ] = None
    update: Annotated[
        Path | None,
        option(
            "--update",
            "Add the examples of --train, and their classes, to this run folder of fit; its bases "
            "stay.",
            "RUN",
        ),
    ] = None


@options.grouped
def fit(
    *,
    inputs: Inputs,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "Run folder to write (default: runs/NAME, after --train; --from: runs/again; --update: "
            "RUN-2).",
            "DIR",
        ),
    ] = None,
    test: options.TestFile = None,
    amount: Amount,
    answering: options.Answering,
    earlier: Earlier,
    documents: options.Documents = None,
    resume: options.Resume = False,
    reading: options.SetReading,
    overrides: options.Overrides,
    output: options.Output,
) -> None:
    """Make a classifier of unlabelled text and a few labels.

    Learns document embeddings from the text, trains several models on the labels, and blends them
    by how well each predicts examples it has not seen. There is nothing to tune. Without --text the
    labelled texts are the text. The report forecasts the score with more labels, and lists labels
    that may be wrong.

    \b
    Example:
      regraft fit --text reviews.txt --train labels.csv --out runs/reviews
      regraft fit --text reviews.txt --train labels.csv --out runs/sure --target-accuracy 0.95
      regraft fit --text reviews.txt --train labels.csv --out runs/both --base minilm
      regraft predict runs/reviews new.csv
      regraft fit --update runs/reviews --train more.csv --out runs/more
    """
    start = time.perf_counter()
    if test is not None:  # now, and not after all the minutes
        _check_test(test, reading=reading)
    options.check_documents(documents, inputs.text)
    like, update, keep = earlier.like, earlier.update, test is not None
    if update is not None:
        given = {"from": like, "text": inputs.text, "base": inputs.base, "documents": documents}
        _refuse_new({**vars(amount), **given}, choices=overrides)
        out = out or _next_folder(update)
        run = _updating(update, inputs, reading, answering)
    elif like is None:
        out = out or Path("runs") / inputs.required()[1].stem
        flags = {"data.documents": documents, "train.seed": amount.seed}
        settings = settings_from("fit", reading, choices=overrides, preset="bag", flags=flags)
        run = _fitting(inputs, amount, answering, settings=settings, keep=keep)
    else:
        out = out or Path("runs/again")
        given = {**vars(amount), **vars(answering), **vars(reading), "documents": documents}
        options.refuse_repeated("fit", given, choices=overrides)
        run = _repeating(like, inputs, keep=keep)
    with output.progress(out) as progress:
        result = run(out=out, resume=resume, progress=progress)
        _report(result, test=test, start=start, output=output, progress=progress)


# A fit that lacks only its folder, `resume` and `progress`.
Fit = Callable[..., "FitResult"]


def _fitting(
    inputs: Inputs,
    amount: Amount,
    answering: options.Answering,
    *,
    settings: Settings,
    keep: bool,
) -> Fit:
    from regraft.classifiers import fit as run

    text, train = inputs.required()
    return functools.partial(
        run,
        text,
        train=train,
        valid=inputs.valid,
        base=inputs.base,
        settings=settings,
        minutes=amount.minutes,
        bases=amount.bases,
        **vars(answering),
        keep_baselines=keep,
    )


def _repeating(run_dir: Path, inputs: Inputs, *, keep: bool) -> Fit:
    from regraft.classifiers import fit_again

    return functools.partial(
        fit_again,
        run_dir,
        texts=inputs.text or (),
        train=inputs.train,
        valid=inputs.valid,
        base=inputs.base,
        keep_baselines=keep,
    )


def _updating(
    run_dir: Path, inputs: Inputs, reading: options.SetReading, answering: options.Answering
) -> Fit:
    from regraft.classifiers import fit_update, fitted_data

    _, train = inputs.required()
    data = options.data_of(fitted_data(run_dir), reading)
    return functools.partial(
        fit_update, run_dir, train=train, valid=inputs.valid, data=data, **vars(answering)
    )


def _check_test(test: Path, *, reading: options.SetReading) -> None:
    from regraft.data import near_file

    if not test.exists():
        near = near_file(test)
        hint = "" if near is None else f"Did you mean {near}? "
        raise DataError(f"There is no file {test}.", remedy=f"{hint}Check the path of --test.")
    if reading.label_separator is not None:
        raise ConfigError(
            "--test compares classifiers of one label per text.",
            "With several labels, scores are shown without a comparison.",
            remedy="Omit --test, then run `regraft evaluate` with the file.",
        )


def _refuse_new(given: dict[str, Any], *, choices: options.Overrides) -> None:
    """Refuse options that an update takes from the run."""
    flags = {**given, "set": choices.assignments, "config": choices.config}
    if wrong := [f"--{name}" for name, value in flags.items() if value not in (None, [])]:
        raise ConfigError(
            f"{', '.join(wrong)} cannot change a run that is updated.",
            "--update keeps its bases and settings, and reads labelled examples only.",
            remedy="Omit it, or fit again without --update.",
        )


def _next_folder(run: Path) -> Path:
    """RUN-2, or the first number after it that is free."""
    run = run if run.name else run.resolve()
    stem, _, number = run.name.rpartition("-")
    if not (stem and number.isdecimal()):
        stem, number = run.name, "1"
    numbers = itertools.count(int(number) + 1)
    return next(path for n in numbers if not (path := run.with_name(f"{stem}-{n}")).exists())


def _report(
    result: "FitResult",
    *,
    test: Path | None,
    start: float,
    output: options.Output,
    progress: Progress,
) -> None:
    """Open the test file, if there is one, write the report and print the result.

    The time printed is that since `start`, with the report; of a resumed run, that of the recipe.
    """
    from regraft.classifiers import class_words, remove_baselines
    from regraft.comparison import compare_fitted
    from regraft.report import comparison_to_dict, write_fit_report

    command, run_dir = shlex.join(["regraft", *sys.argv[1:]]), Path(result.run_dir)
    tested = None
    if test is not None:
        tested = compare_fitted(
            run_dir, test=test, texts=result.files["text"], command=command, progress=progress
        )
    progress.start("write the report", total=None)
    words = class_words(run_dir)
    report = write_fit_report(
        result, tested, run_dir / "report", class_words=words, command=command
    )
    progress.finish()
    remove_baselines(run_dir)
    if output.json:
        values = result.to_dict()
        if tested is not None:
            values["test"] = comparison_to_dict(tested)
        terminal.show_json({**values, "report": str(report["report.html"])})
    elif not output.quiet:
        seconds = max(result.seconds, time.perf_counter() - start)
        results.show_fitted(result, tested=tested, seconds=seconds)
        terminal.show_line(f"Report: {report['report.html']}")
