"""Rows hold the right tokens, and their order is a pure function of (seed, epoch)."""

import numpy as np
import pytest
import torch

from regraft.batches import (
    IGNORED,
    DocumentRows,
    ExampleRows,
    StreamRows,
    TokenStore,
    build_token_store,
    epoch_order,
    sorted_batches,
)
from regraft.config import DataSettings, TokenizerSettings
from regraft.errors import DataError
from regraft.text import Document
from regraft.tokenizer import Tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["a good book", "a bad book", "the end of the book"]
    return train_tokenizer(texts, settings=TokenizerSettings(size=280))


def store_of(*documents: list[int]) -> TokenStore:
    lengths = [len(document) for document in documents]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenStore(np.concatenate(documents).astype(np.uint32), offsets, num_bytes=100)


def test_token_store_frames_each_document_and_skips_empty_ones(tokenizer):
    documents = [Document(text, "x", row) for row, text in enumerate(["a book", "  ", "the end"])]
    store = build_token_store(documents, tokenizer=tokenizer)
    assert store.num_documents == 2
    assert store.num_bytes == len("a book") + len("the end")
    for number, text in enumerate(["a book", "the end"]):
        ids = store.ids[store.offsets[number] : store.offsets[number + 1]].tolist()
        assert ids == [tokenizer.start_id, *tokenizer.encode(text), tokenizer.end_id]


def test_token_store_counts_leave_out_start_tokens(tokenizer):
    store = build_token_store([Document("a book", "x", 1)] * 3, tokenizer=tokenizer)
    counts = store.counts(vocab_size=tokenizer.vocab_size)
    assert counts[tokenizer.start_id] == 0
    assert counts[tokenizer.end_id] == 3
    assert counts.sum() == len(store.ids) - 3


def test_token_store_of_nothing_is_refused(tokenizer):
    with pytest.raises(DataError, match="every document is empty"):
        build_token_store([Document(" ", "x", 1)], tokenizer=tokenizer)


def test_token_store_split_parts_whole_documents():
    store = store_of([0, 5, 2], [0, 6, 7, 2], [0, 8, 2], [0, 9, 9, 9, 2])
    rest, held = store.split(share=0.5, seed=1)
    parts = [
        tuple(part.ids[part.offsets[i] : part.offsets[i + 1]])
        for part in (rest, held)
        for i in range(part.num_documents)
    ]
    assert (rest.num_documents, held.num_documents) == (2, 2)
    assert sorted(parts) == [(0, 5, 2), (0, 6, 7, 2), (0, 8, 2), (0, 9, 9, 9, 2)]


def test_fingerprint_sees_a_moved_border():
    assert store_of([0, 1], [2, 3]).fingerprint != store_of([0, 1, 2], [3]).fingerprint


def test_stream_rows_shift_targets_by_one_and_never_pad():
    rows = StreamRows(store_of([0, 4, 5, 2], [0, 6, 7, 8, 2]), max_length=3)
    batch = rows.batch(np.array([0, 1]))
    assert batch.ids_BT.tolist() == [[0, 4, 5], [2, 0, 6]]
    assert batch.targets.tolist() == [[4, 5, 2], [0, 6, 7]]
    assert bool(batch.real_BT.all())
    assert rows.lengths.tolist() == [3, 3]


def test_stream_rows_of_a_short_text_are_one_short_row():
    rows = StreamRows(store_of([0, 4, 2]), max_length=50)
    assert rows.batch(np.array([0])).ids_BT.tolist() == [[0, 4]]


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
    assert padding(sorted_batches(lengths, batch_size=8)) < 0.02
