"""Errors have three parts; their exact wording is frozen in one file."""

import ast
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import regraft
from regraft import errors
from regraft.errors import DataError, RegraftError

SOURCE = Path(regraft.__file__).parent


def test_error_joins_its_parts() -> None:
    error = DataError("Row 3 is empty.", "A text is needed.", remedy="Remove the row.")
    assert str(error) == "Row 3 is empty. A text is needed. Remove the row."
    assert (error.problem, error.remedy) == ("Row 3 is empty.", "Remove the row.")


@pytest.mark.parametrize("expected", ["", "A text is needed."])
def test_error_survives_the_way_from_a_worker_process(expected: str) -> None:
    error = DataError("Row 3 is empty.", expected, remedy="Remove the row.")
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is DataError
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def test_error_without_remedy_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match="remedy"):
        DataError("Row 3 is empty.")  # type: ignore[call-arg]


def test_every_error_is_a_regraft_error() -> None:
    defined = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert DataError in defined
    assert all(issubclass(child, RegraftError) for child in defined)


def test_wording_matches_golden(golden: Callable[[str, str], None]) -> None:
    blocks = [block for path in sorted(SOURCE.rglob("*.py")) for block in read_wordings(path)]
    golden("errors.txt", "\n".join(blocks))


def read_wordings(path: Path) -> Iterator[str]:
    """Every error a module builds, in order: its file and class, then one line for each part.

    What is built with a remedy is an error; what a rule of the settings yields is part of one.
    """
    place = path.relative_to(SOURCE).as_posix()
    is_rules = place == "config/rules.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if is_rules and isinstance(node, ast.Yield) and node.value is not None:
            yield f"{place}\n    {template(node.value)}\n"
        if not isinstance(node, ast.Call):
            continue
        remedy = next((word.value for word in node.keywords if word.arg == "remedy"), None)
        if remedy is not None:
            name = ast.unparse(node.func)
            parts = "".join(f"    {template(part)}\n" for part in [*node.args, remedy])
            yield f"{place} {name}\n{parts}"


def template(node: ast.expr) -> str:
    """A message with its values in braces, as in the code."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return f"{{{ast.unparse(node)}}}"
