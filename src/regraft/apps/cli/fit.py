"""`regraft fit`: the whole recipe in one command."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import TextOption, option, settings_from
from regraft.errors import DataError


@options.grouped
def fit(
    text: Annotated[list[Path], TextOption],
    train: options.TrainFile,
    out: Annotated[
        Path | None,
        option("--out", "Run folder to write (default: runs/NAME, after --train).", "DIR"),
    ] = None,
    valid: Annotated[
        Path | None,
        option("--valid", "Labelled examples for validation (default: cross-validation).", "FILE"),
    ] = None,
    test: options.TestFile = None,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", help="Time budget in minutes.")
    ] = 30.0,
    seed: options.Seed = None,
    documents: options.Documents = None,
    resume: options.Resume = False,
    *,
    reading: options.LabelReading,
    overrides: options.Overrides,
    output: options.Output,
) -> None:
    """Make the best classifier that unlabelled text and a few labels can give.

    Learns document embeddings from the text, trains several models on the labels, and blends them
    by how well each predicts examples it has not seen. There is nothing to tune.

    \b
    Example:
      regraft fit --text reviews.txt --train labels.csv --out runs/reviews
      regraft predict runs/reviews new.csv
    """
    out = Path("runs") / train.stem if out is None else out
    flags = {"data.documents": documents, "train.seed": seed}
    settings = settings_from("pretrain", reading, choices=overrides, preset="bag", flags=flags)
    if test is not None and not test.exists():
        # Now, and not after all the minutes.
        raise DataError(f"There is no file {test}.", remedy="Check the path of --test.")
    from regraft.classifiers import fit as run
    from regraft.comparison import compare_fitted
    from regraft.report import write_fit_report

    with output.progress(out) as progress:
        progress.say(f"Run folder: {out}")
        result = run(
            text,
            train=train,
            valid=valid,
            out=out,
            settings=settings,
            minutes=minutes,
            resume=resume,
            progress=progress,
        )
        command = shlex.join(["regraft", *sys.argv[1:]])
        tested = None
        if test is not None:
            tested = compare_fitted(
                out,
                train=train,
                valid=valid,
                test=test,
                texts=text,
                command=command,
                progress=progress,
            )
        report = write_fit_report(result, tested, out / "report", command=command)
    if output.json:
        values = result.to_dict()
        if tested is not None:
            from regraft.report import comparison_to_dict

            values["test"] = comparison_to_dict(tested)
        terminal.show_json({**values, "report": str(report["report.html"])})
    else:
        results.show_fitted(result, tested=tested)
        terminal.show_line(f"Report: {report['report.html']}")
