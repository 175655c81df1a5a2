"""What two outputs of a command have in common: everything but times and places."""

import json
import re
from pathlib import Path
from typing import Any

from safetensors import safe_open

# What differs between two runs that are otherwise equal: times, places, and the checksums of JSON
# that holds them. The files themselves are compared.
TIMES = {"seconds", "created", "launch", "run_dir", "tokens_per_second", "checksum", "files"}
TIMES |= {"command", "openings"}
# Reports for people, with times in them; report.json is compared.
REPORTS = {"arms.csv", "report.html", "report.md"}
# Names of what a killed command was writing.
LITTER = re.compile(r"\..*\.[0-9a-f]{16}\.regraft|regraft-.*", re.DOTALL)


def timeless(value: Any) -> Any:
    """A JSON value without what differs."""
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def content(path: Path) -> dict[str, Any]:
    """Tensors and tables as bytes, JSON without times, by their place in a folder or as a file."""
    files = [path] if path.is_file() else path.rglob("*")
    found: dict[str, Any] = {}
    for file in files:
        name = file.relative_to(path).as_posix()
        if file.is_dir() or name.startswith("report/") or name in REPORTS or file.suffix == ".lock":
            continue
        if file.suffix in (".json", ".jsonl"):
            text = file.read_text().replace(str(path), "OUT")
            lines = [text] if file.suffix == ".json" else text.splitlines()
            found[name] = [timeless(json.loads(line)) for line in lines]
        else:
            found[name] = file.read_bytes()
    return found


def different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The first names of files that are not equal."""
    names = sorted({*one, *other})
    return [name for name in names if one.get(name) != other.get(name)][:5]


def broken_files(folder: Path) -> list[str]:
    """Files that are there under their own names, but half."""
    broken = []
    for file in folder.rglob("*"):
        if any(LITTER.fullmatch(part) for part in file.relative_to(folder).parts):
            continue
        try:
            if file.suffix == ".json":
                json.loads(file.read_text())
            elif file.suffix == ".safetensors":
                with safe_open(file, framework="np") as tensors:
                    list(tensors.keys())
        except FileNotFoundError:
            continue  # a worker that has not noticed yet that its parent is gone
        except Exception as error:
            broken.append(f"{file.relative_to(folder)}: {error}")
    return broken


def litter(*folders: Path) -> list[str]:
    """What killed commands have left in folders."""
    return [
        str(path)
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if LITTER.fullmatch(path.name)
    ]
