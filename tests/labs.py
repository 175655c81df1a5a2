"""The two files of a lab, made by SentencePiece itself."""

import io
import warnings
from pathlib import Path

TEXTS = [
    f"{opening} {subject} {verb} {ending}"
    for opening in ("Il me semble que", "On dirait que", "Hélas,", "It's true:")
    for subject in ("la première scène", "le héros", "cet été", "the reader's cat")
    for verb in ("déçoit", "enchante", "n'amuse pas", "doesn't move")
    for ending in ("tout le monde.", "l'œil !", "0, 12 ou 345 fois…", "at all?")
]


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


def write_lab(folder: Path, **options: object):
    """The lab's two files, and SentencePiece as the oracle."""
    model_path = folder / "sentencepiece.test.model"
    oracle = train_sentencepiece(TEXTS, **options)
    model_path.write_bytes(oracle.serialized_model_proto())
    pieces = [oracle.id_to_piece(rank) for rank in range(3, oracle.get_piece_size())]
    lines = "".join(f"{piece} 1\n" for piece in pieces)
    (folder / "dict.txt").write_text(lines, encoding="utf-8")
    return oracle
