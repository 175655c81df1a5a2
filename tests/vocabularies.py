"""Small vocabularies of every kind that can be trained."""

from labs import TEXTS

from regraft.config.schema import TokenizerSettings
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer

KINDS = ("bpe", "unigram", "wordpiece")


def trained(kind: str, *, size: int = 400, texts: list[str] = TEXTS) -> Tokenizer:
    return train_tokenizer(texts, settings=TokenizerSettings(kind=kind, size=size))
