"""Which labels may an arm see? Nested subsets of the training examples, the same for every arm.

Comes in: the training examples, the numbers of labels asked for, a seed. Goes out: row numbers, the
smaller subset within the larger; and warnings about classes too rare for them. Knows no model.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regraft.errors import ConfigError
from regraft.text import Example, subset_examples

ALL = "all"
# With fewer examples of a class in a subset, what is learned about it is a matter of luck.
FEW_OF_A_CLASS = 5


def parse_sizes(text: str) -> tuple[int | None, ...]:
    """`50,200,all` as numbers, None for all."""
    sizes: list[int | None] = []
    for word in (part.strip().replace("_", "") for part in text.split(",")):
        if word != ALL and not word.isdecimal():
            raise ConfigError(
                f"--labels holds {word!r}.",
                f"It holds numbers of labels between commas, and `{ALL}`.",
                remedy="Write it like 50,200,800,all.",
            )
        sizes.append(None if word == ALL else int(word))
    return tuple(sizes)


def settled_sizes(sizes: Sequence[int | None], *, examples: Sequence[Example]) -> tuple[int, ...]:
    """The numbers of labels in rising order; refuses those that these examples cannot give."""
    num_examples, num_classes = len(examples), len({example.label for example in examples})
    settled = sorted({num_examples if size is None else size for size in sizes})
    if not settled or len(settled) != len(sizes):
        told = ",".join(ALL if size is None else str(size) for size in sizes)
        raise ConfigError(
            f"--labels is {told!r}.",
            f"It holds every number once; all are {num_examples}.",
            remedy="Write it like 50,200,all.",
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
            remedy=f"Begin with {num_classes} or more, better ten of each class.",
        )
    return tuple(settled)


def subset_numbers(examples: Sequence[Example], *, size: int, seed: int) -> NDArray[np.int64]:
    """Row numbers in file order, in the classes' proportions; one of each class at least."""
    if size == len(examples):
        return np.arange(size)
    places = {id(example): number for number, example in enumerate(examples)}
    chosen = subset_examples(examples, size=size, seed=seed)
    return np.array([places[id(example)] for example in chosen], dtype=np.int64)


def rare_classes(examples: Sequence[Example], *, smallest: int, seed: int) -> tuple[str, ...]:
    """A warning where the smallest subset shows a class a few times only."""
    numbers = subset_numbers(examples, size=smallest, seed=seed)
    counts = Counter(examples[number].label for number in numbers)
    rare = sorted((count, label) for label, count in counts.items() if count < FEW_OF_A_CLASS)
    if not rare:
        return ()
    told = ", ".join(f"{count} of {label!r}" for count, label in rare[:5])
    more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
    return (
        f"The smallest subset, {smallest} labels, holds few examples of a class: {told}{more}. "
        "What is learned about it there is luck.",
    )
