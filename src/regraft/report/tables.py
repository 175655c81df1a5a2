"""A Comparison for programs: plain values for JSON, and CSV tables for spreadsheets.

A missing number is null, or an empty cell.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from regraft.comparison import Comparison
from regraft.data import csv_text
from regraft.stats import Interval


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """Plain values ready for JSON, without the outcomes, which have their own file.

    Numbers that are not finite become null.
    """
    values: dict[str, Any] = plain(dataclasses.replace(comparison, outcomes=None))
    del values["outcomes"]
    return values


def plain(value: Any) -> Any:
    """Any of our values as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return encodable(value)
    return value if value is None or isinstance(value, bool | int) else str(value)


def encodable(text: str) -> str:
    """JSON data may contain half a surrogate pair, which no file can; it becomes `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


# What each table shows: a field, and the name of its column if that is another one. An interval,
# marked by ~, takes three columns.
_ARMS = (
    "name=arm num_seeds=seeds ~test_accuracy ~test_accuracy_without_leaks ~valid_accuracy macro_f1 "
    "calibration_error temperature calibrated_error seconds num_collapsed=collapsed "
    "macro_f1_without_leaks"
)
_CURVE = (
    "arm num_labels=labels num_seeds=seeds ~accuracy ~macro_f1 seconds num_collapsed=collapsed "
    "~accuracy_without_leaks ~macro_f1_without_leaks"
)
_TESTS = (
    "first second ~difference p_permutation p_mcnemar p_difference p_holm ~corrected "
    "smallest_difference is_of_runs=of_runs"
)


def comparison_tables(comparison: Comparison) -> dict[str, str]:
    """The text of every CSV file that there are values for, by its name."""
    tables = {
        "arms.csv": (comparison.arms, _ARMS),
        "curve.csv": (comparison.curve, _CURVE),
        "tests.csv": (comparison.tests, _TESTS),
    }
    return {name: _table(items, fields) for name, (items, fields) in tables.items() if items}


def _table(items: Sequence[object], fields: str) -> str:
    columns: list[str] = []
    rows: list[list[Any]] = [[] for _ in items]
    for word in fields.split():
        field, _, column = word.removeprefix("~").partition("=")
        values = [getattr(item, field) for item in items]
        is_interval = word.startswith("~")
        columns += interval_columns(field) if is_interval else [column or field]
        for row, value in zip(rows, values, strict=True):
            row += interval_cells(value) if is_interval else [value]
    return to_csv(columns, rows)


def interval_columns(name: str) -> list[str]:
    """The three columns of an interval."""
    return [name, f"{name}_low", f"{name}_high"]


def interval_cells(interval: Interval | None) -> list[float | None]:
    """Mean, low and high, or three empty cells."""
    if interval is None:
        return [None, None, None]
    return [interval.mean, interval.low, interval.high]


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns and rows as a file's text; what is not finite is an empty cell."""
    return csv_text(columns, ([plain(cell) for cell in row] for row in rows))
