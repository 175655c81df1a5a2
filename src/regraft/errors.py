"""The few ways in which regraft refuses, each told to a person in three parts.

Comes in: what is wrong (with its value and place), what would be right, what to do. Goes out: one
message. Only the command line catches these; the library raises them and never prints.
"""

from functools import partial
from typing import Any


class RegraftError(Exception):
    """A mistake a user can mend. `problem` names value and place; `expected` may be left empty."""

    def __init__(self, problem: str, expected: str = "", *, remedy: str) -> None:
        self.problem = problem
        self.expected = expected
        self.remedy = remedy
        super().__init__(" ".join(part for part in (problem, expected, remedy) if part))

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would call the class with the joined message alone, and lack `remedy`: an error
        # raised in a worker process would arrive as the death of that worker.
        return partial(type(self), remedy=self.remedy), (self.problem, self.expected)


class DataError(RegraftError):
    """A file of documents or examples cannot be used as it is."""


class ConfigError(RegraftError):
    """Settings are unknown, out of range, or contradict each other."""


class RunFolderError(RegraftError):
    """A run folder is missing, incomplete, damaged, or of another format."""


class DiskError(RegraftError):
    """A file cannot be written where it should be."""


class DiskFullError(DiskError):
    """There is no room left for a file; what was there before is untouched."""


class CorpusError(RegraftError):
    """A named corpus cannot be fetched, checked or read."""


class TrainingError(RegraftError):
    """Training cannot go on: a non-finite loss, nothing to learn from."""


class DivergedError(TrainingError):
    """A loss or a gradient became infinite or no number: the learning rate is too large."""
