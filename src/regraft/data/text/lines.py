"""Decoded lines of plain files, gzipped files and standard input, streamed."""

import codecs
import contextlib
import difflib
import gzip
import io
import itertools
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from regraft.errors import DataError
from regraft.runtime import raising, read_limits

Limit = Literal["record_bytes", "whole_bytes"]
STANDARD_INPUT = Path("-")
# From here on it is looked at how much larger a packed file becomes: text 3 to 10 times, a bomb up
# to 1,000.
_BOMB_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20


def source_name(path: Path) -> str:
    """How errors and documents name a path."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def check_present(path: Path) -> None:
    """Raise DataError if a path does not exist."""
    try:
        if path == STANDARD_INPUT or path.exists():
            return
        near = near_file(path)
    except OSError as error:  # a name too long, a folder that may not be read
        raise _read_error(path, error) from error
    hint = "Check the path." if near is None else f"Did you mean {str(near)!r}?"
    raise DataError(f"There is no file or folder {str(path)!r}.", remedy=hint)


def near_file(path: Path) -> Path | None:
    """The file or folder next to a missing one whose name is nearest."""
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1)
    return path.with_name(near[0]) if near else None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """The bytes of a file, decompressed if it ends in .gz; standard input stays open."""
    if path == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is not a complete gzip file: {error}.",
            remedy="Fetch or compress it again, or rename it if it is not compressed.",
        ) from error
    except OSError as error:
        raise _read_error(path, error) from error


def _read_error(path: Path, error: OSError) -> DataError:
    return DataError(
        f"Cannot read {path}: {error.strerror}.", remedy="Check the path and its permissions."
    )


def read_lines(path: Path, *, encoding: str) -> Iterator[str]:
    """Lines split at newlines only, as an editor counts them, without a byte order mark."""
    source, most = source_name(path), read_limits().record_bytes
    if not _keeps_newline_byte(encoding):
        yield from _decoded_whole(read_whole(path), source=source, encoding=encoding)
        return
    codec = "utf-8" if codecs.lookup(encoding).name == "utf-8-sig" else encoding
    offset = 0
    with opened(path) as file:
        lines = iter(lambda: file.readline(most + 1), b"")
        for row, line in enumerate(lines, start=1):
            if len(line) > most:
                raise too_long(f"{source} line {row}", most, limit="record_bytes")
            refuse_bomb(path, num_bytes=offset)
            try:
                text = line.decode(codec)
            except UnicodeDecodeError as error:
                raise _encoding_error(
                    source, row=row, offset=offset + error.start, line=line, error=error
                ) from error
            if b"\0" in line:
                raise nul_error(f"{source} line {row}")
            offset += len(line)
            yield text.removeprefix("\ufeff") if row == 1 else text


def read_whole(path: Path) -> bytes:
    """The content of a file that cannot be streamed, decompressed, if it is within the limit."""
    most = read_limits().whole_bytes
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise too_long(source_name(path), most, limit="whole_bytes")
    return content


def size_of(path: Path) -> tuple[int, int]:
    """Bytes and lines of a file, decompressed; nothing is kept, and a bomb is refused."""
    num_bytes = num_lines = 0
    with opened(path) as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
            num_bytes += len(block)
            num_lines += block.count(b"\n")
            refuse_bomb(path, num_bytes=num_bytes)
    return num_bytes, num_lines


class Measured:
    """Lines that belong to one record until `begin`; DataError when there are too many of them."""

    def __init__(self, lines: Iterable[str], *, source: str, limit: Limit = "record_bytes") -> None:
        self._lines = iter(lines)
        self._source = source
        self._limit = limit
        self._most = getattr(read_limits(), limit)
        self._row = 0
        self.begin()

    def begin(self) -> None:
        """The next line is the first of a record."""
        self._num_characters, self._first_row = 0, self._row + 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._row += 1
        self._num_characters += len(line)
        if self._num_characters > self._most:
            place = f"{self._source} line {self._first_row} (to line {self._row})"
            raise too_long(place, self._most, limit=self._limit)
        return line


def too_long(place: str, most: int, *, limit: Limit) -> DataError:
    """The error for what is larger than a limit."""
    return DataError(
        f"{place} has more than {most:,} bytes.",
        "A text file has a line for each document, record or sentence.",
        remedy="Check that it is a text file and that no quote is left open; split long documents, "
        f"convert it to UTF-8, or {raising(limit)}.",
    )


def refuse_bomb(path: Path, *, num_bytes: int) -> None:
    """DataError if so many bytes, decompressed, are too many for the size of a packed file."""
    if num_bytes <= _BOMB_BYTES or path.suffix not in (".gz", ".parquet"):
        return
    most = read_limits().expansion
    if num_bytes > most * path.stat().st_size:
        raise DataError(
            f"{path} becomes more than {most} times larger when it is decompressed.",
            "Text becomes 3 to 10 times larger.",
            remedy="Check where it comes from; if it is right, decompress it first, or "
            f"{raising('expansion')}.",
        )


def peeked(lines: Iterable[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, stripped, and all lines."""
    lines = iter(lines)
    seen = []
    for line in lines:
        seen.append(line)
        if line.strip():
            break
    return (seen[-1].strip() if seen else ""), itertools.chain(seen, lines)


# Common encodings of one byte a character: nothing in a file says which it has.
_EIGHT_BITS = (
    "cp1252 or latin-1 (western), cp1254 or iso8859-9 (Turkish), cp1250 (central European), "
    "cp1251 (Cyrillic)"
)


def nul_error(place: str) -> DataError:
    """The error for a NUL byte in text."""
    return DataError(
        f"{place} contains a NUL byte.",
        "The file is binary, damaged, or in UTF-16.",
        remedy="Convert it to text, or pass --encoding utf-16.",
    )


def _keeps_newline_byte(encoding: str) -> bool:
    """Whether bytes can be split at the newline byte before decoding (not so in UTF-16)."""
    try:
        return "\n".encode(encoding) == b"\n"
    except LookupError as error:
        raise DataError(
            f"There is no text encoding {encoding!r}.",
            "Common ones are utf-8, latin-1, cp1252 and utf-16.",
            remedy="Pass another --encoding.",
        ) from error


def _decoded_whole(content: bytes, *, source: str, encoding: str) -> Iterator[str]:
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        row = content[: error.start].decode(encoding, "ignore").count("\n") + 1
        raise _encoding_error(
            source, row=row, offset=error.start, line=content, error=error
        ) from error
    for row, line in enumerate(io.StringIO(text.removeprefix("\ufeff"), newline="\n"), start=1):
        if "\0" in line:
            raise nul_error(f"{source} line {row}")
        yield line


def _encoding_error(
    source: str, *, row: int, offset: int, line: bytes, error: UnicodeDecodeError
) -> DataError:
    is_utf16 = row == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    likely = "pass --encoding utf-16"
    if not is_utf16:
        likely = (
            f"pass the --encoding it was saved in: {_EIGHT_BITS}. "
            "A wrong one is not always refused: look at a line first"
            if error.encoding.startswith("utf")
            else "pass --encoding utf-8"
        )
    return DataError(
        f"{source} line {row} is not {error.encoding}: "
        f"byte 0x{line[error.start]:02x} at offset {offset} ({error.reason}).",
        remedy=f"Convert the file to UTF-8, or {likely}.",
    )
