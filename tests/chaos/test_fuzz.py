"""Random input for everything that reads: a value or one of our own errors, nothing else.

`make fuzz` tries many more examples than CI.
"""
# ruff: noqa: PT017 # an error is one of two right outcomes

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from chaos.mutation import json_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_runs import tiny_tokenizer
from tiny_blends import light_blend

from regraft.apps.serve.bodies import parse_body, text_body, texts_body
from regraft.apps.serve.limits import Limits, RefusedError
from regraft.apps.studio.labelfile import COLUMNS, LabelFile
from regraft.classifiers.base import load_classifier
from regraft.config.resolution import resolve
from regraft.config.schema import DataSettings
from regraft.data.text.readers import load_examples, read_documents
from regraft.data.text.records import Document
from regraft.data.tokens.tokenizer import parse_tokenizer
from regraft.errors import RegraftError
from regraft.runtime.json_reader import parse_json

fuzzed = settings(
    max_examples=int(os.environ.get("REGRAFT_FUZZ_EXAMPLES", "20")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
DATA = resolve("finetune").data
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=8), part),
    max_leaves=8,
)
# Pieces of real files, shuffled, with whatever else: more of it gets past the first check.
PIECES = ('"', "'", ",", "\t", "\n", "\r\n", "text", "label", "good", "{", "}", "[", ":", "\\u0000")
BROKEN = st.lists(
    st.sampled_from([piece.encode() for piece in PIECES]) | st.binary(max_size=6), max_size=40
).map(b"".join)


def cut(content: bytes, places: list[tuple[int, int, bytes]]) -> bytes:
    """A real file with some of its bytes removed and others put in."""
    for start, length, new in places:
        start %= len(content) + 1
        content = content[:start] + new + content[start + length :]
    return content


CUTS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 9), st.binary(max_size=5)),
    min_size=1,
    max_size=4,
)


@fuzzed
@given(content=BROKEN | st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_json(content):
    try:
        value = parse_json(content)
    except ValueError as error:
        assert str(error)
        return
    assert json.loads(json.dumps(value)) == value


def all_documents(path: Path, *, data: DataSettings) -> list[Document]:
    return list(read_documents([path], data=data))


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        (".csv", b"text,label\n"),
        (".tsv", b"text\tlabel\n"),
        (".jsonl", b'{"text": "a", "label": "b"}\n'),
        (".txt", b""),
        (".csv.gz", b""),
        (".parquet", b"PAR1"),
    ],
)
@fuzzed
@given(content=BROKEN)
def test_readers(tmp_path_factory, ending, start, content):
    path = tmp_path_factory.getbasetemp() / f"fuzzed{ending}"
    path.write_bytes(start + content)
    for read in (load_examples, all_documents):
        try:
            records = read(path, data=DATA)
        except RegraftError as error:
            assert str(path) in str(error)
            continue
        assert all("\0" not in record.text for record in records)


@functools.cache
def tokenizer_json() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tiny_tokenizer().save(Path(folder) / "tokenizer.json")
        return (Path(folder) / "tokenizer.json").read_bytes()


@fuzzed
@given(places=CUTS)
def test_tokenizer(places):
    text = cut(tokenizer_json(), places).decode("utf-8", "replace")
    try:
        tokenizer = parse_tokenizer(text, source="tokenizer.json", special_tokens={})
    except RegraftError:
        return
    assert all(0 <= number < tokenizer.vocab_size for number in tokenizer.encode("A fine book."))


@fuzzed
@given(places=CUTS, number=st.integers(0, 99))
def test_run_folder(tmp_path_factory, places, number):
    source = tmp_path_factory.getbasetemp() / "whole-run"
    if not source.exists():
        light_blend().save(source)
    folder = tmp_path_factory.getbasetemp() / "fuzzed-run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    files = json_files(folder)
    path = files[number % len(files)]
    before = path.read_bytes()
    path.write_bytes(cut(before, places))
    try:
        load_classifier(folder)
    except RegraftError:
        return
    # Spaces between values are no change of run.json.
    assert json.loads(path.read_bytes()) == json.loads(before)


@pytest.mark.parametrize("kind", [texts_body, text_body])
@fuzzed
@given(
    content=BROKEN
    | st.binary()
    | VALUES.map(lambda value: json.dumps({"texts": value}).encode())
    | CUTS.map(lambda places: cut(b'{"texts": ["a", "b"], "top_k": 1}', places))
)
def test_http_body(kind, content):
    body: Any
    try:
        body = parse_body(content, kind(Limits()))
    except RefusedError as error:
        assert error.status in (400, 422)
        json.dumps(error.to_dict(), ensure_ascii=False).encode("utf-8")
        return
    assert all(text.strip() for text in getattr(body, "texts", None) or [body.text])


@fuzzed
@given(content=BROKEN)
def test_file_of_labels(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzzed-labels.csv"
    start = (",".join(f'"{name}"' for name in ("text", *COLUMNS)) + "\n").encode()
    path.write_bytes(start + content)
    try:
        file = LabelFile(path)
    except RegraftError as error:
        assert str(path) in str(error)
        return
    file.close()
    # Only a last record without its end may be cut off.
    assert (start + content).startswith(path.read_bytes())
