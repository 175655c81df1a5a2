"""How runs differ: their scores, and the settings that are not the same in all of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regraft.apps.serve.limits import RefusedError
from regraft.apps.studio.runs import RunRow, read_config
from regraft.config import flat
from regraft.errors import RegraftError
from regraft.training import read_info

# As many as the page can draw with colours and dashes that differ.
MOST_COMPARED = 24
_MOST_CHARACTERS = 60
# Data is shown by the first characters of its hash: enough to distinguish two.
_HASH_CHARACTERS = 8
# Where one of these differs, a loss is the answer to another question.
_DECIDE_THE_LOSS = ("kind", "objective.kind", "hash of tokenizer", "hash of text", "hash of train")


def differences(runs: Sequence[tuple[RunRow, Path]]) -> dict[str, Any]:
    """`scores` of any run, and the `settings` and data in which not all are the same.

    `note` is the reason why the losses of these runs cannot be compared, if any.
    """
    if len(runs) > MOST_COMPARED:
        raise RefusedError(
            422,
            f"{len(runs)} runs are ticked.",
            f"The page compares up to {MOST_COMPARED}.",
            remedy="Untick some of them.",
        )
    scores = [{row.score.name: row.score.text} if row.score else {} for row, _ in runs]
    facts = [_facts(path) for _, path in runs]
    settings = [line for line in _lines(facts) if len(set(line["values"])) > 1]
    others = [line["name"] for line in settings if line["name"] in _DECIDE_THE_LOSS]
    return {
        "scores": _lines(scores),
        "settings": settings,
        "note": f"Losses do not compare; what differs: {', '.join(others)}." if others else "",
    }


def _lines(columns: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """A line for every name that any column knows, in the order in which they first occur."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [
        {"name": name, "values": [column.get(name, "") for column in columns]} for name in names
    ]


def _facts(path: Path) -> dict[str, str]:
    """The settings of a run by their dotted names, its base, and hashes of its data."""
    try:
        info = read_info(path)
    except RegraftError:
        return {}  # the list shows what is broken
    facts = {"kind": info.kind if info.is_classifier else "base"}
    if info.base:
        facts["base"] = Path(str(info.base.get("run_dir", ""))).name
    facts |= {name: _shown(value) for name, value in flat(read_config(path)).items()}
    hashes = {f"hash of {name}": value for name, value in info.fingerprints.items()}
    return facts | {name: str(value)[:_HASH_CHARACTERS] for name, value in hashes.items()}


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
