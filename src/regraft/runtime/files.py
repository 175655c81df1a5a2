"""Files and folders written whole, where they may be; one lock, one hash, one format version."""

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
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


def is_held(path: Path) -> bool:
    """Does a process hold this lock? One that cannot be tried counts as held."""
    from filelock import FileLock, Timeout

    if not path.exists():
        return False
    try:
        FileLock(path, timeout=0).acquire().lock.release()
    except (Timeout, OSError):
        return True
    return False


def output_path(path: Path, *, inputs: Iterable[Path] = ()) -> Path:
    """The regular file that an output goes to: a symbolic link is followed to its target.

    Refuses folders, devices, FIFOs, files that may not be written, and the command's own inputs.
    """
    target = Path(os.path.realpath(path))
    try:
        old = target.stat()
    except (FileNotFoundError, NotADirectoryError):
        old = None  # what is wrong with its folder shows when that is made
    except OSError as error:
        raise disk_error(path, error) from error
    if old is not None and not stat.S_ISREG(old.st_mode):
        kind = "a folder" if stat.S_ISDIR(old.st_mode) else "a device, FIFO or socket"
        raise DiskError(
            f"Cannot write {path}: it is {kind}.",
            "An output is a regular file.",
            remedy="Choose another path.",
        )
    if old is not None and not os.access(target, os.W_OK):
        raise disk_error(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    for given in inputs:
        if _is_in(target, old, given=given):
            raise DiskError(
                f"Cannot write {path}: it is an input of this command, or inside one ({given}).",
                "A command does not change its inputs.",
                remedy="Choose another path.",
            )
    return target


def _is_in(target: Path, old: os.stat_result | None, *, given: Path) -> bool:
    try:
        there = os.fstat(0) if str(given) == "-" else given.stat()
    except OSError:
        return False  # the command itself says what is wrong with its input
    if stat.S_ISDIR(there.st_mode):
        return target.is_relative_to(os.path.realpath(given))
    return old is not None and os.path.samestat(old, there)


@contextlib.contextmanager
def whole_file(path: Path, *, inputs: Iterable[Path] = ()) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` at the end of the `with` block.

    Temporary file, fsync, rename: a crash or a full disk leaves the old file or none. The new file
    has the mode of the old one, or what the umask allows.
    """
    target = output_path(path, inputs=inputs)
    try:
        _make_folder(target.parent)
        old = target.stat() if target.exists() else None
        # Never wider than the old file, not even while it is being written.
        file, temporary = _locked_file(target, mode=stat.S_IMODE(old.st_mode) if old else 0o666)
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        with file:
            yield file
            file.flush()
            if old is not None:
                _keep_rights(file.fileno(), old)
            os.fsync(file.fileno())
            if os.name != "posix":  # Windows does not rename an open file
                file.close()
            os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        if error.filename not in (None, temporary, str(target.parent)):
            raise  # of another file, which the `with` block reads
        raise disk_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_whole(
    path: Path, write: Callable[[IO[bytes]], object], *, inputs: Iterable[Path] = ()
) -> None:
    """Write a `whole_file` with a function."""
    with whole_file(path, inputs=inputs) as file:
        write(file)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` at the end; after an error nothing is left.

    `path` must not exist or be empty. What is in the folder is as readable as the folder.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DiskError(
            f"{path} exists and is not an empty folder.",
            "This is written into its own folder.",
            remedy="Choose another --out.",
        )
    try:
        with temporary_folder(target) as temporary:
            yield temporary
            # Some libraries write private files: the user's umask decides who may read them.
            mode = temporary.stat().st_mode & 0o666
            for part in temporary.rglob("*"):
                if part.is_file():
                    part.chmod(mode)
                    with part.open("rb") as file:
                        os.fsync(file.fileno())
            if target.exists():
                target.rmdir()
            temporary.rename(target)
            sync_folder(target.parent)
    except OSError as error:
        if error.errno is None:  # not the system's: a library that could not read its own file
            raise
        raise disk_error(path, error) from error


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A private folder where the system keeps temporary files; the name says what it is for."""
    near = Path(tempfile.gettempdir()) / f"regraft-{name}"
    with temporary_folder(near, mode=0o700) as temporary:
        yield temporary


@contextlib.contextmanager
def temporary_folder(near: Path, *, mode: int = 0o777) -> Iterator[Path]:
    """A hidden folder next to a path; if this process is killed, the next one removes it."""
    _make_folder(near.parent)
    handle, temporary = _locked_folder(near, mode=mode)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file has its name
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


# Names of what is being written. Its process holds a lock on it, so that what a killed process left
# can be recognised: nobody holds its lock.
_TEMPORARY_NAME = re.compile(r"\..*\.[0-9a-f]{16}\.regraft", re.DOTALL)


def _temporary_name(target: Path) -> Path:
    # Cut: a name may have 255 bytes, and a character up to four.
    return target.with_name(f".{target.name[:48]}.{os.urandom(8).hex()}.regraft")


def _locked_file(target: Path, *, mode: int) -> tuple[IO[bytes], str]:
    """An open, locked, new file next to `target`, with what the umask leaves of `mode`."""
    _remove_litter_near(target)
    while True:
        name = _temporary_name(target)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        handle = os.open(name, flags | getattr(os, "O_BINARY", 0), mode | 0o200)
        _lock(handle)
        if os.fstat(handle).st_nlink:  # else another process took it for litter
            return os.fdopen(handle, "wb"), str(name)
        os.close(handle)


def _locked_folder(target: Path, *, mode: int) -> tuple[int | None, Path]:
    _remove_litter_near(target)
    while True:
        name = _temporary_name(target)
        name.mkdir(mode)
        if os.name != "posix":
            return None, name
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            _lock(handle)
            if name.exists():
                return handle, name
            os.close(handle)


def _lock(handle: int, *, wait: bool = True) -> bool:
    """Lock an open file or folder until it is closed, also by the death of the process."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # taken, or a file system without locks, where nothing counts as litter
        return False
    return True


def _remove_litter_near(target: Path) -> None:
    """Next to an output, and where scratch folders are: this process may need none of its own."""
    remove_litter(target.parent)
    with contextlib.suppress(OSError):  # no folder for temporary files
        remove_litter(Path(tempfile.gettempdir()))


@functools.cache
def remove_litter(folder: Path) -> None:
    """Remove what killed processes were writing into a folder; looked for once per process."""
    try:
        names = [name for name in os.listdir(folder) if _TEMPORARY_NAME.fullmatch(name)]
    except OSError:
        return
    for path in (folder / name for name in names):
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _lock(handle, wait=False):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(handle)


def _keep_rights(handle: int, old: os.stat_result) -> None:
    """Give an open file the mode, owner and group of an old one."""
    if os.name != "posix":
        return
    mode, new = stat.S_IMODE(old.st_mode) & 0o777, os.fstat(handle)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except OSError:
            mode &= 0o707  # the rights of one group are not those of another
    os.fchmod(handle, mode)


def sync_folder(path: Path) -> None:
    """Flush a folder to disk: only then does a rename survive a power cut (POSIX)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str, *, inputs: Iterable[Path] = ()) -> None:
    """Write a text file whole, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")), inputs=inputs)


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
        f"Cannot write {path}: {error.strerror}.", remedy="Choose a folder you may write to."
    )
