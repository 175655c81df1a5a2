"""Nested subsets of the training examples, the same for every arm of a comparison."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regraft.data.text.records import Example, subset_examples
from regraft.errors import ConfigError

ALL = "all"
# With fewer examples of a class in a subset, results for it are mostly chance.
FEW_OF_A_CLASS = 5


def parse_sizes(text: str) -> tuple[int | None, ...]:
    """`50,200,all` as numbers, None for all."""
    sizes: list[int | None] = []
    for word in (part.strip().replace("_", "") for part in text.split(",")):
        if word != ALL and not word.isdecimal():
            raise ConfigError(
                f"--labels contains {word!r}.",
                f"Expected numbers of labels separated by commas, or `{ALL}`.",
                remedy="Write for example --labels 50,200,800,all.",
            )
        sizes.append(None if word == ALL else int(word))
    return tuple(sizes)


def settled_sizes(sizes: Sequence[int | None], *, examples: Sequence[Example]) -> tuple[int, ...]:
    """The numbers of labels in ascending order; refuses those that these examples do not allow."""
    num_examples, num_classes = len(examples), len({example.label for example in examples})
    settled = sorted({num_examples if size is None else size for size in sizes})
    if not settled or len(settled) != len(sizes):
        given = ",".join(ALL if size is None else str(size) for size in sizes)
        raise ConfigError(
            f"--labels is {given!r}.",
            f"Every number occurs once; `{ALL}` is {num_examples}.",
            remedy="Write for example --labels 50,200,all.",
        )
    if settled[-1] > num_examples:
        raise ConfigError(
            f"--labels asks for {settled[-1]:,} of {num_examples:,} training examples.",
            remedy=f"Write `{ALL}`, or smaller numbers.",
        )
    if settled[0] < num_classes:
        raise ConfigError(
            f"--labels asks for {settled[0]} examples of {num_classes} classes.",
            "The smallest subset must have one of each.",
            remedy=f"Start with at least {num_classes}, better ten of each class.",
        )
    return tuple(settled)


def subset_numbers(examples: Sequence[Example], *, size: int, seed: int) -> NDArray[np.int64]:
    """Row numbers in file order, stratified, with at least one of each class."""
    if size == len(examples):
        return np.arange(size)
    places = {id(example): number for number, example in enumerate(examples)}
    chosen = subset_examples(examples, size=size, seed=seed)
    return np.array([places[id(example)] for example in chosen], dtype=np.int64)


def rare_classes(examples: Sequence[Example], *, smallest: int, seed: int) -> tuple[str, ...]:
    """A warning if the smallest subset has few examples of a class."""
    numbers = subset_numbers(examples, size=smallest, seed=seed)
    counts = Counter(examples[number].label for number in numbers)
    rare = sorted((count, label) for label, count in counts.items() if count < FEW_OF_A_CLASS)
    if not rare:
        return ()
    shown = ", ".join(f"{count} of {label!r}" for count, label in rare[:5])
    more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
    return (
        f"The smallest subset, {smallest} labels, has few examples of a class: {shown}{more}. "
        "Results for it are mostly chance.",
    )
