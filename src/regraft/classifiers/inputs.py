"""What Python callers pass as texts and labels: lists, Series, arrays, DataFrames, dicts, files.

pandas, polars and pyarrow are recognised by what they can do: `columns` and `[name]` are all that
is needed, so none of them is imported.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regraft.config import DataSettings
from regraft.data import Content, Example, load_examples, read_documents, with_text
from regraft.errors import DataError
from regraft.runtime import SILENT, Progress, counted

# What errors and messages call examples in memory.
SOURCE = "The data"

# Rows that show which column of a table is text.
_LOOKED_AT = 20


@dataclass(frozen=True)
class Labelled:
    """Texts, or pairs of them, with their labels; `rows` counts from 1 in what was passed.

    `labels` is a list, or an array of 0 and 1 with a column for each label.
    """

    rows: Sequence[int]
    contents: Sequence[Content]
    labels: Any


def column_names(value: object) -> list[Any] | None:
    """The columns of a DataFrame or Arrow table; None for anything else."""
    if isinstance(value, Mapping) or not hasattr(value, "columns"):
        return None
    names = getattr(value, "column_names", None)
    return list(value.columns if names is None else names)


def column_of(table: Any, name: Hashable, *, parameter: str) -> Any:
    """One column of a DataFrame; DataError, naming its columns, unless there is one such."""
    names = column_names(table) or []
    if name in names and names.count(name) == 1:
        return table[name]
    found, remedy = "no column", f"Pass {parameter}=NAME with one of them."
    if parameter == "unlabelled":
        remedy = f"Pass one of them, such as unlabelled[{_text_column(table)!r}]."
    if name in names:
        found, remedy = "more than one column", "Rename or drop all but one of them."
    raise DataError(
        f"The table has {found} {name!r}.",
        f"Its columns are {_quoted(names)}.",
        remedy=remedy,
    )


def with_columns(table: Any, columns: Mapping[str, list[Any]]) -> Any:
    """The table with columns added at its end, of the same kind: pandas, polars or pyarrow."""
    if hasattr(table, "assign"):  # lists, as a Series would be aligned by its index
        return table.assign(**columns)
    if hasattr(table, "append_column"):
        for name, values in columns.items():
            table = table.append_column(name, [values])
        return table
    series = type(table[table.columns[0]])
    return table.with_columns([series(name, values) for name, values in columns.items()])


def values_of(values: Any) -> list[Any]:
    """The items of a list, Series or array as Python values."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            items = getattr(values, method)()
            return items if isinstance(items, list) else [items]
    return list(values)


def checked_contents(X: Any) -> list[Content]:
    """Texts, or pairs of them if the first is one."""
    _refuse_table(X)
    items = X if isinstance(X, str) else values_of(X)
    if isinstance(items, str) or not items or not isinstance(items[0], tuple | list):
        return list(checked_texts(X))
    pairs: list[Content] = []
    for row, item in enumerate(items, start=1):
        texts = tuple(item) if isinstance(item, tuple | list) else (item,)
        if len(texts) != 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            raise DataError(
                f"Pair {row}{_index(X, row)} is {item!r:.60}.",
                "A pair is a tuple of two texts, neither of them empty.",
                remedy="Fix or remove it; texts and pairs do not mix.",
            )
        pairs.append((texts[0], texts[1]))
    return pairs


def checked_texts(X: Any) -> list[str]:
    """Texts alone."""
    # A string is iterable: its letters would pass for texts.
    if isinstance(X, str):
        raise DataError(
            f"X is one string: {X!r:.60}.",
            "X is a list of strings.",
            remedy="Put the text into a list.",
        )
    _refuse_table(X)
    items = values_of(X)
    for row, text in enumerate(items, start=1):
        if is_missing(text):
            raise DataError(
                f"Text {row}{_index(X, row)} is missing{_others(items)}.",
                "X holds strings.",
                remedy='Drop such rows, or pass X.fillna(""); `predict_table` skips them.',
            )
        if not isinstance(text, str):
            raise DataError(
                f"Text {row}{_index(X, row)} is of type {type(text).__name__}, not a string: "
                f"{text!r:.60}.",
                "X holds strings.",
                remedy="Pass the column of texts; X.astype(str) turns numbers into strings.",
            )
    return items


def with_blanks(X: Any) -> Any:
    """The same texts, an empty string for each that is missing."""
    if isinstance(X, str) or column_names(X) is not None:
        return X
    items = values_of(X)
    return (
        ["" if is_missing(item) else item for item in items] if any(map(is_missing, items)) else X
    )


def checked_labels(y: Any, *, rows: Sequence[int] | None = None) -> list[Any]:
    """Labels as Python values, of some rows or all; DataError for one that is missing."""
    if isinstance(y, str):
        raise DataError(
            f"The labels are one string: {y!r:.60}.",
            "Labels are a list or Series, one for each text.",
            remedy=f'To name a column of a table, pass label="{y:.60}".',
        )
    names = column_names(y)
    if names is not None:
        raise DataError(
            f"y is a table with the columns {_quoted(names)}.",
            "Labels are one column.",
            remedy=f"Pass one of them, such as y[{names[0]!r}]." if names else "Pass a list.",
        )
    labels = values_of(y)
    rows = range(1, len(labels) + 1) if rows is None else rows
    checked = [labels[row - 1] for row in rows]
    for row, label in zip(rows, checked, strict=True):
        if is_missing(label):
            raise DataError(
                f"Label {row}{_index(y, row)} is missing{_others(checked)}.",
                "Every text needs a label.",
                remedy="Fill it in, or drop such rows and pass their texts as unlabelled.",
            )
    return checked


def checked_examples(X: Any, y: Any, *, progress: Progress = SILENT) -> Labelled:
    """Texts and labels; rows without a text are left out, and a message names them."""
    contents = checked_contents(with_blanks(X))
    has_columns = isinstance(y, np.ndarray) and y.ndim == 2
    num_labels = len(y) if has_columns or isinstance(y, str) else len(values_of(y))
    if len(contents) != num_labels and column_names(y) is None and not isinstance(y, str):
        raise DataError(
            f"There are {len(contents):,} texts and {num_labels:,} labels.",
            "Each text needs one label.",
            remedy="Check X and y.",
        )
    firsts = [content if isinstance(content, str) else content[0] for content in contents]
    examples = [Example(text, "", SOURCE, row) for row, text in enumerate(firsts, start=1)]
    rows = [example.row for example in with_text(examples, progress=progress)]
    if examples and not rows:
        raise DataError(
            f"All {len(examples):,} texts are empty.",
            "X holds texts.",
            remedy="Check that it is the column of texts.",
        )
    labels = y[[row - 1 for row in rows]] if has_columns else checked_labels(y, rows=rows)
    return Labelled(rows, [contents[row - 1] for row in rows], labels)


def in_memory_examples(labelled: Labelled, *, separator: str | None) -> list[Example]:
    """Examples as a file would hold them: labels are strings, and a `separator` joins sets."""
    return [
        _example(content, answer, row=row, separator=separator)
        for row, content, answer in zip(
            labelled.rows, labelled.contents, labelled.labels, strict=True
        )
    ]


def _example(content: Content, answer: Any, *, row: int, separator: str | None) -> Example:
    is_set = isinstance(answer, set | frozenset | list | tuple)
    if is_set != (separator is not None):
        raise DataError(
            f"Label {row} is {answer!r:.60}, and the run has "
            f"{'one label' if separator is None else 'a set of labels'} per text.",
            remedy="Pass labels as those of the run.",
        )
    text, pair = content if isinstance(content, tuple) else (content, None)
    if separator is None:
        return Example(text, str(answer), SOURCE, row, pair)
    names = tuple(sorted(map(str, answer)))
    return Example(text, separator.join(names), SOURCE, row, pair, labels=names)


def is_missing(value: object) -> bool:
    """None, NaN, and what pandas has for them."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or _is_nan(value)


def read_labelled(
    examples: Any, labels: Any, *, text: Hashable, label: Hashable, data: DataSettings
) -> tuple[Any, Any]:
    """X and y, not checked yet, out of a table, a dict {label: texts}, two lists, or a file."""
    if isinstance(examples, str | Path):
        found = load_examples(examples, data=data)
        given = [e.label if e.labels is None else list(e.labels) for e in found]
        return [example.content for example in found], given
    if column_names(examples) is not None:
        texts = column_of(examples, text, parameter="text")
        return texts, column_of(examples, label, parameter="label") if labels is None else labels
    if isinstance(examples, Mapping):
        if text in examples and label in examples:
            return examples[text], examples[label]
        pairs = [
            (one, name)
            for name, texts in examples.items()
            for one in checked_texts(with_blanks(texts))
        ]
        return [one for one, _ in pairs], [name for _, name in pairs]
    if labels is None:
        raise DataError(
            "There are texts and no labels.",
            "Labels are the second list, or a column of a table.",
            remedy="Pass fit(texts, labels), or a DataFrame, a dict {label: texts}, or a file.",
        )
    return examples, labels


def read_unlabelled(unlabelled: Any, *, text: Hashable, data: DataSettings) -> list[str]:
    """Texts out of a list, Series, table, or files given as paths; without those that are empty."""
    if unlabelled is None:
        return []
    if isinstance(unlabelled, str | Path):
        unlabelled = [Path(unlabelled)]
    if column_names(unlabelled) is not None:
        unlabelled = column_of(unlabelled, text, parameter="unlabelled")
    items: Sequence[Any] = values_of(unlabelled)
    if items and all(isinstance(item, Path) for item in items):
        return [document.text for document in read_documents(items, data=data)]
    texts = [one for one in checked_texts(with_blanks(unlabelled)) if one.strip()]
    if texts and all(len(one) < 256 and _is_file(one) for one in texts):
        raise DataError(
            f"unlabelled holds names of files, such as {texts[0]!r}, as strings.",
            "A list of strings is a list of texts.",
            remedy="Pass pathlib.Path objects to read the files.",
        )
    return texts


def _refuse_table(X: object) -> None:
    """Refuse a table where texts are expected: iterating over it gives the names of columns."""
    names = column_names(X)
    if names is None:
        return
    raise DataError(
        f"X is a table with the columns {_quoted(names)}.",
        "X is one column of texts.",
        remedy=f"Pass the column that holds them, such as X[{_text_column(X)!r}].",
    )


def _text_column(table: Any) -> Any:
    """The column that most likely holds the texts: the one with the longest first strings."""

    def length(name: Any) -> int:
        column = table[name]
        firsts = [] if column_names(column) is not None else values_of(column[:_LOOKED_AT])
        return sum(len(one) for one in firsts if isinstance(one, str))

    return max(column_names(table) or ["text"], key=length)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value


def _index(values: Any, row: int) -> str:
    """` (index 17)` for a row of a pandas Series whose index is not 0, 1, 2, ...; else empty."""
    index = getattr(values, "index", None)
    if index is None or callable(index):  # a list has a method of that name
        return ""
    name = str(index[row - 1])
    return "" if name == str(row - 1) else f" (index {name})"


def _others(values: Sequence[Any]) -> str:
    """`, as are 4 others`, for the values that are missing."""
    others = sum(map(is_missing, values)) - 1
    if not others:
        return ""
    return f", as {'is' if others == 1 else 'are'} {counted(others, 'other')}"


def _quoted(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
