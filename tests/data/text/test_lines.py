"""Any file is read within bounded memory, or refused."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from regraft.data.text.lines import read_lines
from regraft.errors import DataError
from regraft.runtime.limits import ReadLimits

MAX_LINE_BYTES = ReadLimits().record_bytes


def peak_of_refusal(path: Path, match: str, *, encoding: str = "utf-8") -> int:
    """The most memory in use until a file is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=match):
            for _ in read_lines(path, encoding=encoding):
                pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_endless_file_is_refused():
    assert peak_of_refusal(Path("/dev/zero"), "line 1 has more than") < 4 * MAX_LINE_BYTES


def test_long_line_is_refused_with_its_row(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"short\n" + b"x" * (50 << 20))
    assert peak_of_refusal(path, r"a\.txt line 2 has more than") < 4 * MAX_LINE_BYTES


def test_longest_line_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (MAX_LINE_BYTES - 1) + b"\nend")
    assert [len(line) for line in read_lines(path, encoding="utf-8")] == [MAX_LINE_BYTES, 3]


def test_gzip_bomb_in_one_line_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"x" * (40 << 20)))
    assert peak_of_refusal(path, "line 1 has more than") < 4 * MAX_LINE_BYTES


def test_gzip_bomb_of_many_lines_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress((b"x" * 1023 + b"\n") * (70 << 10)))
    peak_of_refusal(path, "200 times larger when it is decompressed")


def test_file_too_large_to_decode_whole_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("REGRAFT_LIMITS", "whole_bytes=1000")
    path = tmp_path / "a.txt"
    path.write_text("x\n" * 1_000, encoding="utf-16")
    peak_of_refusal(path, "more than 1,000 bytes", encoding="utf-16")
