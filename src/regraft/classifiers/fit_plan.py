"""How many bases `regraft fit` makes, and how long each trains: decided round by round, and saved.

A plan that was saved is kept: a resumed recipe continues with it, and another one can repeat it.
Knows time and steps, but no models.
"""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.errors import ConfigError, RunFolderError
from regraft.runtime import check_listed, read_object, write_json
from regraft.training import PLAN_NAME

CLOCK_NAME = "clock.json"

DEFAULT_MINUTES = 30.0
# A year: more is a typing error.
MOST_MINUTES = 525_600

# Bases that differ in their seed alone: the more the better, each adding less.
MOST_BASES = 16
MOST_GIVEN_BASES = 100
# Of one base, or of pairs: more is a damaged file.
_MOST_STEPS = 10**9

# A base sees a small text several times, until it has seen about so many tokens. Film reviews of
# 4.7 million, one base, 200 / 500 / 2,000 labels: 85.6 / 86.4 / 87.6 % after one pass, 86.9 /
# 87.4 / 88.4 % after three (2026-11-16).
WANTED_TOKENS = 15_000_000
WANTED_PASSES = 3
# Passes if there is time for the most bases.
MOST_PASSES = 12

# What follows the bases: so long, and so much more for each labelled example; never more than a
# share of the time budget.
_LATER_SECONDS = 3.0
_SECONDS_PER_EXAMPLE = 0.02
_LATER_SHARE = 0.2

# The first round gets this share of the time budget, even if all of it is gone.
_LEAST_SHARE = 0.1

# A last round may be shorter, down to this share of the length wanted, or of the shortest base.
_LEAST_LENGTH = 0.25

# Steps of a base at least, a few seconds: with fewer it learns nothing. On a machine of load 20, a
# fit of 2 minutes had none left for bases; of one step, they had 75.5 %, TF-IDF 82.0 (2026-11-18).
_FEWEST_STEPS = 20

# Share of the time left that a first round may take: it is planned from a short trial.
_TRIAL_SHARE = 0.8

# Share of the rounds that fit into the time left which are planned at once: without a pause to
# measure, no core waits for the slowest base.
_PLANNED_SHARE = 0.7


@dataclass(frozen=True)
class Lengths:
    """Steps of a base: wanted, and at most."""

    wanted: int
    most: int


@dataclass(frozen=True)
class Pace:
    """What a base takes in a round of one per core: seconds per step, and for everything else."""

    step_seconds: float
    other_seconds: float = 0.0

    def seconds(self, num_steps: int) -> float:
        """The seconds of a base of so many steps."""
        return self.other_seconds + num_steps * self.step_seconds

    def num_steps(self, seconds: float) -> int:
        """The steps of a base that takes so long; 0 if there is no time for any."""
        return max(int((seconds - self.other_seconds) / self.step_seconds), 0)


@dataclass(frozen=True)
class Plan:
    """The steps of every base decided on so far, and whether there will be more.

    `minutes` is the time budget, None if the number of bases was given instead. `num_pairs` is as
    many pairs of neighbours as the text has, where that is less than the settings allow.
    """

    minutes: float | None
    pass_steps: int
    num_pairs: int
    base_steps: Sequence[int]
    is_settled: bool

    @property
    def num_given(self) -> int | None:
        """The number of bases, if it was given."""
        return len(self.base_steps) if self.minutes is None else None

    @property
    def is_possible(self) -> bool:
        """Whether its numbers are such as are planned; a file may hold anything."""
        counts = [self.pass_steps, self.num_pairs, *self.base_steps]
        return (
            all(type(count) is int and 0 < count <= _MOST_STEPS for count in counts)
            and len(self.base_steps) <= MOST_GIVEN_BASES
            and isinstance(self.is_settled, bool)
            and (self.minutes is None or 0 < self.minutes <= MOST_MINUTES)
        )

    @property
    def passes(self) -> list[float]:
        """How often each base sees the text."""
        return [round(steps / self.pass_steps, 2) for steps in self.base_steps]

    def with_bases(self, more: Sequence[int]) -> "Plan":
        """The plan with another round; without one it is settled."""
        base_steps = [*self.base_steps, *more]
        return dataclasses.replace(self, base_steps=base_steps, is_settled=not more)

    def save(self, run_dir: Path) -> None:
        """Write it into the folder of the recipe."""
        write_json(run_dir / PLAN_NAME, dataclasses.asdict(self))


def read_plan(run_dir: Path) -> Plan | None:
    """The plan that a recipe follows; None before there is one."""
    check_listed(run_dir, [PLAN_NAME])
    values = _read(run_dir / PLAN_NAME)
    if values is None:
        return None
    try:
        plan = Plan(**values)
        if not plan.is_possible:
            raise ValueError("its numbers cannot be")
    except (TypeError, ValueError) as error:
        raise _damaged(run_dir / PLAN_NAME, error) from error
    return plan


@dataclass(frozen=True)
class FitLimit:
    """What ends the making of bases: a time budget, their number, or the plan of an earlier run."""

    minutes: float | None = None
    num_bases: int | None = None
    plan: Plan | None = None

    @classmethod
    def of(cls, *, minutes: float | None = None, bases: int | None = None) -> "FitLimit":
        """One of both, by default the usual minutes; other numbers are refused."""
        if minutes is not None and bases is not None:
            raise ConfigError(
                f"--minutes {minutes:g} and --bases {bases} both say when to stop.",
                "Either the time or the number of bases is given.",
                remedy="Omit one of them.",
            )
        if minutes is not None and not 0 < minutes <= MOST_MINUTES:
            raise ConfigError(
                f"--minutes is {minutes:g}.",
                f"It must be more than 0 and at most {MOST_MINUTES:,}.",
                remedy="Use at least one minute, and half an hour for a large text.",
            )
        if bases is not None and not 0 < bases <= MOST_GIVEN_BASES:
            raise ConfigError(
                f"--bases is {bases}.",
                f"It must be at least 1 and at most {MOST_GIVEN_BASES}.",
                remedy=f"Use about {MOST_BASES}: each further base adds less.",
            )
        if minutes is None and bases is None:
            minutes = DEFAULT_MINUTES
        return cls(minutes, num_bases=bases)

    @classmethod
    def like(cls, plan: Plan | None, *, minutes: float | None) -> "FitLimit":
        """That of an earlier run; it has no plan if its text was too short for bases."""
        return cls(minutes, num_bases=plan.num_given if plan else None, plan=plan)

    def refuse_other(self, plan: Plan, *, run_dir: Path) -> None:
        """A resumed recipe has the limit it was started with."""
        began = FitLimit(plan.minutes, plan.num_given)
        if (self.minutes, self.num_bases) != (began.minutes, began.num_bases) or (
            self.plan is not None and self.plan != plan
        ):
            raise RunFolderError(
                f"{run_dir} was started with {began}, not with {self}.",
                "A resumed recipe follows the plan it began with.",
                remedy="Resume it with the options it was started with, or choose another --out.",
            )

    def __str__(self) -> str:
        if self.plan is not None:
            return f"the plan of another run ({len(self.plan.base_steps)} bases)"
        return (
            f"--bases {self.num_bases}" if self.minutes is None else f"--minutes {self.minutes:g}"
        )


class Clock:
    """How long a recipe has taken, interruptions not counted."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / CLOCK_NAME
        try:
            self._before = float((_read(self._path) or {}).get("seconds", 0.0))
        except (TypeError, ValueError) as error:
            raise _damaged(self._path, error) from error
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Taken so far."""
        return self._before + time.perf_counter() - self._began

    def save(self) -> None:
        """Note the time, for the case that the recipe is killed."""
        write_json(self._path, {"seconds": round(self.seconds, 1)})

    def remove(self) -> None:
        """The recipe has ended."""
        self._path.unlink(missing_ok=True)


def time_for_bases(budget: float, *, gone: float, num_examples: int, num_made: int) -> float:
    """Seconds until what follows the bases needs its time; negative if it is too late."""
    later = _LATER_SECONDS + _SECONDS_PER_EXAMPLE * num_examples
    left = budget - min(later, _LATER_SHARE * budget) - gone
    return left if num_made else max(left, _LEAST_SHARE * budget)


def lengths_of(*, num_tokens: int, pass_steps: int) -> Lengths:
    """The lengths of a base, for a text of so many tokens."""
    wanted = wanted_passes(num_tokens) * pass_steps
    return Lengths(wanted, most=MOST_PASSES * pass_steps)


def wanted_passes(num_tokens: int) -> int:
    """How often a base sees a text of so many tokens, if there is time."""
    return min(max(round(WANTED_TOKENS / num_tokens), 1), WANTED_PASSES)


def next_bases(
    made: Sequence[int], *, lengths: Lengths, pace: Pace, left: float, num_jobs: int
) -> list[int]:
    """The steps of the bases to make next, `num_jobs` at a time; none when time is up.

    `made` are the steps of those that are there. The time left is divided into rounds of about the
    length wanted, longer ones if these would be more than the most bases.
    """
    room = max(MOST_BASES - len(made), 0)
    rounds = max(round(left / pace.seconds(lengths.wanted)), 1)
    rounds = min(rounds, -(-room // num_jobs))
    if rounds == 0:
        return []
    least = max(int(_LEAST_LENGTH * min([lengths.wanted, *made])), 1)
    while rounds > 1 and pace.num_steps(left / rounds) < least:
        rounds -= 1
    if made:
        at_once = max(int(_PLANNED_SHARE * rounds), 1)
    else:
        at_once = 1
        # Not all of the time on a guess, if two rounds can share it.
        if rounds == 1 and room > num_jobs and pace.num_steps(left / 2) >= least:
            rounds = 2
    share = 1 / rounds if made or rounds > 1 else _TRIAL_SHARE
    num_steps = min(pace.num_steps(share * left), lengths.most)
    if num_steps < least and made:
        return []
    return [max(num_steps, min(_FEWEST_STEPS, lengths.wanted))] * min(at_once * num_jobs, room)


def measured_pace(times: Sequence[tuple[float, int]], *, waited: float, num_jobs: int) -> Pace:
    """The pace of bases that were made just now: (training seconds, steps) of each.

    The slowest counts. A base that was resumed took longer than we have waited for it.
    """
    step_seconds = max(seconds / num_steps for seconds, num_steps in times)
    num_rounds = -(-len(times) // num_jobs)
    longest = max(num_steps for _, num_steps in times)
    return Pace(step_seconds, max(waited / num_rounds - longest * step_seconds, 0.0))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{path} is of another regraft, or damaged: {error}.",
        "A recipe is resumed by the version that began it.",
        remedy="Choose another --out and start again.",
    )
