"""The exact share of every word in a decision: nothing is left out, nothing approximated.

The members of `regraft fit` add up parts of a text (TF-IDF terms, vectors of tokens) and read the
sum with a logistic regression. So the score of a class is a sum over parts, and each part has its
place in the text. Letters: O parts, W words, C classes, D features, V terms.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from regraft.classifiers.explanation import Attribution
from regraft.classifiers.vectoriser import WORD, Vectoriser, character_terms
from regraft.data import Span, spread_over_words

if TYPE_CHECKING:
    from regraft.classifiers.logistic import Regression

# Points on the path to a decision between more than two classes; for two, one would be enough.
_NUM_POINTS = 64


@dataclass(frozen=True)
class Parts:
    """Places in the text, and what each adds to the score of every class."""

    starts_O: Int[np.ndarray, " O"]
    stops_O: Int[np.ndarray, " O"]
    values_OC: Float[np.ndarray, "O C"]

    def scaled(self, weight: float) -> "Parts":
        """The same parts with another weight."""
        return Parts(self.starts_O, self.stops_O, weight * self.values_OC)


@dataclass(frozen=True)
class Terms:
    """TF-IDF terms at their places; a term of n words has n places, with a share at each."""

    columns_O: Int[np.ndarray, " O"]
    starts_O: Int[np.ndarray, " O"]
    stops_O: Int[np.ndarray, " O"]
    shares_O: Float[np.ndarray, " O"]

    def values(self, values_V: Float[np.ndarray, " V"]) -> Float[np.ndarray, " O"]:
        """What each place has of the value of its term; all occurrences share it equally."""
        counts_V = np.bincount(self.columns_O, weights=self.shares_O, minlength=len(values_V))
        values_O: Float[np.ndarray, " O"] = (
            values_V[self.columns_O] * self.shares_O / counts_V[self.columns_O]
        )
        return values_O


def contributions(
    parts: Iterable[Parts], spans: Sequence[Span], *, target: int, has_label_sets: bool = False
) -> Attribution:
    """What each word adds to the log-odds of the target, starting from equal probabilities.

    With two classes the log-odds are the difference of their scores; with more, the other classes
    count by their probabilities, averaged on the straight path from no scores to those of the text.
    With label sets the score of a class is its log-odds.
    """
    words_WC, rest_C = np.zeros(()), np.zeros(())
    for part in parts:
        part_WC, part_C = spread_over_words(
            part.values_OC, starts_N=part.starts_O, stops_N=part.stops_O, spans=spans
        )
        words_WC, rest_C = words_WC + part_WC, rest_C + part_C
    if has_label_sets:
        slopes_C, baseline = np.eye(len(rest_C))[target], 0.0
    else:
        slopes_C = _mean_slopes(words_WC.sum(axis=0) + rest_C, target=target)
        baseline = float(np.log(1 / (len(rest_C) - 1)))
    return Attribution(
        words_WC @ slopes_C,
        baseline=baseline,
        baseline_name="yes and no equally likely"
        if has_label_sets
        else "all labels equally likely",
        elsewhere=float(rest_C @ slopes_C),
    )


def _mean_slopes(scores_C: Float[np.ndarray, " C"], *, target: int) -> Float[np.ndarray, " C"]:
    """How the log-odds grow with each score, averaged on the path from 0 to these scores."""
    points_P, weights_P = np.polynomial.legendre.leggauss(_NUM_POINTS)
    scores_PC = (points_P[:, None] + 1) / 2 * scores_C
    scores_PC[:, target] = -np.inf
    chances_PC = np.exp(scores_PC - scores_PC.max(axis=1, keepdims=True))
    chances_PC /= chances_PC.sum(axis=1, keepdims=True)
    slopes_C: Float[np.ndarray, " C"] = -(weights_P / 2) @ chances_PC
    slopes_C[target] = 1.0
    return slopes_C


def with_intercepts(
    features_D: Float[np.ndarray, " D"],
    parts: Iterable[tuple[Parts, Float[np.ndarray, " _"]]],
    *,
    regression: "Regression",
    num_classes: int,
) -> list[Parts]:
    """The parts of a regression's scores, with its intercepts distributed over them.

    `features_D` is the vector of the whole text; each part comes with its products with that
    vector. Texts have much in common, and the intercept compensates for it: so each part gets the
    share of the intercept that it has in the vector. These shares add up to 1.
    """
    intercept_C = by_class(regression.intercept_[:, None], regression, num_classes)[0]
    square = float(np.square(features_D).sum())
    if square == 0:  # no known feature: the intercepts belong to no word
        nowhere = np.zeros(1, dtype=np.int64)
        return [Parts(nowhere, nowhere, intercept_C[None])]
    return [
        Parts(
            part.starts_O,
            part.stops_O,
            part.values_OC + (products_O / square)[:, None] * intercept_C,
        )
        for part, products_O in parts
    ]


def by_class(
    rows_RO: Float[np.ndarray, "R O"], regression: "Regression", num_classes: int
) -> Float[np.ndarray, "O C"]:
    """One column per label; a regression has one row for two classes, none for unknown ones."""
    if len(rows_RO) < len(regression.classes_):
        rows_RO = np.concatenate([np.zeros_like(rows_RO), rows_RO])
    by_class_OC = np.zeros((rows_RO.shape[1], num_classes))
    by_class_OC[:, regression.classes_] = rows_RO.T
    return by_class_OC


def terms_of(vectoriser: Vectoriser, text: str) -> Terms:
    """The terms of a text that a vectoriser knows, with their places."""
    lowered = text.lower()
    read = _word_terms if vectoriser.analyzer == "word" else _character_terms
    rows = list(read(vectoriser, lowered))
    columns_O, starts_O, stops_O = (
        np.array([row[:3] for row in rows], dtype=np.int64).reshape(-1, 3).T
    )
    shares_O = np.array([row[3] for row in rows], dtype=np.float64)
    if len(lowered) != len(text):  # a few capitals become two characters
        lengths = [len(character.lower()) for character in text]
        place_in_text = np.append(np.repeat(np.arange(len(text)), lengths), len(text))
        starts_O, stops_O = place_in_text[starts_O], place_in_text[stops_O - 1] + 1
    return Terms(columns_O, starts_O, stops_O, shares_O)


_Row = tuple[int, int, int, float]


def _word_terms(vectoriser: Vectoriser, lowered: str) -> Iterator[_Row]:
    columns = vectoriser.columns
    fewest, most = vectoriser.ngram_range
    words = list(WORD.finditer(lowered))
    for num in range(fewest, most + 1):
        for first in range(len(words) - num + 1):
            parts = words[first : first + num]
            column = columns.get(" ".join(part.group() for part in parts))
            if column is not None:
                for part in parts:
                    yield column, *part.span(), 1 / num


def _character_terms(vectoriser: Vectoriser, lowered: str) -> Iterator[_Row]:
    """Characters of the words between blanks, with one blank on either side (`char_wb`)."""
    known: dict[str, list[_Row]] = {}
    for chunk in re.finditer(r"\S+", lowered):
        word = chunk.group()
        if word not in known:
            known[word] = list(_terms_in_word(vectoriser, word))
        for column, start, stop, share in known[word]:
            yield column, chunk.start() + start, chunk.start() + stop, share


def _terms_in_word(vectoriser: Vectoriser, word: str) -> Iterator[_Row]:
    start = size = -1
    for term in character_terms(word, vectoriser.ngram_range):
        start = start + 1 if len(term) == size else -1  # that of the blank before the word
        size = len(term)
        column = vectoriser.columns.get(term)
        if column is not None:
            yield column, max(start, 0), min(start + size, len(word)), 1.0
