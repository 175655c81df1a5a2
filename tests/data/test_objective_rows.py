"""Pairs of sentences: from where, in what order, and that nothing but the text tells them apart."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import tokenizers
from conftest import TINY

from regraft.config.resolution import replace, resolve
from regraft.data import objective_rows as pairs
from regraft.data.objective_rows import (
    BELONGS,
    DOES_NOT,
    FEWEST_TOKENS_TO_PAIR,
    PairRows,
    pretraining_rows,
)
from regraft.data.rows import DocumentRows, IsolatedRows, StreamRows, epoch_order
from regraft.data.tokens.store import TokenStore, offsets_of
from regraft.data.tokens.tokenizer import SPECIAL_TOKENS, Tokenizer
from regraft.data.tokens.tokenizer_training import numbered_tokenizer
from regraft.errors import ConfigError, DataError

VOCAB = 6000
NUM_STOPS = 60
STOP = len(SPECIAL_TOKENS)  # the first of the full stops: every document has its own


def sentence_tokenizer() -> Tokenizer:
    """Special tokens, full stops, and numbers."""
    stops = [f"{number}." for number in range(NUM_STOPS)]
    numbers = [f" {number}" for number in range(STOP + NUM_STOPS, VOCAB)]
    ids = {name: number for number, name in enumerate([*SPECIAL_TOKENS, *stops, *numbers])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    inner.add_special_tokens(list(SPECIAL_TOKENS))
    return Tokenizer(inner, source="made here")


TOKENIZER = sentence_tokenizer()
START, END, SEP = TOKENIZER.start_id, TOKENIZER.end_id, TOKENIZER.separator_id


def corpus(sizes: Sequence[int]) -> list[list[int]]:
    """Documents of these sizes that have no token in common, in sentences of 4 to 9 tokens."""
    documents = []
    new_id = STOP + NUM_STOPS
    for number, size in enumerate(sizes):
        ids = list(range(new_id, new_id + size))
        for place in [*np.cumsum([4, 9, 6, 5] * 99), size]:
            ids[place - 1 : place] = [STOP + number] if 0 < place <= size else []
        documents.append(ids)
        new_id += size
    assert new_id < VOCAB
    return documents


def store_of(documents: Sequence[Sequence[int]]) -> TokenStore:
    framed = [[START, *ids, END] for ids in documents]
    offsets = offsets_of(np.array([len(ids) for ids in framed]))
    return TokenStore.from_arrays(np.concatenate(framed).astype(np.uint16), offsets, num_bytes=1)


def rows_of(
    documents: Sequence[Sequence[int]],
    *,
    kind: Literal["bert", "sop"] = "bert",
    max_length: int = 32,
    seed: int = 0,
    tokenizer: Tokenizer = TOKENIZER,
) -> PairRows:
    store = store_of(documents)
    return PairRows(store, kind=kind, tokenizer=tokenizer, max_length=max_length, seed=seed)


def read_pairs(rows: PairRows) -> list[tuple[list[int], list[int], int]]:
    """(first segment, second segment, target) of every row, its layout checked."""
    batch = rows.batch(np.arange(len(rows.lengths)))
    found = []
    for ids, real, types, target in zip(
        batch.ids_BT, batch.real_BT, batch.token_types_BT, batch.targets.tolist(), strict=True
    ):
        assert (ids[~real] == TOKENIZER.pad_id).all()
        assert (types[~real] == 0).all()
        row, types = ids[real].tolist(), types[real].tolist()
        middle = row.index(SEP)
        assert (row[0], row[-1]) == (START, SEP)
        assert types == [0] * (middle + 1) + [1] * (len(row) - middle - 1)
        first, second = row[1:middle], row[middle + 1 : -1]
        assert first
        assert second
        assert {START, SEP, END, TOKENIZER.pad_id}.isdisjoint(first + second)
        found.append((first, second, target))
    return found


def document_of(segment: list[int], documents: Sequence[Sequence[int]]) -> int:
    """The one document that a segment is from, token by token."""
    (number,) = [n for n, ids in enumerate(documents) if segment[0] in ids]
    document = list(documents[number])
    assert any(document[i : i + len(segment)] == segment for i in range(len(document)))
    return number


SIZES = [8, 9, 15, 29, 30, 31, 64, 100, 7, 12, 0, 250, 1, 20, 33, 40]
DOCUMENTS = corpus(SIZES)


def test_bert_rows_are_half_right_and_half_from_another_document():
    found = [pair for seed in range(5) for pair in read_pairs(rows_of(DOCUMENTS, seed=seed))]
    assert len(found) > 300
    num_wrong = sum(target == DOES_NOT for *_, target in found)
    assert num_wrong == len(found) / 2
    taken_from = set()
    for first, second, target in found:
        if target == BELONGS:
            document_of(first + second, DOCUMENTS)
        else:
            taken_from.add(document_of(second, DOCUMENTS))
            assert document_of(first, DOCUMENTS) != document_of(second, DOCUMENTS)
    assert len(taken_from) > 9


@pytest.mark.parametrize("kind", ["bert", "sop"])
@pytest.mark.parametrize("max_length", [8, 11, 32, 60])
def test_every_token_of_a_document_is_read_once_in_its_place(kind, max_length):
    rows = rows_of(DOCUMENTS, kind=kind, max_length=max_length)
    parts = []
    for first, second, target in read_pairs(rows):
        if target == BELONGS:
            parts.append(first + second)
        elif kind == "sop":
            parts.append(second + first)
    # Rows come in the order of the text.
    text = [token for part in parts for token in part]
    assert text == [
        token for ids in DOCUMENTS if len(ids) >= FEWEST_TOKENS_TO_PAIR for token in ids
    ]


@pytest.mark.parametrize("kind", ["bert", "sop"])
def test_lengths_are_those_of_the_rows_and_never_less(kind):
    for max_length in (8, 11, 32):
        rows = rows_of(DOCUMENTS, kind=kind, max_length=max_length)
        found = read_pairs(rows)
        for length, (first, second, target) in zip(rows.lengths, found, strict=True):
            if target == BELONGS or kind == "sop":
                assert len(first) + len(second) + 3 == length
            assert len(first) + len(second) + 3 <= length <= max_length


@pytest.mark.parametrize("token", [STOP, VOCAB - 1], ids=["stops", "none"])
def test_any_document_fits_any_row(token):
    # Ends of sentences everywhere or nowhere.
    sizes = range(FEWEST_TOKENS_TO_PAIR, 60)
    for max_length in range(8, 30):
        rows = rows_of([[token] * size for size in sizes], kind="sop", max_length=max_length)
        assert rows.lengths.sum() == sum(sizes) + 3 * len(rows.lengths)
        assert rows.lengths.min() >= 2 + 3
        assert rows.lengths.max() <= max_length


def test_long_documents_are_cut_behind_sentences():
    found = read_pairs(rows_of(corpus([200, 300]), max_length=64))
    assert len(found) > 20
    for first, second, _ in found:
        assert STOP <= first[-1] < STOP + NUM_STOPS
        assert STOP <= second[-1] < STOP + NUM_STOPS


def test_sop_changes_places_in_half_of_the_rows():
    found = [
        pair for seed in range(20) for pair in read_pairs(rows_of(DOCUMENTS, kind="sop", seed=seed))
    ]
    for first, second, target in found:
        document_of(first + second if target == BELONGS else second + first, DOCUMENTS)
    share = np.mean([target for *_, target in found])
    assert share == pytest.approx(0.5, abs=5 * 0.5 / len(found) ** 0.5)


def test_sop_needs_one_document_only():
    found = read_pairs(rows_of(corpus([100]), kind="sop"))
    assert len(found) >= 4


def test_one_sentence_is_cut_away_from_its_ends():
    for first, second, _ in read_pairs(rows_of([[1000 + n] * 28 for n in range(30)])):
        assert min(len(first), len(second)) >= 28 // 4


def test_pairs_follow_from_seed_and_row_alone():
    rows = rows_of(DOCUMENTS)
    numbers = np.random.default_rng(0).permutation(len(rows.lengths))
    batch, again = rows.batch(numbers), rows_of(DOCUMENTS).batch(numbers[::-1].copy())
    assert batch.ids_BT.equal(again.ids_BT.flip(0))
    assert batch.targets.equal(again.targets.flip(0))
    alone = rows.batch(numbers[3:4])
    width = alone.ids_BT.shape[1]
    assert alone.ids_BT[0].equal(batch.ids_BT[3, :width])
    assert read_pairs(rows) != read_pairs(rows_of(DOCUMENTS, seed=1))


def test_places_are_the_same_however_the_text_is_looked_through(monkeypatch):
    expected = read_pairs(rows_of(DOCUMENTS))
    for block in (1, 7, 100):
        monkeypatch.setattr(pairs, "_BLOCK", block)
        assert read_pairs(rows_of(DOCUMENTS)) == expected


def best_guess(cues: list[Any], targets: list[int]) -> float:
    """How many pairs are right if one knows the cue only, and the most frequent target for it."""
    counts = Counter(zip(cues, targets, strict=True))
    return sum(max(counts[cue, 0], counts[cue, 1]) for cue in set(cues)) / len(targets)


@pytest.mark.parametrize("sizes", [[450] * 24, [21, 30, 38, 45, 57] * 45], ids=["long", "short"])
@pytest.mark.parametrize("sentence_length", [8, 50])
def test_wrong_sentences_are_not_told_by_their_looks(sizes, sentence_length):
    # An id says where in its sentence a token stands, and nothing else.
    source = np.random.default_rng(0)
    begin = STOP + NUM_STOPS
    documents = []
    for size in sizes:
        ids: list[int] = []
        while len(ids) < size:
            length = source.integers(2, 2 * sentence_length)
            ids += [*range(begin, begin + length), STOP]
        documents.append(ids[:size])
    found = read_pairs(rows_of(documents))
    targets = [target for *_, target in found]
    starts = [second[0] == begin for _, second, _ in found]
    stops = [(first[-1] == STOP, second[-1] == STOP) for first, second, _ in found]
    lengths = np.array([(len(first) + len(second), len(second)) for first, second, _ in found])
    totals, seconds = (
        np.digitize(row, np.quantile(row, [0.2, 0.4, 0.6, 0.8])) for row in lengths.T
    )
    for cue in (starts, stops, totals.tolist(), seconds.tolist()):
        assert best_guess(cue, targets) < 0.6


@pytest.mark.parametrize("sizes", [[100], [100, 0], [7, 100, 3, 0]])
def test_bert_refuses_a_single_document(sizes):
    with pytest.raises(DataError) as caught:
        rows_of(corpus(sizes))
    assert str(caught.value) == (
        "The text holds 1 document of 8 tokens or more; next-sentence prediction needs at least 2. "
        "Wrong second sentences are taken from other documents. Give one document a line "
        "(--documents), or take --objective sop or masked."
    )


@pytest.mark.parametrize("kind", ["bert", "sop"])
@pytest.mark.parametrize("sizes", [[0], [7, 7, 3]])
def test_documents_that_are_all_too_short_are_refused(kind, sizes):
    with pytest.raises(DataError, match=r"No document has 8 tokens or more, to be cut into two"):
        rows_of(corpus(sizes), kind=kind)


def test_short_and_empty_documents_are_passed_over():
    documents = corpus([0, 8, 0, 3, 9, 0])
    found = read_pairs(rows_of(documents))
    assert len(found) == 4
    assert {document_of(first, documents) for first, *_ in found} == {1, 4}


@pytest.mark.parametrize("kind", ["bert", "sop"])
def test_tokenizer_without_a_separator_is_refused(kind):
    lacking = numbered_tokenizer(50)
    lacking.separator_id = None
    with pytest.raises(ConfigError) as caught:
        rows_of([[9] * 20, [10] * 20], kind=kind, tokenizer=lacking)
    assert str(caught.value) == (
        f"The objective {kind} needs a token <sep>, which this tokenizer lacks. "
        "Take --objective causal, or a tokenizer trained here."
    )


@pytest.mark.parametrize(
    ("kind", "packing", "expected"),
    [
        ("bert", "stream", PairRows),
        ("sop", "document", PairRows),
        ("masked", "stream", StreamRows),
        ("causal", "isolated", IsolatedRows),
        ("replaced", "document", DocumentRows),
    ],
)
def test_pretraining_rows_are_those_of_the_objective(kind, packing, expected):
    settings = resolve(
        "pretrain",
        preset="bert",
        overrides={**TINY, "objective.kind": kind, "train.steps": 1},
    )
    settings = replace(settings, "data", packing=packing)
    rows = pretraining_rows(store_of(DOCUMENTS), tokenizer=TOKENIZER, settings=settings)
    assert type(rows) is expected
    order = epoch_order(rows.lengths, batch_size=4, seed=0, epoch=0)
    assert sum(len(rows.batch(numbers).ids_BT) for numbers in order) == len(rows.lengths)
