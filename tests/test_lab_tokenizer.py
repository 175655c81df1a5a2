"""The lab's ids are the lab's ids: SentencePiece itself is the judge."""

import json
import shutil
from pathlib import Path

import pytest
from test_sentencepiece import train_sentencepiece
from test_vocabulary import TEXTS

from regraft.errors import DataError
from regraft.lab_tokenizer import LAB_SPECIAL_TOKENS, load_lab_tokenizer
from regraft.tokenizer import load_tokenizer


def write_lab(folder: Path, **options: object):
    """The lab's two files, and SentencePiece as the oracle."""
    model_path = folder / "sentencepiece.test.model"
    oracle = train_sentencepiece(TEXTS, **options)
    model_path.write_bytes(oracle.serialized_model_proto())
    pieces = [oracle.id_to_piece(rank) for rank in range(3, oracle.get_piece_size())]
    lines = "".join(f"{piece} 1\n" for piece in pieces)
    (folder / "dict.txt").write_text(lines, encoding="utf-8")
    return oracle


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
    with pytest.raises(DataError, match=r"0 files named sentencepiece\*.model lie beside"):
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
