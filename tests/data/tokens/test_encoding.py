"""Words looked up give the tokenizer's own ids, in this process and in others."""

import copy
import itertools
import os

import numpy as np
import pytest
import tokenizers
from conftest import make_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.config.schema import TokenizerSettings
from regraft.data.tokens.encoding import Encoder, encode_units, id_type
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import DataError

# Blank space in runs, so that it makes a difference where such a run is cut.
RUNS = ["a" + blank * number + "b" for blank in " \n\t\xa0" for number in (2, 3, 4, 8, 24)]
TEXTS = [text for text, _ in make_examples(40)] + RUNS * 9
TOKENIZERS = {
    kind: train_tokenizer(TEXTS, settings=TokenizerSettings(kind=kind, size=360))
    for kind in ("bpe", "unigram", "wordpiece")
}

# Blank space of every kind, what the patterns of words look at, and characters of 2 to 4 bytes.
BLANKS = [" ", "  ", "\n", "\t", "\r", "\xa0", "\u2028", "\u3000", "\x0b", "\x1c", "\x85", " " * 23]
PARTS = ["a", "the", "Book", "'s", "'ll", "'LL", "'", "7", ".", "...", "é", "e\u0301", "\u0301"]
WIDE = ["\u017f", "漢", "👍🏽", "\u200b", "\ufeff", "</s>", "<s>", "x" * 25, "9" * 30, "!" * 26]
texts = st.lists(st.sampled_from(BLANKS + PARTS + WIDE), max_size=12).map("".join)


def encoded(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    result = encoder.encode(texts)
    return [row.tolist() for row in np.split(result.ids, np.cumsum(result.lengths)[:-1])]


def framed(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    rows = (tokenizer.encode(text) for text in texts)
    return [[tokenizer.start_id, *row, tokenizer.end_id] for row in rows]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(batch=st.lists(texts, min_size=1, max_size=4))
def test_encoder_gives_the_ids_of_the_tokenizer(kind, batch):
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.splits_at_spaces
    encoder = Encoder(tokenizer)
    assert encoded(encoder, batch) == framed(tokenizer, batch)
    assert encoded(encoder, batch[::-1]) == framed(tokenizer, batch[::-1])


@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_encoder_takes_any_text(text):
    tokenizer = TOKENIZERS["bpe"]
    assert encoded(Encoder(tokenizer), [text, text]) == framed(tokenizer, [text, text])


@pytest.mark.parametrize(
    "batch", [["a\0 book", "the end"], ["a \ud83d\ude00 b", "\ud800 x"], [""], ["", " ", ""]]
)
def test_encoder_takes_text_that_is_odd(batch):
    tokenizer = TOKENIZERS["bpe"]
    assert encoded(Encoder(tokenizer), batch) == framed(tokenizer, batch)


def test_encoder_forgets_when_it_knows_much(monkeypatch):
    monkeypatch.setattr("regraft.data.tokens.encoding.MOST_WORDS", 20)
    encoder = Encoder(TOKENIZERS["bpe"])
    for text in TEXTS:
        assert encoded(encoder, [text]) == framed(TOKENIZERS["bpe"], [text])
        assert len(encoder._words) <= 20 + text.count(" ") + 2


def test_encoder_leaves_other_tokenizers_alone():
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, "<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(["<unk>", "<pad>", "<s>", "</s>"])
    tokenizer = Tokenizer(inner, source="here")
    assert not tokenizer.splits_at_spaces
    assert encoded(Encoder(tokenizer), ["a b", "a"]) == framed(tokenizer, ["a b", "a"])


@pytest.mark.parametrize(
    "change",
    [
        lambda inner: setattr(inner, "normalizer", tokenizers.normalizers.Lowercase()),
        lambda inner: setattr(inner, "pre_tokenizer", tokenizers.pre_tokenizers.ByteLevel()),
        lambda inner: setattr(inner.model, "dropout", 0.1),
        lambda inner: inner.add_tokens(["New York"]),
        lambda inner: inner.enable_truncation(3),
    ],
)
def test_words_are_not_looked_up_where_their_place_matters(change):
    inner = copy.deepcopy(TOKENIZERS["bpe"]._inner)
    assert Tokenizer(inner, source="here").splits_at_spaces
    change(inner)
    assert not Tokenizer(inner, source="here").splits_at_spaces


@pytest.mark.parametrize(("size", "expected"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_id_type_holds_every_id(size, expected):
    assert id_type(size) is expected


def test_processes_give_the_ids_of_one_in_order(monkeypatch):
    monkeypatch.setattr("regraft.data.tokens.encoding._num_workers", lambda: 2)
    tokenizer = TOKENIZERS["bpe"]
    units = [(number, TEXTS[number : number + 3]) for number in range(0, 40, 3)]
    shared = list(encode_units(units, tokenizer=tokenizer))
    alone = list(encode_units(units[:3], tokenizer=tokenizer))
    assert [tag for tag, _ in shared] == [number for number, _ in units]
    for (_, texts), (_, result) in zip(units, shared, strict=True):
        assert result.ids.tolist() == [*itertools.chain(*framed(tokenizer, texts))]
    for (tag, result), (other_tag, other) in zip(alone, shared, strict=False):
        assert tag == other_tag
        assert np.array_equal(result.ids, other.ids)


def test_processes_are_given_a_few_units_ahead(monkeypatch):
    monkeypatch.setattr("regraft.data.tokens.encoding._num_workers", lambda: 2)
    num_read = 0

    def units():
        nonlocal num_read
        for number in range(30):
            num_read += 1
            yield number, TEXTS[:2]

    for num_seen, _ in enumerate(encode_units(units(), tokenizer=TOKENIZERS["bpe"]), start=1):
        assert num_read - num_seen <= 4


class Deadly(Tokenizer):
    """Kills the process that uses it."""

    def encode_batch(self, texts):
        os._exit(1)


def test_death_of_a_process_is_told(monkeypatch):
    monkeypatch.setattr("regraft.data.tokens.encoding._num_workers", lambda: 2)
    deadly = Deadly(TOKENIZERS["bpe"]._inner, source="here")
    units = [(number, TEXTS[:2]) for number in range(6)]
    with pytest.raises(DataError, match=r"was killed.*repeat the command"):
        list(encode_units(units, tokenizer=deadly))
