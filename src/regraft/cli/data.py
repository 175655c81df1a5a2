"""`regraft data`: profile files, list and fetch corpora."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import data_flags, settings_from


def check(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Splits to look at, together.", show_default=False),
    ],
    text: options.TextColumn = None,
    text_pair: options.PairColumn = None,
    label: options.LabelColumn = None,
    label_separator: options.LabelSeparator = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    max_length: options.MaxLength = None,
    tokenizer: options.TokenizerPath = None,
    no_near: Annotated[
        bool, typer.Option("--no-near", help="Look for exact duplicates only; faster.")
    ] = False,
    drop_leaks: Annotated[
        Path | None,
        typer.Option(
            "--drop-leaks",
            metavar="DIR",
            help="Write copies of the files without the leaks between them.",
            show_default=False,
        ),
    ] = None,
    config: options.Config = None,
    preset: options.Preset = None,
    assignments: options.Assignments = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Profile files and find leaks between splits.

    Rows, labels, lengths, the share cut, duplicates; texts that are in more than one file.

    \b
    Example:
      regraft data check train.csv valid.csv test.csv
      regraft data check train.csv test.csv --drop-leaks clean/
    """
    from regraft import text as texts

    settings = settings_from(
        "finetune",
        preset=preset,
        config=config,
        assignments=assignments,
        flags=data_flags(
            text=text,
            text_pair=text_pair,
            label=label,
            label_separator=label_separator,
            encoding=encoding,
            documents=documents,
            max_length=max_length,
        ),
    )
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        profile = texts.profile(
            files,
            data=settings.data,
            token_lengths=_token_lengths(tokenizer) if tokenizer else None,
            near=not no_near,
            progress=progress,
        )
        if drop_leaks:
            texts.drop_leaks(files, data=settings.data, out_dir=drop_leaks, leaks=profile.leaks)
            progress.say(f"Clean copies are in {drop_leaks}.")
    if json:
        terminal.show_json(profile.to_dict())
    else:
        results.show_profile(profile)
        if profile.leaks and not drop_leaks and not quiet:
            terminal.show_message("Pass --drop-leaks DIR to write copies without these rows.")


def list_corpora(json: options.Json = False) -> None:
    """List the corpora that can be fetched: content, licence, origin.

    \b
    Example:
      regraft data list
    """
    from regraft.corpora import CORPORA

    names = ("name", "title", "language", "kind", "num_rows", "size_mb", "licence", "origin")
    if json:
        terminal.show_json(
            [{name: getattr(corpus, name) for name in names} for corpus in CORPORA.values()]
        )
        return
    terminal.show_table(
        ["name", "rows", "MB", "kind", "content, licence, origin"],
        [
            (
                corpus.name,
                f"{corpus.num_rows:,}",
                f"{corpus.size_mb:g}",
                f"{corpus.kind}, {corpus.language}",
                f"{corpus.title}\n{corpus.licence}\n{corpus.origin}",
            )
            for corpus in CORPORA.values()
        ],
        right=["rows", "MB"],
    )


def fetch(
    name: Annotated[
        str, typer.Argument(help="A name from `regraft data list`.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Copy the files here.", show_default=False),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a corpus, check its hash, keep it in the cache.

    \b
    Example:
      regraft data fetch imdb-25k --out data/
    """
    from regraft import corpora
    from regraft.runtime import write_whole

    with terminal.progress_on_stderr(quiet=quiet) as progress:
        fetched = corpora.fetch(name, progress=progress)
        corpus = fetched.corpus
        progress.say(f"{corpus.title}. Licence: {corpus.licence}. Origin: {corpus.origin}.")
    files = fetched.files
    if out is not None:
        files = {split: out / path.name for split, path in files.items()}
        for split, path in files.items():
            with fetched.files[split].open("rb") as source:
                write_whole(path, partial(shutil.copyfileobj, source))
    if json:
        terminal.show_json(
            {
                "name": name,
                "num_rows": fetched.num_rows,
                "licence": corpus.licence,
                "origin": corpus.origin,
                "files": {split: str(path) for split, path in files.items()},
            }
        )
    else:
        terminal.show_table(["split", "file"], list(files.items()))


def _token_lengths(path: Path) -> Callable[[Sequence[str]], list[int]]:
    from regraft.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    # A row of tokens begins with the start token, which counts, too.
    return lambda texts: [1 + len(ids) for ids in tokenizer.encode_batch(texts)]
