"""`regraft tokenizer`: train one, and see what it makes of text; `regraft tokenize`: its ids."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regraft.cli import options, terminal
from regraft.cli.options import data_flags, settings_from
from regraft.config import setting_help
from regraft.presets import DEFAULT_PRESET


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
    preset: options.Preset = DEFAULT_PRESET,
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
    from regraft.vocabulary import train_tokenizer

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


def tokenize(
    texts: options.Texts,
    tokenizer: Annotated[
        Path,
        typer.Option(
            "--tokenizer",
            metavar="PATH",
            help="A tokenizer.json, a run folder, or a folder with the lab's dict.txt.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Token store to write or go on with.", show_default=False
        ),
    ],
    shard: Annotated[
        str,
        typer.Option("--shard", metavar="I/N", help="Write the part of the I-th of N jobs only."),
    ] = "1/1",
    text: options.TextColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    config: options.Config = None,
    assignments: options.Assignments = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn text into a token store, which `pretrain` reads without holding it in memory.

    Any number of jobs may share the work. A job that was killed goes on when it is repeated.

    \b
    Example:
      regraft tokenize corpus/*.txt.gz --tokenizer runs/tokenizer.json --out runs/tokens
      regraft tokenize corpus/*.txt.gz --tokenizer runs/tokenizer.json --out runs/tokens --shard 1/4
    """
    from regraft.shards import write_store
    from regraft.store import open_store, parse_part
    from regraft.tokenizer import load_tokenizer

    part = parse_part(shard)
    settings = settings_from(
        "pretrain",
        config=config,
        assignments=assignments,
        flags=data_flags(text=text, encoding=encoding, documents=documents),
    )
    loaded = load_tokenizer(tokenizer)
    with terminal.progress_on_stderr(quiet=quiet) as progress, terminal.told_when_interrupted(out):
        written = write_store(
            texts,
            data=settings.data,
            tokenizer=loaded,
            store_dir=out,
            part=part,
            progress=progress,
        )
    result: dict[str, Any] = {"path": str(out), **written.to_dict()}
    if not written.num_missing_shards:
        store = open_store(out, tokenizer=loaded)
        result["num_tokens"] = store.num_tokens
        result["num_bytes"] = store.num_bytes
        result["bytes_per_token"] = store.num_bytes / store.num_tokens
    if json:
        terminal.show_json(result)
    else:
        _show_tokenized(result)


def _show_tokenized(result: dict[str, Any]) -> None:
    if result["num_new_shards"]:
        megabytes = result["num_new_bytes"] / 1e6
        terminal.show_line(
            f"written: {result['num_new_shards']} of {result['num_shards']} shards, "
            f"{megabytes:,.1f} MB of text, {megabytes / result['seconds']:.1f} MB/s"
        )
    if result["num_missing_shards"]:
        terminal.show_line(
            f"{result['path']}: {result['num_missing_shards']} of {result['num_shards']} shards "
            "are left to other jobs"
        )
    else:
        terminal.show_line(
            f"{result['path']}: {result['num_documents']:,} documents, "
            f"{result['num_tokens']:,} tokens of {result['bytes_per_token']:.2f} bytes, "
            f"{result['num_bytes'] / 1e6:,.1f} MB of text, {result['num_shards']} shards"
        )
