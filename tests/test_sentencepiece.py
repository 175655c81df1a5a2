"""The reader of SentencePiece models against SentencePiece itself; what it has to refuse."""

import io
import warnings
from pathlib import Path

import pytest

from regraft.errors import DataError
from regraft.sentencepiece import SentencePiece, parse_sentencepiece

TEXTS = [
    f"{subject} {verb} {ending}"
    for subject in ("la première scène", "le héros", "cet été", "the reader's cat")
    for verb in ("déçoit", "enchante", "n'amuse pas", "doesn't move")
    for ending in ("tout le monde.", "l'œil !", "0, 12 ou 345 fois…", "at all?")
]
PATH = Path("lab") / "sentencepiece.model"


def train_sentencepiece(texts: list[str], *, kind: str = "bpe", size: int = 150, **options: object):
    """A model trained by SentencePiece itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its generated bindings warn on import
        import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


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
