"""The columns of a table that are read: by name, and checked for missing and ambiguous ones."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from regraft.errors import DataError
from regraft.runtime import raising, read_limits


class Values(NamedTuple):
    """The values of one record in the wanted columns; None without such a column."""

    text: Any
    label: Any
    pair: Any
    id: Any = None


@dataclass(frozen=True)
class Columns:
    """The wanted columns, and whether a missing label is an error."""

    text: str
    label: str
    need_label: bool
    pair: str | None = None
    id: str = "id"

    def present(self, names: Sequence[str]) -> Values:
        """The wanted columns; a label or id that is missing is None."""
        label, identifier = (name if name in names else None for name in (self.label, self.id))
        return Values(self.text, label, self.pair, identifier)

    def check(self, present: Sequence[str], *, place: str, noun: str = "column") -> None:
        """Raise DataError if wanted columns are missing or ambiguous: all of them at once."""
        wanted = {"--text-column": self.text}
        if self.pair is not None:
            wanted["--pair-column"] = self.pair
        if self.need_label:
            wanted["--label-column"] = self.label
        for name in wanted.values():
            if present.count(name) > 1:
                raise DataError(
                    f"{place} has two {noun}s named {name!r}.", remedy="Rename one of them."
                )
        missing = {flag: name for flag, name in wanted.items() if name not in present}
        if not missing:
            return
        shown = ", ".join(repr(other[:40]) for other in present[:12]) or "none"
        hints = [
            other
            for name in missing.values()
            for other in difflib.get_close_matches(name, present, n=1, cutoff=0.5)
        ]
        hint = f"Did you mean {' and '.join(map(repr, hints))}? " if hints else ""
        raise DataError(
            f"{place} has no {noun} {' and no '.join(map(repr, missing.values()))}.",
            f"Its {noun}s are {shown}.",
            remedy=f"{hint}Pass {' '.join(f'{flag} NAME' for flag in missing)}.",
        )


def check_width(num_columns: int, *, place: str) -> None:
    """Raise DataError for more columns than a table of texts has."""
    most = read_limits().columns
    if num_columns > most:
        raise DataError(
            f"{place} has {num_columns:,} columns.",
            f"A table may have {most:,}.",
            remedy=f"Check that it is a table of texts, or {raising('columns')}.",
        )


def unique_names(names: Iterable[str]) -> list[str]:
    """The names of columns; the second of one name gets a number, such as `note_2`."""
    unique: dict[str, None] = {}
    for name in names:
        number, candidate = 2, name
        while candidate in unique:
            candidate, number = f"{name}_{number}", number + 1
        unique[candidate] = None
    return list(unique)
