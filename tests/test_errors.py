"""Errors speak in parts."""

import pytest

from regraft import errors
from regraft.errors import DataError, RegraftError


def test_error_joins_its_parts():
    error = DataError("Row 3 is empty.", "A text is needed.", remedy="Remove the row.")
    assert str(error) == "Row 3 is empty. A text is needed. Remove the row."
    assert (error.problem, error.remedy) == ("Row 3 is empty.", "Remove the row.")


def test_error_without_remedy_cannot_be_raised():
    with pytest.raises(TypeError, match="remedy"):
        DataError("Row 3 is empty.")


def test_every_error_is_a_regraft_error():
    children = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(children) == 6
    assert all(issubclass(child, RegraftError) for child in children)
