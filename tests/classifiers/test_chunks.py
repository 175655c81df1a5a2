"""Items of chunks are looked up, in any number of tables, and come back text by text."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.classifiers import chunks as module
from regraft.classifiers.chunks import Chunks, Keys, Ragged

TEXTS = ["ab c", "", "c c ab\n\u00a0dd", "ab"]


def lengths(chunks: Sequence[str]) -> Ragged:
    return Ragged.of([[len(chunk)] for chunk in chunks])


def letters(chunks: Sequence[str]) -> Ragged:
    return Ragged.of([[ord(letter) for letter in chunk if letter != "c"] for chunk in chunks])


def expected(items_of, texts: Sequence[str]) -> list[list[int]]:
    return [items_of(text.split()).values_T.tolist() for text in texts]


@pytest.mark.parametrize("most", [1, 500_000])
def test_items_are_those_of_all_chunks_of_a_text(monkeypatch, most):
    monkeypatch.setattr(module, "_MOST_CHUNKS", most)
    chunks = Chunks(lengths, letters)
    for texts in (TEXTS, ["zz ab"], TEXTS[::-1], []):
        cut = chunks.cut(texts)
        for table, items_of in enumerate((lengths, letters)):
            items = cut.items(table)
            rows = np.split(items.values_T, np.cumsum(items.lengths_N)[:-1]) if texts else []
            assert [row.tolist() for row in rows] == expected(items_of, texts)


def test_a_chunk_is_asked_for_once():
    asked: list[str] = []

    def items_of(chunks: Sequence[str]) -> Ragged:
        asked.extend(chunks)
        return lengths(chunks)

    chunks = Chunks(items_of)
    for _ in range(2):
        chunks.cut(TEXTS)
    assert asked == ["ab", "c", "dd"]


def test_earlier_cuts_stay_as_they_are():
    chunks = Chunks(letters)
    first = chunks.cut(TEXTS)
    before = first.items(0).values_T.copy()
    for number in range(200):
        chunks.cut([f"x{number} y{number}"])
    assert (first.items(0).values_T == before).all()


def test_another_process_gets_empty_tables():
    chunks = Chunks(lengths)
    chunks.cut(TEXTS)
    copied = pickle.loads(pickle.dumps(chunks))
    assert len(copied._numbers) == 0
    assert (
        copied.cut(TEXTS).items(0).values_T.tolist() == chunks.cut(TEXTS).items(0).values_T.tolist()
    )


@given(st.sets(st.integers(0, 2**62)), st.lists(st.integers(0, 2**62)))
@settings(deadline=None)
def test_keys_are_found_where_they_are(keys, others):
    ordered = list(keys)
    table = Keys(np.array(ordered, dtype=np.int64))
    asked = [*ordered[::-1], *others]
    place_of = {key: place for place, key in enumerate(ordered)}
    found = table.places(np.array(asked, dtype=np.int64))
    assert found.tolist() == [place_of.get(key, -1) for key in asked]


def test_many_keys_that_lie_close():
    keys = np.arange(50_000) * 4 + 8
    places = Keys(keys).places(np.arange(keys[-1] + 9))
    assert (np.flatnonzero(places >= 0) == keys).all()
    assert (places[keys] == np.arange(50_000)).all()


def test_batches_are_bounded_by_characters(monkeypatch):
    monkeypatch.setattr(module, "_BATCH_CHARACTERS", 10)
    texts = ["12345", "12345", "1", "12345678901234", "1", "1"]
    found = [(part.start, part.stop) for part in module._batches(texts)]
    assert found == [(0, 2), (2, 3), (3, 4), (4, 6)]
