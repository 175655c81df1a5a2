"""`regraft tokenizer` trains and shows a tokenizer; `regraft tokenize` writes a token store."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regraft.apps.cli import options, terminal
from regraft.apps.cli.options import argument, option, setting, settings_from


@options.grouped
def train(
    out: Annotated[Path, option("--out", "A .json file or a folder to write.", "PATH")],
    size: Annotated[int | None, setting("tokenizer.size", "--size", "N")] = None,
    kind: Annotated[
        Literal["bpe", "unigram", "wordpiece"] | None, setting("tokenizer.kind", "--kind")
    ] = None,
    *,
    texts: options.TextFiles,
    reading: options.TextReading,
    choices: options.Choices,
    output: options.Output,
) -> None:
    """Train a tokenizer on text and write it as tokenizer.json.

    \b
    Example:
      regraft tokenizer train reviews.txt --size 8192 --out runs/tokenizer.json
    """
    from regraft.data import read_documents, train_tokenizer
    from regraft.runtime import output_path

    options.check_documents(reading.documents, texts.paths())
    flags = {"tokenizer.size": size, "tokenizer.kind": kind}
    settings = settings_from("pretrain", reading, choices=choices, flags=flags)
    path = out if out.suffix == ".json" else out / "tokenizer.json"
    output_path(path, inputs=texts.paths())
    with output.progress() as progress:
        trained = train_tokenizer(
            (document.text for document in read_documents(texts.paths(), data=settings.data)),
            settings=settings.tokenizer,
            progress=progress,
        )
        trained.save(path)
    kind_trained, vocab_size = settings.tokenizer.kind, trained.vocab_size
    output.show(
        {"path": str(path), "kind": kind_trained, "vocab_size": vocab_size},
        lambda: terminal.show_line(f"{path}: {kind_trained}, {vocab_size:,} tokens"),
        is_saved=True,
    )


@options.grouped
def show(
    path: Annotated[Path, argument("A tokenizer.json, or a run folder.", "PATH")],
    text: Annotated[str, argument("Text to tokenize.")],
    *,
    output: options.Output,
) -> None:
    """Show the tokens of a text and their ids.

    \b
    Example:
      regraft tokenizer show runs/base "Bonjour les amis"
    """
    from regraft.data import load_tokenizer

    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(text)
    pieces = tokenizer.tokens(ids)
    rows = list(zip(ids, pieces, strict=True))
    output.show(
        {"ids": ids, "pieces": pieces},
        lambda: terminal.show_table(["id", "piece"], rows, right=["id"]),
    )


@options.grouped
def tokenize(
    tokenizer: options.RequiredTokenizer,
    out: Annotated[Path, option("--out", "Token store to write or continue.", "DIR")],
    shard: Annotated[
        str, typer.Option("--shard", metavar="I/N", help="Write only the part of job I of N.")
    ] = "1/1",
    *,
    texts: options.TextFiles,
    reading: options.TextReading,
    overrides: options.Overrides,
    output: options.Output,
) -> None:
    """Turn text into a token store for `pretrain`.

    Any number of jobs can share the work. Repeat a job that was killed to continue it.

    \b
    Example:
      regraft tokenize corpus/*.txt.gz --tokenizer runs/tokenizer.json --out runs/tokens
      regraft tokenize corpus/*.txt.gz --tokenizer runs/tokenizer.json --out runs/tokens --shard 1/4
    """
    from regraft.data import load_tokenizer, open_store, parse_part, write_store

    options.check_documents(reading.documents, texts.paths())
    part = parse_part(shard)
    settings = settings_from("pretrain", reading, choices=overrides)
    loaded = load_tokenizer(tokenizer)
    with output.progress(out) as progress:
        written = write_store(
            texts.paths(),
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
    output.show(result, lambda: _show_tokenized(result), is_saved=True)


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
