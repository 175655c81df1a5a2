"""A Comparison for programs: plain values for JSON, and CSV tables for spreadsheets.

A missing number is null, or an empty cell.
"""

import csv
import dataclasses
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from regraft.comparison import Comparison
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


def comparison_tables(comparison: Comparison) -> dict[str, str]:
    """The text of every CSV file that there are values for, by its name."""
    tables = {"arms.csv": _arms(comparison)}
    if comparison.curve:
        tables["curve.csv"] = _curve(comparison)
    if comparison.tests:
        tables["tests.csv"] = _tests(comparison)
    return tables


def _arms(comparison: Comparison) -> str:
    columns = [
        "arm",
        "seeds",
        *interval_columns("test_accuracy"),
        *interval_columns("test_accuracy_without_leaks"),
        *interval_columns("valid_accuracy"),
        "macro_f1",
        "calibration_error",
        "temperature",
        "calibrated_error",
        "seconds",
        "collapsed",
        "macro_f1_without_leaks",
    ]
    rows = [
        [
            arm.name,
            arm.num_seeds,
            *interval_cells(arm.test_accuracy),
            *interval_cells(arm.test_accuracy_without_leaks),
            *interval_cells(arm.valid_accuracy),
            arm.macro_f1,
            arm.calibration_error,
            arm.temperature,
            arm.calibrated_error,
            arm.seconds,
            arm.num_collapsed,
            arm.macro_f1_without_leaks,
        ]
        for arm in comparison.arms
    ]
    return to_csv(columns, rows)


def _curve(comparison: Comparison) -> str:
    columns = [
        "arm",
        "labels",
        "seeds",
        *interval_columns("accuracy"),
        *interval_columns("macro_f1"),
        "seconds",
        "collapsed",
        *interval_columns("accuracy_without_leaks"),
        *interval_columns("macro_f1_without_leaks"),
    ]
    rows = [
        [
            point.arm,
            point.num_labels,
            point.num_seeds,
            *interval_cells(point.accuracy),
            *interval_cells(point.macro_f1),
            point.seconds,
            point.num_collapsed,
            *interval_cells(point.accuracy_without_leaks),
            *interval_cells(point.macro_f1_without_leaks),
        ]
        for point in comparison.curve
    ]
    return to_csv(columns, rows)


def _tests(comparison: Comparison) -> str:
    columns = [
        "first",
        "second",
        *interval_columns("difference"),
        "p_permutation",
        "p_mcnemar",
        "p_difference",
        "p_holm",
        *interval_columns("corrected"),
        "smallest_difference",
        "of_runs",
    ]
    rows = [
        [
            test.first,
            test.second,
            *interval_cells(test.difference),
            test.p_permutation,
            test.p_mcnemar,
            test.p_difference,
            test.p_holm,
            *interval_cells(test.corrected),
            test.smallest_difference,
            test.is_of_runs,
        ]
        for test in comparison.tests
    ]
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
    """Columns and rows as a file's text."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain(cell) for cell in row] for row in rows)
    return buffer.getvalue()
