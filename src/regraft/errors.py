"""The errors a user can fix, each with three parts: the problem, what was expected, what to do.

A message is worded where it is raised; docs/reference/errors.md lists them with their files. Only
the command line catches them; the library raises them and never prints.
"""

from functools import partial
from typing import Any


class RegraftError(Exception):
    """An error the user can fix. `problem` names value and place; `expected` may be empty."""

    def __init__(self, problem: str, expected: str = "", *, remedy: str) -> None:
        self.problem = problem
        self.expected = expected
        self.remedy = remedy
        super().__init__(" ".join(part for part in (problem, expected, remedy) if part))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default unpickling calls the class with the joined message and without `remedy`, so an
        # error raised in a worker process would look like a crash of that worker.
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
    """The disk is full; existing files are untouched."""


class CorpusError(RegraftError):
    """A named corpus cannot be fetched, checked or read."""


class TrainingError(RegraftError):
    """Training cannot continue: a non-finite loss, or nothing to learn from."""


class DivergedError(TrainingError):
    """A loss or gradient became infinite or NaN: the learning rate is too high."""
