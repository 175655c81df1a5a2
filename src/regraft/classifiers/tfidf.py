"""Baselines without a network: TF-IDF regression, NB-SVM, and latent semantic analysis.

Letters: K latent dimensions, V terms, C classes, O places in a text.
"""

import dataclasses
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from regraft.classifiers.base import ExportFormat, register_classifier
from regraft.classifiers.chunks import Cut, ItemsOf
from regraft.classifiers.contributions import Parts, by_class, terms_of, with_intercepts
from regraft.classifiers.logistic import (
    REGULARISATIONS,
    Matrix,
    Regression,
    RegressionModel,
    best_of,
    fit_in_space,
    one_thread,
    rebuilt_regression,
    tune,
    unit_length,
)
from regraft.classifiers.storage import Member, Stored
from regraft.classifiers.vectoriser import Vectoriser, fit_vectoriser
from regraft.data import Example, Labels, check_trainable
from regraft.errors import DataError
from regraft.runtime import SILENT, Progress, tracked
from regraft.stats import best_micro_f1

# From this many examples on, a feature seen in one of them only is noise and is dropped.
_RARE_FEATURES_FROM = 500
# From this many documents on, terms of fewer than five of them or of more than half are dropped.
_LARGE_TEXT_FROM = 5_000
_MAX_TERMS = 200_000
LATENT_DIMENSIONS = 300
# Measured on 20,000 film reviews, 2026-11-16: 2 are twice as fast as 5 and as good with 100 to 500
# labels, but with 2,000 the accuracy is 87.1 instead of 87.5.
_POWER_ITERATIONS = 5

# How texts are cut into terms.
_WORDS: dict[str, Any] = {"analyzer": "word", "ngram_range": (1, 2)}
_CHARACTERS: dict[str, Any] = {"analyzer": "char_wb", "ngram_range": (2, 5)}


class _TermModel(RegressionModel):
    """A regression on terms of a text."""

    @property
    def export_formats(self) -> tuple[ExportFormat, ...]:
        """A folder that numpy reads."""
        return ("numpy",)


@register_classifier("linear")
@dataclass(frozen=True)
class LinearModel(_TermModel):
    """TF-IDF over words and characters with logistic regression."""

    words: Vectoriser
    characters: Vectoriser

    @property
    def tables(self) -> tuple[ItemsOf, ...]:
        """Words and character n-grams."""
        return self.words.items_of, self.characters.items_of

    def _rows(self, cut: Cut) -> list[Matrix]:
        return [self.words.rows(cut, table=0), self.characters.rows(cut, table=1)]

    def matrix(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Matrix:
        """TF-IDF values, sparse."""
        return _side_by_side(*self._rows(self.chunks.cut(texts)))

    def cut_products(self, cut: Cut) -> Float[np.ndarray, "N R"]:
        """The products of words and of characters, without copying them side by side."""
        words, characters = self._rows(cut)
        coefficients_DR = self.tuned.fitted.coef_.T
        num_words = words.shape[1]
        return np.asarray(
            words @ coefficients_DR[:num_words] + characters @ coefficients_DR[num_words:]
        )

    def score_parts(self, text: str) -> list[Parts]:
        """Terms of words and of characters."""
        return _term_parts(self, text, [self.words, self.characters])

    def features_stored(self) -> Stored:
        """The vectorisers."""
        return _vectorisers_stored(words=self.words, characters=self.characters)

    @classmethod
    def rebuilt(cls, stored: Stored, *, folder: Path) -> "LinearModel":
        """From its regression and the vectorisers."""
        words, characters = (_rebuilt_vectoriser(stored, name) for name in ("words", "characters"))
        num_features = len(words.terms) + len(characters.terms)
        return cls(rebuilt_regression(stored, num_features=num_features), words, characters)


@register_classifier("nbsvm")
@dataclass(frozen=True)
class NaiveBayesModel(_TermModel):
    """NB-SVM (Wang & Manning 2012): a regression on words, weighted by how a class prefers them.

    Logistic instead of the hinge loss, as in Mesnil et al. (2014), for probabilities. Every class
    has its own ratios against the rest, which are part of its coefficients here.
    """

    words: Vectoriser

    def matrix(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Matrix:
        """Which words and pairs of words a text has."""
        return self.words.transform(texts)

    @property
    def tables(self) -> tuple[ItemsOf, ...]:
        """Words."""
        return (self.words.items_of,)

    def cut_products(self, cut: Cut) -> Float[np.ndarray, "N R"]:
        """The products of words and pairs of words."""
        return np.asarray(self.words.rows(cut) @ self.tuned.fitted.coef_.T)

    def score_parts(self, text: str) -> list[Parts]:
        """Words and pairs of words."""
        return _term_parts(self, text, [self.words])

    def features_stored(self) -> Stored:
        """The vocabulary."""
        return Stored({}, {}, {"words": list(self.words.terms)})

    @classmethod
    def rebuilt(cls, stored: Stored, *, folder: Path) -> "NaiveBayesModel":
        """From its regression and the vocabulary."""
        words = Vectoriser(**_WORDS, terms=stored.terms["words"])
        return cls(rebuilt_regression(stored, num_features=len(words.terms)), words)


def _term_parts(
    model: RegressionModel, text: str, vectorisers: Sequence[Vectoriser]
) -> list[Parts]:
    """The scores of a text as a sum over terms; the vectorisers make its columns in this order."""
    regression, num_classes = model.tuned.fitted, len(model.labels)
    features_D = model.matrix([text]).toarray()[0]
    parts, start = [], 0
    for vectoriser in vectorisers:
        stop = start + len(vectoriser.terms)
        terms = terms_of(vectoriser, text)
        values_O = terms.values(features_D[start:stop])
        columns_O = terms.columns_O + start
        weights_OC = by_class(regression.coef_[:, columns_O], regression, num_classes)
        part = Parts(terms.starts_O, terms.stops_O, values_O[:, None] * weights_OC)
        parts.append((part, values_O * features_D[columns_O]))
        start = stop
    return with_intercepts(features_D, parts, regression=regression, num_classes=num_classes)


@dataclass(frozen=True)
class LatentSpace(Member):
    """The directions in which texts differ most (latent semantic analysis; needs no labels)."""

    kind = "space"
    words: Vectoriser
    axes_VK: Float[np.ndarray, "V K"] = field(repr=False)

    def stored(self) -> Stored:
        """Its parts, ready for disk."""
        words = _vectorisers_stored(words=self.words)
        return Stored(words.facts, {**words.arrays, "axes": self.axes_VK}, words.terms)

    @classmethod
    def rebuilt(cls, stored: Stored, *, folder: Path) -> "LatentSpace":
        """The same space from its parts; ValueError or KeyError if they do not fit."""
        words, axes_VK = _rebuilt_vectoriser(stored, "words"), stored.arrays["axes"]
        if len(axes_VK) != len(stored.terms["words"]):
            raise ValueError(f"there are {len(axes_VK)} axes")
        return cls(words, axes_VK)

    def vectors(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> Float[np.ndarray, "N K"]:
        """Vectors of length 1; zeros for a text of unknown words only."""
        return unit_length(self.words.transform(texts) @ self.axes_VK)


@register_classifier("latent")
@dataclass(frozen=True)
class LatentModel(_TermModel):
    """Logistic regression on the vectors of texts in a latent space."""

    space: LatentSpace = field(repr=False)

    def matrix(self, texts: Sequence[str], *, progress: Progress = SILENT) -> Matrix:
        """The vectors of texts."""
        return unit_length(self.space.vectors(texts))

    @property
    def tables(self) -> tuple[ItemsOf, ...]:
        """Words."""
        return (self.space.words.items_of,)

    def cut_products(self, cut: Cut) -> Float[np.ndarray, "N R"]:
        """The products of the vectors with the coefficients."""
        vectors_NK = unit_length(self.space.words.rows(cut) @ self.space.axes_VK)
        return np.asarray(vectors_NK @ self.tuned.fitted.coef_.T)

    def score_parts(self, text: str) -> list[Parts]:
        """Terms, each projected into the space."""
        regression, space, num_classes = self.tuned.fitted, self.space, len(self.labels)
        terms = terms_of(space.words, text)
        row = space.words.transform([text])
        length = float(np.linalg.norm((row @ space.axes_VK).astype(np.float64)))
        features_K = self.matrix([text])[0]
        values_O = terms.values(row.toarray()[0].astype(np.float64))
        values_O = values_O / max(length, float(np.finfo(np.float64).tiny))
        # Each term once: a long text repeats most of its words.
        columns_U, places_O = np.unique(terms.columns_O, return_inverse=True)
        axes_UK = space.axes_VK[columns_U].astype(np.float64)
        weights_UC = by_class(regression.coef_ @ axes_UK.T, regression, num_classes)
        part = Parts(terms.starts_O, terms.stops_O, values_O[:, None] * weights_UC[places_O])
        products_O = values_O * (axes_UK @ features_K)[places_O]
        return with_intercepts(
            features_K, [(part, products_O)], regression=regression, num_classes=num_classes
        )

    def features_stored(self) -> Stored:
        """The space."""
        return self.space.stored()

    @classmethod
    def rebuilt(cls, stored: Stored, *, folder: Path) -> "LatentModel":
        """From its regression and the space."""
        space = LatentSpace.rebuilt(stored, folder=folder)
        return cls(rebuilt_regression(stored, num_features=space.axes_VK.shape[1]), space)


def fit_linear(
    train: Sequence[Example],
    valid: Sequence[Example] | None,
    *,
    labels: Labels,
    seed: int = 0,
) -> LinearModel:
    """Fit on train with the C that is best on valid, or without valid on folds of train.

    Even for the folds, words are counted in all of train: that uses no label.
    """
    fit_start = time.perf_counter()
    targets_N = labels.targets(train)
    check_trainable(train)
    words, characters, matrix = _fit_features(train)
    judge = None
    if valid:
        texts = [example.text for example in valid]
        rows = _side_by_side(words.transform(texts), characters.transform(texts))
        judge = rows, labels.targets(valid)
    tuned = tune(matrix, targets_N, labels=tuple(labels.names), valid=judge, seed=seed)
    seconds = time.perf_counter() - fit_start
    return LinearModel(dataclasses.replace(tuned, seconds=seconds), words, characters)


def linear_score(
    train: Sequence[Example], valid: Sequence[Example], *, labels: Labels, seed: int = 0
) -> float:
    """The score of the linear baseline on valid for tasks that comparisons do not support.

    For pairs, the accuracy with both texts as one. For label sets, the micro-F1 of one regression
    per label, with the best threshold common to all.
    """
    train, valid = ([_as_one(example) for example in part] for part in (train, valid))
    if all(example.labels is None for example in train):
        score = fit_linear(train, valid, labels=labels, seed=seed).tuned.valid_accuracy
        assert score is not None, "valid has examples"
        return score
    words, characters, matrix = _fit_features(train)
    texts = [example.text for example in valid]
    judge = _side_by_side(words.transform(texts), characters.transform(texts))
    targets_NC, judge_targets = labels.targets(train), labels.targets(valid)
    chances_NC = np.zeros(judge_targets.shape)
    for target in range(len(labels)):
        targets_N = targets_NC[:, target]
        if targets_N.all():  # every text has this label
            chances_NC[:, target] = 1.0
            continue
        judged = (judge, judge_targets[:, target])
        tuned = tune(matrix, targets_N, labels=("no", "yes"), valid=judged, seed=seed)
        assert tuned.judged_NC is not None, "valid has examples"
        chances_NC[:, target] = tuned.judged_NC[:, 1]
    return best_micro_f1(chances_NC, judge_targets)


def _as_one(example: Example) -> Example:
    if example.pair is None:
        return example
    return dataclasses.replace(example, text=f"{example.text}\n{example.pair}", pair=None)


def fit_naive_bayes(
    train: Sequence[Example], valid: Sequence[Example], *, labels: Labels
) -> NaiveBayesModel:
    """Fit on train with the C that is best on valid (ties: the smaller loss)."""
    fit_start = time.perf_counter()
    targets_N = labels.targets(train)
    check_trainable(train)
    try:
        words, matrix = fit_vectoriser(
            [example.text for example in train],
            **_WORDS,
            min_df=_fewest_examples(len(train)),
            is_binary=True,
        )
    except ValueError as error:
        raise _no_words(train, arm="nbsvm") from error
    judge, judge_targets = words.transform([e.text for e in valid]), labels.targets(valid)
    tries = [_fit_ratios(matrix, targets_N, strength=strength) for strength in REGULARISATIONS]
    tuned = best_of(tries, judge, judge_targets, labels=tuple(labels.names))
    seconds = time.perf_counter() - fit_start
    return NaiveBayesModel(dataclasses.replace(tuned, seconds=seconds), words)


def _fit_ratios(matrix: Matrix, targets_N: Int[np.ndarray, " N"], *, strength: float) -> Regression:
    """One regression per class against the rest, on its ratios; one is enough for two classes."""
    from sklearn.linear_model import LogisticRegression

    classes = np.unique(targets_N)
    fitted_classes = classes[1:] if len(classes) == 2 else classes
    coefficients, intercepts = [], []
    for target in fitted_classes:
        is_it_N = targets_N == target
        # Add-one smoothing, as in the paper; a text has a word or not.
        inside_V = 1.0 + np.asarray(matrix[is_it_N].sum(axis=0)).ravel()
        outside_V = 1.0 + np.asarray(matrix[~is_it_N].sum(axis=0)).ravel()
        ratios_V = np.log((inside_V / inside_V.sum()) / (outside_V / outside_V.sum()))
        regression = LogisticRegression(C=strength, max_iter=2_000)
        with one_thread():
            regression.fit(matrix.multiply(ratios_V).tocsr(), is_it_N)
        coefficients.append(regression.coef_[0] * ratios_V)
        intercepts.append(regression.intercept_[0])
    return Regression(np.stack(coefficients), np.array(intercepts), classes)


def _no_words(train: Sequence[Example], *, arm: str) -> DataError:
    """Replaces scikit-learn's error "empty vocabulary"."""
    return DataError(
        f"The {len(train)} training texts, from {train[0].source}, share no words.",
        f"The {arm} arm counts words{' and characters' if arm == 'linear' else ''}.",
        remedy="Check the text column with `regraft data check`.",
    )


def fit_latent(
    train: Sequence[Example],
    valid: Sequence[Example] | None,
    *,
    labels: Labels,
    texts: Iterable[str],
    seed: int = 0,
    progress: Progress = SILENT,
) -> LatentModel:
    """Fit a latent space to `texts` and the training texts, then a regression in it."""
    fit_start = time.perf_counter()
    # Find a wrong label before minutes of work.
    check_trainable(train)
    labels.targets([*train, *(valid or ())])
    everything = itertools.chain(texts, (example.text for example in train))
    space = fit_space(everything, seed=seed, progress=progress)
    tuned = fit_in_space(space, train, valid, labels=labels, seed=seed)
    seconds = time.perf_counter() - fit_start
    return LatentModel(dataclasses.replace(tuned, seconds=seconds), space)


def fit_space(texts: Iterable[str], *, seed: int = 0, progress: Progress = SILENT) -> LatentSpace:
    """A truncated SVD of TF-IDF over words and pairs of words; the texts are read once."""
    from sklearn.utils.extmath import randomized_svd

    # A list: which terms are rare depends on the number of documents.
    documents = list(tracked(texts, name="reading text", total=None, progress=progress))
    is_large = len(documents) >= _LARGE_TEXT_FROM
    counted = tracked(documents, name="counting words", total=len(documents), progress=progress)
    try:
        words, matrix = fit_vectoriser(
            counted,
            **_WORDS,
            min_df=5 if is_large else _fewest_examples(len(documents)),
            max_df=0.5 if is_large else 1.0,
            max_terms=_MAX_TERMS,
            dtype=np.float32,  # half the memory, and precise enough for counts
        )
    except ValueError as error:
        raise DataError(
            f"The {len(documents)} texts share no words.",
            "The latent arm needs words that several texts have in common.",
            remedy="Check the texts with `regraft data check`, or omit the latent arm.",
        ) from error
    del documents, counted
    progress.start("latent dimensions", total=None)
    try:
        with one_thread():
            _, _, axes_KV = randomized_svd(
                matrix,
                n_components=min(LATENT_DIMENSIONS, *matrix.shape),
                n_iter=_POWER_ITERATIONS,
                random_state=seed,
            )
    finally:
        progress.finish()
    # In the order that sparse products need: else each of them would copy it.
    return LatentSpace(words, np.ascontiguousarray(axes_KV.T))


def _fit_features(train: Sequence[Example]) -> tuple[Vectoriser, Vectoriser, Matrix]:
    """Vectorisers of words and of characters, and the rows of train."""
    texts, min_df = [example.text for example in train], _fewest_examples(len(train))
    try:
        words, word_rows = fit_vectoriser(texts, **_WORDS, min_df=min_df)
        characters, character_rows = fit_vectoriser(texts, **_CHARACTERS, min_df=min_df)
    except ValueError as error:
        raise _no_words(train, arm="linear") from error
    return words, characters, _side_by_side(word_rows, character_rows)


def _fewest_examples(num_examples: int) -> int:
    """In how many examples a term must occur."""
    return 2 if num_examples >= _RARE_FEATURES_FROM else 1


def _side_by_side(*rows: Matrix) -> Matrix:
    import scipy.sparse

    return scipy.sparse.hstack(rows, format="csr")


def _vectorisers_stored(**vectorisers: Vectoriser) -> Stored:
    """Settings as facts, terms in the order of their columns, inverse frequencies as arrays."""
    settings = {
        name: {"analyzer": vectoriser.analyzer, "ngram_range": list(vectoriser.ngram_range)}
        for name, vectoriser in vectorisers.items()
    }
    return Stored(
        facts={"vectorisers": settings},
        arrays={f"{name}.idf": np.asarray(v.idf_V) for name, v in vectorisers.items()},
        terms={name: list(vectoriser.terms) for name, vectoriser in vectorisers.items()},
    )


def _rebuilt_vectoriser(stored: Stored, name: str) -> Vectoriser:
    settings = stored.facts["vectorisers"][name]
    if settings["analyzer"] not in ("word", "char_wb"):
        raise ValueError(f"the analyzer {settings['analyzer']!r} is unknown")
    return Vectoriser(
        analyzer=settings["analyzer"],
        ngram_range=tuple(settings["ngram_range"]),
        terms=stored.terms[name],
        idf_V=stored.arrays[f"{name}.idf"],
    )
