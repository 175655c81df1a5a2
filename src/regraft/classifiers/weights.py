"""Weights of the members of a blend, from their predictions for examples they had not seen.

Letters: M members, N examples, C classes. Knows neither text nor what a member is.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from regraft.stats import decisions, fit_temperature, log_probabilities, softmax

# Nats, summed over all examples, that a square distance of 1 from equal weights costs: just enough
# that members which answer alike have one answer. It was 30. Two members (TF-IDF of words, vectors
# of one base), 50 to 400 labels, five draws; points above the better member, mean and worst over
# the numbers of labels: film reviews and Dutch books 0.4 and -1.1 with 30, 0.5 and -0.5 with 3, 0.5
# and 0.0 without; on three other sets, not looked at before, -0.2 and -7.1 with 30, 0.0 and -5.1
# with 3, 0.4 and -0.4 without (2026-11-18).
_PULL_TO_EQUAL = 0.01
# A smaller weight is rounding of the solver: the member is not read at all.
_LEAST_WEIGHT = 1e-6


def blended(
    chances_MNC: Float[np.ndarray, "M N C"],
    weights_M: Float[np.ndarray, " M"],
    *,
    temperature: float = 1.0,
    has_label_sets: bool = False,
) -> Float[np.ndarray, "N C"]:
    """The weighted mean of log-probabilities as probabilities; 0 where no member gives any.

    Above a temperature of 1 they are less confident, below more; the order of the classes stays.
    With label sets every class is its own decision.
    """
    if has_label_sets:
        shape = chances_MNC.shape[1:]
        pairs_MD2, _ = decisions(chances_MNC, np.zeros(shape, dtype=np.int64))
        return blended(pairs_MD2, weights_M, temperature=temperature)[:, 1].reshape(shape)
    scores_NC = np.tensordot(weights_M, log_probabilities(chances_MNC), axes=1) / temperature
    return softmax(scores_NC, _known(chances_MNC))[0]


def adjusted(
    chances_NC: Float[np.ndarray, "N C"], priors_C: Float[np.ndarray, " C"] | None
) -> Float[np.ndarray, "N C"]:
    """Probabilities as if all classes were equally frequent (logit adjustment, arXiv 2007.07314).

    `priors_C` is how frequent they are in training; None changes nothing.
    """
    if priors_C is None:
        return chances_NC
    scaled_NC = chances_NC / priors_C
    return np.asarray(scaled_NC / scaled_NC.sum(axis=1, keepdims=True))


def choose_weights(
    chances_MNC: Float[np.ndarray, "M N C"],
    targets: Int[np.ndarray, " N"] | Int[np.ndarray, "N C"],
) -> Float[np.ndarray, " M"]:
    """Non-negative weights of sum 1 with the least cross-entropy.

    Members are weighed at their own best temperature, which is then part of the weight: weights of
    sum 1 could not make an underconfident member more confident. Three made-up members, 5 classes,
    200 examples, the best of them 0.3 times as confident as it should be: 83.7 % so, 78.7 % without
    (2026-11-16). The problem is convex: one answer.
    """
    from scipy.optimize import LinearConstraint, minimize

    chances_MNC, targets_N = decisions(chances_MNC, targets)
    num_members = len(chances_MNC)
    equal_M = np.full(num_members, 1 / num_members)
    sharpness_M = np.array(
        [1 / fit_temperature(chances_NC, targets_N) for chances_NC in chances_MNC]
    )
    chances_MNC, targets_N = _informative(chances_MNC, targets_N)
    num_examples = len(targets_N)
    if num_members == 1 or num_examples == 0:
        return equal_M
    logs_MNC = sharpness_M[:, None, None] * log_probabilities(chances_MNC)
    known_NC = _known(chances_MNC)
    target_logs_MN = logs_MNC[:, np.arange(num_examples), targets_N]
    pull = _PULL_TO_EQUAL / num_examples

    def loss(weights_M: Float[np.ndarray, " M"]) -> float:
        _, sums_N = softmax(np.tensordot(weights_M, logs_MNC, axes=1), known_NC)
        apart = float(np.square(weights_M - equal_M).sum())
        return float(np.mean(sums_N - weights_M @ target_logs_MN)) + pull * apart

    def slope(weights_M: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        chances_NC, _ = softmax(np.tensordot(weights_M, logs_MNC, axes=1), known_NC)
        expected_MN = np.einsum("nc,mnc->mn", chances_NC, logs_MNC)
        fall_M = np.mean(expected_MN - target_logs_MN, axis=1)
        return np.asarray(fall_M + 2 * pull * (weights_M - equal_M))

    found = minimize(
        loss,
        equal_M,
        jac=slope,
        method="SLSQP",
        bounds=[(0, 1)] * num_members,
        constraints=LinearConstraint(np.ones(num_members), 1, 1),
        options={"ftol": 1e-12, "maxiter": 1_000},
    )
    weights_M = np.where(found.x < _LEAST_WEIGHT, 0, found.x) * sharpness_M
    return np.asarray(weights_M / weights_M.sum())


def _informative(
    chances_MNC: Float[np.ndarray, "M N C"], targets_N: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "M K C"], Int[np.ndarray, " K"]]:
    """The examples whose class some member knew: the others only ask all to be less confident."""
    known_N = _known(chances_MNC)[np.arange(len(targets_N)), targets_N]
    return chances_MNC[:, known_N], targets_N[known_N]


def _known(chances_MNC: Float[np.ndarray, "M N C"]) -> Bool[np.ndarray, "N C"]:
    return np.asarray((chances_MNC > 0).any(axis=0))
