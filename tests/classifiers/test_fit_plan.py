"""The plan of a fit as a pure function: a simulated machine makes the bases."""

import dataclasses
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.classifiers.fit_plan import (
    CLOCK_NAME,
    MOST_BASES,
    MOST_PASSES,
    PLAN_NAME,
    Clock,
    FitLimit,
    Lengths,
    Pace,
    Plan,
    lengths_of,
    measured_pace,
    next_bases,
    read_plan,
    time_for_bases,
    wanted_passes,
)
from regraft.errors import ConfigError, RunFolderError

LENGTHS = Lengths(wanted=300, most=1_200)


@dataclass
class Machine:
    """Makes bases in simulated seconds; each base takes a little more or less than the pace."""

    pace: Pace
    num_jobs: int
    noise: float
    generator: np.random.Generator
    seconds: float = 0.0

    def make(self, base_steps: list[int]) -> Pace:
        """Make bases, each on the core that is free first; the pace that was measured."""
        free_at, times, start = [0.0] * self.num_jobs, [], self.seconds
        for num_steps in base_steps:
            speed = 1 + self.noise * self.generator.uniform(-1, 1)
            core = free_at.index(min(free_at))
            free_at[core] += speed * self.pace.seconds(num_steps)
            times.append((speed * num_steps * self.pace.step_seconds, num_steps))
        self.seconds += max(free_at)
        return measured_pace(times, waited=self.seconds - start, num_jobs=self.num_jobs)


def simulated(machine: Machine, *, first: Pace, seconds: float) -> list[int]:
    made: list[int] = []
    pace = first
    while more := next_bases(
        made,
        lengths=LENGTHS,
        pace=pace,
        left=seconds - machine.seconds,
        num_jobs=machine.num_jobs,
    ):
        pace = machine.make(more)
        made += more
    return made


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    pace = Pace(draw(st.floats(0.01, 2.0)), draw(st.floats(0.0, 20.0)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    return Machine(pace, draw(st.integers(1, 8)), draw(st.floats(0.0, 0.04)), generator)


def is_all(made: list[int]) -> bool:
    """No more and no longer bases are ever made."""
    return len(made) == MOST_BASES and max(made) == LENGTHS.most


@given(machine=machines(), wrong=st.floats(0.5, 1.5), times=st.floats(3.0, 40.0))
def test_rounds_of_bases_use_all_of_the_time(machine, wrong, times):
    """From a first guess that is wrong by half, on a machine of steady load."""
    seconds = times * machine.pace.seconds(LENGTHS.wanted)
    first = Pace(wrong * machine.pace.step_seconds, wrong * machine.pace.other_seconds)
    made = simulated(machine, first=first, seconds=seconds)
    assert machine.seconds <= 1.1 * seconds
    assert machine.seconds >= 0.9 * seconds or is_all(made)


@given(machine=machines(), wrong=st.floats(0.3, 3.0), times=st.floats(0.3, 40.0))
def test_any_time_gives_bases_of_a_sensible_length(machine, wrong, times):
    seconds = times * machine.pace.seconds(LENGTHS.wanted)
    made = simulated(machine, first=Pace(wrong * machine.pace.step_seconds), seconds=seconds)
    assert machine.num_jobs <= len(made) <= MOST_BASES
    assert 1 <= min(made) <= max(made) <= LENGTHS.most
    # Only the first round may be short; the others are worth their place.
    assert min(made[machine.num_jobs :], default=75) >= min(75, made[0] // 4)


@pytest.mark.parametrize(
    ("made", "left", "expected"),
    [
        ([], 1_600.0, [320, 320]),  # one round of a guess, whatever fits
        ([], 350.0, [175, 175]),  # two rounds share it
        ([], -20.0, [20, 20]),  # better late than without a base
        ([300, 300], 450.0, [225, 225]),  # rather two rounds that fit than one and a half
        ([300, 300], 1_500.0, [300] * 6),  # three of five rounds at once
        ([300, 300], 250.0, [250, 250]),  # a shorter last round
        ([300, 300], 74.0, []),  # a quarter of the length is the least
        ([300, 300], -20.0, []),
        ([1, 1], -20.0, []),
        ([300] * 14, 900.0, [900, 900]),  # more passes where no more bases are made
        ([300] * 15, 1e6, [1_200]),
        ([300] * 16, 1e6, []),
    ],
)
def test_next_bases_fit_into_the_time_that_is_left(made, left, expected):
    assert next_bases(made, lengths=LENGTHS, pace=Pace(1.0), left=left, num_jobs=2) == expected


def test_pace_is_that_of_the_slowest_base_and_of_what_it_waits_for():
    times = [(100.0, 50), (110.0, 50), (90.0, 50), (100.0, 50)]
    pace = measured_pace(times, waited=260.0, num_jobs=2)
    assert (pace.step_seconds, pace.other_seconds) == pytest.approx((2.2, 20.0))
    # Resumed bases have trained for longer than was waited.
    assert measured_pace(times, waited=30.0, num_jobs=2) == Pace(2.2, 0.0)


def test_small_text_is_read_more_often():
    assert [wanted_passes(n) for n in (10_000, 6_000_000, 10_000_000, 10**9)] == [3, 2, 2, 1]
    lengths = lengths_of(num_tokens=6_000_000, pass_steps=100)
    assert lengths == Lengths(wanted=200, most=100 * MOST_PASSES)


def test_time_is_left_for_what_follows_but_never_more_than_its_share():
    def left(num_examples: int, *, gone: float = 0.0, num_made: int = 2) -> float:
        return time_for_bases(1_000.0, gone=gone, num_examples=num_examples, num_made=num_made)

    assert left(400) > left(2_000) > 900
    assert left(50_000_000) == 800
    assert left(50_000_000, gone=900.0) == -100
    # The first bases are made even if all of it is gone.
    assert left(400, gone=5_000.0, num_made=0) == 100


def test_plan_is_read_as_it_was_saved(tmp_path):
    plan = Plan(10.0, pass_steps=100, num_pairs=7, base_steps=[300, 250], is_settled=False)
    assert read_plan(tmp_path) is None
    plan.save(tmp_path)
    assert read_plan(tmp_path) == plan
    assert plan.passes == [3.0, 2.5]
    assert plan.with_bases([]).is_settled
    assert plan.with_bases([70]).base_steps == [300, 250, 70]


@pytest.mark.parametrize(
    "changes",
    [
        {"base_steps": [0]},
        {"base_steps": [True]},
        {"base_steps": "ab"},
        {"base_steps": [10**12]},
        {"pass_steps": -1},
        {"minutes": 0},
        {"is_settled": None},
    ],
)
def test_plan_that_cannot_be_is_refused(tmp_path, changes):
    plan = Plan(10.0, pass_steps=100, num_pairs=7, base_steps=[300], is_settled=False)
    (tmp_path / PLAN_NAME).write_text(json.dumps({**dataclasses.asdict(plan), **changes}))
    with pytest.raises(RunFolderError, match="damaged"):
        read_plan(tmp_path)


@pytest.mark.parametrize("text", ['{"num_bases": 4, "passes": 3.0}', "[1]", "{", "\udcff"])
def test_plan_of_another_version_is_refused(tmp_path, text):
    (tmp_path / PLAN_NAME).write_text(text, errors="surrogateescape")
    with pytest.raises(RunFolderError, match="resumed by the version that began it"):
        read_plan(tmp_path)


def test_clock_counts_what_was_taken_before_an_interruption(tmp_path):
    clock = Clock(tmp_path)
    assert 0 <= clock.seconds < 600
    (tmp_path / CLOCK_NAME).write_text(json.dumps({"seconds": 5_000.0}))
    clock = Clock(tmp_path)
    assert clock.seconds >= 5_000
    clock.save()
    assert json.loads((tmp_path / CLOCK_NAME).read_text())["seconds"] >= 5_000
    clock.remove()
    assert Clock(tmp_path).seconds < 600


def test_limit_is_a_time_or_a_number():
    assert FitLimit.of() == FitLimit(minutes=30.0)
    assert FitLimit.of(bases=4) == FitLimit(num_bases=4)
    with pytest.raises(ConfigError, match="--minutes 3 and --bases 4"):
        FitLimit.of(minutes=3, bases=4)
    for minutes in (0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--minutes is"):
            FitLimit.of(minutes=minutes)
    for bases in (0, -1, 101):
        with pytest.raises(ConfigError, match=f"--bases is {bases}"):
            FitLimit.of(bases=bases)


def test_limit_refuses_the_plan_of_another(tmp_path):
    timed = Plan(10.0, pass_steps=100, num_pairs=7, base_steps=[300, 250], is_settled=True)
    given = Plan(None, pass_steps=100, num_pairs=7, base_steps=[300, 300], is_settled=True)
    for limit, plan in (
        (FitLimit(minutes=10.0), timed),
        (FitLimit(num_bases=2), given),
        (FitLimit.like(timed, minutes=10.0), timed),
        (FitLimit.like(given, minutes=None), given),
    ):
        limit.refuse_other(plan, run_dir=tmp_path)
    for limit, plan, began in (
        (FitLimit(minutes=20.0), timed, "--minutes 10"),
        (FitLimit(num_bases=2), timed, "--minutes 10"),
        (FitLimit(num_bases=3), given, "--bases 2"),
        (FitLimit.like(timed, minutes=10.0), timed.with_bases([9]), "--minutes 10"),
    ):
        with pytest.raises(RunFolderError, match=f"was started with {began}"):
            limit.refuse_other(plan, run_dir=tmp_path)
