"""`regraft data`: profile files, fix labels, list and fetch corpora."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from regraft.apps.cli import options, results, terminal
from regraft.apps.cli.options import argument, flag, option, settings_from
from regraft.errors import ConfigError


@options.grouped
def check(
    files: Annotated[list[Path], argument("Splits of one data set.", "FILES")],
    documents: options.Documents = None,
    max_length: options.MaxLength = None,
    tokenizer: options.TokenizerPath = None,
    no_near: Annotated[
        bool, flag("--no-near", "Look for exact duplicates only, which is faster.")
    ] = False,
    drop_leaks: Annotated[
        Path | None,
        option("--drop-leaks", "Write copies of the files without leaks between them.", "DIR"),
    ] = None,
    *,
    reading: options.TaskReading,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Profile files and find leaks between splits.

    Shows rows, labels, text lengths, duplicates, the share of texts that are cut, and texts that
    occur in more than one file.

    \b
    Example:
      regraft data check train.csv valid.csv test.csv
      regraft data check train.csv test.csv --drop-leaks clean/
    """
    from regraft.data import drop_leaks as write_without_leaks
    from regraft.data import profile as profile_files

    options.check_documents(documents, files)
    settings = settings_from(
        "finetune",
        reading,
        choices=choices,
        flags={"data.documents": documents, "data.max_length": max_length},
    )
    with output.progress() as progress:
        profile = profile_files(
            files,
            data=settings.data,
            token_lengths=_token_lengths(tokenizer) if tokenizer else None,
            near=not no_near,
            progress=progress,
        )
        if drop_leaks:
            write_without_leaks(files, data=settings.data, out_dir=drop_leaks, leaks=profile.leaks)
            progress.say(f"Clean copies are in {drop_leaks}.")
    output.show(profile, lambda: results.show_profile(profile))
    if profile.leaks and not drop_leaks and not output.quiet and not output.json:
        terminal.show_message("Pass --drop-leaks DIR to write copies without these rows.")


@options.grouped
def clean(
    file: Annotated[Path, argument("The file `fit` was trained on.", "FILE")],
    issues: Annotated[Path, option("--issues", "The label_issues.csv of a run folder.", "FILE")],
    out: Annotated[Path, option("--out", "File to write, in the format of FILE.", "FILE")],
    accept: Annotated[
        str | None,
        option("--accept", "Rows to relabel, such as 17,203,1402 (default: all listed).", "ROWS"),
    ] = None,
    min_confidence: Annotated[
        float | None, option("--min-confidence", "Relabel rows with at least this confidence.", "P")
    ] = None,
    *,
    reading: options.TaskReading,
    output: options.Output,
) -> None:
    """Write a copy of a labelled file with the label corrections you accept.

    `regraft fit` lists rows that are probably mislabelled in label_issues.csv, the most certain
    first. Accept rows by number or by confidence; or delete the lines you do not accept and edit
    proposals in that file, then apply all that is left.

    \b
    Example:
      regraft data clean train.csv --issues runs/a/label_issues.csv --accept 17,203 --out b.csv
      regraft data clean train.csv --issues runs/a/label_issues.csv --min-confidence 0.9 --out b.csv
    """
    from regraft.data import accepted_issues, read_label_issues, relabel
    from regraft.runtime import counted

    data = settings_from("finetune", reading).data
    listed = read_label_issues(issues)
    rows = None if accept is None else _row_numbers(accept)
    accepted = accepted_issues(listed, rows=rows, min_confidence=min_confidence)
    relabel(file, accepted, data=data, out_path=out)
    output.note(
        {"file": str(out), "num_relabelled": len(accepted), "num_issues": len(listed)},
        f"{counted(len(accepted), 'label')} of {len(listed):,} changed; the copy is {out}.",
    )


def _row_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise ConfigError(
            f"--accept is {text!r}.",
            "It takes row numbers separated by commas.",
            remedy="Pass for example --accept 17,203.",
        ) from error


@options.grouped
def list_corpora(*, output: options.Output) -> None:
    """List the corpora that can be fetched, with content, licence and origin.

    \b
    Example:
      regraft data list
    """
    from regraft.data import CORPORA

    names = ("name", "title", "language", "kind", "num_rows", "size_mb", "licence", "origin")
    columns = ["name", "rows", "MB", "kind", "content, licence, origin"]
    rows = [
        (
            corpus.name,
            f"{corpus.num_rows:,}",
            f"{corpus.size_mb:g}",
            f"{corpus.kind}, {corpus.language}",
            f"{corpus.title}\n{corpus.licence}\n{corpus.origin}",
        )
        for corpus in CORPORA.values()
    ]
    output.show(
        [{name: getattr(corpus, name) for name in names} for corpus in CORPORA.values()],
        lambda: terminal.show_table(columns, rows, right=["rows", "MB"]),
    )


@options.grouped
def fetch(
    name: Annotated[str, argument("A name from `regraft data list`.")],
    out: Annotated[Path | None, option("--out", "Folder to copy the files to.", "DIR")] = None,
    *,
    output: options.Output,
) -> None:
    """Download a corpus, check its hash and keep it in the cache.

    \b
    Example:
      regraft data fetch imdb-25k --out data/
    """
    from regraft.data import fetch
    from regraft.runtime import write_whole

    with output.progress() as progress:
        fetched = fetch(name, progress=progress)
        corpus = fetched.corpus
        progress.say(f"{corpus.title}. Licence: {corpus.licence}. Origin: {corpus.origin}.")
    files = fetched.files
    if out is not None:
        files = {split: out / path.name for split, path in files.items()}
        for split, path in files.items():
            with fetched.files[split].open("rb") as source:
                write_whole(path, partial(shutil.copyfileobj, source))
    values = {
        "name": name,
        "num_rows": fetched.num_rows,
        "licence": corpus.licence,
        "origin": corpus.origin,
        "files": {split: str(path) for split, path in files.items()},
    }
    table = partial(terminal.show_table, ["split", "file"], list(files.items()))
    output.show(values, table, is_saved=True)


def _token_lengths(path: Path) -> Callable[[Sequence[str]], list[int]]:
    from regraft.data import load_tokenizer

    tokenizer = load_tokenizer(path)
    # Every row starts with the start token.
    return lambda texts: [1 + len(ids) for ids in tokenizer.encode_batch(texts)]
