"""Limits of what is read: one place, set in the environment; what is larger is refused early."""

import dataclasses
import gzip
import tracemalloc
from pathlib import Path

import pytest

from regraft.config.schema import DataSettings
from regraft.data.text.label_issues import read_label_issues
from regraft.data.text.readers import read_rows
from regraft.errors import ConfigError, DataError
from regraft.runtime.json_reader import parse_json
from regraft.runtime.limits import LIMITS_NAME, ReadLimits, read_limits

DATA = DataSettings()


def read(path: Path, *, data: DataSettings = DATA) -> int:
    return sum(1 for _ in read_rows(path, data=data, need_label=False))


def peak_of_refusal(path: Path, match: str) -> int:
    """The most memory in use until a file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match):
            read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_limits_are_set_in_the_environment(monkeypatch):
    assert read_limits() == ReadLimits()
    monkeypatch.setenv(LIMITS_NAME, "columns=3, json_depth=2")
    assert read_limits() == ReadLimits(columns=3, json_depth=2)
    with pytest.raises(ValueError, match="deeper than 2 levels"):
        parse_json("[[[]]]")
    assert all(part.metadata["help"] for part in dataclasses.fields(ReadLimits))


@pytest.mark.parametrize("given", ["column=3", "columns=0", "columns=-1", "columns", "columns=1e9"])
def test_limit_that_is_none_is_refused(given, monkeypatch):
    monkeypatch.setenv(LIMITS_NAME, given)
    with pytest.raises(ConfigError, match=f"{LIMITS_NAME} has '{given}'"):
        read_limits()


def test_record_of_many_lines_is_refused_before_it_is_in_memory(tmp_path):
    path = tmp_path / "a.csv"
    # A quote that is never closed, and a record without end of quoted lines.
    for record in ('"' + ("x" * 1023 + "\n") * 30_000, ('"' + "x" * 1020 + '\n",') * 30_000):
        path.write_text("text,label\n" + record)
        # The module keeps four bytes for each character, twice while they grow.
        assert (
            peak_of_refusal(path, r"a\.csv line 2 \(to line \d+\) has more than 8,388,608")
            < 10 * ReadLimits().record_bytes
        )


def test_documents_and_label_issues_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(LIMITS_NAME, "record_bytes=1000 whole_bytes=1000")
    path = tmp_path / "a.txt"
    path.write_text("short\n\n" + "x\n" * 1_000)
    blank = dataclasses.replace(DATA, documents="blank")
    with pytest.raises(DataError, match=r"a\.txt line 3 .*REGRAFT_LIMITS=record_bytes=NUMBER"):
        read(path, data=blank)
    with pytest.raises(DataError, match=r"a\.txt line 1 .*REGRAFT_LIMITS=whole_bytes=NUMBER"):
        read(tmp_path)
    path.write_text('row,id,text,label,proposal,confidence\n"' + "x\n" * 1_000)
    with pytest.raises(DataError, match=r"a\.txt line 1 .*REGRAFT_LIMITS=whole_bytes=NUMBER"):
        read_label_issues(path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.xlsx"])
def test_too_many_columns_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv(LIMITS_NAME, "columns=2")
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("text,b,c\n1,2,3\n")
    elif name == "a.jsonl":
        path.write_text('{"text": "a", "b": 1, "c": 2}\n')
    elif name == "a.parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": ["a"], "b": [1], "c": [2]}), path)
    else:
        book = pytest.importorskip("openpyxl").Workbook()
        book.active.append(["text", "b", "c"])
        book.save(path)
    with pytest.raises(DataError, match=rf"{path}( row 1)? has 3 columns"):
        read(path)


@pytest.mark.parametrize("name", ["a.parquet.gz", "a.xlsx.gz"])
def test_gzip_bomb_that_cannot_be_streamed_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setenv(LIMITS_NAME, "whole_bytes=1000000")
    (tmp_path / name).write_bytes(gzip.compress(bytes(40 << 20)))
    assert peak_of_refusal(tmp_path / name, r"has more than 1,000,000 bytes") < 20 << 20


@pytest.mark.parametrize("has_dictionary", [False, True])
def test_long_text_in_many_rows_of_parquet_is_held_once(has_dictionary, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = pyarrow.array(["x" * 100_000, None, *["x" * 100_000] * 1_998])
    if has_dictionary:
        texts = texts.dictionary_encode()
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), path)
    assert path.stat().st_size < 10_000
    allocated = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    sizes = [len(row.text) for row in read_rows(path, data=DATA, need_label=False)]
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert sizes == [100_000, 0, *[100_000] * 1_998]
    assert pyarrow.total_allocated_bytes() < allocated + (4 << 20)


def test_parquet_that_grows_too_much_and_long_cells_are_refused(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["x" * (20 << 20)]})
    parquet.write_table(table, path, compression="gzip", use_dictionary=False)
    assert peak_of_refusal(path, "200 times larger when it is decompressed") < 1 << 20
    parquet.write_table(pyarrow.table({"text": ["x" * 1_001]}), path)
    monkeypatch.setenv(LIMITS_NAME, "record_bytes=1000")
    peak_of_refusal(path, "A cell of .*a.parquet has more than 1,000 bytes")


@pytest.mark.parametrize(
    ("value", "problem"),
    [("NaN", "NaN is not JSON"), ("-Infinity", "is not JSON"), ("1e999", "too large")],
)
def test_numbers_of_jsonl_are_finite(value, problem, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "score": ' + value + "}\n")
    with pytest.raises(DataError, match=rf"a\.jsonl row 1 is not a JSON object: .*{problem}"):
        read(path)
