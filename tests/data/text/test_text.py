"""Labels, checks and stratified draws, and the surface of the package."""

import random
import subprocess
import sys
from collections import Counter

import pytest

from regraft.data.text.records import (
    Example,
    Labels,
    check_labels_known,
    check_trainable,
    labels_of,
    split_examples,
    subset_examples,
)
from regraft.errors import DataError


def make_examples(*labels: str, source: str = "train.csv") -> list[Example]:
    return [Example(f"text {row}", label, source, row) for row, label in enumerate(labels, start=2)]


def test_text_import_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'pyarrow', 'datasketch', 'scipy', 'pydantic'}"
    imports = "import sys, regraft.data.text.readers, regraft.data.corpora"
    code = f"{imports}; print({heavy} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_labels_sort_as_numbers_when_all_are() -> None:
    assert labels_of(make_examples("10", "9", "1")).names == ("1", "9", "10")
    assert labels_of(make_examples("10", "9", "none")).names == ("10", "9", "none")
    # More digits than Python turns into an integer: in the order of strings.
    assert labels_of(make_examples("9" * 5000, "1")).names == ("1", "9" * 5000)


def test_labels_map_both_ways() -> None:
    labels = Labels(("bad", "good"))
    assert labels.target("good") == 1
    assert labels.targets(make_examples("good", "bad", "good")).tolist() == [1, 0, 1]
    assert labels[1] == "good"
    assert len(labels) == 2
    assert "fair" not in labels
    with pytest.raises(DataError, match=r"no label 'fair'\. The labels are 'bad', 'good'\."):
        labels.target("fair")


def test_check_trainable_refuses_one_class() -> None:
    check_trainable(make_examples("a", "b"))
    with pytest.raises(DataError, match=r"train\.csv has only one label, 'a'\. .* two classes"):
        check_trainable(make_examples("a", "a"))
    with pytest.raises(DataError, match="There is no example"):
        check_trainable([])


def test_check_labels_known_names_the_place() -> None:
    labels = labels_of(make_examples("neutral", "good"))
    check_labels_known(make_examples("good"), labels)
    with pytest.raises(DataError) as caught:
        check_labels_known(make_examples("good", "neutal", source="test.csv"), labels)
    assert str(caught.value) == (
        "Labels differ between splits: 'neutal' occurs only in test.csv (row 3). "
        "Training knows 'good', 'neutral'. "
        "Fix the row, or add such examples to the training file."
    )


def test_split_examples_keeps_proportions_and_loses_nothing() -> None:
    examples = make_examples(*["a"] * 60, *["b"] * 30, *["c"] * 10)
    rest, held_out = split_examples(examples, share=0.2, seed=1)
    assert Counter(e.label for e in held_out) == {"a": 12, "b": 6, "c": 2}
    assert sorted(rest + held_out, key=lambda e: e.row) == examples
    assert split_examples(examples, share=0.2, seed=1) == (rest, held_out)
    assert split_examples(examples, share=0.2, seed=2)[1] != held_out


def test_split_examples_leaves_a_single_example_in_the_rest() -> None:
    rest, held_out = split_examples(make_examples("a", "a", "a", "b"), share=0.5, seed=0)
    assert "b" in {example.label for example in rest}
    assert len(held_out) == 2


def test_subset_examples_are_stratified_and_nested() -> None:
    examples = make_examples(*["a"] * 300, *["b"] * 90, *["c"] * 10)
    small = subset_examples(examples, size=40, seed=3)
    large = subset_examples(examples, size=80, seed=3)
    assert set(small) < set(large)
    assert Counter(e.label for e in small) == {"a": 30, "b": 9, "c": 1}
    assert [e.row for e in large] == sorted(e.row for e in large)
    assert subset_examples(examples, size=400, seed=3) == examples
    assert {e.label for e in subset_examples(examples, size=3, seed=3)} == {"a", "b", "c"}


def test_subset_examples_refuses_more_than_there_are() -> None:
    with pytest.raises(DataError, match="Cannot draw 5 of 2 examples"):
        subset_examples(make_examples("a", "b"), size=5, seed=0)


def sets(*names: str) -> list[Example]:
    """Examples whose labels are the letters of each word."""
    return [
        Example(f"text {row}", "|".join(each), "train.csv", row, labels=tuple(each))
        for row, each in enumerate(names, start=2)
    ]


def test_labels_of_sets_are_those_of_all():
    examples = sets("ab", "", "c", "ac")
    labels = labels_of(examples)
    assert labels.names == ("a", "b", "c")
    assert labels.targets(examples).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1]]
    with pytest.raises(DataError, match=r"'d' occurs only in train\.csv \(row 3\)"):
        check_labels_known(sets("a", "ad"), labels)


def test_split_of_sets_leaves_every_label_to_train():
    generator = random.Random(0)
    for seed in range(20):
        names = ["".join(c for c in "abcdef" if generator.random() < 0.3) for _ in range(30)]
        examples = sets(*names, "g", "gh", "h")
        rest, held_out = split_examples(examples, share=0.3, seed=seed)
        assert sorted([*rest, *held_out], key=lambda e: e.row) == examples
        assert set(labels_of(rest)) == set(labels_of(examples))
        assert len(held_out) >= 6
