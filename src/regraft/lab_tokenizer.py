"""The lab's vocabulary, dict.txt and a SentencePiece model, as a tokenizer of the library.

Comes in: the path of a dict.txt with its model beside it. Goes out: the pipeline that gives the
same ids as the lab, or a DataError if the two files do not fit. Knows no roles of special tokens.
"""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regraft.errors import DataError
from regraft.sentencepiece import SPACE, SentencePiece, parse_sentencepiece, refuse_lab

LAB_DICT_NAME = "dict.txt"
LAB_SPECIAL_TOKENS = ("<sos>", "<pad>", "<eos>", "<oov>")


def load_lab_tokenizer(dict_path: Path) -> tokenizers.Tokenizer:
    """Four special ids, then the lines of dict.txt; the model beside it splits text.

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
            f"{len(found)} files named sentencepiece*.model lie beside {dict_path}.",
            "The lab's vocabulary needs exactly one.",
            remedy="Put the model the text was split with beside it.",
        )
    return found[0]


def _ids(dict_path: Path, *, model: SentencePiece, model_name: str) -> dict[str, int]:
    lines = dict_path.read_bytes().decode("utf-8", "replace").split("\n")
    pieces = [line.split(" ")[0].rstrip("\r") for line in lines if line.strip("\r")]
    ids = {piece: rank for rank, piece in enumerate([*LAB_SPECIAL_TOKENS, *pieces])}
    if len(ids) != len(LAB_SPECIAL_TOKENS) + len(pieces):
        refuse_lab(dict_path, "names a piece twice, or a special token")
    missing = [piece for piece in model.ranks if piece not in ids]
    if missing:
        refuse_lab(
            dict_path, f"lacks {len(missing):,} pieces of {model_name}, such as {missing[0]!r}"
        )
    return ids


def _merges(ranks: dict[str, int]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joint piece ranks best, however it may be split."""
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
