"""How a blend's decision is made of words, exactly: nothing is left out, nothing approximated.

Every member of `regraft fit` adds up parts of a text (terms of TF-IDF, vectors of tokens), scales
the sum, and reads it with a logistic regression. So the score of a class is a sum over parts, and
each part has its place in the text. Comes in: a FittedClassifier, a text, spans of its words. Goes
out: what each word adds. Letters: O parts, W words, C classes, K and D features, V terms.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int

from regraft.baselines import LatentModel, LinearModel
from regraft.features import WindowRows, document_vectors
from regraft.fitted import FittedClassifier, Member
from regraft.model import repeats_weight
from regraft.regression import VectorModel, unit_length
from regraft.runfolder import LoadedRun
from regraft.words import Span, spread_over_words

if TYPE_CHECKING:
    import sklearn.feature_extraction.text
    import sklearn.linear_model

# Points on the path to a decision between more than two classes; with two, one would do.
_NUM_POINTS = 64
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Parts:
    """Places in the text, and what each adds to the score of every class."""

    starts_O: Int[np.ndarray, " O"]
    stops_O: Int[np.ndarray, " O"]
    values_OC: Float[np.ndarray, "O C"]


@dataclass(frozen=True)
class Terms:
    """Terms of TF-IDF where they stand; one of n words stands at n places, a share at each."""

    columns_O: Int[np.ndarray, " O"]
    starts_O: Int[np.ndarray, " O"]
    stops_O: Int[np.ndarray, " O"]
    shares_O: Float[np.ndarray, " O"]

    def values(self, values_V: Float[np.ndarray, " V"]) -> Float[np.ndarray, " O"]:
        """What a place has of the value of its term, which all occurrences share equally."""
        counts_V = np.bincount(self.columns_O, weights=self.shares_O, minlength=len(values_V))
        values_O: Float[np.ndarray, " O"] = (
            values_V[self.columns_O] * self.shares_O / counts_V[self.columns_O]
        )
        return values_O


def is_additive(fitted: FittedClassifier) -> bool:
    """Can the decision be taken apart? Yes if its bases only add up vectors of tokens."""
    return all(
        base.settings.model.family == "bag" and base.settings.head.pooling == "mean"
        for base in fitted.bases
    )


def contributions(
    fitted: FittedClassifier, text: str, *, target: int, spans: Sequence[Span]
) -> tuple[Float[np.ndarray, " W"], float]:
    """What each word adds to the log-odds of the target, from equal chances on, and all the rest.

    A blend's scores are weighted sums of its members'. With two classes the log-odds are their
    difference; with more, the other classes count by their probabilities, averaged on the straight
    path from no scores to those of the text.
    """
    num_classes = len(fitted.labels)
    words_WC, rest_C = np.zeros((len(spans), num_classes)), np.zeros(num_classes)
    for name in fitted.speakers:
        weight = fitted.weights[name] / fitted.temperature
        for parts in _parts(fitted, fitted.members[name], text):
            found_WC, found_C = spread_over_words(
                parts.values_OC, starts_N=parts.starts_O, stops_N=parts.stops_O, spans=spans
            )
            words_WC += weight * found_WC
            rest_C += weight * found_C
    slopes_C = _mean_slopes(words_WC.sum(axis=0) + rest_C, target=target)
    return words_WC @ slopes_C, float(rest_C @ slopes_C)


def _mean_slopes(scores_C: Float[np.ndarray, " C"], *, target: int) -> Float[np.ndarray, " C"]:
    """How the log-odds grow with each score, averaged on the way from 0 to these scores."""
    points_P, weights_P = np.polynomial.legendre.leggauss(_NUM_POINTS)
    scores_PC = (points_P[:, None] + 1) / 2 * scores_C
    scores_PC[:, target] = -np.inf
    chances_PC = np.exp(scores_PC - scores_PC.max(axis=1, keepdims=True))
    chances_PC /= chances_PC.sum(axis=1, keepdims=True)
    slopes_C: Float[np.ndarray, " C"] = -(weights_P / 2) @ chances_PC
    slopes_C[target] = 1.0
    return slopes_C


def _parts(fitted: FittedClassifier, member: Member, text: str) -> Iterator[Parts]:
    """All that a member adds up: together its scores of the classes, intercepts included."""
    regression, num_classes = member.tuned.fitted, len(member.labels)
    if isinstance(member, LinearModel):
        whole_D, found = _linear_places(member, text, num_classes)
    elif isinstance(member, LatentModel):
        whole_D, found = _latent_places(member, text, num_classes)
    else:
        whole_D, found = _vector_places(fitted, member, text, num_classes)
    intercept_C = _by_class(regression.intercept_[:, None], regression, num_classes)[0]
    square = float(np.square(whole_D).sum())
    if square == 0:  # nothing that the member knows: its intercepts belong to no word
        nowhere = np.zeros(1, dtype=np.int64)
        yield Parts(nowhere, nowhere, intercept_C[None])
        return
    for parts, along_O in found:
        # Vectors of texts have much in common, and an intercept is there to take that off again.
        # So each part bears it as far as it makes the vector what it is; these shares add up to 1.
        shares_O1 = (along_O / square)[:, None]
        yield Parts(parts.starts_O, parts.stops_O, parts.values_OC + shares_O1 * intercept_C)


# The vector that a regression reads, and parts of it: what each adds without the intercept, and
# its product with the whole.
_Places = tuple[Float[np.ndarray, " D"], list[tuple[Parts, Float[np.ndarray, " O"]]]]


def _linear_places(member: LinearModel, text: str, num_classes: int) -> _Places:
    regression = member.tuned.fitted
    whole_D = member.features.transform([text]).toarray()[0]
    found, start = [], 0
    for _, vectoriser in member.features.transformer_list:
        stop = start + len(vectoriser.vocabulary_)
        terms = terms_of(vectoriser, text)
        values_O = terms.values(whole_D[start:stop])
        columns_O = terms.columns_O + start
        weights_OC = _by_class(regression.coef_[:, columns_O], regression, num_classes)
        parts = Parts(terms.starts_O, terms.stops_O, values_O[:, None] * weights_OC)
        found.append((parts, values_O * whole_D[columns_O]))
        start = stop
    return whole_D, found


def _latent_places(member: LatentModel, text: str, num_classes: int) -> _Places:
    regression, space = member.tuned.fitted, member.space
    terms = terms_of(space.words, text)
    row = space.words.transform([text])
    length = float(np.linalg.norm((row @ space.axes_VK).astype(np.float64)))
    whole_K = space.vectors([text])[0]
    values_O = terms.values(row.toarray()[0].astype(np.float64)) / max(length, _TINY)
    # Each term once: a long text repeats most of its words.
    columns_U, places_O = np.unique(terms.columns_O, return_inverse=True)
    axes_UK = space.axes_VK[columns_U].astype(np.float64)
    weights_UC = _by_class(regression.coef_ @ axes_UK.T, regression, num_classes)
    parts = Parts(terms.starts_O, terms.stops_O, values_O[:, None] * weights_UC[places_O])
    return whole_K, [(parts, values_O * (axes_UK @ whole_K)[places_O])]


def _vector_places(
    fitted: FittedClassifier, member: VectorModel, text: str, num_classes: int
) -> _Places:
    regression = member.tuned.fitted
    whole_D = unit_length(document_vectors(fitted.bases, [text]))[0]
    found, first = [], 0
    for base in fitted.bases:
        starts_O, stops_O, vectors_OK = _token_vectors(base, text)
        here = slice(first, first + vectors_OK.shape[1])
        # Of length 1 in each base, then of length 1 side by side.
        length = float(np.linalg.norm(vectors_OK.sum(axis=0))) * np.sqrt(len(fitted.bases))
        vectors_OK = vectors_OK / max(length, _TINY)
        values_OC = _by_class(regression.coef_[:, here] @ vectors_OK.T, regression, num_classes)
        found.append((Parts(starts_O, stops_O, values_OC), vectors_OK @ whole_D[here]))
        first = here.stop
    return whole_D, found


@torch.no_grad()
def _token_vectors(
    base: LoadedRun, text: str
) -> tuple[Int[np.ndarray, " O"], Int[np.ndarray, " O"], Float[np.ndarray, "O K"]]:
    """Tokens of all windows that a bag reads, where they stand, and what each adds to the sum.

    The vector of a pair of neighbours is half of either.
    """
    tokenizer, max_length = base.tokenizer, base.settings.data.max_length
    rows = WindowRows([text], tokenizer=tokenizer, max_length=max_length)
    batch = rows.batch(np.arange(len(rows.lengths)))
    backbone, real_BT = base.model.backbone.eval(), batch.real_BT
    hidden_BTD = backbone(batch.ids_BT, real_BT=real_BT)
    weights_BT = repeats_weight(batch.ids_BT, is_counted_BT=real_BT)
    alone_BTD = backbone.embedding(batch.ids_BT) * weights_BT.unsqueeze(2)
    pairs_BTD = hidden_BTD - alone_BTD
    shared_BTD = alone_BTD + pairs_BTD / 2
    shared_BTD[:, :-1] += pairs_BTD[:, 1:] / 2
    # Tokens around a window stand nowhere.
    starts_BT, stops_BT = np.zeros((2, *real_BT.shape), dtype=np.int64)
    spans = iter(tokenizer.spans(text))
    for window, length in enumerate(rows.lengths):
        for place in range(len(tokenizer.prefix_ids), length - len(tokenizer.suffix_ids)):
            starts_BT[window, place], stops_BT[window, place] = next(spans)
    kept = real_BT.numpy()
    return starts_BT[kept], stops_BT[kept], shared_BTD[real_BT].double().numpy()


def _by_class(
    rows_RO: Float[np.ndarray, "R O"],
    regression: "sklearn.linear_model.LogisticRegression",
    num_classes: int,
) -> Float[np.ndarray, "O C"]:
    """A column a label; scikit-learn keeps one row for two classes, and none for unknown ones."""
    if len(regression.classes_) == 2:
        rows_RO = np.concatenate([np.zeros_like(rows_RO), rows_RO])
    by_class_OC = np.zeros((rows_RO.shape[1], num_classes))
    by_class_OC[:, regression.classes_] = rows_RO.T
    return by_class_OC


def terms_of(vectoriser: "sklearn.feature_extraction.text.TfidfVectorizer", text: str) -> Terms:
    """The terms of a text that a vectoriser knows, each where it stands."""
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


def _word_terms(
    vectoriser: "sklearn.feature_extraction.text.TfidfVectorizer", lowered: str
) -> Iterator[_Row]:
    columns = vectoriser.vocabulary_
    fewest, most = vectoriser.ngram_range
    words = list(re.finditer(vectoriser.token_pattern, lowered))
    for num in range(fewest, most + 1):
        for first in range(len(words) - num + 1):
            parts = words[first : first + num]
            column = columns.get(" ".join(part.group() for part in parts))
            if column is not None:
                for part in parts:
                    yield column, *part.span(), 1 / num


def _character_terms(
    vectoriser: "sklearn.feature_extraction.text.TfidfVectorizer", lowered: str
) -> Iterator[_Row]:
    """Characters of what stands between blanks, a blank before and behind (`char_wb`)."""
    known: dict[str, list[_Row]] = {}
    for chunk in re.finditer(r"\S+", lowered):
        word = chunk.group()
        if word not in known:
            known[word] = list(_terms_in_word(vectoriser, word))
        for column, start, stop, share in known[word]:
            yield column, chunk.start() + start, chunk.start() + stop, share


def _terms_in_word(
    vectoriser: "sklearn.feature_extraction.text.TfidfVectorizer", word: str
) -> Iterator[_Row]:
    columns = vectoriser.vocabulary_
    fewest, most = vectoriser.ngram_range
    framed = f" {word} "
    for num in range(fewest, most + 1):
        for first in range(max(len(framed) - num, 0) + 1):
            column = columns.get(framed[first : first + num])
            if column is not None:
                yield column, max(first - 1, 0), min(first + num - 1, len(word)), 1.0
        if num >= len(framed):  # longer terms would be the same one again
            return
