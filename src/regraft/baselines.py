"""What pre-training must beat: TF-IDF over words and characters with logistic regression.

Comes in: examples for training and for tuning. Goes out: a LinearModel with the accuracy of every
strength of regularisation tried. Sees no test data; knows no neural network.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from regraft import metrics
from regraft.errors import DataError
from regraft.text import Example, Labels, check_trainable

if TYPE_CHECKING:
    import sklearn.linear_model
    import sklearn.pipeline

# scikit-learn's C: larger is less regularised.
REGULARISATIONS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# From this many examples on, a feature seen in one of them only is noise and is dropped.
_RARE_FEATURES_FROM = 500


@dataclass(frozen=True)
class LinearModel:
    """The tuned linear arm; `valid_curve` maps every C tried to its accuracy on valid."""

    labels: tuple[str, ...]
    regularisation: float
    valid_accuracy: float
    valid_curve: dict[float, float]
    seconds: float
    features: "sklearn.pipeline.FeatureUnion" = field(repr=False)
    regression: "sklearn.linear_model.LogisticRegression" = field(repr=False)

    def probabilities(self, texts: Sequence[str]) -> Float[np.ndarray, "N C"]:
        """The probability of every label; 0 for a label that train did not have."""
        if not texts:
            return np.zeros((0, len(self.labels)))
        return _probabilities(self.regression, self.features.transform(texts), len(self.labels))


def fit_linear(
    train: Sequence[Example], valid: Sequence[Example], *, labels: Labels, seed: int = 0
) -> LinearModel:
    """Fit on train for every C, keep the one most accurate on valid (ties: the smaller loss)."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    fit_start = time.perf_counter()
    targets_N, valid_targets = labels.targets(train), labels.targets(valid)
    check_trainable(train)
    features = _features(len(train))
    try:
        train_matrix = features.fit_transform([example.text for example in train])
    except ValueError as error:  # scikit-learn's word for it is "empty vocabulary"
        raise DataError(
            f"The {len(train)} training texts, from {train[0].source}, share no words.",
            "The linear arm counts words and characters.",
            remedy="Check the text column with `regraft data check`.",
        ) from error
    valid_matrix = features.transform([example.text for example in valid])
    curve: dict[float, float] = {}
    best: tuple[tuple[float, float], float, LogisticRegression] | None = None
    for regularisation in REGULARISATIONS:
        regression = LogisticRegression(C=regularisation, max_iter=2_000, random_state=seed)
        # Two busy cores, 1,600 reviews, 2026-11-15: all fits 25 s with two threads, 10 s with one.
        with threadpool_limits(1):
            regression.fit(train_matrix, targets_N)
        chances_NC = _probabilities(regression, valid_matrix, len(labels.names))
        curve[regularisation] = metrics.accuracy(chances_NC.argmax(axis=1), valid_targets)
        rank = (curve[regularisation], -metrics.cross_entropy(chances_NC, valid_targets))
        if best is None or rank > best[0]:
            best = rank, regularisation, regression
    assert best is not None
    (valid_accuracy, _), regularisation, regression = best
    return LinearModel(
        labels=tuple(labels.names),
        regularisation=regularisation,
        valid_accuracy=valid_accuracy,
        valid_curve=curve,
        seconds=time.perf_counter() - fit_start,
        features=features,
        regression=regression,
    )


def _features(num_examples: int) -> "sklearn.pipeline.FeatureUnion":
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    min_df = 2 if num_examples >= _RARE_FEATURES_FROM else 1
    words = TfidfVectorizer(
        ngram_range=(1, 2),
        min_df=min_df,
        sublinear_tf=True,
        # scikit-learn's own pattern drops words of one letter: "a", "y", "I", all of Chinese.
        token_pattern=r"(?u)\b\w+\b",
    )
    characters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 5), min_df=min_df, sublinear_tf=True
    )
    return FeatureUnion([("words", words), ("characters", characters)])


def _probabilities(
    regression: "sklearn.linear_model.LogisticRegression", matrix: object, num_classes: int
) -> Float[np.ndarray, "N C"]:
    """scikit-learn's columns are the classes it was fitted on; put them where they belong."""
    found = np.asarray(regression.predict_proba(matrix))
    chances_NC = np.zeros((len(found), num_classes))
    chances_NC[:, regression.classes_] = found
    return chances_NC
