"""`regraft evaluate`, `predict`, `generate` and `fill`: use a run folder."""

import csv
import io
import json as jsons
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import data_of, option
from regraft.config import DataSettings
from regraft.errors import ConfigError

if TYPE_CHECKING:
    from regraft.data import Document

# Why a score on a file that was used for training is too good.
_SEEN = {
    "train": "{run} was trained on {file}, so this score is too good. "
    "Evaluate it on examples that it has not seen.",
    "valid": "{run} was selected on {file}, so this score is probably a little too good. "
    "Evaluate it on examples that it has not seen.",
}


@options.grouped
def evaluate(
    run: options.RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Examples to score on.", show_default=False)
    ],
    *,
    reading: options.TaskReading,
    output: options.Output,
) -> None:
    """Score a classifier on examples.

    \b
    Example:
      regraft evaluate runs/reviews test.csv
    """
    from regraft.classifiers import load_classifier, score_classifier
    from regraft.comparison import part_in_training
    from regraft.config import check_task
    from regraft.data import load_examples

    classifier = load_classifier(run)
    data = data_of(classifier.data, reading)
    check_task(data, supported=classifier.supported_tasks, by=str(run))
    examples = load_examples(file, data=data)
    with output.progress() as progress:
        if (part := part_in_training(run, examples)) is not None:
            progress.say(f"Warning: {_SEEN[part].format(file=file, run=run)}")
        evaluation = score_classifier(classifier, examples, progress=progress)
    output.show(evaluation, lambda: results.show_evaluation(evaluation))
    note_score(run, file, data=data)


@options.grouped
def predict(
    run: options.RunFolder,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Texts to label; - is stdin.", show_default=False),
    ],
    format: Annotated[
        Literal["csv", "jsonl"] | None,
        option("--format", "Format of the predictions (default: that of --out, else csv)."),
    ] = None,
    out: Annotated[
        Path | None,
        option("--out", "File to write (default: stdout).", "FILE"),
    ] = None,
    pair_column: options.PairColumn = None,
    *,
    reading: options.TextReading,
    output: options.Output,
) -> None:
    """Predict the label of each text, with the probability of every label.

    \b
    Example:
      regraft predict runs/reviews new.csv --out predictions.csv
      echo "Un livre charmant." | regraft predict runs/reviews - --format jsonl
    """
    from regraft.classifiers import load_classifier, prediction
    from regraft.config import check_task
    from regraft.data import read_documents
    from regraft.runtime import counted, output_path, write_text

    if out is not None:
        output_path(out, inputs=[run, file])
    with output.progress() as progress:
        progress.start("prepare", total=None)
        classifier = load_classifier(run)
        data = data_of(classifier.data, reading, pair_column=pair_column)
        check_task(data, supported=classifier.supported_tasks, by=str(run))
        items = list(read_documents([file], data=data))
        progress.finish()
        labels, thresholds = classifier.labels, classifier.thresholds
        texts: list[Any] = [item.content for item in items]
        probabilities = classifier.predict_proba(texts, progress=progress).tolist()
    records = [
        {**_texts(item), **prediction(labels, row, thresholds=thresholds)}
        for item, row in zip(items, probabilities, strict=True)
    ]
    written = format or ("jsonl" if out and out.suffix == ".jsonl" else "csv")
    if written == "jsonl":
        table = _jsonl(records)
    else:
        table = _csv(records, labels, separator=data.label_separator or "")
    if out is not None:
        write_text(out, table, inputs=[run, file])
        if not output.quiet:
            terminal.show_message(f"{counted(len(items), 'prediction')} in {out}.")
    if output.json:
        terminal.show_json(records)
    elif out is None:
        terminal.show_line(table.rstrip("\n"))


@options.grouped
def generate(
    run: options.RunFolder,
    prompt: Annotated[str, typer.Argument(help="Text to continue.", show_default=False)],
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", help="Sampling temperature; 0 is greedy."),
    ] = 0.0,
    top_k: Annotated[
        int | None,
        option("--top-k", "Sample from the K most likely tokens.", "K", min=1),
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
    if output.json:
        terminal.show_json({"prompt": prompt, "texts": texts})
    else:
        for text in texts:
            terminal.show_line(text)


@options.grouped
def fill(
    run: options.RunFolder,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Text with <mask> in it.", show_default=False)
    ],
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
        rows = [(guess.token, f"{guess.probability:.1%}") for guess in place]
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


def _texts(item: "Document") -> dict[str, str]:
    return {"text": item.text} if item.pair is None else {"text": item.text, "pair": item.pair}


def _csv(records: Sequence[dict[str, Any]], labels: Sequence[str], *, separator: str) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    columns = [name for name in records[0] if name != "probabilities"]
    writer.writerow([*columns, *(f"p({label})" for label in labels)])
    for record in records:
        cells = [_cell(record[name], separator=separator) for name in columns]
        writer.writerow([*cells, *(f"{p:.6f}" for p in record["probabilities"].values())])
    return table.getvalue()


def _cell(value: str | float | list[str], *, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(value)
    return f"{value:.6f}" if isinstance(value, float) else value


def _jsonl(records: Sequence[dict[str, Any]]) -> str:
    return "".join(jsons.dumps(record, ensure_ascii=False) + "\n" for record in records)
