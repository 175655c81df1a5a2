"""A new head that starts as the logistic regression on the frozen vectors of its base.

Only the last linear map is set. What a family puts before it (a pooler, a transform, the query of
attention) stays as the graft left it, and the regression reads what comes out of it.
"""

import numpy as np
import torch
from jaxtyping import Float

from regraft.classifiers.logistic import TunedRegression, tune
from regraft.data import ExampleRows
from regraft.models import ClassifierHead, Model
from regraft.training import head_vectors

# The score of a class without any training example, below all that have some.
_ABSENT_SCORE = -20.0


def start_from_regression(model: Model, rows: ExampleRows, *, seed: int) -> TunedRegression:
    """Set the head, in place, to the regression on the vectors that it reads of these rows.

    C is chosen on folds of the rows. The vectors are divided by their mean length, one number for
    all, so that the choices of C suit any base and the regression is still a linear map of them.
    """
    assert isinstance(model.head, ClassifierHead), "fine-tuning grafts such a head"
    assert rows.targets.ndim == 1, "the settings refuse label sets"
    linear = model.head.linear
    vectors_ND = head_vectors(model, rows)
    scale = max(float(np.linalg.norm(vectors_ND, axis=1).mean()), np.finfo(np.float32).tiny)
    labels = tuple(map(str, range(linear.out_features)))
    tuned = tune(vectors_ND / scale, rows.targets, labels=labels, seed=seed)
    weight_CD, bias_C = _as_linear(tuned)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight_CD / scale))
        linear.bias.copy_(torch.from_numpy(bias_C))
    return tuned


def _as_linear(tuned: TunedRegression) -> tuple[Float[np.ndarray, "C D"], Float[np.ndarray, " C"]]:
    """Weights and biases whose softmax is the regression."""
    coefficients, intercepts = tuned.fitted.coef_, tuned.fitted.intercept_
    if len(tuned.fitted.classes_) == 2:
        # scikit-learn has the log-odds of the second class; half goes to each.
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    weight_CD = np.zeros((len(tuned.labels), coefficients.shape[1]))
    bias_C = np.full(len(tuned.labels), _ABSENT_SCORE)
    weight_CD[tuned.fitted.classes_] = coefficients
    bias_C[tuned.fitted.classes_] = intercepts
    return weight_CD, bias_C
