"""The lab's vocabulary, dict.txt and a SentencePiece model, as a tokenizer with the same ids.

The model file is parsed here: SentencePiece itself is not a dependency. Models with features that
the lab's model does not have are refused.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regraft.errors import DataError

LAB_DICT_NAME = "dict.txt"
LAB_SPECIAL_TOKENS = ("<sos>", "<pad>", "<eos>", "<oov>")
SPACE = "\u2581"  # the mark that stands for a space


@dataclass(frozen=True)
class SentencePiece:
    """The content of a BPE model."""

    ranks: dict[str, int]
    charsmap: bytes
    removes_extra_spaces: bool
    adds_space_before: bool


def load_lab_tokenizer(dict_path: Path) -> tokenizers.Tokenizer:
    """Four special ids, then the lines of dict.txt; the model in the same folder splits text.

    A file that cannot be read is an OSError, which `load_tokenizer` names.
    """
    model_path = _sentencepiece_beside(dict_path)
    model = parse_sentencepiece(model_path.read_bytes(), path=model_path)
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab=_ids(dict_path, model=model, model_name=model_path.name),
            merges=_merges(model.ranks),
            unk_token=LAB_SPECIAL_TOKENS[3],
            fuse_unk=True,
        )
    )
    inner.normalizer = _normalizer(model)
    inner.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE,
        prepend_scheme="never",
        split=not any(SPACE in piece[1:] for piece in model.ranks),
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", left=1, right=0)]
    )
    inner.add_special_tokens([AddedToken(name, special=True) for name in LAB_SPECIAL_TOKENS])
    return inner


def _sentencepiece_beside(dict_path: Path) -> Path:
    found = sorted(dict_path.parent.glob("sentencepiece*.model"))
    if len(found) != 1:
        raise DataError(
            f"{len(found)} files named sentencepiece*.model are in the folder of {dict_path}.",
            "The lab's vocabulary needs exactly one.",
            remedy="Keep only the model that the text was split with.",
        )
    return found[0]


def _ids(dict_path: Path, *, model: SentencePiece, model_name: str) -> dict[str, int]:
    lines = dict_path.read_bytes().decode("utf-8", "replace").split("\n")
    pieces = [line.split(" ")[0].rstrip("\r") for line in lines if line.strip("\r")]
    ids = {piece: rank for rank, piece in enumerate([*LAB_SPECIAL_TOKENS, *pieces])}
    if len(ids) != len(LAB_SPECIAL_TOKENS) + len(pieces):
        _refuse(dict_path, "names a piece twice, or a special token")
    missing = [piece for piece in model.ranks if piece not in ids]
    if missing:
        _refuse(dict_path, f"lacks {len(missing):,} pieces of {model_name}, such as {missing[0]!r}")
    return ids


def _merges(ranks: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece merges the neighbours whose joint piece ranks best, for any split of it."""
    return [
        (piece[:cut], piece[cut:])
        for piece in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(piece))
        if piece[:cut] in ranks and piece[cut:] in ranks
    ]


def _normalizer(model: SentencePiece) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        # The library maps by grapheme, SentencePiece by longest match: an accent on a character
        # with a mapping of its own ("…" or a script letter) may differ. Measured 2026-11-15: one
        # of 60,000 French documents, none of the lab's 4,000 reviews.
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.removes_extra_spaces:
        steps.append(normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.adds_space_before:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence(steps)


def _refuse(path: Path, problem: str) -> NoReturn:
    """Refuse the two files of a lab."""
    raise DataError(
        f"{path} {problem}.",
        "The lab's vocabulary is one dict.txt and the BPE SentencePiece model it was made from.",
        remedy="Give the two files of the same lab.",
    )


# Field numbers and values of sentencepiece_model.proto.
_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC = 1, 2, 3
_PIECE, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SPACE_AS_SUFFIX = 3, 24
_CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5
_UNIGRAM_MODEL, _BPE_MODEL = 1, 2
_NORMAL_PIECE, _UNKNOWN_PIECE, _CONTROL_PIECE = 1, 2, 3


def parse_sentencepiece(data: bytes, *, path: Path) -> SentencePiece:
    """The model in `data`; `path` names it in errors."""
    try:
        model = _fields(data)
        pieces = [_last_fields(part) for part in model[_PIECES]]
        trainer = _last_fields(model[_TRAINER_SPEC][-1])
        normalizer = _last_fields(model[_NORMALIZER_SPEC][-1])
        scores = {
            piece[_PIECE].decode("utf-8"): piece.get(_SCORE, 0.0)
            for piece in pieces
            if piece.get(_TYPE, _NORMAL_PIECE) == _NORMAL_PIECE
        }
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, struct.error):
        _refuse(path, "is not a SentencePiece model")
    if trainer.get(_MODEL_TYPE, _UNIGRAM_MODEL) != _BPE_MODEL:
        _refuse(path, "is a SentencePiece model of another type than BPE")
    kinds = {piece.get(_TYPE, _NORMAL_PIECE) for piece in pieces}
    whole = all(character in scores for piece in scores for character in piece)
    plain = normalizer.get(_ESCAPE_SPACES, True) and not trainer.get(_SPACE_AS_SUFFIX, False)
    if kinds - {_NORMAL_PIECE, _UNKNOWN_PIECE, _CONTROL_PIECE} or not whole or not plain:
        _refuse(path, "has user-defined symbols, byte fallback or other features the lab has not")
    best_first = sorted(scores, key=lambda piece: -scores[piece])
    return SentencePiece(
        ranks={piece: rank for rank, piece in enumerate(best_first)},
        charsmap=normalizer.get(_CHARSMAP, b""),
        removes_extra_spaces=bool(normalizer.get(_REMOVE_EXTRA_SPACES, True)),
        adds_space_before=bool(normalizer.get(_ADD_DUMMY_PREFIX, True)),
    )


def _last_fields(data: bytes) -> dict[int, Any]:
    """Fields that occur once; by protobuf's rule the last of several counts."""
    return {number: values[-1] for number, values in _fields(data).items()}


def _fields(data: bytes) -> dict[int, list[Any]]:
    """A protobuf message as field number -> values: integers, floats, or bytes still to be read."""
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        value: Any
        if wire_type == 0:
            value, position = _varint(data, position)
        elif wire_type == 2:
            length, position = _varint(data, position)
            value, position = data[position : position + length], position + length
        elif wire_type == 5:
            (value,), position = struct.unpack_from("<f", data, position), position + 4
        elif wire_type == 1:
            (value,), position = struct.unpack_from("<d", data, position), position + 8
        else:
            raise ValueError(f"wire type {wire_type}")
        if position > len(data):
            raise ValueError("a field is longer than its message")
        fields.setdefault(number, []).append(value)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
        if shift >= 70:
            raise ValueError("a number is too long")
