"""Halves of documents: whose they are, in which group, and that (seed, row) decides it all."""

import numpy as np
import pytest
from conftest import TINY

from regraft.config.resolution import resolve
from regraft.data import contrastive_rows as halves
from regraft.data.contrastive_rows import FEWEST_TOKENS_TO_HALVE, HalfRows
from regraft.data.objective_rows import pretraining_rows
from regraft.data.rows import epoch_order
from regraft.data.tokens.store import TokenStore, offsets_of
from regraft.data.tokens.tokenizer_training import numbered_tokenizer
from regraft.errors import DataError

TOKENIZER = numbered_tokenizer(60_000)
START, END, PAD = TOKENIZER.start_id, TOKENIZER.end_id, TOKENIZER.pad_id
# Three are too short to have two halves; two are longer than two rows of 32.
SIZES = [16, 17, 15, 40, 23, 0, 61, 62, 63, 64, 150, 31, 33, 1, 500, 18, 20, 16, 45, 50, 28]


def store_of(sizes: list[int]) -> TokenStore:
    """Documents of these sizes that have no token in common."""
    ids = iter(range(len(TOKENIZER.special_ids), TOKENIZER.vocab_size))
    framed = [[START, *(next(ids) for _ in range(size)), END] for size in sizes]
    offsets = offsets_of(np.array([len(row) for row in framed]))
    return TokenStore.from_arrays(np.concatenate(framed).astype(np.uint16), offsets, num_bytes=1)


def rows_of(
    sizes: list[int] = SIZES, *, max_length: int = 32, group_size: int = 4, seed: int = 0
) -> HalfRows:
    return HalfRows(
        store_of(sizes),
        tokenizer=TOKENIZER,
        max_length=max_length,
        group_size=group_size,
        seed=seed,
    )


def read_groups(rows: HalfRows) -> list[list[tuple[list[int], list[int]]]]:
    """(first half, second half) of every document, group by group, its layout checked."""
    numbers = np.arange(len(rows.lengths))
    batch = rows.batch(numbers)
    assert (batch.ids_BT[~batch.real_BT] == PAD).all()
    found = [ids[real].tolist() for ids, real in zip(batch.ids_BT, batch.real_BT, strict=True)]
    for half in found:
        assert half[: len(TOKENIZER.prefix_ids)] == list(TOKENIZER.prefix_ids)
        assert len(half) <= 32
    kept = [[token for token in half if token not in TOKENIZER.special_ids] for half in found]
    groups: list[list[tuple[list[int], list[int]]]] = [[] for _ in numbers]
    targets = batch.targets.tolist()
    assert targets[0::2] == targets[1::2]
    for place, first, second in zip(targets[0::2], kept[0::2], kept[1::2], strict=True):
        groups[place].append((first, second))
    return groups


def document_of(token: int, sizes: list[int] = SIZES) -> int:
    ends = len(TOKENIZER.special_ids) + np.cumsum(sizes)
    return int(np.searchsorted(ends, token, side="right"))


def test_every_document_is_in_one_group_unless_it_is_too_short():
    groups = read_groups(rows_of())
    documents = [document_of(first[0]) for group in groups for first, _ in group]
    long_enough = [number for number, size in enumerate(SIZES) if size >= FEWEST_TOKENS_TO_HALVE]
    assert sorted(documents) == long_enough
    assert len(long_enough) == len(SIZES) - 3


def test_halves_follow_each_other_and_share_nothing():
    room = 32 - TOKENIZER.num_framing
    for group in read_groups(rows_of()):
        for first, second in group:
            size = SIZES[document_of(first[0])]
            # No token occurs twice in the text: consecutive ids are consecutive tokens.
            window = first + second
            assert window == list(range(window[0], window[0] + len(window)))
            assert len(window) == min(size, 2 * room)
            assert len(second) - len(first) in (0, 1)


def test_window_of_a_long_document_lies_anywhere_in_it():
    places = set()
    for seed in range(20):
        for group in read_groups(rows_of([500, 40], seed=seed)):
            places |= {first[0] for first, _ in group if document_of(first[0], [500, 40]) == 0}
    first_id, room = len(TOKENIZER.special_ids), 32 - TOKENIZER.num_framing
    assert len(places) > 15
    assert min(places) >= first_id
    assert max(places) <= first_id + 500 - 2 * room
    assert max(places) - min(places) > 200


def test_rows_are_a_pure_function_of_seed_and_number():
    one, same, other = rows_of(), rows_of(), rows_of(seed=1)
    forwards = read_groups(one)
    assert forwards == read_groups(same)
    assert forwards != read_groups(other)
    # A row is the same whatever is beside it, however often it is read, and in any order.
    for number in reversed(range(len(one.lengths))):
        alone = one.batch(np.array([number]))
        together = one.batch(np.array([0, number, number]))
        ids = alone.ids_BT[alone.real_BT]
        for place in (1, 2):
            is_here = together.targets == place
            assert together.ids_BT[is_here][together.real_BT[is_here]].tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("num_documents", "group_size", "expected"),
    [
        (2, 32, [2]),
        (8, 4, [4, 4]),
        (9, 4, [5, 4]),
        (11, 4, [6, 5]),
        (13, 4, [5, 4, 4]),
        (7, 2, [3, 2, 2]),
    ],
)
def test_groups_have_at_least_the_size_asked_for(num_documents, group_size, expected):
    rows = rows_of([20] * num_documents, group_size=group_size)
    assert [len(group) for group in read_groups(rows)] == expected


def test_length_of_a_row_is_the_positions_it_takes():
    rows = rows_of()
    for number, length in enumerate(rows.lengths.tolist()):
        assert rows.batch(np.array([number])).ids_BT.numel() == length


def test_documents_of_a_group_are_of_like_length(monkeypatch):
    sizes = np.random.default_rng(0).permutation(np.arange(16, 62)).tolist()

    def spread(rows: HalfRows) -> float:
        lengths = [[len(a) + len(b) for a, b in group] for group in read_groups(rows)]
        return float(np.mean([max(group) - min(group) for group in lengths]))

    sorted_rows = rows_of(sizes)
    monkeypatch.setattr(halves, "_BUCKET", 1)
    assert spread(sorted_rows) < 0.3 * spread(rows_of(sizes))


@pytest.mark.parametrize(("sizes", "count"), [([], "no documents"), ([90, 15], "1 document")])
def test_too_few_documents_are_refused(sizes, count):
    with pytest.raises(DataError) as caught:
        rows_of([15, *sizes])
    assert str(caught.value) == (
        f"The text holds {count} of 16 tokens or more; contrast needs at least 2. Contrast "
        "matches the halves of a document among those of other documents. Give longer documents "
        "(--documents blank), or take --preset modern --objective masked."
    )


def test_contrast_reads_halves():
    overrides = {**TINY, "model.num_layers": 0, "objective.group_size": 3, "train.steps": 1}
    settings = resolve("pretrain", preset="bag", overrides=overrides)
    rows = pretraining_rows(store_of(SIZES), tokenizer=TOKENIZER, settings=settings)
    assert isinstance(rows, HalfRows)
    (numbers, *_) = epoch_order(rows.lengths, batch_size=2, seed=0, epoch=0)
    batch = rows.batch(numbers)
    assert batch.ids_BT.shape[1] <= 24
    assert batch.targets.tolist() == sorted([0, 1] * 6)
