"""Counts and durations as people read them."""

import pytest

from regraft.runtime.quantities import counted, duration


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, "1 text"), (1024, "1,024 texts"), (0.5, "0.5 texts"), (0, "0 texts")],
)
def test_counted_has_its_plural(number: float, expected: str):
    assert counted(number, "text") == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.26, "0.3 s"),
        (59.4, "59 s"),
        (59.7, "1 min 00 s"),
        (754, "12 min 34 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_duration_has_the_unit_that_fits(seconds: float, expected: str):
    assert duration(seconds) == expected
