"""A store reads back what was written, in whole and in views, and says what is wrong with it."""

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from regraft.config.schema import TokenizerSettings
from regraft.data.tokens.encoding import Encoded
from regraft.data.tokens.store import (
    Part,
    StoreFolder,
    StoreInfo,
    TextEnd,
    TokenStore,
    is_store,
    open_store,
    parse_part,
)
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import ConfigError, DataError, RunFolderError

START, END = 0, 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a good book", "a bad book"], settings=TokenizerSettings(size=280))


def make_documents(num_documents: int, *, highest: int = 60_000) -> list[list[int]]:
    random = np.random.default_rng(0)
    lengths = random.integers(0, 7, size=num_documents)
    return [[START, *random.integers(3, highest, size=length).tolist(), END] for length in lengths]


DOCUMENTS = make_documents(23)


def joined(documents: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(documents))


def tokens_of(store: TokenStore) -> list[int]:
    return store.read(0, store.num_tokens).tolist()


def in_memory(documents: list[list[int]], dtype: type = np.uint32) -> TokenStore:
    offsets = np.cumsum([0, *map(len, documents)])
    return TokenStore.from_arrays(
        np.concatenate(documents).astype(dtype), offsets, num_bytes=10 * len(documents)
    )


def write_folder(
    store_dir: Path,
    tokenizer: Tokenizer,
    *,
    documents: list[list[int]] = DOCUMENTS,
    dtype: type = np.uint16,
    part: Part = Part(),  # noqa: B008, a frozen value
) -> StoreFolder:
    """Five documents a shard."""
    folder = StoreFolder(store_dir)
    folder.write_info(
        StoreInfo(tokenizer.fingerprint, tokenizer.vocab_size, "source", {}, shard_bytes=50)
    )
    groups = [documents[i : i + 5] for i in range(0, len(documents), 5)]
    for number, group in enumerate(groups, start=1):
        lengths = np.array([len(document) for document in group])
        encoded = Encoded(np.concatenate(group).astype(dtype), lengths)
        folder.write_shard(number, encoded, num_bytes=10 * len(group))
    folder.write_end(TextEnd(len(groups), len(documents)), part=part)
    return folder


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_store_on_disk_equals_the_one_in_memory(dtype, tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer, dtype=dtype)
    store = open_store(tmp_path, tokenizer=tokenizer)
    expected = in_memory(DOCUMENTS)
    assert store.read(0, 3).dtype == dtype
    assert (store.num_documents, store.num_tokens) == (23, expected.num_tokens)
    assert store.num_bytes == expected.num_bytes
    assert np.array_equal(store.offsets, expected.offsets)
    assert tokens_of(store) == joined(DOCUMENTS)


def test_store_reads_any_range_over_documents_and_shards(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    store = open_store(tmp_path, tokenizer=tokenizer)
    tokens = joined(DOCUMENTS)
    numbers = joined([[number] * len(document) for number, document in enumerate(DOCUMENTS)])
    for start in range(len(tokens)):
        for stop in range(start + 1, len(tokens) + 1, 7):
            assert store.read(start, stop).tolist() == tokens[start:stop]
            assert store.document_numbers(start, stop).tolist() == numbers[start:stop]


def test_store_maps_its_shards_and_copies_nothing(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    ids = open_store(tmp_path, tokenizer=tokenizer).read_shard(0)
    assert not ids.flags.owndata
    assert isinstance(ids.base, np.memmap)


def test_shards_are_plain_safetensors(tmp_path, tokenizer):
    folder = write_folder(tmp_path, tokenizer)
    arrays = load_file(folder.shard_path(2))
    assert arrays["ids"].tolist() == joined(DOCUMENTS[5:10])
    assert np.diff(arrays["offsets"]).tolist() == [len(document) for document in DOCUMENTS[5:10]]


def test_split_parts_whole_documents_in_order(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    for store in (in_memory(DOCUMENTS), open_store(tmp_path, tokenizer=tokenizer)):
        rest, held = store.split(share=0.3, seed=1)
        order = np.random.default_rng(1).permutation(23)
        chosen = [sorted(order[7:]), sorted(order[:7])]
        for view, numbers in zip((rest, held), chosen, strict=True):
            documents = [DOCUMENTS[number] for number in numbers]
            eager = in_memory(documents)
            assert view.num_documents == len(documents)
            assert np.array_equal(view.offsets, eager.offsets)
            assert tokens_of(view) == joined(documents)
            assert view.read(3, 31).tolist() == eager.read(3, 31).tolist()
            assert np.array_equal(view.document_numbers(3, 31), eager.document_numbers(3, 31))
        assert rest.num_bytes + held.num_bytes == pytest.approx(store.num_bytes, abs=1)


def test_split_of_a_split_is_a_view_too():
    rest, _ = in_memory(DOCUMENTS).split(share=0.3, seed=1)
    smaller, _ = rest.split(share=0.5, seed=2)
    documents = np.split(np.array(tokens_of(rest)), rest.offsets[1:-1])
    eager, _ = in_memory([document.tolist() for document in documents]).split(share=0.5, seed=2)
    assert tokens_of(smaller) == tokens_of(eager)


def test_counts_leave_out_start_tokens_block_by_block(monkeypatch, tmp_path, tokenizer):
    monkeypatch.setattr("regraft.data.tokens.store._COUNT_BLOCK", 8)
    write_folder(tmp_path, tokenizer)
    rest, _ = open_store(tmp_path, tokenizer=tokenizer).split(share=0.3, seed=1)
    counts = rest.counts(vocab_size=60_000)
    tokens = tokens_of(rest)
    assert counts[START] == 0
    assert counts[END] == rest.num_documents
    assert all(counts[token] == tokens.count(token) for token in set(tokens) - {START})


def counted_pairs(documents: list[list[int]]) -> Counter[tuple[int, int]]:
    return Counter(pair for document in documents for pair in itertools.pairwise(document))


@pytest.mark.parametrize("block", [1, 7, 8, 1000])
def test_frequent_pairs_are_those_of_a_plain_counter(block, monkeypatch):
    monkeypatch.setattr("regraft.data.tokens.store._COUNT_BLOCK", block)
    documents = make_documents(200, highest=9)
    store = in_memory(documents)
    expected = counted_pairs(documents)
    # The end of a document and the start of the next are no neighbours.
    assert (END, START) not in expected
    for num_pairs, min_count in ((1000, 1), (1000, 9), (10, 1), (10, 15), (1000, 10**6)):
        found = store.frequent_pairs(num_pairs=num_pairs, min_count=min_count)
        frequent = sorted(expected.items(), key=lambda item: (-item[1], item[0]))[:num_pairs]
        wanted = [list(pair) for pair, count in frequent if count >= min_count]
        assert found.tolist() == wanted
        assert found.shape == (len(wanted), 2)


def test_frequent_pairs_are_of_large_ids_and_of_a_view():
    documents = [[START, 1_000_000_000, 2_000_000_000, END], [START, 5, 6, END]] * 6
    rest, _ = in_memory(documents).split(share=0.25, seed=0)
    order = np.random.default_rng(0).permutation(12)
    expected = counted_pairs([documents[number] for number in order[3:]])
    found = rest.frequent_pairs(num_pairs=99, min_count=1)
    assert {tuple(pair) for pair in found.tolist()} == set(expected)


def test_frequent_pairs_forget_the_rare_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("regraft.data.tokens.store._COUNT_BLOCK", 8)
    monkeypatch.setattr("regraft.data.tokens.store._MOST_PAIRS", 40)
    documents = [[START, 5, 6, number, number + 1, END] for number in range(100, 300)]
    found = in_memory(documents).frequent_pairs(num_pairs=99, min_count=5)
    assert found.tolist() == [[START, 5], [5, 6]]


def test_fingerprint_tells_tokens_borders_and_views_apart(tmp_path, tokenizer):
    write_folder(tmp_path / "a", tokenizer)
    write_folder(tmp_path / "b", tokenizer)
    write_folder(tmp_path / "c", tokenizer, documents=[[0, 9, 2], *DOCUMENTS[1:]])
    one, same, other = (open_store(tmp_path / name, tokenizer=tokenizer) for name in "abc")
    assert one.fingerprint == same.fingerprint
    parts = [*one.split(share=0.5, seed=0), *one.split(share=0.5, seed=1)]
    assert len({store.fingerprint for store in [one, other, *parts]}) == 6
    assert in_memory([[0, 1], [2, 3]]).fingerprint != in_memory([[0, 1, 2], [3]]).fingerprint


def test_part_has_every_nth_shard():
    parts = [Part(number, 3) for number in (1, 2, 3)]
    owners = [[part.number for part in parts if part.has(shard)] for shard in range(1, 8)]
    assert owners == [[1], [2], [3], [1], [2], [3], [1]]
    assert parse_part("2/3") == Part(2, 3)


@pytest.mark.parametrize("text", ["5/4", "0/4", "x", "1/", "1/2/3", "-1/4", "1.5/4", ""])
def test_part_that_does_not_exist_is_refused(text):
    with pytest.raises(ConfigError, match=r"i/n is the i-th of n jobs.*--shard 1/4") as caught:
        parse_part(text)
    assert repr(text) in str(caught.value)


def test_store_is_known_by_its_file(tmp_path, tokenizer):
    assert not is_store(tmp_path)
    assert not is_store(tmp_path / "missing")
    write_folder(tmp_path, tokenizer)
    assert is_store(tmp_path)
    assert is_store(str(tmp_path))


def test_missing_shard_is_named_with_the_job_that_writes_it(tmp_path, tokenizer):
    folder = write_folder(tmp_path, tokenizer, part=Part(1, 2))
    folder.shard_path(4).unlink()
    with pytest.raises(DataError, match=r"Shard 4 of 5 is missing .* with --shard 2/2\."):
        open_store(tmp_path, tokenizer=tokenizer)
    folder.shard_path(2).unlink()
    with pytest.raises(DataError, match=r"Shard 2 of 5 and 1 more are missing"):
        open_store(tmp_path, tokenizer=tokenizer)


def test_store_without_an_end_is_refused(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    (tmp_path / "part-1-of-1.json").unlink()
    with pytest.raises(DataError, match=r"not complete"):
        open_store(tmp_path, tokenizer=tokenizer)


@pytest.mark.parametrize("size", [0, 5, 40, -1])
def test_truncated_shard_is_refused(size, tmp_path, tokenizer):
    path = write_folder(tmp_path, tokenizer).shard_path(3)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(
        DataError, match=r"shard-00003.safetensors is damaged: .*tokenize"
    ) as caught:
        open_store(tmp_path, tokenizer=tokenizer)
    if size == -1:
        assert "bytes instead of" in str(caught.value)


def test_flipped_bit_is_found_when_all_is_read(tmp_path, tokenizer):
    folder = write_folder(tmp_path, tokenizer)
    data = bytearray(folder.shard_path(3).read_bytes())
    data[-3] ^= 1
    folder.shard_path(3).write_bytes(data)
    assert not folder.read_shard(3).is_sound()
    assert folder.read_shard(2).is_sound()


def test_store_of_another_tokenizer_is_refused(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    other = train_tokenizer(["other words here"], settings=TokenizerSettings(size=270))
    with pytest.raises(DataError, match=r"another tokenizer, of \d+ tokens.*--tokenizer"):
        open_store(tmp_path, tokenizer=other)


def test_store_of_a_newer_format_is_refused(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    values = json.loads((tmp_path / "store.json").read_text())
    values |= {"format_version": 2, "unheard_of": True}
    (tmp_path / "store.json").write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match="format_version 2"):
        open_store(tmp_path, tokenizer=tokenizer)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": 1}'])
def test_damaged_store_file_is_refused(text, tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(DataError, match=r"store.json is damaged"):
        open_store(tmp_path, tokenizer=tokenizer)


def test_damaged_end_is_refused(tmp_path, tokenizer):
    write_folder(tmp_path, tokenizer)
    (tmp_path / "part-1-of-1.json").write_text('{"num_shards": 5}')
    with pytest.raises(DataError, match=r"part-1-of-1.json is damaged.*Remove it"):
        open_store(tmp_path, tokenizer=tokenizer)


def test_folder_without_a_store_is_refused(tmp_path, tokenizer):
    with pytest.raises(DataError, match=r"is not a token store"):
        open_store(tmp_path, tokenizer=tokenizer)
