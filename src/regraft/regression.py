"""Logistic regression whose strength is chosen by trial: the last step of every shallow member.

Comes in: a matrix of features and targets, and a second pair of them to judge by if there is one.
Goes out: a TunedRegression, or the member that reads the vectors of a base. Letters: N examples,
C classes, D features, V examples of valid. Knows no text and no network.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Int

from regraft import metrics
from regraft.members import Stored, load_member, rebuilding, save_member
from regraft.text import Labels

if TYPE_CHECKING:
    import sklearn.linear_model

# scikit-learn's C: larger is less regularised.
REGULARISATIONS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# Where nothing can judge.
_BLIND_REGULARISATION = 1.0
NUM_FOLDS = 5
# With more rows, their products with each other would take longer than they save.
_MOST_TURNED_ROWS = 2_000

Judge = Literal["valid", "folds", "nothing"]
# A numpy array or one of scipy's sparse matrices, whose stubs know no common type.
Matrix = Any


@dataclass(frozen=True)
class TunedRegression:
    """A logistic regression with the C that served best, and how that was found out.

    `valid_accuracy` and `valid_curve` (every C tried) are the judge's: of valid, or of the training
    rows, each answered by a regression that had not seen it. `judged_NC` are those answers with the
    C chosen, in the judge's order; a member that was loaded has none.
    """

    labels: tuple[str, ...]
    regularisation: float
    judged_by: Judge
    valid_accuracy: float | None
    valid_curve: dict[float, float]
    fitted: "sklearn.linear_model.LogisticRegression" = field(repr=False)
    judged_NC: Float[np.ndarray, "N C"] | None = field(repr=False, default=None)

    def probabilities(self, matrix: Matrix) -> Float[np.ndarray, "N C"]:
        """The probability of every label; 0 for a label that train did not have."""
        return _probabilities(self.fitted, matrix, len(self.labels))

    def stored(self) -> Stored:
        """Its parts, ready for disk."""
        facts = {
            "labels": list(self.labels),
            "regularisation": self.regularisation,
            "judged_by": self.judged_by,
            "valid_accuracy": self.valid_accuracy,
            "valid_curve": list(self.valid_curve.items()),
        }
        arrays = {
            "coefficients": self.fitted.coef_,
            "intercepts": self.fitted.intercept_,
            "classes": self.fitted.classes_,
        }
        return Stored(facts, arrays)


def rebuilt_regression(stored: Stored, *, num_features: int) -> TunedRegression:
    """The same regression from its parts; ValueError or KeyError if they do not fit."""
    from sklearn.linear_model import LogisticRegression

    facts, arrays = stored.facts, stored.arrays
    labels = tuple(map(str, facts["labels"]))
    classes = arrays["classes"]
    num_rows = 1 if len(classes) == 2 else len(classes)
    if arrays["coefficients"].shape != (num_rows, num_features):
        raise ValueError(
            f"coefficients are {arrays['coefficients'].shape}, not {(num_rows, num_features)}"
        )
    if arrays["intercepts"].shape != (num_rows,) or not set(classes) <= set(range(len(labels))):
        raise ValueError(f"intercepts or classes do not fit {len(labels)} labels")
    fitted = LogisticRegression(C=float(facts["regularisation"]))
    fitted.coef_, fitted.intercept_ = arrays["coefficients"], arrays["intercepts"]
    fitted.classes_, fitted.n_features_in_ = classes, num_features
    return TunedRegression(
        labels=labels,
        regularisation=float(facts["regularisation"]),
        judged_by=facts["judged_by"],
        valid_accuracy=facts["valid_accuracy"],
        valid_curve={float(strength): accuracy for strength, accuracy in facts["valid_curve"]},
        fitted=fitted,
    )


@dataclass(frozen=True)
class Member(ABC):
    """What shallow members have in common: a tuned regression on features of their own."""

    kind: ClassVar[str]
    tuned: TunedRegression
    seconds: float

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of `probabilities`."""
        return self.tuned.labels

    @property
    def regularisation(self) -> float:
        """The C chosen."""
        return self.tuned.regularisation

    @property
    def judged_by(self) -> Judge:
        """Whose `valid_accuracy` is: of valid, of folds of train, or of nothing (it is None)."""
        return self.tuned.judged_by

    @property
    def valid_accuracy(self) -> float | None:
        """The accuracy of the C chosen on examples that were not fitted."""
        return self.tuned.valid_accuracy

    @property
    def valid_curve(self) -> dict[float, float]:
        """The accuracy of every C tried."""
        return self.tuned.valid_curve

    @property
    def judged_NC(self) -> Float[np.ndarray, "N C"] | None:  # noqa: N802
        """Probabilities of the examples judged by, given without having seen them: for a blend."""
        return self.tuned.judged_NC

    def save(self, folder: str | Path) -> None:
        """Write a folder of JSON and safetensors; `load` gives a model of equal probabilities."""
        shared, own = self.tuned.stored(), self._features_stored()
        stored = Stored(
            facts={**shared.facts, "seconds": self.seconds, **own.facts},
            arrays={**shared.arrays, **own.arrays},
            terms=own.terms,
        )
        save_member(Path(folder), stored, kind=self.kind)

    @abstractmethod
    def _features_stored(self) -> Stored:
        """What its features are made of, ready for disk."""


@dataclass(frozen=True)
class VectorModel(Member):
    """The member "features": a regression on the vectors of a base, which it does not know."""

    kind: ClassVar[str] = "features"

    def vector_probabilities(
        self, vectors_ND: Float[np.ndarray, "N D"]
    ) -> Float[np.ndarray, "N C"]:
        """The probability of every label, from vectors of the base it was fitted on."""
        if not len(vectors_ND):
            return np.zeros((0, len(self.labels)))
        return self.tuned.probabilities(unit_length(vectors_ND))

    def _features_stored(self) -> Stored:
        return Stored(facts={"width": int(self.tuned.fitted.n_features_in_)}, arrays={})

    @classmethod
    def load(cls, folder: str | Path) -> "VectorModel":
        """The member that `save` wrote."""
        stored = load_member(Path(folder), kind=cls.kind)
        with rebuilding(Path(folder), kind=cls.kind):
            tuned = rebuilt_regression(stored, num_features=stored.facts["width"])
            return cls(tuned, float(stored.facts["seconds"]))


def fit_regression(
    vectors_ND: Float[np.ndarray, "N D"],
    targets_N: Int[np.ndarray, " N"],
    *,
    labels: Labels,
    valid: tuple[Float[np.ndarray, "V D"], Int[np.ndarray, " V"]] | None = None,
    seed: int = 0,
) -> VectorModel:
    """A regression on vectors, scaled to length 1; `valid` is judged by, without it folds are."""
    fit_start = time.perf_counter()
    judge = None if valid is None else (unit_length(valid[0]), valid[1])
    tuned = tune(
        unit_length(vectors_ND), targets_N, labels=tuple(labels.names), valid=judge, seed=seed
    )
    return VectorModel(tuned, time.perf_counter() - fit_start)


def tune(
    matrix: Matrix,
    targets_N: Int[np.ndarray, " N"],
    *,
    labels: tuple[str, ...],
    valid: tuple[Matrix, Int[np.ndarray, " V"]] | None = None,
    seed: int = 0,
) -> TunedRegression:
    """Fit all rows with the C most accurate on valid, or on folds (ties: the smaller loss).

    There are as many folds as the rarest class has rows, at most NUM_FOLDS. A class of one row
    cannot be both learned and asked for: then nothing judges, and C is 1.
    """
    if valid is not None:
        tries = [_fit(matrix, targets_N, strength, seed=seed) for strength in REGULARISATIONS]
        answers = [_probabilities(fitted, valid[0], len(labels)) for fitted in tries]
        return _best(answers, valid[1], tries.__getitem__, labels=labels, judged_by="valid")
    rarest = int(np.unique(targets_N, return_counts=True)[1].min())
    if rarest < 2:
        fitted = _fit(matrix, targets_N, _BLIND_REGULARISATION, seed=seed)
        return TunedRegression(labels, _BLIND_REGULARISATION, "nothing", None, {}, fitted)
    rows, turn = _turned(matrix)
    folds_N = stratified_folds(targets_N, num_folds=min(NUM_FOLDS, rarest), seed=seed)
    answers = [np.zeros((len(targets_N), len(labels))) for _ in REGULARISATIONS]
    for fold in np.unique(folds_N):
        seen_N = folds_N != fold
        for answers_NC, strength in zip(answers, REGULARISATIONS, strict=True):
            fitted = _fit(rows[seen_N], targets_N[seen_N], strength, seed=seed)
            answers_NC[~seen_N] = _probabilities(fitted, rows[~seen_N], len(labels))

    def fitted_at(place: int) -> "sklearn.linear_model.LogisticRegression":
        fitted = _fit(rows, targets_N, REGULARISATIONS[place], seed=seed)
        if turn is not None:
            fitted.coef_ = np.ascontiguousarray((matrix.T @ (turn @ fitted.coef_.T)).T)
            fitted.n_features_in_ = matrix.shape[1]
        return fitted

    return _best(answers, targets_N, fitted_at, labels=labels, judged_by="folds")


def stratified_folds(
    targets_N: Int[np.ndarray, " N"], *, num_folds: int, seed: int
) -> Int[np.ndarray, " N"]:
    """The fold of each row; classes are dealt out one after the other, so all folds are alike.

    Rows of one class lie in different folds as long as there are enough of them.
    """
    generator = np.random.default_rng(seed)
    dealt = np.concatenate(
        [generator.permutation(np.flatnonzero(targets_N == t)) for t in np.unique(targets_N)]
    )
    folds_N = np.empty(len(targets_N), dtype=np.int64)
    folds_N[dealt] = np.arange(len(dealt)) % num_folds
    return folds_N


def unit_length(vectors_ND: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Every row scaled to length 1, in double precision; a row of zeros stays one."""
    doubles_ND = vectors_ND.astype(np.float64)
    lengths_N1 = np.linalg.norm(doubles_ND, axis=1, keepdims=True)
    return doubles_ND / np.where(lengths_N1 == 0, 1, lengths_N1)


def one_thread() -> AbstractContextManager[object]:
    """One thread for linear algebra inside: no fight for busy cores, and sums in one order.

    Two busy cores, 1,600 reviews, 2026-11-15: all fits 25 s with two threads, 10 s with one.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _best(
    answers: Sequence[Float[np.ndarray, "N C"]],
    targets_N: Int[np.ndarray, " N"],
    fitted_at: Callable[[int], "sklearn.linear_model.LogisticRegression"],
    *,
    labels: tuple[str, ...],
    judged_by: Judge,
) -> TunedRegression:
    """Of the strengths, in their order, the one whose answers are best, and its regression."""
    accuracies = [metrics.accuracy(chances.argmax(axis=1), targets_N) for chances in answers]
    losses = [metrics.cross_entropy(chances, targets_N) for chances in answers]
    best = max(range(len(answers)), key=lambda place: (accuracies[place], -losses[place]))
    return TunedRegression(
        labels=labels,
        regularisation=REGULARISATIONS[best],
        judged_by=judged_by,
        valid_accuracy=accuracies[best],
        valid_curve=dict(zip(REGULARISATIONS, accuracies, strict=True)),
        fitted=fitted_at(best),
        judged_NC=answers[best],
    )


def _turned(matrix: Matrix) -> tuple[Matrix, Float[np.ndarray, "N R"] | None]:
    """Few sparse rows of many features, in the R <= N dimensions they span, and the way back.

    The penalty of a regression does not see a rotation, so it is the same one.
    """
    import scipy.linalg
    import scipy.sparse

    num_rows, num_features = matrix.shape
    is_dense = not scipy.sparse.issparse(matrix)
    if is_dense or num_rows > min(num_features, _MOST_TURNED_ROWS):
        return matrix, None
    with one_thread():
        squares_N, vectors_NN = scipy.linalg.eigh((matrix @ matrix.T).toarray())
    spanned_N = squares_N > num_rows * np.finfo(np.float64).eps * squares_N.max()
    lengths_R, vectors_NR = np.sqrt(squares_N[spanned_N]), vectors_NN[:, spanned_N]
    return vectors_NR * lengths_R, vectors_NR / lengths_R


def _fit(
    matrix: Matrix, targets_N: Int[np.ndarray, " N"], strength: float, *, seed: int
) -> "sklearn.linear_model.LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    regression = LogisticRegression(C=strength, max_iter=2_000, random_state=seed)
    with one_thread():
        regression.fit(matrix, targets_N)
    # In the order in which it will be loaded: a product of the other order may round otherwise.
    regression.coef_ = np.ascontiguousarray(regression.coef_)
    return regression


def _probabilities(
    regression: "sklearn.linear_model.LogisticRegression", matrix: Matrix, num_classes: int
) -> Float[np.ndarray, "N C"]:
    """scikit-learn's columns are the classes it was fitted on; put them where they belong."""
    found = np.asarray(regression.predict_proba(matrix))
    chances_NC = np.zeros((len(found), num_classes))
    chances_NC[:, regression.classes_] = found
    return chances_NC
