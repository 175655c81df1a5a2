"""What the members of a blend say about examples they were not trained on.

Weights, temperature, scores and label issues of `regraft fit` all come from these predictions.
Letters: M members, N examples, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from regraft.classifiers.logistic import NUM_FOLDS, RegressionModel, stratified_folds
from regraft.classifiers.weights import blended, choose_weights
from regraft.data import Example, LabelIssue, Labels
from regraft.stats import (
    Interval,
    accuracy_interval,
    fit_temperature,
    label_doubts,
    steady_temperature,
)

# In the run folder.
ISSUES_NAME = "label_issues.csv"


@dataclass(frozen=True)
class MemberScore:
    """The score of one member, or of the blend, on held-out texts; `weight` is its influence."""

    accuracy: Interval
    weight: float | None
    seconds: float


@dataclass(frozen=True)
class HeldOut:
    """The predictions of members for the held-out examples of folds, or for those of valid."""

    members: Mapping[str, RegressionModel]
    targets_N: Int[np.ndarray, " N"]
    seed: int

    @property
    def active_names(self) -> list[str]:
        """The members that are blended.

        If there are bases, the latent member adds nothing to them and is only a baseline. French
        book reviews, accuracy on valid with 50 / 100 labels, ten draws: with it 74.1 / 78.0 %,
        without it 75.2 / 78.5 % (2026-11-17).
        """
        return [name for name in self.members if name != "latent" or "features" not in self.members]

    def of(self, name: str) -> Float[np.ndarray, "N C"]:
        """The probabilities of one member."""
        judged_NC = self.members[name].judged_NC
        assert judged_NC is not None, "a class of one example was refused"
        return judged_NC

    @cached_property
    def active_MNC(self) -> Float[np.ndarray, "M N C"]:  # noqa: N802
        """The probabilities of the members that are blended."""
        return np.stack([self.of(name) for name in self.active_names])

    def weights(self) -> tuple[dict[str, float], float]:
        """The weight of every member, 0 if it is not blended, and the temperature of the blend.

        The temperature is fitted on a blend with weights from other folds, and moved towards 1 by
        its standard error. Members linear and latent, 200 and 400 labels of five sets, three seeds,
        test: calibration error 2.9 points, cross-entropy 0.429; fitted on the blend itself without
        that move 3.6 and 0.436, without a temperature 15.7 and 0.580 (2026-11-18).
        """
        weights_M = choose_weights(self.active_MNC, self.targets_N)
        active = dict(zip(self.active_names, weights_M.tolist(), strict=True))
        temperature = steady_temperature(self._crossed(is_tempered=False), self.targets_N)
        return dict.fromkeys(self.members, 0.0) | active, temperature

    @cached_property
    def blend_NC(self) -> Float[np.ndarray, "N C"]:  # noqa: N802
        """The probabilities of the blend, with weights and temperature from the other folds.

        Members chose their C by the same examples, so they are slightly optimistic.
        """
        return self._crossed(is_tempered=True)

    def _crossed(self, *, is_tempered: bool) -> Float[np.ndarray, "N C"]:
        blend_NC: NDArray[np.float64] = np.zeros_like(self.active_MNC[0])
        folds_N = stratified_folds(self.targets_N, num_folds=NUM_FOLDS, seed=self.seed)
        for fold in np.unique(folds_N):
            here_N = folds_N == fold
            known_MKC, targets_K = self.active_MNC[:, ~here_N], self.targets_N[~here_N]
            weights_M = choose_weights(known_MKC, targets_K)
            temperature = 1.0
            if is_tempered:
                temperature = steady_temperature(blended(known_MKC, weights_M), targets_K)
            blend_NC[here_N] = blended(
                self.active_MNC[:, here_N], weights_M, temperature=temperature
            )
        return blend_NC

    def scores(self, weights: Mapping[str, float]) -> dict[str, MemberScore]:
        """The scores of the blend and its members."""
        influence = self._influence(weights)
        members = {
            name: MemberScore(self._interval(self.of(name)), influence[name], member.seconds)
            for name, member in self.members.items()
        }
        return {"blend": MemberScore(self._interval(self.blend_NC), None, 0.0), **members}

    def _influence(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Shares of influence: the weights without the factor that makes a timid member bolder."""
        parts = {
            name: weights[name] * fit_temperature(self.of(name), self.targets_N)
            for name in self.members
        }
        total = sum(parts.values())
        return {name: part / total for name, part in parts.items()}

    def _interval(self, chances_NC: Float[np.ndarray, "N C"]) -> Interval:
        return accuracy_interval((chances_NC.argmax(axis=1) == self.targets_N)[None])


def find_label_issues(
    examples: Sequence[Example], held_out_NC: Float[np.ndarray, "N C"], *, labels: Labels
) -> list[LabelIssue]:
    """Examples whose label their held-out probabilities contradict, the most probable first."""
    rows = label_doubts(held_out_NC[None], labels.targets(examples))
    return [
        LabelIssue(
            row=examples[row].row,
            id=examples[row].id,
            text=examples[row].text,
            label=examples[row].label,
            proposal=labels[int(held_out_NC[row].argmax())],
            confidence=float(held_out_NC[row].max()),
        )
        for row in rows.tolist()
    ]
