"""Subsets of the labels: nested, in proportion, the same for every arm."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.data.subsets import parse_sizes, rare_classes, settled_sizes, subset_numbers
from regraft.data.text.records import Example
from regraft.errors import ConfigError


def examples(**counts: int) -> list[Example]:
    labels = [label for label, count in counts.items() for _ in range(count)]
    return [Example(f"text {row}", label, "train.csv", row) for row, label in enumerate(labels, 2)]


@given(
    seed=st.integers(0, 5),
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    data=st.data(),
)
def test_smaller_subset_lies_in_the_larger(
    seed: int, counts: list[int], data: st.DataObject
) -> None:
    made = examples(**{f"class{number}": count for number, count in enumerate(counts)})
    few, many = sorted(
        data.draw(st.lists(st.integers(len(counts), len(made)), min_size=2, max_size=2))
    )
    smaller, larger = (subset_numbers(made, size=size, seed=seed) for size in (few, many))
    assert len(smaller) == few
    assert set(smaller) <= set(larger)
    assert (np.diff(larger) > 0).all()
    # One of each class at least, so that every arm knows all labels.
    assert len({made[number].label for number in smaller}) == len(counts)


def test_classes_keep_their_proportions() -> None:
    made = examples(a=300, b=100)
    numbers = subset_numbers(made, size=40, seed=1)
    assert Counter(made[number].label for number in numbers) == {"a": 30, "b": 10}


def test_all_are_all_in_order() -> None:
    made = examples(a=5, b=5)
    assert subset_numbers(made, size=10, seed=3).tolist() == list(range(10))


def test_subset_depends_on_the_seed() -> None:
    made = examples(a=50, b=50)
    one, other = (subset_numbers(made, size=20, seed=seed).tolist() for seed in (0, 1))
    assert one != other


def test_sizes_are_read_and_put_in_order() -> None:
    assert parse_sizes("50, 1_600,all") == (50, 1600, None)
    assert settled_sizes((None, 4, 8), examples=examples(a=8, b=8)) == (4, 8, 16)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ((4, 4), "--labels is '4,4'."),
        ((16, None), "--labels is '16,all'."),
        ((), "--labels is ''."),
        ((17,), "--labels asks for 17 of 16 training examples."),
        ((1, None), "--labels asks for 1 examples of 2 classes."),
    ],
)
def test_wrong_sizes_are_refused(sizes: tuple[int | None, ...], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settled_sizes(sizes, examples=examples(a=8, b=8))
    assert caught.value.problem == problem


@pytest.mark.parametrize("text", ["", "50,", "fifty", "-4", "1.5"])
def test_sizes_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--labels contains"):
        parse_sizes(text)


def test_class_too_rare_for_the_smallest_subset_is_told() -> None:
    made = examples(common=97, rare=3)
    assert rare_classes(made, smallest=20, seed=0) == (
        "The smallest subset, 20 labels, has few examples of a class: 1 of 'rare'. "
        "Results for it are mostly chance.",
    )
    assert rare_classes(examples(a=50, b=50), smallest=20, seed=0) == ()
