"""The time left: right to a factor of two, long before the end."""

import itertools

import numpy as np
import pytest
from conftest import Recorder

from regraft.runtime.jobs_left import Forecast, Forecasting

SIZES = (50, 100, 200, 400, 800)
# Seconds a label, and seconds whatever the labels: nothing that the guesses know of.
ARMS = {
    "pretrained": (0.25, 1.0),
    "scratch": (0.25, 1.0),
    "frozen": (0.08, 1.0),
    "lstm": (0.6, 2.0),
    "linear": (0.004, 0.5),
}


def guess(arm: str, size: int) -> float:
    return 0.01 * size if arm == "linear" else 0.02 * (3 * size + 60)


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_time_left_is_right_to_a_factor_of_two_after_a_minute(num_jobs: int) -> None:
    generator = np.random.default_rng(0)
    cells = list(itertools.product(range(5), SIZES, ARMS))
    work = {cell: guess(cell[2], cell[1]) for cell in cells}
    seconds = {
        (seed, size, arm): (ARMS[arm][0] * size + ARMS[arm][1]) * generator.uniform(0.8, 1.25)
        for seed, size, arm in cells
    }
    forecast = Forecast(work, kinds={cell: cell[2] for cell in cells}, num_jobs=num_jobs)
    gone, checked = 0.0, []
    for number, cell in enumerate(cells):
        forecast.end(cell, seconds=seconds[cell])
        gone += seconds[cell] / num_jobs
        truth = sum(seconds[rest] for rest in cells[number + 1 :]) / num_jobs
        if gone > 60 and truth > 60:
            checked.append(forecast.left() / truth)
    assert len(checked) > 80
    assert 0.5 < min(checked) <= max(checked) < 2


def test_kind_of_which_nothing_is_known_is_as_wrong_as_the_others() -> None:
    forecast = Forecast({"a": 1, "b": 1, "c": 2}, kinds={"a": "x", "b": "x", "c": "y"}, num_jobs=1)
    assert forecast.left() == 4
    forecast.end("a", seconds=10)
    assert forecast.left() == pytest.approx(30)
    forecast.end("c", seconds=2)
    assert forecast.left() == pytest.approx(10)


def test_share_of_a_job_counts() -> None:
    forecast = Forecast({"a": 1, "b": 1}, kinds={"a": "x", "b": "x"}, num_jobs=1)
    # The first steps tell nothing yet: whatever comes before them would be taken for their pace.
    forecast.move("a", share=0.01, seconds=5)
    assert forecast.left() == pytest.approx(0.99 + 1)
    forecast.move("a", share=0.25, seconds=5)
    assert forecast.left() == pytest.approx(15 + 20)


def test_long_job_tells_before_a_tenth_of_it_is_done() -> None:
    forecast = Forecast({"a": 1, "b": 1}, kinds={"a": "x", "b": "x"}, num_jobs=2)
    forecast.move("a", share=0.01, seconds=36)
    assert forecast.left() == pytest.approx(3600)


def test_job_that_has_ended_is_not_moved_by_what_is_heard_late() -> None:
    forecast = Forecast({"a": 1, "b": 1}, kinds={"a": "x", "b": "x"}, num_jobs=2)
    forecast.end("a", seconds=10)
    forecast.move("a", share=0.5, seconds=100)
    assert forecast.left() == pytest.approx(10)


def test_what_comes_before_a_job_starts_is_not_its_pace() -> None:
    now = iter([0.0, 0.0, 50.0, *[60.0] * 4]).__next__
    forecast = Forecast({"a": 1, "b": 1}, kinds={"a": "x", "b": "x"}, num_jobs=1)
    bar = Forecasting(Moved(), forecast, clock=now)
    bar.start("2 runs")
    within = bar.of("a", name="a")
    within.start("fine-tune", total=4)
    within.advance(2)
    assert forecast.left() == pytest.approx(10 + 20)


def test_longest_job_is_the_least_that_is_left() -> None:
    forecast = Forecast({"a": 1, "b": 8}, kinds={"a": "x", "b": "x"}, num_jobs=4)
    assert forecast.left() == 8


class Moved(Recorder):
    """Remembers where the bar stands."""

    share = 0.0

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self.share += amount
        self.note = note


def test_bar_does_not_take_a_quick_beginning_for_a_resumed_run() -> None:
    now = iter([0.0, 0.0, 0.05, 10.0]).__next__
    forecast = Forecast(dict.fromkeys("abc", 1), kinds=dict.fromkeys("abc", "x"), num_jobs=1)
    shown = Moved()
    bar = Forecasting(shown, forecast, clock=now)
    bar.start("3 runs")
    bar.end("a", seconds=0.04, note="a is done")
    assert (shown.share, shown.note) == (0, "a is done")
    bar.end("b", seconds=9.96, note="b is done")
    assert shown.share == pytest.approx(10 / 15)


def test_bar_stands_where_its_pace_gives_the_forecast() -> None:
    now = iter([0.0, 0.0, 10.0, 20.0, 30.0]).__next__
    forecast = Forecast({"a": 1, "b": 3}, kinds={"a": "x", "b": "x"}, num_jobs=1)
    shown = Moved()
    bar = Forecasting(shown, forecast, clock=now)
    bar.start("2 runs")
    bar.end("a", seconds=10, note="a is done")
    assert shown.share == pytest.approx(10 / 40)
    assert shown.note == "a is done"
    within = bar.of("b", name="b")
    within.start("fine-tune", total=2)
    assert shown.tasks == ["2 runs"]


def test_job_of_several_tasks_is_done_when_the_last_is() -> None:
    now = iter([0.0, 0.0, 0.0, *(time for time in (10.0, 20.0, 40.0) for _ in range(2))]).__next__
    forecast = Forecast({"a": 1, "b": 1}, kinds={"a": "x", "b": "x"}, num_jobs=1)
    bar = Forecasting(Moved(), forecast, clock=now)
    bar.start("2 runs")
    # Two rates, one after the other: when the first is through, half of the job is.
    within = bar.of("a", name="a", num_tasks=2)
    within.start("fine-tune", total=4)
    within.advance(2)
    within.advance(2)
    assert forecast.left() == pytest.approx(20 + 40)
    within.start("fine-tune", total=4)
    within.advance(4)
    assert forecast.left() == pytest.approx(40)
