"""Training a vocabulary: the same text gives the same one, in the size asked; none is refused."""

import pytest
from labs import TEXTS
from vocabularies import KINDS, trained

from regraft.data.tokens import tokenizer_training as vocabulary
from regraft.data.tokens.tokenizer import SPECIAL_TOKENS
from regraft.data.tokens.tokenizer_training import known_share, numbered_tokenizer
from regraft.errors import ConfigError, DataError
from regraft.runtime.progress import SILENT


def test_numbered_tokenizer_has_the_size_asked_for():
    numbered = numbered_tokenizer(40)
    assert numbered.vocab_size == 40
    assert numbered.tokens(range(6)) == list(SPECIAL_TOKENS)
    assert numbered.special_ids == frozenset(range(6))
    assert (numbered.mask_id, numbered.separator_id) == (4, 5)
    # Every number is a word of its own.
    assert not numbered.word_joints()[0].any()
    assert not numbered.sentence_ends().any()


def test_frequent_words_are_single_tokens():
    bpe = trained("bpe")
    assert len(bpe.encode(" héros")) == 1
    assert len(bpe.encode(" doesn't")) == 2


def test_whole_words_forget_case_and_what_stands_between_them():
    words = trained("words", size=300)
    ids = words.encode("HÉROS: l'œil, le he\u0301ros !")
    assert words.tokens(ids) == ["héros", "l", "œil", "le", "héros", "!"]
    assert words.encode("zzz") == [words.unknown_id]
    assert words.decode(ids) == "héros l œil le héros !"
    assert known_share(words, ["le zzz", "héros zzz"]) == 0.5
    assert known_share(words, []) == 1
    # No word is a part of the one before it.
    assert not words.word_joints()[0].any()
    # A word seen once is not kept.
    assert trained("words", texts=["ab ab ac"]).vocab_size == len(SPECIAL_TOKENS) + 1


def test_whole_words_read_a_turkish_capital_i_as_its_small_letter():
    words = trained("words", texts=["i\u015fte bir", "i\u015fte bir"])
    for text in (
        "i\u015fte",
        "\u0130\u015fte",
        "\u0130\u015eTE",
        "I\u0307\u015fte",
        "i\u0307\u015fte",
    ):
        assert words.tokens(words.encode(text)) == ["i\u015fte"]
    text = "Bir \u0130\u015fte bir"
    assert [text[start:stop] for start, stop in words.spans(text)] == text.split()


@pytest.mark.parametrize("kind", [*KINDS, "words"])
def test_training_is_reproducible(kind):
    once = trained(kind).fingerprint
    assert trained(kind).fingerprint == once
    assert trained(kind, texts=TEXTS[: len(TEXTS) // 2]).fingerprint != once


@pytest.mark.parametrize("kind", KINDS)
def test_training_keeps_to_the_size_and_ends_smaller_with_little_text(kind):
    assert trained(kind, size=270).vocab_size == 270
    assert trained(kind, size=5000, texts=["ab ab ac ac"]).vocab_size < 270


@pytest.mark.parametrize("kind", KINDS)
def test_training_prints_nothing(kind, capfd):
    trained(kind)
    assert capfd.readouterr() == ("", "")


def test_training_refuses_a_size_below_the_bytes():
    with pytest.raises(ConfigError, match=r"tokenizer.size: 100 is too small. .* need 262"):
        trained("bpe", size=100)


@pytest.mark.parametrize("texts", [[], ["", "  \n"]])
def test_training_refuses_no_text(texts):
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        trained("bpe", texts=texts)


def test_sample_is_even_capped_and_the_same_each_time():
    texts = [f"document {row:05d}" for row in range(4000)]
    sample = vocabulary._sample(iter(texts), max_bytes=8000, progress=SILENT)
    assert 7900 <= sum(len(text) for text in sample) <= 8000
    rows = [int(text.split()[1]) for text in sample]
    assert rows == sorted(rows)
    for quarter in range(4):
        inside = [row for row in rows if row // 1000 == quarter]
        assert len(inside) == pytest.approx(len(rows) / 4, rel=0.25)
    assert sample == vocabulary._sample(texts, max_bytes=8000, progress=SILENT)


def test_sample_of_less_than_the_cap_is_everything():
    novel = "une ligne " * 5000
    sample = vocabulary._sample([novel, "fin"], max_bytes=10**6, progress=SILENT)
    assert "".join(sample) == novel + "fin"
    assert len(sample) > 3


def test_sample_reaches_the_end_of_one_long_document():
    novel = " ".join(f"terme{number}" for number in range(50_000))
    sample = vocabulary._sample([novel], max_bytes=100_000, progress=SILENT)
    assert sum(len(part) for part in sample) <= 100_000
    assert novel.index(sample[-1]) > 0.7 * len(novel)
