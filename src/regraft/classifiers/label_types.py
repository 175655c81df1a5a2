"""Labels that were numbers in Python: a run folder names them by strings, and keeps their type."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.errors import RunFolderError
from regraft.runtime import FORMAT_VERSION, check_format, read_object, write_json

TYPE_NAME = "label_type.json"
_REMEDY = "Delete the file: labels are strings then."

_READ: dict[str, Callable[[str], Any]] = {
    "bool": {"False": False, "True": True}.__getitem__,
    "int": int,
    "float": float,
}


def label_type(labels: Any) -> str | None:
    """`bool`, `int` or `float` if all labels are of this type."""
    array = np.asarray(labels)
    return {"b": "bool", "i": "int", "u": "int", "f": "float"}.get(array.dtype.kind)


def typed_labels(names: Sequence[str], *, kind: str | None) -> NDArray[Any] | None:
    """Labels of this type by their names; None if one of them is not."""
    if kind not in _READ:
        return None
    try:
        return np.array(list(map(_READ[kind], names)))
    except (KeyError, ValueError):
        return None


def write_label_type(run_dir: Path, kind: str | None) -> None:
    """Note the type, unless labels are strings anyway."""
    if kind is not None:
        write_json(run_dir / TYPE_NAME, {"format_version": FORMAT_VERSION, "type": kind})


def read_labels(run_dir: Path, names: Sequence[str]) -> NDArray[Any]:
    """The labels as they were given in Python; their names if nothing is noted."""
    path = run_dir / TYPE_NAME
    if not path.is_file():
        return np.array(names)
    try:
        facts = read_object(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} is damaged: {error}.", remedy=_REMEDY) from error
    check_format(facts, path=path)
    labels = typed_labels(names, kind=str(facts.get("type")))
    if labels is None:
        raise RunFolderError(
            f"{path} says that labels are of the type {facts.get('type')!r:.60}, and they are "
            f"{', '.join(map(repr, names[:3]))}.",
            remedy=_REMEDY,
        )
    return labels
