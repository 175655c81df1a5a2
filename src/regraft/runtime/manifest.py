"""Checksums of what a folder holds, and of the JSON file that lists them; an optional signature.

A checksum finds damage and careless edits. Only a signature says who wrote a folder: whoever can
edit the files can also compute new checksums, but not a new HMAC without the key.
"""

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from regraft.errors import ConfigError, DiskError, RunFolderError
from regraft.runtime.files import FORMAT_VERSION, check_format, file_sha256, sha256, write_json
from regraft.runtime.json_reader import read_json

FACTS_NAME = "run.json"
CHECKSUM = "checksum"
SIGNATURE_NAME = "signature.json"
_MIN_KEY_BYTES = 32
_MAX_KEY_BYTES = 4096
_REMEDY = "Restore the folder from a copy, or train again."


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values and their checksum, ready to be written as JSON."""
    return {**values, CHECKSUM: _checksum(values)}


def check_checksum(values: Mapping[str, Any], *, path: Path) -> dict[str, Any]:
    """The values without their checksum; RunFolderError if they are not as they were written."""
    if values.get(CHECKSUM) != _checksum(values):
        raise RunFolderError(
            f"{path} is damaged: it changed since it was written.",
            "It holds a checksum of itself.",
            remedy=_REMEDY,
        )
    return {name: value for name, value in values.items() if name != CHECKSUM}


def _checksum(values: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in values.items() if name != CHECKSUM}
    # Escaped: a label may hold half of a surrogate pair, which UTF-8 cannot.
    return sha256([json.dumps(rest, sort_keys=True, separators=(",", ":")).encode("ascii")])


def checksums(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of files by their path in a folder; those that do not exist are skipped."""
    return {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(paths)
        if path.is_file()
    }


def damage(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with the listed files, by path; empty if they are as they were written.

    While one version of a file replaces another, both checksums are listed, separated by a space.
    """
    problems = {}
    for name, expected in files.items():
        path = folder / name
        if os.path.isabs(name) or ".." in Path(name).parts:
            problems[name] = "is outside the folder"
            continue
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                problems[name] = "is not a file"
            elif file_sha256(path) not in expected.split():
                problems[name] = "is damaged: it changed since it was written"
        except FileNotFoundError:
            problems[name] = "is missing"
        except OSError as error:
            problems[name] = f"cannot be read: {error.strerror}"
    return problems


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Refuse a folder unless every listed file is as it was written."""
    for name, problem in damage(folder, files).items():
        if problem == "is missing":
            raise RunFolderError(
                f"{folder} is not a complete run folder: {name} is missing.",
                remedy="Check the path, restore the file, or train again.",
            )
        raise RunFolderError(f"{folder / name} {problem}.", remedy=_REMEDY)


def check_listed(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder with a run.json unless these of its files are as it lists them.

    For those who read single files of it; a run that is not finished lists none.
    """
    path = folder / FACTS_NAME
    if not path.is_file():
        return
    try:
        values = read_json(path)
        files = check_checksum(values, path=path).get("files", {})
        listed = {name: files[name] for name in names if name in files}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.", remedy=_REMEDY) from error
    check_files(folder, listed)


def load_key(path: Path) -> bytes:
    """The bytes of a key file."""
    try:
        with path.open("rb") as file:
            key = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"The key {path} cannot be read: {error.strerror}.",
            remedy="Make one with `openssl rand -out key 32`.",
        ) from error
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:
        raise ConfigError(
            f"The key {path} has {len(key)} bytes.",
            f"A key has {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES:,} random bytes.",
            remedy="Make one with `openssl rand -out key 32`.",
        )
    return key


def sign(folder: Path, *, facts_path: Path, key: bytes) -> None:
    """Write a signature of the JSON file that lists a folder's checksums."""
    values = {"format_version": FORMAT_VERSION, "algorithm": "HMAC-SHA256"}
    write_json(folder / SIGNATURE_NAME, {**values, "signature": _hmac(facts_path, key=key)})


def check_signature(folder: Path, *, facts_path: Path, key: bytes) -> None:
    """Refuse a folder that the holder of this key did not sign as it is."""
    path = folder / SIGNATURE_NAME
    try:
        values = read_json(path)
        check_format(values, path=path)
        given = str(values["signature"])
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{folder} is not signed.",
            remedy="Ask its author to run `regraft verify RUN --key FILE --sign`.",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.", remedy=_REMEDY) from error
    if not hmac.compare_digest(given.encode(), _hmac(facts_path, key=key).encode()):
        raise RunFolderError(
            f"The signature of {folder} is wrong: it was made with another key, or for other "
            "files.",
            remedy="Do not use the folder unless you trust where it comes from.",
        )


def _hmac(path: Path, *, key: bytes) -> str:
    try:
        return hmac.new(key, path.read_bytes(), hashlib.sha256).hexdigest()
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror}.", remedy=_REMEDY) from error
