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
from typing import BinaryIO

from regraft.errors import DataError

STANDARD_INPUT = Path("-")
# Of one line: more than any text that a model here reads, and little memory.
MAX_LINE_BYTES = 16 << 20
# Of a file that cannot be split before it is decoded (UTF-16).
MAX_WHOLE_BYTES = 1 << 28
# Text becomes 3 to 10 times larger when it is decompressed, a gzip bomb up to 1,000 times.
_MAX_RATIO = 200
_BOMB_BYTES = 64 << 20


def source_name(path: Path) -> str:
    """How errors and documents name a path."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def check_present(path: Path) -> None:
    """Raise DataError if a path does not exist."""
    try:
        if path == STANDARD_INPUT or path.exists():
            return
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    except OSError as error:  # a name too long, a folder that may not be read
        raise _read_error(path, error) from error
    near = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f"Did you mean {str(path.with_name(near[0]))!r}?" if near else "Check the path."
    raise DataError(f"There is no file or folder {str(path)!r}.", remedy=hint)


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
    source = source_name(path)
    if not _keeps_newline_byte(encoding):
        with opened(path) as file:
            content = file.read(MAX_WHOLE_BYTES + 1)
            if len(content) > MAX_WHOLE_BYTES:
                raise _too_long(source, f"has more than {MAX_WHOLE_BYTES:,} bytes in {encoding}")
            yield from _decoded_whole(content, source=source, encoding=encoding)
        return
    codec = "utf-8" if codecs.lookup(encoding).name == "utf-8-sig" else encoding
    offset = 0
    with opened(path) as file:
        lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
        for row, line in enumerate(lines, start=1):
            if len(line) > MAX_LINE_BYTES:
                raise _too_long(source, f"row {row} has more than {MAX_LINE_BYTES:,} bytes")
            if offset > _BOMB_BYTES:
                _refuse_bomb(path, num_bytes=offset)
            try:
                text = line.decode(codec)
            except UnicodeDecodeError as error:
                raise _encoding_error(
                    source, row=row, offset=offset + error.start, line=line, error=error
                ) from error
            if b"\0" in line:
                raise nul_error(source, row=row)
            offset += len(line)
            yield text.removeprefix("\ufeff") if row == 1 else text


def _too_long(source: str, what: str) -> DataError:
    return DataError(
        f"{source} {what}.",
        "A text file has a line for each document, record or sentence.",
        remedy="Check that it is a text file; split long documents into lines, or convert it to "
        "UTF-8.",
    )


def _refuse_bomb(path: Path, *, num_bytes: int) -> None:
    if path.suffix == ".gz" and num_bytes > _MAX_RATIO * path.stat().st_size:
        raise DataError(
            f"{path} becomes more than {_MAX_RATIO} times larger when it is decompressed.",
            "Text becomes 3 to 10 times larger.",
            remedy="Check where it comes from; if it is right, decompress it first.",
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


def nul_error(source: str, *, row: int) -> DataError:
    """The error for a NUL byte in text."""
    return DataError(
        f"{source} row {row} contains a NUL byte.",
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
            raise nul_error(source, row=row)
        yield line


def _encoding_error(
    source: str, *, row: int, offset: int, line: bytes, error: UnicodeDecodeError
) -> DataError:
    is_utf16 = row == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    # Latin-1 decodes any byte, so this suggestion always works.
    likely = "utf-16" if is_utf16 else "latin-1" if error.encoding.startswith("utf") else "utf-8"
    return DataError(
        f"{source} row {row} is not {error.encoding}: "
        f"byte 0x{line[error.start]:02x} at offset {offset} ({error.reason}).",
        remedy=f"Convert the file to UTF-8, or pass --encoding {likely}.",
    )
