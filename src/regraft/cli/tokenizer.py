"""`regraft tokenizer`: train one, and see what it makes of text."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regraft.cli import options, terminal
from regraft.cli.options import data_flags, settings_from
from regraft.config import setting_help


def train(
    texts: options.Texts,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="PATH", help="A .json file, or a folder.", show_default=False
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option(
            "--size", metavar="N", help=setting_help("tokenizer.size"), show_default=False
        ),
    ] = None,
    kind: Annotated[
        Literal["bpe", "unigram", "wordpiece"] | None,
        typer.Option("--kind", help=setting_help("tokenizer.kind"), show_default=False),
    ] = None,
    text: options.TextColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    config: options.Config = None,
    preset: options.Preset = "laptop",
    assignments: options.Assignments = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a tokenizer on text and write it as tokenizer.json.

    \b
    Example:
      regraft tokenizer train reviews.txt --size 8192 --out runs/tokenizer.json
    """
    from regraft.text import read_documents
    from regraft.tokenizer import train_tokenizer

    flags = data_flags(text=text, encoding=encoding, documents=documents)
    settings = settings_from(
        "pretrain",
        preset=preset,
        config=config,
        assignments=assignments,
        flags={**flags, "tokenizer.size": size, "tokenizer.kind": kind},
    )
    path = out if out.suffix == ".json" else out / "tokenizer.json"
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        trained = train_tokenizer(
            (document.text for document in read_documents(texts, data=settings.data)),
            settings=settings.tokenizer,
            progress=progress,
        )
        trained.save(path)
    result = {
        "path": str(path),
        "kind": settings.tokenizer.kind,
        "vocab_size": trained.vocab_size,
    }
    if json:
        terminal.show_json(result)
    else:
        terminal.show_line(f"{path}: {result['kind']}, {result['vocab_size']:,} tokens")


def show(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A tokenizer.json, or a run folder.", show_default=False
        ),
    ],
    text: Annotated[str, typer.Argument(help="Text to cut into pieces.", show_default=False)],
    json: options.Json = False,
) -> None:
    """Show the pieces and ids that a tokenizer makes of a text.

    \b
    Example:
      regraft tokenizer show runs/base "Bonjour les amis"
    """
    from regraft.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(text)
    pieces = tokenizer.tokens(ids)
    if json:
        terminal.show_json({"ids": ids, "pieces": pieces})
    else:
        terminal.show_table(["id", "piece"], list(zip(ids, pieces, strict=True)), right=["id"])
