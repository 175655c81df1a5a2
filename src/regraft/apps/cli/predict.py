"""`regraft evaluate`, `predict`, `generate` and `fill`: use a run folder."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import argument, data_of, flag, option
from regraft.config import DataSettings
from regraft.errors import ConfigError
from regraft.runtime import Progress, counted, in_percent

if TYPE_CHECKING:
    from regraft.classifiers import TablePrediction

# Files below this size are predicted at once.
_SMALL_BYTES = 1 << 16


@options.grouped
def evaluate(
    run: options.RunFolder,
    file: Annotated[Path, argument("Examples to score on.", "FILE")],
    issues: Annotated[
        Path | None,
        option(
            "--issues", "List of labels that may be wrong to write, for `data clean`.", "FILE.csv"
        ),
    ] = None,
    abstain_below: options.AbstainBelow = None,
    *,
    reading: options.TaskReading,
    output: options.Output,
) -> None:
    """Score a classifier on examples.

    \b
    Example:
      regraft evaluate runs/reviews test.csv
      regraft evaluate runs/reviews test.csv --abstain-below 0.9 --issues issues.csv
    """
    from regraft.classifiers import (
        check_share,
        checked_probabilities,
        find_label_issues,
        load_classifier,
        score_probabilities,
        seen_warning,
    )
    from regraft.config import check_task
    from regraft.data import Labels, load_examples, write_label_issues
    from regraft.runtime import output_path

    check_share("--abstain-below", abstain_below)
    if issues is not None:
        output_path(issues, inputs=[run, file])
    classifier = load_classifier(run)
    data = data_of(classifier.data, reading)
    check_task(data, supported=classifier.supported_tasks, by=str(run))
    with output.progress() as progress:
        examples = load_examples(file, data=data, progress=progress)
        if (warning := seen_warning(run, file, examples)) is not None:
            progress.say(warning)
        probabilities_NC = checked_probabilities(classifier, examples, progress=progress)
    evaluation = score_probabilities(
        classifier, examples, probabilities_NC, abstain_below=abstain_below
    )
    if issues is not None:
        labels, separator = Labels(classifier.labels), data.label_separator
        found = find_label_issues(examples, probabilities_NC, labels=labels, separator=separator)
        write_label_issues(issues, found)
        if not output.quiet:
            terminal.show_message(f"{counted(len(found), 'label')} may be wrong: {issues}.")
    output.show(evaluation, lambda: results.show_evaluation(evaluation))
    note_score(run, file, data=data)


class Target(options.Group):
    """Where the predictions go."""

    format: Annotated[
        Literal["csv", "tsv", "jsonl"] | None,
        option("--format", "Format on stdout (default: csv)."),
    ] = None
    out: Annotated[
        Path | None,
        option(
            "--out",
            "File to write (default: stdout): .csv .tsv .jsonl .parquet or .xlsx, by its name.",
            "FILE",
        ),
    ] = None
    resume: Annotated[
        bool, flag("--resume", "Continue a command that was stopped; begin if none was.")
    ] = False
    shard: Annotated[
        str, typer.Option("--shard", metavar="I/N", help="Write only the part of job I of N.")
    ] = "1/1"

    def check(self, *, inputs: Sequence[Path]) -> None:
        """Refuse options that do not go with --out or with its name, and an input as output."""
        from regraft.data import format_of
        from regraft.runtime import output_path

        if self.out is None:
            if self.resume or self.shard != "1/1":
                given = "--resume" if self.resume else f"--shard {self.shard}"
                raise ConfigError(
                    f"{given} needs a file to write, and the predictions would go to stdout.",
                    remedy="Add --out FILE.",
                )
            return
        if self.format is not None and format_of(self.out) != f".{self.format}":
            raise ConfigError(
                f"--format {self.format} contradicts --out {self.out}.",
                "A file has the format of its name; --format is for stdout.",
                remedy="Omit --format, or rename the output.",
            )
        output_path(self.out, inputs=inputs)
        format_of(self.out)


_Cluster = Annotated[
    str | None,
    option(
        "--cluster", "Dask scheduler whose workers predict, such as tcp://host:8786.", "ADDRESS"
    ),
]
_TopK = Annotated[
    int | None,
    option("--top-k", "Write the K most probable labels, not the probability of all.", "K", min=1),
]


@options.grouped
def predict(
    run: options.RunFolder,
    files: Annotated[
        list[Path],
        argument(
            "Tables (csv, tsv, jsonl, xlsx, parquet), text files and folders of text files; - is "
            "text from stdin.",
            "FILE",
        ),
    ],
    *,
    target: Target,
    cluster: _Cluster = None,
    abstain_below: options.AbstainBelow = None,
    top_k: _TopK = None,
    pair_column: Annotated[
        str | None,
        option("--pair-column", "Classifiers of pairs: column of the second text.", "NAME"),
    ] = None,
    id_column: Annotated[
        str | None,
        option(
            "--id-column",
            "Column that names each row: refused if one lacks it, or two share it.",
            "NAME",
        ),
    ] = None,
    reading: options.TextReading,
    output: options.Output,
) -> None:
    """Predict the label of each row, line or file.

    Keeps all columns and rows, and adds predicted_label, predicted_probability and p(LABEL).

    \b
    Example:
      regraft predict runs/reviews new.csv --out predictions.xlsx
      regraft predict runs/reviews big.parquet --out part-1.csv --shard 1/2 --resume
      echo "Un livre charmant." | regraft predict runs/reviews - --format jsonl
    """
    from regraft.classifiers import (
        TableTask,
        check_share,
        journal_folder,
        load_classifier,
        predict_to_file,
        predict_to_stream,
    )
    from regraft.config import check_task
    from regraft.data import parse_part

    part, out = parse_part(target.shard), target.out
    options.check_documents(reading.documents, files)
    check_share("--abstain-below", abstain_below)
    target.check(inputs=[run, *files])
    with output.progress(None if out is None else journal_folder(out)) as bars:
        # No bars for a few texts. A stream has them when it is longer than that.
        progress: Progress = terminal.Messages(bars) if _is_small(files) else bars
        progress.start("prepare", total=None)
        classifier = load_classifier(run)
        data = data_of(classifier.data, reading, pair_column=pair_column)
        check_task(data, supported=classifier.supported_tasks, by=str(run))
        progress.finish()
        task = TableTask(
            classifier, run, tuple(files), data, cluster, abstain_below, top_k, id_column
        )
        progress = bars if task.has_stream else progress
        if out is None:
            sys.stdout.flush()
            ending = ".json" if output.json else f".{target.format or 'csv'}"
            predict_to_stream(task, sys.stdout.buffer, ending=ending, progress=progress)
            return
        found = predict_to_file(task, out, part=part, resume=target.resume, progress=progress)
    output.note(found.to_dict(), _summary(found, run=run, is_stored=abstain_below is None))


def _summary(found: "TablePrediction", *, run: Path, is_stored: bool) -> str:
    """How many rows have a label, and why the others have none."""
    parts = [f"{counted(found.num_texts - found.num_abstained, 'prediction')} in {found.out}"]
    if found.abstain_below is not None:
        source = f", the threshold of {run}" if is_stored else ""
        parts.append(
            f"{found.num_abstained:,} left empty (confidence below "
            f"{found.abstain_below:.4g}{source})"
        )
    if num_blank := found.num_rows - found.num_texts:
        parts.append(f"{counted(num_blank, 'row')} without text")
    return f"{', '.join(parts)}."


def _is_small(files: Sequence[Path]) -> bool:
    """Whether files are so small that progress would only be noise; a stream may be."""
    sizes = [os.path.getsize(file) for file in files if os.path.isfile(file)]
    return sum(sizes) < _SMALL_BYTES


@options.grouped
def generate(
    run: options.RunFolder,
    prompt: Annotated[str, argument("Text to continue.")],
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    top_k: Annotated[
        int | None, option("--top-k", "Sample from the K most likely tokens.", "K", min=1)
    ] = None,
    top_p: Annotated[
        float | None,
        option(
            "--top-p",
            "Sample from the most likely tokens that together have this probability.",
            "P",
            min=0.0,
            max=1.0,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Largest number of new tokens.")
    ] = 100,
    num: Annotated[int, typer.Option("--num", min=1, help="Number of texts.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first text.")] = 0,
    *,
    output: options.Output,
) -> None:
    """Continue a prompt.

    Stops at the end of the text or at --max-tokens; without --temperature decoding is greedy.

    \b
    Example:
      regraft generate runs/base "Bonjour les"
      regraft generate runs/base "Bonjour les" --temperature 0.8 --top-p 0.95 --num 3
    """
    if num > 1 and not temperature:
        raise ConfigError(
            f"--num {num} at temperature 0 would give {num} equal texts.",
            remedy="Add a temperature, for example --temperature 0.8.",
        )
    from regraft.training import generate as run_generate
    from regraft.training import load_run

    _check_pretrained(run, task="text-generation")
    loaded = load_run(run, kind="language-model")
    texts = [
        run_generate(
            loaded,
            prompt,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed + index,
        )
        for index in range(num)
    ]
    values = {"prompt": prompt, "texts": texts}
    output.show(values, lambda: terminal.show_line("\n".join(texts)))


@options.grouped
def fill(
    run: options.RunFolder,
    text: Annotated[str, argument("Text with <mask> in it.", "TEXT")],
    top: Annotated[int, typer.Option("--top", metavar="N", help="Guesses per <mask>.")] = 5,
    *,
    output: options.Output,
) -> None:
    """Predict masked tokens with a masked language model.

    \b
    Example:
      regraft fill runs/base "Ce livre est <mask>."
    """
    from regraft.training import fill as run_fill

    _check_pretrained(run, task="fill-mask")
    guesses = run_fill(run, text, top=top)
    if output.json:
        terminal.show_json([[guess.to_dict() for guess in place] for place in guesses])
        return
    for number, place in enumerate(guesses, start=1):
        rows = [(guess.token, in_percent(guess.probability)) for guess in place]
        terminal.show_table([f"<mask> {number}", "probability"], rows)


def note_score(run: Path, file: Path, *, data: DataSettings) -> None:
    """Record next to a run folder that it was scored on these labels."""
    from regraft.classifiers import run_fingerprint
    from regraft.comparison import LEDGER_NAME, note_opening

    note_opening(
        file,
        data=data,
        # The same classifier on the same labels reveals nothing new.
        choices=run_fingerprint(run),
        command=shlex.join(["regraft", *sys.argv[1:]]),
        ledger_path=run.absolute().parent / LEDGER_NAME,
    )


def _check_pretrained(run: Path, *, task: str) -> None:
    from regraft.training import check_run_folder

    check_run_folder(
        run,
        expected="It can be fine-tuned here, but not generate.",
        remedy="Use a run folder of `regraft pretrain`, or use this model in Python: "
        f'transformers.pipeline("{task}", model="{run}").',
    )
