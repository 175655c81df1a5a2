"""What Python callers pass as texts and labels: lists, Series, arrays, DataFrames, dicts, files.

pandas, polars and pyarrow are recognised by what they can do: `columns` and `[name]` are all that
is needed, so none of them is imported.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regraft.config import DataSettings
from regraft.data import Content, load_examples, read_documents
from regraft.errors import DataError


def column_names(value: object) -> list[str] | None:
    """The columns of a DataFrame or Arrow table; None for anything else."""
    if isinstance(value, Mapping) or not hasattr(value, "columns"):
        return None
    names = getattr(value, "column_names", None)
    return [str(name) for name in (value.columns if names is None else names)]


def column_of(table: Any, name: str, *, parameter: str) -> list[Any]:
    """One column of a DataFrame; DataError, naming its columns, if there is no such one."""
    names = column_names(table) or []
    if name not in names:
        raise DataError(
            f"The table has no column {name!r}.",
            f"Its columns are {_quoted(names)}.",
            remedy=f'Pass {parameter}="NAME" with one of them.',
        )
    return values_of(table[name])


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
        return list(checked_texts(items))
    pairs: list[Content] = []
    for row, item in enumerate(items, start=1):
        texts = tuple(item) if isinstance(item, tuple | list) else (item,)
        if len(texts) != 2 or not all(isinstance(text, str) and text.strip() for text in texts):
            raise DataError(
                f"Pair {row} is {item!r:.60}.",
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
    texts: list[str] = []
    for row, text in enumerate(values_of(X), start=1):
        if not isinstance(text, str):
            raise DataError(
                f"Text {row} is of type {type(text).__name__}, not a string: {text!r:.60}.",
                "X is a list of strings.",
                remedy="Pass a list of texts, not an array of numbers.",
            )
        texts.append(text)
    return texts


def checked_labels(y: Any) -> list[Any]:
    """Labels as Python values; DataError for one that is missing."""
    names = column_names(y)
    if names is not None:
        raise DataError(
            f"y is a table with the columns {_quoted(names)}.",
            "Labels are one column.",
            remedy=f"Pass one of them, such as y[{names[0]!r}]." if names else "Pass a list.",
        )
    labels = values_of(y)
    for row, label in enumerate(labels, start=1):
        if is_missing(label):
            raise DataError(
                f"Label {row} is {label!r}.",
                "Every text needs a label.",
                remedy="Fill it in, or pass such texts as unlabelled.",
            )
    return labels


def is_missing(value: object) -> bool:
    """None, NaN, and what pandas has for them."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or _is_nan(value)


def read_labelled(
    examples: Any, labels: Any, *, text: str, label: str, data: DataSettings
) -> tuple[list[Content], list[Any]]:
    """Texts and labels out of a table, a dict {label: texts}, two lists, or a file."""
    if isinstance(examples, str | Path):
        found = load_examples(examples, data=data)
        given = [e.label if e.labels is None else list(e.labels) for e in found]
        return [example.content for example in found], given
    if column_names(examples) is not None:
        given = column_of(examples, label, parameter="label") if labels is None else labels
        texts = column_of(examples, text, parameter="text")
        return checked_contents(texts), checked_labels(given)
    if isinstance(examples, Mapping):
        if text in examples and label in examples:
            return checked_contents(examples[text]), checked_labels(examples[label])
        pairs = [(one, name) for name, texts in examples.items() for one in checked_texts(texts)]
        return [one for one, _ in pairs], checked_labels([name for _, name in pairs])
    if labels is None:
        raise DataError(
            "There are texts and no labels.",
            "Labels are the second list, or a column of a table.",
            remedy="Pass fit(texts, labels), or a DataFrame, a dict {label: texts}, or a file.",
        )
    return checked_contents(examples), checked_labels(labels)


def read_unlabelled(unlabelled: Any, *, text: str, data: DataSettings) -> list[str]:
    """Texts out of a list, Series, table, or files given as paths."""
    if unlabelled is None:
        return []
    if isinstance(unlabelled, str | Path):
        unlabelled = [Path(unlabelled)]
    if column_names(unlabelled) is not None:
        return checked_texts(column_of(unlabelled, text, parameter="text"))
    items: Sequence[Any] = values_of(unlabelled)
    if items and all(isinstance(item, Path) for item in items):
        return [document.text for document in read_documents(items, data=data)]
    texts = checked_texts(items)
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
    likely = next((name for name in ("text", "message", "body") if name in names), None)
    column = likely or (names[0] if names else "text")
    raise DataError(
        f"X is a table with the columns {_quoted(names)}.",
        "X is one column of texts.",
        remedy=f"Pass the column that holds them, such as X[{column!r}].",
    )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
