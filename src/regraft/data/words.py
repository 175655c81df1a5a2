"""The words of a text in any script, and values of tokens assigned to words.

A word is a run of letters and digits, a run of other signs, or one character of a script that is
written without spaces.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

Span = tuple[int, int]

# Scripts written without spaces: Thai to Burmese, Khmer, kana, Chinese characters.
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF)),
    *((0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
_INSIDE_WORDS = "'\u2019-\u2010\u2011"
# Kinds of characters: l letter, u of an unspaced script, i between letters only, + goes with what
# is before it, s other sign, and a blank.
_WORD = re.compile(r"u\+*|l[l+]*(?:il[l+]*)*|[si+]+")


def word_spans(text: str) -> list[Span]:
    """Start and stop of every word; whitespace and control characters are in none."""
    kinds = "".join(map(_kind, text))
    return [match.span() for match in _WORD.finditer(kinds)]


@lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category in ("Cc", "Cs"):
        return " "
    if category[0] == "M" or category == "Cf":
        return "+"
    if character.isalnum():
        place = ord(character)
        return "u" if any(first <= place <= last for first, last in _UNSPACED) else "l"
    return "i" if character in _INSIDE_WORDS else "s"


def without_words(text: str, spans: Sequence[Span]) -> str:
    """The text without these words, given in order, and without surplus spaces."""
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    first, *others = (text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
    rest = first
    for piece in others:
        # Keep the spaces on one side of a removed word only.
        rest += piece.lstrip() if not rest or rest[-1].isspace() else piece
    return rest if text != text.strip() else rest.strip()


def spread_over_words(
    values_NC: Float[np.ndarray, "N C"],
    *,
    starts_N: Int[np.ndarray, " N"],
    stops_N: Int[np.ndarray, " N"],
    spans: Sequence[Span],
) -> tuple[Float[np.ndarray, "W C"], Float[np.ndarray, " C"]]:
    """Values of pieces of the text summed per word; what belongs to no word is the rest.

    A piece that touches several words is shared equally. Whitespace belongs to the next word, as in
    tokenizers.
    """
    word_starts, word_stops = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    first_N = np.searchsorted(word_stops, starts_N, side="right")
    behind_N = np.searchsorted(word_starts, stops_N, side="left")
    is_blank_N = (behind_N <= first_N) & (starts_N < stops_N)
    behind_N = np.where(is_blank_N, np.searchsorted(word_starts, stops_N, side="right"), behind_N)
    touched_N = np.maximum(behind_N - first_N, 0)
    owned_N = touched_N > 0
    shares_NC = values_NC[owned_N] / touched_N[owned_N, None]
    # Each share is added at its first word and subtracted after its last.
    steps_WC = np.zeros((len(spans) + 1, values_NC.shape[1]))
    np.add.at(steps_WC, first_N[owned_N], shares_NC)
    np.add.at(steps_WC, behind_N[owned_N], -shares_NC)
    words_WC: Float[np.ndarray, "W C"] = steps_WC.cumsum(axis=0)[:-1]
    # Rounding leaves small values: a word that no piece touches is exactly zero.
    pieces_W = np.bincount(first_N[owned_N], minlength=len(spans) + 1)
    pieces_W = pieces_W - np.bincount(behind_N[owned_N], minlength=len(spans) + 1)
    words_WC[pieces_W.cumsum()[:-1] == 0] = 0.0
    rest_C: Float[np.ndarray, " C"] = values_NC[~owned_N].sum(axis=0)
    return words_WC, rest_C
