"""What a user sees of an exception that is none of ours: its cause, or that it is a bug."""

import contextlib
import difflib
import errno
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regraft.errors import ConfigError, DiskError, DiskFullError, RegraftError

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


def misuse(error: Exception, words: Sequence[str]) -> ConfigError | None:
    """The error in three parts for words that a command does not take; None for its help."""
    context, kind = getattr(error, "ctx", None), type(error).__name__
    if kind == "NoArgsIsHelpError":
        return None
    command = " ".join(["regraft", *words[:1]]) if context is None else context.command_path
    see_help = f"See `{command} --help`."
    message = str(getattr(error, "message", "") or error).rstrip(".").removeprefix("Value error, ")
    if kind == "NoSuchOption" and context is not None:
        option = str(getattr(error, "option_name", ""))
        known = [name for parameter in context.command.params for name in parameter.opts]
        near = difflib.get_close_matches(option, known, n=2, cutoff=_CLOSE)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        problem = f"`{command}` has no option {option}."
        return ConfigError(problem, remedy=f"{hint}{see_help}")
    parameter: Any = getattr(error, "param", None)
    if parameter is None:
        end = "" if message.endswith("?") else "."
        return ConfigError(f"{message}{end}", remedy=see_help)
    names = [name for name in parameter.opts if name.startswith("-")]
    name = names[0] if names else parameter.metavar or str(parameter.name).upper()
    if kind == "MissingParameter":
        return ConfigError(f"{name} is missing.", parameter.help or "", remedy=see_help)
    wrong, sign, right = message.partition(" is not one of ")
    if sign:
        return ConfigError(f"{name} is {wrong}.", f"It must be one of {right}.", remedy=see_help)
    value = _value_of(names, words)
    if value is None or not message.startswith(_SHOULD_BE):
        return ConfigError(f"{name}: {message}.", remedy=see_help)
    right = message.removeprefix(_SHOULD_BE).partition(", unable")[0]
    return ConfigError(f"{name} is {value!r}.", f"It must be {right}.", remedy=see_help)


def _value_of(names: Sequence[str], words: Sequence[str]) -> str | None:
    """What follows an option in a command."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        name, sign, value = word.partition("=")
        if name in names:
            return value if sign else following
    return None


# How the parser begins to say what would be right.
_SHOULD_BE = "Input should be "
# Options that are no more alike than this were not meant.
_CLOSE = 0.75


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
