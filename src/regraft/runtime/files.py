"""Files written whole, one lock, one hash, one format version."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from regraft.errors import DiskError, DiskFullError, RegraftError, RunFolderError

if TYPE_CHECKING:
    from filelock import AcquireReturnProxy

# Of everything regraft writes for itself to read again: run folders, classifiers, token stores.
FORMAT_VERSION = 1
_BLOCK_BYTES = 1 << 20


def sha256(parts: Iterable["bytes | memoryview"]) -> str:
    """The SHA-256 of all parts joined, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def file_sha256(*paths: Path) -> str:
    """The SHA-256 of the content of files, one after the other."""
    return sha256(block for path in paths for block in read_blocks(path))


def read_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file of any size, a block at a time."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def fingerprint(parts: Iterable[str | bytes]) -> str:
    """A short hash of texts in order; equal texts give equal fingerprints on any machine."""

    def read_parts() -> Iterator[bytes]:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            yield len(data).to_bytes(8, "big")
            yield data

    return sha256(read_parts())[:16]


def hashed_number(text: str) -> int:
    """A number of 64 bits that looks random and depends on the text alone."""
    return int(sha256([text.encode()])[:16], 16)


def check_format(values: Mapping[str, Any], *, path: Path) -> None:
    """Refuse what another version of regraft wrote."""
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise wrong_format(path, f"it has format_version {version}")


def wrong_format(path: Path, reason: str) -> RunFolderError:
    """The error for a file or folder that this version of regraft did not write."""
    return RunFolderError(
        f"{path} was written by another version of regraft: {reason}.",
        f"This one reads format {FORMAT_VERSION}.",
        remedy="Make it again with this version, or use the version that wrote it.",
    )


def hold_lock(
    path: Path, *, busy: RegraftError, wait_seconds: float | None = 0
) -> "AcquireReturnProxy[Any]":
    """Lock a file until the `with` block ends (or `.lock.release()`); raise `busy` if it is taken.

    The operating system holds the lock, so it ends with its owner. None waits without limit.
    """
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path, timeout=-1 if wait_seconds is None else wait_seconds).acquire()
    except Timeout as error:
        raise busy from error
    except OSError as error:
        raise disk_error(path.parent, error) from error


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a temporary file, fsync, rename: a crash or a full disk leaves the old file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes a private file; the user's umask decides who may read it.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(path: Path) -> None:
    """Flush a folder to disk: only then does a rename survive a power cut (POSIX)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole, indented, ending in a newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def disk_error(path: Path, error: OSError) -> DiskError:
    """The error a user sees when a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"The disk is full: {path} was not written.",
            remedy="Free some space and repeat the command; no file was left half-written.",
        )
    return DiskError(
        f"Cannot write {path}: {error.strerror}.",
        remedy="Choose a folder you may write to.",
    )
