"""Explanations of a decision: one score per word, and how far to trust them.

Knows no model and no method; pages of them are in the room report.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from regraft.runtime import in_percent

Method = Literal["integrated-gradients", "contributions", "leave-one-out"]

NUM_STRONGEST = 8
# Of a class, over many texts.
NUM_OF_CLASS = 15
# Shades of a colour; level 0 is a word that hardly counts.
NUM_LEVELS = 9
# Invisible characters that reorder the text around them, on a page or in a terminal.
_REORDERING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


@dataclass(frozen=True)
class Attribution:
    """The scores of words that a method found; the fields are explained in `Explanation`."""

    scores_W: Float[np.ndarray, " W"]
    baseline: float
    baseline_name: str
    elsewhere: float = 0.0
    num_together: int = 1
    num_steps: int | None = None


@dataclass(frozen=True)
class Word:
    """A word at `text[start:stop]`; a positive score supports the label."""

    text: str
    start: int
    stop: int
    score: float


@dataclass(frozen=True)
class StrongWord:
    """All occurrences of one word together."""

    text: str
    score: float
    count: int


@dataclass(frozen=True)
class ClassWords:
    """What each word adds to the log-odds of a class: a mean over all texts explained for it.

    The count of a word is the number of texts that have it.
    """

    label: str
    num_texts: int
    words: tuple[StrongWord, ...]

    def strongest(self, num: int = NUM_STRONGEST) -> tuple[list[StrongWord], list[StrongWord]]:
        """The strongest words for and against the class."""
        return _strongest(self.words, num)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON: the strongest words, not all."""
        pro, contra = (list(map(asdict, words)) for words in self.strongest(NUM_OF_CLASS))
        facts = {"label": self.label, "num_texts": self.num_texts}
        return {**facts, "for": pro, "against": contra}


@dataclass(frozen=True)
class Explanation:
    """Which words moved a classifier to (or from) a label, in log-odds of that label.

    text: what was read, and what the spans of the words point into. label: what is explained.
    predicted: the most probable label. probabilities: of every label. output: log-odds of the label
    for this text. baseline: log-odds where no word has been read; `baseline_name` says what that
    is. elsewhere: scores of what belongs to no word, such as the tokens around a text. num_unread:
    words at the end that the model does not read; their scores are 0. num_together: above 1, so
    many neighbours were left out at once and share their score. num_steps: points on the path of
    integrated gradients. agreement: Spearman's rank correlation with leave-one-out, if asked for.
    """

    text: str
    label: str
    predicted: str
    probabilities: dict[str, float]
    method: Method
    words: tuple[Word, ...]
    output: float
    baseline: float
    baseline_name: str
    elsewhere: float = 0.0
    num_unread: int = 0
    num_together: int = 1
    num_steps: int | None = None
    agreement: float | None = None

    @property
    def probability(self) -> float:
        """The probability of the label that is explained."""
        return self.probabilities[self.label]

    @property
    def gap(self) -> float:
        """All scores less what they should add up to, output - baseline: 0 if none is missing."""
        explained = sum(word.score for word in self.words) + self.elsewhere
        return explained - (self.output - self.baseline)

    def levels(self) -> list[int]:
        """The strength of each word relative to the strongest: 0 to 9, negative if against."""
        most = max((abs(word.score) for word in self.words), default=0.0)
        if most == 0:
            return [0] * len(self.words)
        return [round(NUM_LEVELS * word.score / most) for word in self.words]

    @property
    def num_read(self) -> int:
        """Words that the model reads: the first ones."""
        return len(self.words) - self.num_unread

    def is_unread(self, word: Word) -> bool:
        """Whether the model does not read this word."""
        return self.num_unread > 0 and word.start >= self.words[self.num_read].start

    def distinct_words(self) -> list[StrongWord]:
        """All words that are read; the scores of repeats are summed."""
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for word in self.words[: self.num_read]:
            scores[word.text.casefold()].append(word.score)
        return [StrongWord(text, sum(parts), len(parts)) for text, parts in scores.items()]

    def strongest(self, num: int = NUM_STRONGEST) -> tuple[list[StrongWord], list[StrongWord]]:
        """The strongest words for and against the label."""
        return _strongest(self.distinct_words(), num)

    def pieces(self) -> Iterator[tuple[str, Word | None, int]]:
        """The whole text in pieces: words with their level, and the rest with None."""
        behind = 0
        for word, level in zip(self.words, self.levels(), strict=True):
            if word.start > behind:
                yield self.text[behind : word.start], None, 0
            yield self.text[word.start : word.stop], word, level
            behind = word.stop
        if behind < len(self.text):
            yield self.text[behind:], None, 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        derived = {"probability": self.probability, "gap": self.gap}
        return {**asdict(self), "words": [asdict(word) for word in self.words], **derived}


def _strongest(words: Sequence[StrongWord], num: int) -> tuple[list[StrongWord], list[StrongWord]]:
    """(for, against), without words whose score rounds to zero."""
    words = [word for word in words if signed(word.score) != signed(0)]
    pro = sorted((word for word in words if word.score > 0), key=lambda word: -word.score)
    contra = sorted((word for word in words if word.score < 0), key=lambda word: word.score)
    return pro[:num], contra[:num]


def signed(score: float, *, digits: int = 2) -> str:
    """A score with its sign, as it is shown; zero is +0.00, never -0.00."""
    return f"{round(score, digits) + 0.0:+.{digits}f}"


def harmless(text: str) -> str:
    """The text with characters that command a terminal or reorder a page made visible."""
    return "".join(map(_harmless, text))


def _harmless(character: str) -> str:
    place = ord(character)
    if place < 0x20 and character not in "\n\t":
        return chr(0x2400 + place)  # the picture of that control character
    if 0x7F <= place < 0xA0 or place in _REORDERING or 0xD800 <= place < 0xE000:
        return "\ufffd"
    return character


def trust_facts(found: Explanation) -> list[str]:
    """Sentences on how far the scores can be trusted."""
    steps = f", {found.num_steps} steps" if found.num_steps else ""
    rest = f", of which {signed(found.elsewhere)} belongs to no word" if found.elsewhere else ""
    facts = [
        f"Method: {found.method}{steps}. Scores are log-odds of {found.label}.",
        f"From {signed(found.baseline)} ({found.baseline_name}) to {signed(found.output)}; scores "
        f"add up to {signed(found.output - found.baseline + found.gap)}{rest}: "
        f"completeness gap {signed(found.gap, digits=3)}.",
    ]
    if found.label != found.predicted:
        facts.append(
            f"The prediction is {found.predicted} "
            f"({in_percent(found.probabilities[found.predicted])})."
        )
    if found.num_unread:
        facts.append(
            "The model does not read the last word."
            if found.num_unread == 1
            else f"The model does not read the last {found.num_unread:,} words."
        )
    if found.num_together > 1:
        facts.append(
            f"The text is long: {found.num_together} neighbours at a time were left out, and share "
            "one score."
        )
    if found.agreement is not None:
        facts.append(f"Rank correlation with leave-one-out: {signed(found.agreement)}.")
    return facts
