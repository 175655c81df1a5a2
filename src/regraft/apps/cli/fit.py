"""`regraft fit`: the whole recipe in one command."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import option, settings_from
from regraft.errors import DataError
from regraft.runtime import Progress

if TYPE_CHECKING:
    from regraft.classifiers import FitResult


class Inputs(options.Group):
    """The files of a fit."""

    text: options.Text = None
    train: Annotated[Path | None, option("--train", "Labelled examples to train on.", "FILE")] = (
        None
    )
    valid: Annotated[
        Path | None,
        option("--valid", "Labelled examples for validation (default: cross-validation).", "FILE"),
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


class Answering(options.Group):
    """When the classifier answers."""

    abstain_below: options.AbstainBelow = None
    target_accuracy: Annotated[
        float | None,
        option(
            "--target-accuracy",
            "Do not answer below the confidence from which answers are this accurate.",
            "P",
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
            "Run folder to write (default: runs/NAME, after --train; --from: runs/again).",
            "DIR",
        ),
    ] = None,
    test: options.TestFile = None,
    amount: Amount,
    answering: Answering,
    like: Annotated[
        Path | None,
        option(
            "--from",
            "Repeat the fit of this run folder; file options name files that have moved since.",
            "RUN",
        ),
    ] = None,
    documents: options.Documents = None,
    resume: options.Resume = False,
    reading: options.LabelReading,
    overrides: options.Overrides,
    output: options.Output,
) -> None:
    """Make the best classifier that unlabelled text and a few labels can give.

    Learns document embeddings from the text, trains several models on the labels, and blends them
    by how well each predicts examples it has not seen. There is nothing to tune. Without --text the
    labelled texts are the text. The report forecasts the score with more labels, and lists labels
    that may be wrong.

    \b
    Example:
      regraft fit --text reviews.txt --train labels.csv --out runs/reviews
      regraft fit --text reviews.txt --train labels.csv --out runs/sure --target-accuracy 0.95
      regraft predict runs/reviews new.csv
    """
    if test is not None and not test.exists():
        # Now, and not after all the minutes.
        raise DataError(f"There is no file {test}.", remedy="Check the path of --test.")
    if like is None:
        text, train = inputs.required()
        out = out or Path("runs") / train.stem
        flags = {"data.documents": documents, "train.seed": amount.seed}
        settings = settings_from("pretrain", reading, choices=overrides, preset="bag", flags=flags)
    else:
        out = out or Path("runs/again")
        given = {**vars(amount), **vars(answering), **vars(reading), "documents": documents}
        options.refuse_repeated("fit", given, choices=overrides)
    from regraft.classifiers import fit as run
    from regraft.classifiers import fit_again

    with output.progress(out) as progress:
        progress.say(f"Run folder: {out}")
        how: dict[str, Any] = {"out": out, "resume": resume, "progress": progress}
        if like is None:
            how |= {"settings": settings, "minutes": amount.minutes, "bases": amount.bases}
            how |= vars(answering)
            result = run(text, train=train, valid=inputs.valid, **how)
        else:
            result = fit_again(
                like, texts=inputs.text or (), train=inputs.train, valid=inputs.valid, **how
            )
        _report(result, test=test, output=output, progress=progress)


def _report(
    result: "FitResult", *, test: Path | None, output: options.Output, progress: Progress
) -> None:
    """Open the test file, if there is one, write the report and print the result."""
    from regraft.comparison import compare_fitted
    from regraft.report import comparison_to_dict, write_fit_report

    command, run_dir = shlex.join(["regraft", *sys.argv[1:]]), Path(result.run_dir)
    tested = None
    if test is not None:
        tested = compare_fitted(
            run_dir,
            train=result.files["train"][0],
            valid=next(iter(result.files["valid"]), None),
            test=test,
            texts=result.files["text"],
            command=command,
            progress=progress,
        )
    report = write_fit_report(result, tested, run_dir / "report", command=command)
    if output.json:
        values = result.to_dict()
        if tested is not None:
            values["test"] = comparison_to_dict(tested)
        terminal.show_json({**values, "report": str(report["report.html"])})
    else:
        results.show_fitted(result, tested=tested)
        terminal.show_line(f"Report: {report['report.html']}")
