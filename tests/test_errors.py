"""Errors speak in parts."""

import pickle

import pytest

from regraft import errors
from regraft.errors import DataError, RegraftError


def test_error_joins_its_parts():
    error = DataError("Row 3 is empty.", "A text is needed.", remedy="Remove the row.")
    assert str(error) == "Row 3 is empty. A text is needed. Remove the row."
    assert (error.problem, error.remedy) == ("Row 3 is empty.", "Remove the row.")


@pytest.mark.parametrize("expected", ["", "A text is needed."])
def test_error_survives_the_way_from_a_worker_process(expected):
    error = DataError("Row 3 is empty.", expected, remedy="Remove the row.")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is DataError
    assert str(arrived) == str(error)
    assert (arrived.problem, arrived.expected, arrived.remedy) == (
        error.problem,
        error.expected,
        error.remedy,
    )


def test_error_without_remedy_cannot_be_raised():
    with pytest.raises(TypeError, match="remedy"):
        DataError("Row 3 is empty.")


def test_every_error_is_a_regraft_error():
    defined = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert DataError in defined
    assert all(issubclass(child, RegraftError) for child in defined)
