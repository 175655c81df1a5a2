"""Rows hold the right tokens, and their order is a pure function of (seed, epoch)."""

import itertools

import numpy as np
import pytest
import torch

from regraft.config.schema import DataSettings, TokenizerSettings
from regraft.data.rows import (
    IGNORED,
    Batch,
    DocumentRows,
    ExampleRows,
    IsolatedRows,
    StreamRows,
    budget_batches,
    epoch_order,
    text_rows,
)
from regraft.data.tokens.store import TokenStore
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["a good book", "a bad book", "the end of the book"]
    return train_tokenizer(texts, settings=TokenizerSettings(size=280))


def store_of(*documents: list[int]) -> TokenStore:
    lengths = [len(document) for document in documents]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.concatenate(documents).astype(np.uint32)
    return TokenStore.from_arrays(ids, offsets, num_bytes=100)


def test_stream_rows_shift_targets_by_one_and_never_pad():
    rows = StreamRows(store_of([0, 4, 5, 2], [0, 6, 7, 8, 2]), max_length=3)
    batch = rows.batch(np.array([0, 1]))
    assert batch.ids_BT.tolist() == [[0, 4, 5], [2, 0, 6]]
    assert batch.targets.tolist() == [[4, 5, 2], [IGNORED, 6, 7]]
    assert bool(batch.real_BT.all())
    assert rows.lengths.tolist() == [3, 3]


def test_stream_rows_of_a_short_text_are_one_short_row():
    rows = StreamRows(store_of([0, 4, 2]), max_length=50)
    assert rows.batch(np.array([0])).ids_BT.tolist() == [[0, 4]]


def test_rows_of_a_view_are_rows_of_its_documents():
    store = store_of([0, 5, 2], [0, 6, 7, 2], [0, 8, 2], [0, 9, 9, 9, 2])
    rest, _ = store.split(share=0.5, seed=1)
    alone = store_of(*np.split(rest.read(0, rest.num_tokens), rest.offsets[1:-1]))
    for build in (StreamRows, IsolatedRows):
        rows, expected = build(rest, max_length=3), build(alone, max_length=3)
        numbers = np.arange(len(rows.lengths))
        batch, other = rows.batch(numbers), expected.batch(numbers)
        assert torch.equal(batch.ids_BT, other.ids_BT)
        assert torch.equal(batch.targets, other.targets)


def test_isolated_rows_number_the_documents_of_a_row():
    store = store_of([0, 4, 2], [0, 5, 2], [0, 6, 7, 8, 2])
    rows = IsolatedRows(store, max_length=5)
    stream = StreamRows(store, max_length=5)
    batch = rows.batch(np.array([1, 0]))
    assert torch.equal(batch.ids_BT, stream.batch(np.array([1, 0])).ids_BT)
    assert batch.ids_BT.tolist() == [[2, 0, 6, 7, 8], [0, 4, 2, 0, 5]]
    assert batch.segments_BT is not None
    assert batch.segments_BT.tolist() == [[0, 1, 1, 1, 1], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("build", [StreamRows, IsolatedRows])
def test_rows_predict_no_start_of_a_document(build):
    store = store_of([0, 4, 2], [0, 5, 2], [0, 6, 7, 8, 2])
    batch = build(store, max_length=5).batch(np.array([0, 1]))
    assert batch.targets.tolist() == [[4, 2, IGNORED, 5, 2], [IGNORED, 6, 7, 8, 2]]


@pytest.mark.parametrize(
    ("packing", "kind"),
    [("stream", StreamRows), ("isolated", IsolatedRows), ("document", DocumentRows)],
)
def test_packing_is_the_setting(packing, kind, tokenizer):
    data = DataSettings(packing=packing, max_length=8)
    rows = text_rows(store_of([0, 4, 2]), tokenizer=tokenizer, data=data)
    assert type(rows) is kind


def test_batch_moves_with_its_segments():
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), ids, ids % 2)
    moved = batch.to(torch.device("meta"))
    assert moved.segments_BT is not None
    assert {moved.ids_BT.device.type, moved.segments_BT.device.type} == {"meta"}
    assert Batch(ids, ids > 0, ids).to(torch.device("cpu")).segments_BT is None


def test_document_rows_are_the_labs():
    rows = DocumentRows(store_of([0, 4, 5, 6, 2], [0, 7, 2]), max_length=4, pad_id=1)
    batch = rows.batch(np.array([0, 1]))
    assert batch.ids_BT.tolist() == [[0, 4, 5, 6], [0, 7, 1, 1]]
    assert batch.targets.tolist() == [[4, 5, 6, 2], [7, 2, IGNORED, IGNORED]]
    assert batch.real_BT.tolist() == [[True] * 4, [True, True, False, False]]


def test_document_rows_are_cut_to_length():
    rows = DocumentRows(store_of([0, 4, 5, 6, 2]), max_length=2, pad_id=1)
    batch = rows.batch(np.array([0]))
    assert (batch.ids_BT.tolist(), batch.targets.tolist()) == ([[0, 4]], [[4, 5]])


def test_example_rows_cut_and_count(tokenizer):
    data = DataSettings(max_length=8)
    texts = ["a", "the end of the book " * 5]
    rows = ExampleRows(texts, targets=[1, 0], tokenizer=tokenizer, data=data)
    batch = rows.batch(np.array([1, 0]))
    assert rows.num_cut == 1
    assert batch.targets.tolist() == [0, 1]
    assert batch.ids_BT.shape == (2, 8)
    assert (batch.ids_BT[:, 0] == tokenizer.start_id).all()
    assert batch.real_BT.sum(dim=1).tolist() == [8, 1 + len(tokenizer.encode("a"))]
    assert torch.equal(batch.ids_BT == tokenizer.pad_id, ~batch.real_BT)


def test_epoch_order_is_pure_and_complete():
    lengths = np.random.default_rng(0).integers(1, 99, size=103)
    one = epoch_order(lengths, batch_size=4, seed=5, epoch=2)
    two = epoch_order(lengths, batch_size=4, seed=5, epoch=2)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert sorted(np.concatenate(one)) == list(range(103))
    assert len(one) == 26
    other = epoch_order(lengths, batch_size=4, seed=5, epoch=3)
    assert not np.array_equal(np.concatenate(one), np.concatenate(other))


def test_epoch_order_puts_like_lengths_together():
    lengths = np.random.default_rng(0).integers(1, 500, size=640)

    def padding(batches: list[np.ndarray]) -> float:
        read = sum(lengths[batch].max() * len(batch) for batch in batches)
        return 1 - lengths.sum() / read

    shuffled = np.random.default_rng(1).permutation(640).reshape(-1, 8)
    assert (
        padding(epoch_order(lengths, batch_size=8, seed=0, epoch=0)) < padding(list(shuffled)) / 3
    )
    by_budget = budget_batches(lengths, numbers=np.arange(len(lengths)), max_tokens=400)
    assert padding(by_budget) < 0.03


def test_budget_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 99, size=103)
    numbers = np.random.default_rng(1).permutation(103)[:70]
    groups = budget_batches(lengths, numbers=numbers, max_tokens=400)
    assert sorted(np.concatenate(groups)) == sorted(numbers)
    assert all(lengths[group].max() * len(group) <= 400 for group in groups)
    longest = [int(lengths[group].max()) for group in groups]
    assert longest == sorted(longest, reverse=True)
    # No group could take the longest row of the next.
    for group, rest in itertools.pairwise(groups):
        assert lengths[group].max() * (len(group) + 1) > 400
        assert lengths[group].min() >= lengths[rest].max()


def test_budget_batches_leave_a_row_above_the_budget_alone():
    lengths = np.array([3, 50, 2, 3])
    groups = budget_batches(lengths, numbers=np.arange(4), max_tokens=9)
    assert [group.tolist() for group in groups] == [[1], [0, 2, 3]]


def test_budget_batches_keep_the_order_of_what_fits():
    lengths = np.array([3, 5, 4])
    groups = budget_batches(lengths, numbers=np.array([2, 0, 1]), max_tokens=15)
    assert [group.tolist() for group in groups] == [[2, 0, 1]]
