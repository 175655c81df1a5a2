"""What a user sees of an exception that is none of ours: its cause, or that it is a bug."""

import contextlib
import errno
import os
import platform
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path

from regraft.errors import DiskError, DiskFullError, RegraftError

# Libraries report what the system said in their own exceptions, by these words.
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "out of memory")


def explained(error: BaseException) -> RegraftError | None:
    """The error in three parts if its cause is the machine or the input; None if it is a bug."""
    message = str(error)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(
        words in message for words in _DISK_FULL
    ):
        return DiskFullError(
            "The disk is full.",
            remedy="Free some space and repeat the command; no file was left half-written.",
        )
    if isinstance(error, MemoryError) or any(words in message for words in _NO_MEMORY):
        return RegraftError(
            "There is not enough memory.",
            remedy="Close other programs, or use smaller files, batches or models.",
        )
    if isinstance(error, RecursionError):
        return RegraftError(
            "The input is nested too deeply.", remedy="Check the files that were given."
        )
    if isinstance(error, OSError) and error.errno is not None:
        place = f"{error.filename}: " if error.filename else ""
        return DiskError(
            f"{place}{error.strerror}.", remedy="Check the path, its permissions and the disk."
        )
    return None


def bug_report(error: BaseException) -> str:
    """The message for a bug; the details are saved in a file of the user's own."""
    details = "".join(
        [
            f"regraft {version('regraft')}, Python {platform.python_version()}, "
            f"{platform.platform()}\n",
            f"{sys.argv!r}\n\n",
            *traceback.format_exception(error),
        ]
    )
    where = "could not be saved"
    with contextlib.suppress(OSError):
        # mkstemp: for the user's own eyes, as paths and texts may be in it.
        handle, name = tempfile.mkstemp(prefix="regraft-bug-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(details)
        where = f"are in {Path(name)}"
    return (
        f"This is a bug in regraft: {type(error).__name__}: {str(error)[:200]}. "
        f"The details {where}. Please report it with them, after removing what is private."
    )
