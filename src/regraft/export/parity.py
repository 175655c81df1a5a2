"""What an export is and how exact: its result, and the check against our scores. Needs no torch."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regraft.errors import RegraftError

# The largest difference between a score of ours and the export's.
TOLERANCE = 1e-4

# Empty, one word, several alphabets. Formats add one that exceeds the length of the model.
SENTENCES = (
    "A quiet book about the sea, and about all that two sisters do not say.",
    "",
    "Yes.",
    "Un récit drôle et tendre\u00a0; l'été, des œufs à la neige, et puis plus rien…",
    "No, no, no! 3 stars of 10, and 2 of them for the cover \U0001f600",
    "Книга короткая,\tno 長い本.\n\nThe end",
)


@dataclass(frozen=True)
class Parity:
    """How far the scores of an export are from ours: the largest difference for each padding.

    None is a padding that the format cannot express. `vector` are the first scores of `text`.
    """

    name: str
    differences: dict[str, float | None]
    num_texts: int
    text: str
    vector: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max(value for value in self.differences.values() if value is not None)


@dataclass(frozen=True)
class Int8Cost:
    """What int8 costs and gains: unchanged answers, accuracy, size and speed.

    Answers are classes, or the likeliest token at every position. `speed_ratio` is how many times
    as fast it is, measured in turns. Without labelled data there is no accuracy; `is_seen` if the
    run was made from them.
    """

    num_texts: int
    agreement: float
    largest_difference: float
    speed_ratio: float
    num_bytes: int
    num_bytes_fp32: int
    accuracy: float | None = None
    accuracy_fp32: float | None = None
    is_seen: bool = False


@dataclass(frozen=True)
class ExportResult:
    """What was written, and how exact it is."""

    out: str
    format: str
    parity: tuple[Parity, ...]
    note: str = ""
    int8: Int8Cost | None = None

    @property
    def largest_difference(self) -> float:
        """The largest difference of a score from ours."""
        return max(parity.largest for parity in self.parity)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**dataclasses.asdict(self), "largest_difference": self.largest_difference}


def parity_rows(parities: Sequence[Parity]) -> list[tuple[str, str, str]]:
    """Every model under every padding, and the largest difference of its scores from ours."""
    return [
        (parity.name, padding, "cannot be expressed" if value is None else f"{value:.1e}")
        for parity in parities
        for padding, value in parity.differences.items()
    ]


def check_parity(parity: Parity, *, made_by: str) -> None:
    """Refuse an export whose scores differ from ours, or are not numbers."""
    for padding, difference in parity.differences.items():
        if difference is not None and not difference <= TOLERANCE:
            raise RegraftError(
                f"The export as {parity.name} differs from regraft by {difference:.2g} in a score "
                f"({padding}).",
                f"At most {TOLERANCE:g} is exact enough; nothing was written.",
                remedy=f"Please report this with the version of {made_by}.",
            )
