"""The lab's ids are the lab's ids: SentencePiece itself is the judge."""

import json
import shutil
from pathlib import Path

import pytest
from labs import TEXTS, train_sentencepiece, write_lab

from regraft.data.tokens.lab import (
    LAB_SPECIAL_TOKENS,
    SentencePiece,
    load_lab_tokenizer,
    parse_sentencepiece,
)
from regraft.data.tokens.tokenizer import load_tokenizer
from regraft.errors import DataError

PATH = Path("lab") / "sentencepiece.model"


def lab_ids(oracle, text: str) -> list[int]:
    """SentencePiece has three special ids before the pieces, the lab four."""
    return [token_id + 1 if token_id >= 3 else 3 for token_id in oracle.encode(text)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    return folder, write_lab(folder)


LAB_TEXTS = [
    *TEXTS,
    "",
    "   ",
    "  deux   blancs  ",
    "tabulation\tet\nligne",
    "été e\u0301te\u0301 ﬁn … ½ ①",
    "inconnu: ☃☃ ☃ x☃y 中文",
    "!!!!!!! ........ hahahahaha ????",
    "▁déjà ▁ marqué▁",
    "<sos> <pad>le héros</s><eos> <oov>",
    "\u00a0insécable\u3000large\u200bnulle",
]


def test_lab_ids_equal_sentencepiece(lab):
    folder, oracle = lab
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode_batch(LAB_TEXTS) == [lab_ids(oracle, text) for text in LAB_TEXTS]


@pytest.mark.parametrize(
    "options",
    [
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"normalization_rule_name": "identity"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_lab_ids_follow_the_options_of_the_model(tmp_path, options):
    oracle = write_lab(tmp_path, **options)
    tokenizer = load_tokenizer(tmp_path)
    texts = [*TEXTS, "  deux   blancs  ", " un", "un ", "été ☃ x"]
    assert tokenizer.encode_batch(texts) == [lab_ids(oracle, text) for text in texts]


def test_lab_special_ids_come_first(lab):
    folder, oracle = lab
    tokenizer = load_tokenizer(folder / "dict.txt")
    assert tokenizer.tokens(range(4)) == list(LAB_SPECIAL_TOKENS)
    assert (tokenizer.start_id, tokenizer.pad_id, tokenizer.end_id) == (0, 1, 2)
    assert tokenizer.unknown_id == 3
    assert tokenizer.mask_id is None
    assert tokenizer.separator_id is None
    assert tokenizer.vocab_size == oracle.get_piece_size() - 3 + 4


def test_lab_decodes_pieces_to_text(lab):
    folder, oracle = lab
    tokenizer = load_tokenizer(folder)
    for text in TEXTS[:20]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode([tokenizer.start_id, *ids]) == oracle.decode(oracle.encode(text))
        assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.tokens(tokenizer.encode("le héros"))[0].startswith("▁")


def test_lab_tokenizer_lives_in_one_file_afterwards(lab, tmp_path):
    folder, _ = lab
    tokenizer = load_tokenizer(folder)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_batch(LAB_TEXTS) == tokenizer.encode_batch(LAB_TEXTS)
    assert json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]


def test_lab_refuses_a_vocabulary_of_another_model(lab, tmp_path):
    folder, _ = lab
    lines = (folder / "dict.txt").read_text(encoding="utf-8").split("\n")
    shutil.copy(folder / "sentencepiece.test.model", tmp_path)
    for changed, problem in ((lines[2:], "lacks 2 pieces of"), ([lines[0], *lines], "twice")):
        (tmp_path / "dict.txt").write_text("\n".join(changed), encoding="utf-8")
        with pytest.raises(DataError, match=problem):
            load_lab_tokenizer(tmp_path / "dict.txt")


def test_lab_needs_exactly_one_model_beside(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"0 files named sentencepiece\*.model"):
        load_lab_tokenizer(tmp_path / "dict.txt")


def test_lab_model_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n", encoding="utf-8")
    (tmp_path / "sentencepiece.model").mkdir()
    with pytest.raises(DataError, match=r"Cannot read the tokenizer .*sentencepiece\.model: Is a"):
        load_tokenizer(tmp_path)


def test_pair_without_a_separator_takes_the_end(lab):
    tokenizer = load_tokenizer(lab[0])
    assert tokenizer.separator_id is None
    end = tokenizer.end_id
    assert tokenizer.framed_pair([4], [5], max_length=9) == (
        [tokenizer.start_id, 4, end, 5, end],
        [0, 0, 0, 1, 1],
    )


def parsed(**options: object) -> SentencePiece:
    model = train_sentencepiece(TEXTS, **options)
    return parse_sentencepiece(model.serialized_model_proto(), path=PATH)


def test_pieces_are_ranked_as_sentencepiece_merges_them():
    oracle = train_sentencepiece(TEXTS)
    found = parse_sentencepiece(oracle.serialized_model_proto(), path=PATH)
    # Its first three are <unk>, <s> and </s>, which are no pieces of text.
    pieces = [oracle.id_to_piece(rank) for rank in range(3, oracle.get_piece_size())]
    assert sorted(found.ranks, key=found.ranks.__getitem__) == pieces
    assert list(found.ranks.values()) == list(range(len(pieces)))
    assert any(piece.startswith("\u2581") for piece in pieces)


def test_options_are_read():
    plain = parsed()
    assert (plain.adds_space_before, plain.removes_extra_spaces) == (True, True)
    assert plain.charsmap
    other = parsed(
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    )
    assert (other.adds_space_before, other.removes_extra_spaces) == (False, False)
    assert other.charsmap == b""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kind": "unigram"}, "is a SentencePiece model of another type than BPE"),
        ({"user_defined_symbols": ["<br>"]}, "has user-defined symbols, byte fallback or other"),
        ({"byte_fallback": True, "size": 400}, "has user-defined symbols, byte fallback or other"),
        ({"treat_whitespace_as_suffix": True}, "other features the lab has not"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_other_models_are_refused(options, problem):
    with pytest.raises(DataError, match=problem) as caught:
        parsed(**options)
    assert str(caught.value).endswith("Give the two files of the same lab.")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\xff" * 40, b"\x0a\xff\x01", b"\x0b"])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(DataError, match=r"sentencepiece\.model is not a SentencePiece model"):
        parse_sentencepiece(content, path=PATH)


def test_a_model_cut_off_anywhere_is_refused():
    whole = train_sentencepiece(TEXTS).serialized_model_proto()
    for stop in range(0, len(whole), 97):
        with pytest.raises(DataError, match="is not a SentencePiece model"):
            parse_sentencepiece(whole[:stop], path=PATH)
