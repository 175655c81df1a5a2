"""Trains tokenizers, of subwords or of words; deterministic for the same texts."""

import heapq
import json
import random
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers, trainers

from regraft.config import TokenizerSettings
from regraft.data.tokens.tokenizer import (
    BYTES,
    SPECIAL_TOKENS,
    Tokenizer,
    byte_level,
    whole_words,
    without_surrogates,
)
from regraft.errors import ConfigError, DataError
from regraft.runtime import SILENT, Progress

_UNKNOWN = SPECIAL_TOKENS[1]
_SAMPLE_CHUNK = 10_000  # characters; a document as long as a novel is sampled in such parts


def train_tokenizer(
    texts: Iterable[str], *, settings: TokenizerSettings, progress: Progress = SILENT
) -> Tokenizer:
    """Learn a vocabulary; the same texts and settings give the same tokenizer.

    All kinds but `words` work on the bytes of words, so any text round-trips and no token is
    unknown. Little text gives a smaller vocabulary than requested.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(SPECIAL_TOKENS) + len(alphabet)
    if settings.size < smallest:
        raise ConfigError(
            f"tokenizer.size: {settings.size} is too small.",
            f"{len(alphabet)} bytes and {len(SPECIAL_TOKENS)} special tokens need {smallest}.",
            remedy=f"Give {smallest} or more.",
        )
    sample = _sample(texts, max_bytes=settings.sample_bytes, progress=progress)
    if not any(chunk.strip() for chunk in sample):
        raise DataError(
            "There is no text to train a tokenizer on.",
            "All documents are empty.",
            remedy="Check the files and the name of their text column.",
        )
    model, trainer = _learner(settings, alphabet=alphabet)
    inner = whole_words(model) if settings.kind == "words" else byte_level(model)
    progress.start(f"training a tokenizer of {settings.size:,} tokens", total=None)
    try:
        inner.train_from_iterator(sample, trainer=trainer, length=len(sample))
    finally:
        progress.finish()
    if settings.kind == "unigram":
        inner.model = _reproducible_unigram(inner, sample)
    return Tokenizer(inner, source="just trained")


def known_share(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Share of the tokens of these texts that are not the unknown one; 1 without any token."""
    rows = tokenizer.encode_batch(texts)
    num_unknown = sum(row.count(tokenizer.unknown_id) for row in rows)
    return 1 - num_unknown / max(sum(map(len, rows)), 1)


def numbered_tokenizer(vocab_size: int) -> Tokenizer:
    """A vocabulary of special tokens and bare numbers: for measurements, where no text is read."""
    names = [*SPECIAL_TOKENS, *(f" {number}" for number in range(len(SPECIAL_TOKENS), vocab_size))]
    ids = {name: number for number, name in enumerate(names)}
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=_UNKNOWN))
    inner.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    return Tokenizer(inner, source="made of numbers")


def _learner(
    settings: TokenizerSettings, *, alphabet: list[str]
) -> tuple[models.Model, trainers.Trainer]:
    special = list(SPECIAL_TOKENS)
    if settings.kind == "unigram":
        return models.Unigram(), trainers.UnigramTrainer(
            vocab_size=settings.size,
            special_tokens=special,
            initial_alphabet=alphabet,
            unk_token=_UNKNOWN,
            show_progress=False,
        )
    if settings.kind == "words":
        # Words that occur once are left out.
        return models.WordLevel(unk_token=_UNKNOWN), trainers.WordLevelTrainer(
            vocab_size=settings.size, special_tokens=special, min_frequency=2, show_progress=False
        )
    if settings.kind == "wordpiece":
        # No "##": a piece inside a word and one at its start share an id, since the space before a
        # word is itself a byte of the word; and so 256 bytes are enough to leave nothing unknown.
        model = models.WordPiece(unk_token=_UNKNOWN, continuing_subword_prefix="")
        return model, trainers.WordPieceTrainer(
            vocab_size=settings.size,
            special_tokens=special,
            initial_alphabet=alphabet,
            min_frequency=2,
            continuing_subword_prefix="",
            show_progress=False,
        )
    return models.BPE(), trainers.BpeTrainer(
        vocab_size=settings.size,
        special_tokens=special,
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
    )


def _reproducible_unigram(inner: tokenizers.Tokenizer, sample: list[str]) -> models.Unigram:
    """The trained model with scores and ids that do not hang on the library's hash order.

    It sums in random order (scores differ in the 15th digit) and ranks unseen bytes at random.
    """
    vocabulary = json.loads(inner.to_str())["model"]["vocab"]
    num_special = len(SPECIAL_TOKENS)
    seen = {byte for chunk in sample for byte in set(without_surrogates(chunk).encode("utf-8"))}
    unseen = {character for character, byte in BYTES.items() if byte not in seen}
    scores = {piece: round(score, 9) for piece, score in vocabulary[num_special:]}
    lowest = min(score for piece, score in scores.items() if piece not in unseen)
    scores.update(dict.fromkeys(unseen, lowest))
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    special = [(piece, 0.0) for piece in SPECIAL_TOKENS]
    return models.Unigram([*special, *ranked], unk_id=special.index((_UNKNOWN, 0.0)))


def _sample(texts: Iterable[str], *, max_bytes: int, progress: Progress) -> list[str]:
    """Parts of the texts, chosen evenly in one pass: each draws a key, the smallest keys stay."""
    generator = random.Random(0)
    kept: list[tuple[float, int, str]] = []  # a heap, the largest key first
    num_bytes = 0
    highest = 1.0
    progress.start("reading text for the tokenizer", total=None)
    try:
        for index, chunk in enumerate(_chunks(texts, progress=progress)):
            key = generator.random()
            if key >= highest:
                continue
            heapq.heappush(kept, (-key, index, chunk))
            num_bytes += _num_bytes(chunk)
            while num_bytes > max_bytes and len(kept) > 1:
                negative_key, _, dropped = heapq.heappop(kept)
                highest = -negative_key
                num_bytes -= _num_bytes(dropped)
    finally:
        progress.finish()
    return [chunk for _, _, chunk in sorted(kept, key=lambda entry: entry[1])]


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _chunks(texts: Iterable[str], *, progress: Progress) -> Iterator[str]:
    for text in texts:
        start = 0
        while start < len(text):
            end = min(start + _SAMPLE_CHUNK, len(text))
            # Cut before a space, so that no word is cut in two; a text without one is cut anywhere.
            if end < len(text) and (space := text.rfind(" ", start + 1, end)) > 0:
                end = space
            yield without_surrogates(text[start:end])
            start = end
        progress.advance()
