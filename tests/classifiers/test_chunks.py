"""Items of chunks are looked up, in any number of tables, and come back text by text."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from regraft.classifiers import chunks as module
from regraft.classifiers.chunks import Chunks

TEXTS = ["ab c", "", "c c ab\n\u00a0dd", "ab"]


def lengths(chunks: Sequence[str]) -> list[list[int]]:
    return [[len(chunk)] for chunk in chunks]


def letters(chunks: Sequence[str]) -> list[list[int]]:
    return [[ord(letter) for letter in chunk if letter != "c"] for chunk in chunks]


def expected(items_of, texts: Sequence[str]) -> list[list[int]]:
    return [[item for row in items_of(text.split()) for item in row] for text in texts]


@pytest.mark.parametrize("most", [1, 500_000])
def test_items_are_those_of_all_chunks_of_a_text(monkeypatch, most):
    monkeypatch.setattr(module, "_MOST_CHUNKS", most)
    chunks = Chunks(lengths, letters)
    for texts in (TEXTS, ["zz ab"], TEXTS[::-1], []):
        cut = chunks.cut(texts)
        for table, items_of in enumerate((lengths, letters)):
            items_T, num_items_N = cut.items(table)
            rows = np.split(items_T, np.cumsum(num_items_N)[:-1]) if texts else []
            assert [row.tolist() for row in rows] == expected(items_of, texts)


def test_a_chunk_is_asked_for_once():
    asked: list[str] = []

    def items_of(chunks: Sequence[str]) -> list[list[int]]:
        asked.extend(chunks)
        return lengths(chunks)

    chunks = Chunks(items_of)
    for _ in range(2):
        chunks.cut(TEXTS)
    assert asked == ["ab", "c", "dd"]


def test_earlier_cuts_stay_as_they_are():
    chunks = Chunks(letters)
    first = chunks.cut(TEXTS)
    before = first.items(0)[0].copy()
    for number in range(200):
        chunks.cut([f"x{number} y{number}"])
    assert (first.items(0)[0] == before).all()


def test_another_process_gets_empty_tables():
    chunks = Chunks(lengths)
    chunks.cut(TEXTS)
    copied = pickle.loads(pickle.dumps(chunks))
    assert len(copied._numbers) == 0
    assert copied.cut(TEXTS).items(0)[0].tolist() == chunks.cut(TEXTS).items(0)[0].tolist()
