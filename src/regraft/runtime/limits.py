"""How large the parts of a file may be that regraft reads: one place for all, set by the user.

`REGRAFT_LIMITS="record_bytes=64000000 columns=20000"` changes some. What is larger is refused
before it is in memory.
"""

import dataclasses
import difflib
import functools
import os
from dataclasses import dataclass, field

from regraft.errors import ConfigError

LIMITS_NAME = "REGRAFT_LIMITS"


@dataclass(frozen=True)
class ReadLimits:
    """What is read of a file, at most."""

    record_bytes: int = field(
        default=8 << 20,
        metadata={"help": "Bytes of a line, and of a record or document of several lines."},
    )
    columns: int = field(default=16_384, metadata={"help": "Columns of a table, keys of a record."})
    whole_bytes: int = field(
        default=1 << 28,
        metadata={
            "help": "Bytes, once decompressed, of what cannot be streamed: JSON files, text in "
            "UTF-16, a document in a folder, gzipped parquet and xlsx, the texts of a sheet."
        },
    )
    expansion: int = field(
        default=200,
        metadata={"help": "How many times larger gzip may become, looked at from 16 MB on."},
    )
    json_depth: int = field(
        default=64, metadata={"help": "Lists and objects of JSON inside each other."}
    )
    json_digits: int = field(default=40, metadata={"help": "Digits of an integer in JSON."})


def read_limits() -> ReadLimits:
    """The limits in force; ConfigError if the environment names others than there are."""
    return _parsed(os.environ.get(LIMITS_NAME, ""))


def raising(name: str) -> str:
    """How a user raises a limit, for the end of an error."""
    return f"set {LIMITS_NAME}={name}=NUMBER for a higher limit"


@functools.lru_cache(maxsize=1)
def _parsed(given: str) -> ReadLimits:
    known = [part.name for part in dataclasses.fields(ReadLimits)]
    values: dict[str, int] = {}
    for word in given.replace(",", " ").split():
        name, _, number = word.partition("=")
        if name not in known or not (number.isascii() and number.isdecimal() and int(number) > 0):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}? " if near and near[0] != name else ""
            raise ConfigError(
                f"{LIMITS_NAME} has {word[:60]!r}.",
                f"It sets {', '.join(known)} to whole numbers above 0.",
                remedy=f"{hint}Write for example {LIMITS_NAME}=record_bytes=64000000, or unset it.",
            )
        values[name] = int(number)
    return ReadLimits(**values)
