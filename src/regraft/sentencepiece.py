"""A SentencePiece model file, read without its library: pieces by rank, how text is made even.

Comes in: the bytes of a BPE model as the lab uses it. Goes out: a `SentencePiece`, or a DataError
for every model with features that the lab has not. Knows no tokenizer.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from regraft.errors import DataError

SPACE = "\u2581"  # the mark that stands for a space


@dataclass(frozen=True)
class SentencePiece:
    """What a BPE model says."""

    ranks: dict[str, int]
    charsmap: bytes
    removes_extra_spaces: bool
    adds_space_before: bool


def refuse_lab(path: Path, problem: str) -> NoReturn:
    """One way to say that the two files of a lab do not fit."""
    raise DataError(
        f"{path} {problem}.",
        "The lab's vocabulary is one dict.txt and the BPE SentencePiece model it was made from.",
        remedy="Give the two files of the same lab.",
    )


# Field numbers of sentencepiece_model.proto, and the values met there.
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
        refuse_lab(path, "is not a SentencePiece model")
    if trainer.get(_MODEL_TYPE, _UNIGRAM_MODEL) != _BPE_MODEL:
        refuse_lab(path, "is a SentencePiece model of another type than BPE")
    kinds = {piece.get(_TYPE, _NORMAL_PIECE) for piece in pieces}
    whole = all(character in scores for piece in scores for character in piece)
    plain = normalizer.get(_ESCAPE_SPACES, True) and not trainer.get(_SPACE_AS_SUFFIX, False)
    if kinds - {_NORMAL_PIECE, _UNKNOWN_PIECE, _CONTROL_PIECE} or not whole or not plain:
        refuse_lab(
            path, "has user-defined symbols, byte fallback or other features the lab has not"
        )
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
