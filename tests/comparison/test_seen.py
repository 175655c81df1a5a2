"""Every leak is found, and enough is left to decide."""

import numpy as np
import pytest

from regraft.comparison.test_set import Seen, find_seen, leaked
from regraft.data.text.records import Document, Example


def examples(*texts: str, source: str) -> list[Example]:
    return [Example(text, "a", source, row) for row, text in enumerate(texts, start=2)]


def test_texts_seen_too_early_are_found() -> None:
    long = " ".join(f"word{number}" for number in range(40))
    seen = find_seen(
        examples("one", "two", "three", "two ", "four", source="test.csv"),
        train=examples("one", long, source="train.csv"),
        valid=examples(f"{long} Indeed.", "three", source="valid.csv"),
        documents=iter([Document("four", "text.txt", 1)]),
    )
    assert seen.labelled_N.tolist() == [True, False, True, False, False]
    assert seen.text_N is not None
    assert seen.text_N.tolist() == [False, False, False, False, True]
    assert seen.repeat_N.tolist() == [False, False, False, True, False]
    assert seen.valid_V.tolist() == [True, False]
    assert seen.clean_N.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("num_test", "num_read", "num_deciding"),
    [
        (400, 0, 400),
        (400, 360, 40),  # a tenth is left
        (400, 361, 400),
        (400, 399, 400),
        (400, 400, 400),
        (100, 70, 30),  # more than a tenth, and just enough
        (100, 71, 100),
        (20, 10, 10),  # of a small file, half is enough
        (20, 11, 20),
        (1, 1, 1),
    ],
)
def test_texts_that_were_read_decide_where_too_few_others_are_left(
    num_test: int, num_read: int, num_deciding: int
) -> None:
    is_read_N = np.arange(num_test) < num_read
    none_N = np.zeros(num_test, dtype=np.bool_)
    seen = Seen(("",) * num_test, none_N, is_read_N, none_N, none_N)
    assert seen.clean_N.sum() == num_deciding
    assert seen.num_unread == num_test - num_read
    assert seen.num_read_deciding == (num_read if num_deciding == num_test else 0)


def test_text_that_holds_every_test_text_leaves_them_to_decide() -> None:
    test = examples("one", "two", source="test.csv")
    documents = [Document("one", "text.txt", 1), Document("two", "text.txt", 2)]
    found = find_seen(test, train=examples("x", source="train.csv"), valid=[], documents=documents)
    assert found.clean_N.tolist() == [True, True]


def test_text_with_another_pair_is_no_repeat() -> None:
    pairs = ["it rains", "it snows", "it rains "]
    test = [Example("A day.", "a", "t.csv", row, pair=pair) for row, pair in enumerate(pairs)]
    seen = find_seen(test, train=[], valid=[], documents=None)
    assert seen.repeat_N.tolist() == [False, False, True]


def test_leaks_are_exact_or_near() -> None:
    words = [f"word{number}" for number in range(40)]
    texts = [" ".join(words), " ".join([*words[:-1], "other"]), "nothing of the kind"]
    test = [Example(text, "a", "test.csv", row) for row, text in enumerate(texts, start=2)]
    seen = (Document(text, "text.txt", 1) for text in [" ".join(words), "something else"])
    assert leaked(test, seen).tolist() == [True, True, False]
    assert leaked(test, []).tolist() == [False, False, False]
