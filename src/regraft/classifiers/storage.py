"""A classifier without a network on disk: JSON, a vocabulary and safetensors, with checksums.

Files are written whole. What the parts mean is the business of the class that stores them.
"""

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from regraft.errors import RunFolderError
from regraft.runtime import (
    FORMAT_VERSION,
    check_checksum,
    check_format,
    parse_json,
    sha256,
    with_checksum,
    write_json,
    write_text,
    write_whole,
)

FACTS_NAME = "member.json"
TERMS_NAME = "vocabulary.json"
ARRAYS_NAME = "member.safetensors"

_REMEDY = "Restore the folder from a copy, or fit again."


@dataclass(frozen=True)
class Stored:
    """The parts of a member: plain facts, the terms of each vocabulary in order, and arrays."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    terms: Mapping[str, list[str]] = field(default_factory=dict)


_Part = TypeVar("_Part", bound="Member")


class Member(ABC):
    """What is written as a folder of its parts, and rebuilt from them."""

    kind: ClassVar[str]

    @abstractmethod
    def stored(self) -> Stored:
        """Its parts, ready for disk."""

    @classmethod
    @abstractmethod
    def rebuilt(cls: type[_Part], stored: Stored, *, folder: Path) -> _Part:
        """The same from its parts in this folder; ValueError or KeyError if they do not fit."""

    def save(self, run_dir: Path) -> None:
        """Write a folder of JSON and safetensors; what `load` reads answers the same."""
        save_member(run_dir, self.stored(), kind=self.kind)

    @classmethod
    def load(cls: type[_Part], run_dir: Path) -> _Part:
        """Read what `save` wrote."""
        stored = load_member(run_dir, kind=cls.kind)
        with rebuilding(run_dir, kind=cls.kind):
            return cls.rebuilt(stored, folder=run_dir)


def save_member(folder: Path, stored: Stored, *, kind: str) -> None:
    """Write the files of a member, member.json last: it holds the checksums of the others."""
    from safetensors.numpy import save

    arrays = save({name: np.ascontiguousarray(array) for name, array in stored.arrays.items()})
    # Escaped: a text, and so a term, may hold half of a surrogate pair, which UTF-8 cannot.
    terms = json.dumps(dict(stored.terms), ensure_ascii=True)
    write_whole(folder / ARRAYS_NAME, lambda file: file.write(arrays))
    write_text(folder / TERMS_NAME, terms)
    facts = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "sha256": {ARRAYS_NAME: sha256([arrays]), TERMS_NAME: sha256([terms.encode()])},
        **stored.facts,
    }
    write_json(folder / FACTS_NAME, with_checksum(facts))


def read_member_kind(folder: Path) -> str:
    """The kind that member.json names; refuses another format."""
    return str(_read_facts(folder)["kind"])


def load_member(folder: Path, *, kind: str) -> Stored:
    """Read what `save_member` wrote; refuse what is missing, damaged, newer or of another kind."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    facts = _read_facts(folder)
    if facts["kind"] != kind:
        raise RunFolderError(
            f"{folder} holds a member of the kind {facts['kind']}.",
            f"Expected {kind}.",
            remedy="Check the path.",
        )
    contents = {name: _content(folder / name) for name in (ARRAYS_NAME, TERMS_NAME)}
    with rebuilding(folder, kind=kind):
        digests = {name: facts["sha256"][name] for name in contents}
    for name, data in contents.items():
        if sha256([data]) != digests[name]:
            raise RunFolderError(
                f"{folder / name} is damaged: it changed since it was written.",
                f"{FACTS_NAME} holds its checksum.",
                remedy=_REMEDY,
            )
    try:
        arrays = load(contents[ARRAYS_NAME])
    except SafetensorError as error:
        raise _unreadable(folder / ARRAYS_NAME, error) from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _unreadable(folder / ARRAYS_NAME, f"{name} holds infinite numbers or NaN")
    return Stored(facts, arrays, _parsed(folder / TERMS_NAME, contents[TERMS_NAME]))


def _read_facts(folder: Path) -> dict[str, Any]:
    facts = _parsed(folder / FACTS_NAME, _content(folder / FACTS_NAME))
    check_format(facts, path=folder)
    return {"kind": None, **check_checksum(facts, path=folder / FACTS_NAME)}


@contextlib.contextmanager
def rebuilding(folder: Path, *, kind: str) -> Iterator[None]:
    """Report parts that are missing or do not fit as a damaged folder."""
    try:
        yield
    except KeyError as error:
        raise _foreign(folder, kind=kind, reason=f"{error.args[0]} is missing") from error
    except (TypeError, ValueError, AttributeError, IndexError, re.error) as error:
        raise _foreign(folder, kind=kind, reason=str(error).splitlines()[0]) from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunFolderError(
            f"There is no member in {path.parent}: {path.name} is missing.",
            f"A member is a folder with {FACTS_NAME}, {TERMS_NAME} and {ARRAYS_NAME}.",
            remedy=f"Check the path. {_REMEDY}",
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _parsed(path: Path, data: bytes) -> dict[str, Any]:
    try:
        values = parse_json(data)
    except ValueError as error:  # broken JSON, or not UTF-8
        raise _unreadable(path, error) from error
    if not isinstance(values, dict):
        raise _unreadable(path, "it holds no JSON object")
    return values


def _unreadable(path: Path, reason: object) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be read: {reason}.", "It is not as it was written.", remedy=_REMEDY
    )


def _foreign(folder: Path, *, kind: str, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{folder / FACTS_NAME} describes no {kind} member: {reason}.",
        "All its files must come from one member that regraft saved.",
        remedy=_REMEDY,
    )
