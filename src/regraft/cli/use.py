"""The commands that use a run folder: `regraft evaluate`, `predict`, `generate`, `fill`."""

import csv
import io
import json as jsons
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import data_flags, data_of
from regraft.config import DataSettings
from regraft.errors import ConfigError

if TYPE_CHECKING:
    from regraft.text import Document

# What a score is worth, on a file that a run knows.
_SEEN = {
    "train": "{run} was trained on {file}, and has seen these answers. On new texts it is likely "
    "worse: evaluate it on a file that it has not seen.",
    "valid": "{run} was chosen by how it did on {file}, so its score there is likely a little too "
    "good. Evaluate it on a file that it has not seen.",
}


def evaluate(
    run: options.RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Examples to score on.", show_default=False)
    ],
    text: options.TextColumn = None,
    text_pair: options.PairColumn = None,
    label: options.LabelColumn = None,
    label_separator: options.LabelSeparator = None,
    encoding: options.Encoding = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score a classifier on examples.

    \b
    Example:
      regraft evaluate runs/reviews test.csv
    """
    from regraft.evaluate import Evaluation, SetEvaluation
    from regraft.evaluate import evaluate as run_evaluate
    from regraft.fitted import evaluate_fitted
    from regraft.runfolder import read_info
    from regraft.seal import part_in_training

    _check_finetuned(run)
    flags = data_flags(
        text=text,
        text_pair=text_pair,
        label=label,
        label_separator=label_separator,
        encoding=encoding,
    )
    data = data_of(run, flags)
    evaluation: Evaluation | SetEvaluation
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        if (part := part_in_training(run, file, data=data)) is not None:
            progress.say(f"Warning: {_SEEN[part].format(file=file, run=run)}")
        if read_info(run).kind == "blend":
            evaluation = evaluate_fitted(run, file, data=data, progress=progress)["blend"]
        else:
            evaluation = run_evaluate(run, file, data=data, progress=progress)
    if json:
        terminal.show_json(evaluation.to_dict())
    elif isinstance(evaluation, SetEvaluation):
        results.show_set_evaluation(evaluation)
    else:
        results.show_evaluation(evaluation)
    note_score(run, file, data=data)


def predict(
    run: options.RunFolder,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Texts; - is stdin.", show_default=False)
    ],
    format: Annotated[
        Literal["csv", "jsonl"] | None,
        typer.Option("--format", help="By default as --out ends, else csv.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write here, not to stdout.", show_default=False
        ),
    ] = None,
    text: options.TextColumn = None,
    text_pair: options.PairColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict labels, with the probability of each.

    \b
    Example:
      regraft predict runs/reviews new.csv --out predictions.csv
      echo "Un livre charmant." | regraft predict runs/reviews - --format jsonl
    """
    from regraft.classifier import load_classifier, prediction
    from regraft.runfolder import read_info
    from regraft.runtime import write_text
    from regraft.text import read_documents

    _check_finetuned(run)
    flags = data_flags(text=text, text_pair=text_pair, encoding=encoding, documents=documents)
    data = data_of(run, flags)
    items = list(read_documents([file], data=data))
    classifier, thresholds = load_classifier(run), read_info(run).thresholds
    labels = [str(label) for label in classifier.classes_]
    with terminal.progress_on_stderr(quiet=quiet) as progress:
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
        write_text(out, table)
        if not quiet:
            terminal.show_message(f"{len(items):,} predictions are in {out}.")
    if json:
        terminal.show_json(records)
    elif out is None:
        terminal.show_line(table.rstrip("\n"))


def generate(
    run: options.RunFolder,
    prompt: Annotated[str, typer.Argument(help="Text to go on from.", show_default=False)],
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", help="0 takes the likeliest token always."),
    ] = 0.0,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Only the K likeliest tokens.", show_default=False),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            min=0.0,
            max=1.0,
            help="Only the likeliest tokens that together have this probability.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Stop after so many tokens.")
    ] = 100,
    num: Annotated[int, typer.Option("--num", min=1, help="Number of texts.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first text.")] = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Go on writing from a prompt.

    It stops at the end of the text or at --max-tokens; without --temperature it is greedy.

    \b
    Example:
      regraft generate runs/base "Bonjour les"
      regraft generate runs/base "Bonjour les" --temperature 0.8 --top-p 0.95 --num 3
    """
    if num > 1 and not temperature:
        raise ConfigError(
            f"--num {num} at temperature 0 would give {num} equal texts.",
            remedy="Add for example --temperature 0.8.",
        )
    from regraft.generate import generate as run_generate
    from regraft.runfolder import load_run

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
    if json:
        terminal.show_json({"prompt": prompt, "texts": texts})
    else:
        for text in texts:
            terminal.show_line(text)


def fill(
    run: options.RunFolder,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Text with <mask> in it.", show_default=False)
    ],
    top: Annotated[int, typer.Option("--top", metavar="N", help="Guesses for each <mask>.")] = 5,
    json: options.Json = False,
) -> None:
    """Let a masked base guess hidden tokens.

    \b
    Example:
      regraft fill runs/base "Ce livre est <mask>."
    """
    from regraft.generate import fill as run_fill

    _check_pretrained(run, task="fill-mask")
    guessed = run_fill(run, text, top=top)
    if json:
        terminal.show_json([[guess.to_dict() for guess in place] for place in guessed])
        return
    for number, place in enumerate(guessed, start=1):
        rows = [(guess.token, f"{guess.probability:.1%}") for guess in place]
        terminal.show_table([f"<mask> {number}", "probability"], rows)


def note_score(run: Path, file: Path, *, data: DataSettings) -> None:
    """Write into the ledger beside a run folder that it was scored on these labels."""
    from regraft.runfolder import read_info
    from regraft.seal import LEDGER_NAME, note_opening

    info = read_info(run)
    note_opening(
        file,
        data=data,
        # The same weights on the same labels show nothing new.
        choices=info.weights_digest or info.created,
        command=shlex.join(["regraft", *sys.argv[1:]]),
        ledger_path=run.absolute().parent / LEDGER_NAME,
    )


def _check_finetuned(run: Path) -> None:
    from regraft.bases import check_run_folder

    check_run_folder(
        run,
        expected="A model from elsewhere knows no labels yet.",
        remedy=f"Run `regraft finetune --base {run} --train FILE --out RUN`, and give RUN.",
    )


def _check_pretrained(run: Path, *, task: str) -> None:
    from regraft.bases import check_run_folder

    check_run_folder(
        run,
        expected="A model from elsewhere is fine-tuned here, and asked for no text.",
        remedy="Give a run folder of `regraft pretrain`, or ask this model in Python: "
        f'transformers.pipeline("{task}", model="{run}").',
    )


def _texts(item: "Document") -> dict[str, str]:
    return {"text": item.text} if item.pair is None else {"text": item.text, "pair": item.pair}


def _csv(records: Sequence[dict[str, Any]], labels: Sequence[str], *, separator: str) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    told = [name for name in records[0] if name != "probabilities"]
    writer.writerow([*told, *(f"p({label})" for label in labels)])
    for record in records:
        cells = [_cell(record[name], separator=separator) for name in told]
        writer.writerow([*cells, *(f"{p:.6f}" for p in record["probabilities"].values())])
    return table.getvalue()


def _cell(value: str | float | list[str], *, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(value)
    return f"{value:.6f}" if isinstance(value, float) else value


def _jsonl(records: Sequence[dict[str, Any]]) -> str:
    return "".join(jsons.dumps(record, ensure_ascii=False) + "\n" for record in records)
