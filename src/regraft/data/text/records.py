"""Documents, examples and labels; stratified splits and subsets.

Every record carries its source and row, so that errors can name the place.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from regraft.errors import DataError
from regraft.runtime import fingerprint

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Share of the training examples that is held out when no valid file is given.
VALID_SHARE = 0.15

# What a classifier reads at once: a text, or two of them in this order.
Content = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Document:
    """Text without a label. `row` is its row in a table, as a spreadsheet shows it, or its line.

    `pair` is a second text that belongs to it, where the task is about two.
    """

    text: str
    source: str
    row: int
    pair: str | None = None

    @property
    def content(self) -> Content:
        """The text or pair that a classifier reads."""
        return self.text if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True, slots=True)
class Example:
    """Text with a label. `row` is its row in a table, as a spreadsheet shows it, or its line.

    `pair` is the second text of a sentence pair. `labels` are all labels of a multi-label example;
    `label` is then how the file writes them. `id` is how the file names the example, if it does.
    """

    text: str
    label: str
    source: str
    row: int
    pair: str | None = None
    labels: tuple[str, ...] | None = None
    id: str = ""

    @property
    def place(self) -> str:
        """`row 17`; in a folder, where each example is a file and has its name as id, the name."""
        is_file = bool(self.id) and self.source.endswith(self.id)
        return self.id if is_file else f"row {self.row}"

    @property
    def names(self) -> tuple[str, ...]:
        """The classes it belongs to: one, unless there may be any number."""
        return (self.label,) if self.labels is None else self.labels

    @property
    def content(self) -> Content:
        """The text or pair that a classifier reads."""
        return self.text if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class Labels:
    """The names of the classes in order; a class's place is its target."""

    names: tuple[str, ...]

    @cached_property
    def _targets(self) -> dict[str, int]:
        return {name: target for target, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, target: int) -> str:
        return self.names[target]

    def __contains__(self, label: object) -> bool:
        return label in self._targets

    def target(self, label: str) -> int:
        """The integer a model learns for a label."""
        if label not in self._targets:
            raise DataError(
                f"There is no label {label!r}.",
                f"The labels are {_quoted(self.names)}.",
                remedy="Use one of these.",
            )
        return self._targets[label]

    def targets(self, examples: Sequence[Example]) -> "NDArray[np.int64]":
        """The targets of examples, in order.

        For multi-label examples an array N x C of 0 and 1.
        """
        import numpy as np

        if all(example.labels is None for example in examples):
            return np.array([self.target(example.label) for example in examples], dtype=np.int64)
        targets_NC = np.zeros((len(examples), len(self)), dtype=np.int64)
        for row, example in enumerate(examples):
            targets_NC[row, [self.target(name) for name in example.names]] = 1
        return targets_NC


def labels_of(examples: Sequence[Example]) -> Labels:
    """The labels that occur, sorted; as numbers if all of them are whole numbers."""
    names = {name for example in examples for name in example.names}
    # Python refuses to convert thousands of digits into an integer.
    if all(_WHOLE_NUMBER.fullmatch(name) and len(name) <= _LONGEST_NUMBER for name in names):
        return Labels(tuple(sorted(names, key=lambda name: (int(name), name))))
    return Labels(tuple(sorted(names)))


def check_class_labels(examples: Sequence[Example]) -> None:
    """Refuse a column of floats: every label a number, and at least one not a whole number."""
    if not examples or not all(_NUMBER.fullmatch(example.label) for example in examples):
        return
    fraction = next((e for e in examples if not _WHOLE_NUMBER.fullmatch(e.label)), None)
    if fraction is not None:
        raise DataError(
            f"The labels of {fraction.source} are floats, such as {fraction.label!r} "
            f"(row {fraction.row}).",
            "Labels are classes: names or whole numbers.",
            remedy="Bin or rename the values, or pass --label-column with the column of classes.",
        )


def check_trainable(examples: Sequence[Example]) -> None:
    """Raise DataError if there are fewer than two labels."""
    names = {name for example in examples for name in example.names}
    if len(names) < 2:
        nothing = "no label" if examples else "no example"
        found = f"only one label, {names.pop()!r}" if names else nothing
        place = f"{examples[0].source} has" if examples else "There is"
        raise DataError(
            f"{place} {found}.",
            "A classifier needs at least two classes.",
            remedy="Add examples of another class, or name another column with --label-column; in "
            "Python, label=NAME.",
        )


def check_labels_known(examples: Sequence[Example], labels: Labels) -> None:
    """Raise DataError if a split has a label that the training split does not have."""
    for example in examples:
        unknown = next((name for name in example.names if name not in labels), None)
        if unknown is None:
            continue
        raise DataError(
            f"Labels differ between splits: {unknown!r} occurs only in "
            f"{example.source} (row {example.row}).",
            f"Training knows {_quoted(labels.names)}.",
            remedy="Fix the row, or add such examples to the training file.",
        )


def split_examples(
    examples: Sequence[Example], *, share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """(rest, held out), each in file order, stratified.

    A class with a single example stays in the rest, so that training knows every label.
    """
    strata = _strata(examples)
    counts = Counter(strata)
    order = [
        index
        for index in _stratified_order(examples, seed=seed, stream="split")
        if counts[strata[index]] > 1
    ]
    held_out = set(order[: round(share * len(examples))])
    # With several labels, all examples of a rare one may be held out: they return to the rest.
    known = {n for index, e in enumerate(examples) if index not in held_out for n in e.names}
    held_out = {index for index in held_out if known.issuperset(examples[index].names)}
    rest = [example for index, example in enumerate(examples) if index not in held_out]
    return rest, [example for index, example in enumerate(examples) if index in held_out]


def examples_fingerprint(examples: Sequence[Example]) -> str:
    """A hash of texts and labels in order."""
    parts = ((e.text, e.label) if e.pair is None else (e.text, e.pair, e.label) for e in examples)
    return fingerprint(part for example in parts for part in example)


def subset_examples(examples: Sequence[Example], *, size: int, seed: int) -> list[Example]:
    """`size` examples in file order, stratified; smaller subsets are part of larger ones."""
    if not 0 < size <= len(examples):
        raise DataError(
            f"Cannot draw {size} of {len(examples)} examples.",
            f"A subset has 1 to {len(examples)}.",
            remedy="Draw fewer examples.",
        )
    order = _stratified_order(examples, seed=seed, stream="subset")
    return [examples[index] for index in sorted(order[:size])]


def _stratified_order(examples: Sequence[Example], *, seed: int, stream: str) -> list[int]:
    """An order in which every prefix is stratified: one of each class, then evenly spread."""
    indices_by_label: dict[str, list[int]] = {}
    for index, stratum in enumerate(_strata(examples)):
        indices_by_label.setdefault(stratum, []).append(index)
    ranked: list[tuple[float, int, str, int]] = []
    for label, indices in sorted(indices_by_label.items()):
        # One generator per label: more examples of one class do not change the others' order.
        random.Random(f"{seed}:{stream}:{label}").shuffle(indices)
        for place, index in enumerate(indices):
            rank = (place + 0.5) / len(indices) if place else 0.0
            ranked.append((rank, -len(indices), label, index))
    return [index for *_, index in sorted(ranked)]


def _strata(examples: Sequence[Example]) -> list[str]:
    """The stratum of each example: its label, or the rarest of several."""
    counts = Counter(name for example in examples for name in example.names)
    return [min(e.names, key=lambda name: (counts[name], name), default="") for e in examples]


def _quoted(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_LONGEST_NUMBER = 20
_NUMBER = re.compile(r"(?i)[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)")
