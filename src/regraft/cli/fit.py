"""`regraft fit`: the whole recipe in one command."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import data_flags, settings_from
from regraft.cli.use import note_score
from regraft.errors import DataError


def fit(
    texts: Annotated[
        list[Path],
        typer.Option(
            "--text",
            metavar="FILE",
            help="Text without labels; repeat for more files.",
            show_default=False,
        ),
    ],
    train: Annotated[
        Path,
        typer.Option("--train", metavar="FILE", help="Labelled examples.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Run folder to write; runs/NAME, after the name of --train.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        Path | None,
        typer.Option(
            "--valid",
            metavar="FILE",
            help="Examples to choose by; without, cross-validation on --train.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            metavar="FILE",
            help="Examples opened once, at the end.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", help="Time to take, about.")
    ] = 30.0,
    seed: options.Seed = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            "--text-column", metavar="NAME", help="Column of the text.", show_default=False
        ),
    ] = None,
    label: options.LabelColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    assignments: options.Assignments = None,
    resume: options.Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make the best classifier that text and a few labels can give.

    Learns vectors of documents from the text, fits several models on the labels, and blends them by
    how well each does on examples it has not seen. Nothing has to be chosen.

    \b
    Example:
      regraft fit --text reviews.txt --train labels.csv --out runs/reviews
      regraft predict runs/reviews new.csv
    """
    out = Path("runs") / train.stem if out is None else out
    settings = settings_from(
        "pretrain",
        preset="bag",
        assignments=assignments,
        flags={
            **data_flags(text=text_column, label=label, encoding=encoding, documents=documents),
            "train.seed": seed,
        },
    )
    if test is not None and not test.exists():
        # Now, and not after all the minutes.
        raise DataError(f"There is no file {test}.", remedy="Check the path of --test.")
    from regraft.fit import fit as run
    from regraft.fitted import final_score
    from regraft.report.fitted import write_fit_report

    with terminal.progress_on_stderr(quiet=quiet) as progress, terminal.told_when_interrupted(out):
        progress.say(f"Run folder: {out}")
        result = run(
            texts,
            train=train,
            valid=valid,
            out=out,
            settings=settings,
            minutes=minutes,
            resume=resume,
            progress=progress,
        )
        tested = None
        if test is not None:
            labelled = [train] if valid is None else [train, valid]
            tested = final_score(
                out, test, labelled=labelled, texts=texts, data=settings.data, progress=progress
            )
            note_score(out, test, data=settings.data)
        report = write_fit_report(
            result, tested, out / "report", command=shlex.join(["regraft", *sys.argv[1:]])
        )
    if json:
        values = result.to_dict()
        if tested is not None:
            values["test"] = tested.to_dict()
        terminal.show_json({**values, "report": str(report["report.html"])})
    else:
        results.show_fitted(result, tested=tested)
        terminal.show_line(f"Report: {report['report.html']}")
