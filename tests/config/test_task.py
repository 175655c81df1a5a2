"""Tasks: derived from data settings, and refused in one way by what cannot do them."""

import dataclasses

import pytest

from regraft.config.schema import DataSettings
from regraft.config.task import SINGLE_TEXTS, Task, check_task
from regraft.errors import ConfigError

PLAIN = DataSettings()
PAIRS = dataclasses.replace(PLAIN, pair_column="answer")
SETS = dataclasses.replace(PLAIN, label_separator="|")


def test_task_follows_from_the_columns():
    assert Task.of(PLAIN) == Task()
    assert Task.of(PAIRS) == Task(has_pairs=True)
    assert Task.of(SETS) == Task(has_label_sets=True)
    assert len({str(Task(a, b)) for a in (False, True) for b in (False, True)}) == 4


def test_supported_task_passes():
    check_task(PLAIN, by="serve")
    check_task(SETS, supported=SINGLE_TEXTS, by="--adapt")
    check_task(PAIRS, supported=[Task.of(PAIRS)], by="runs/a")


@pytest.mark.parametrize(
    ("data", "supported", "facts"),
    [
        (PAIRS, [Task()], ["serve", "pairs of texts", "'answer'"]),
        (SETS, [Task()], ["serve", "several labels", "'|'"]),
        (PLAIN, [Task.of(PAIRS)], ["serve", "single texts", "data.pair_column is None"]),
    ],
)
def test_other_tasks_are_refused_by_name(data, supported, facts):
    with pytest.raises(ConfigError) as caught:
        check_task(data, supported=supported, by="serve")
    for fact in facts:
        assert fact in caught.value.problem
