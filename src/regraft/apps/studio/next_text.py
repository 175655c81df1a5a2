"""The next text to label: the least certain, the least similar to those seen, or a random one.

Every few texts one is drawn at random for evaluation only: a model must not be evaluated on the
texts that it selected as hard. Pure functions, so that `benchmarks/active.py` measures what the
page uses. Letters: N texts, C classes, D dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

# One text in so many is drawn at random, to judge by.
EVALUATION_EVERY = 4
# What a label is used for: to learn from, or to judge by. The latter are drawn at random.
Use = Literal["train", "evaluation"]
Query = Literal["uncertainty", "diversity", "random"]
QUERIES: dict[Query, str] = {
    "uncertainty": "the texts that the model is least sure of",
    "diversity": "the texts least like those that were labelled",
    "random": "any text: the honest control",
}


@dataclass(frozen=True)
class Offer:
    """A text that is shown: its place among the texts, and why it was chosen."""

    number: int
    use: Use
    query: Query


def choose_offer(
    num_texts: int,
    *,
    seen: Sequence[int],
    skipped: Sequence[int],
    query: Query,
    chances_NC: Float[np.ndarray, "N C"] | None,
    vectors_ND: Float[np.ndarray, "N D"] | None,
    seed: int,
) -> Offer | None:
    """The next text, as `query` wants it; None when all are labelled or skipped.

    `chances_NC` are None before anything is learned, and `vectors_ND` before they are computed.
    """
    is_open_N = np.ones(num_texts, dtype=bool)
    is_open_N[[*seen, *skipped]] = False
    if not is_open_N.any():
        return None
    generator = np.random.default_rng([seed, len(seen), len(skipped)])
    if len(seen) % EVALUATION_EVERY == EVALUATION_EVERY - 1:
        return Offer(int(any_open(generator, is_open_N=is_open_N)[0]), "evaluation", "random")
    if query == "uncertainty" and chances_NC is not None:
        return Offer(int(least_sure(chances_NC, is_open_N=is_open_N)[0]), "train", "uncertainty")
    # Before anything is learned there is no uncertainty: choose different texts until then.
    if query != "random" and vectors_ND is not None:
        number = least_like(vectors_ND, seen, is_open_N=is_open_N)[0]
        return Offer(int(number), "train", "diversity")
    return Offer(int(any_open(generator, is_open_N=is_open_N)[0]), "train", "random")


def least_sure(
    chances_NC: Float[np.ndarray, "N C"], *, is_open_N: Bool[np.ndarray, " N"], num: int = 1
) -> Int[np.ndarray, " K"]:
    """Open texts with the smallest margin between the two most likely labels, smallest first."""
    ordered_NC = np.sort(chances_NC, axis=1)
    margins_N = np.where(is_open_N, ordered_NC[:, -1] - ordered_NC[:, -2], np.inf)
    return np.argsort(margins_N, kind="stable")[: min(num, int(is_open_N.sum()))]


def least_like(
    vectors_ND: Float[np.ndarray, "N D"],
    seen: Sequence[int],
    *,
    is_open_N: Bool[np.ndarray, " N"],
    num: int = 1,
) -> Int[np.ndarray, " K"]:
    """Farthest first: each is the open text least like any that was seen or is chosen before it.

    `vectors_ND` have length 1. Without a text seen, the first is the one most like the average:
    whatever is farthest from nothing would be an oddity.
    """
    num = min(num, int(is_open_N.sum()))
    chosen: list[int] = []
    if len(seen):
        nearest_N = (vectors_ND @ vectors_ND[list(seen)].T).max(axis=1)
    elif num:
        mean_D = vectors_ND[is_open_N].mean(axis=0)
        chosen.append(int(np.where(is_open_N, vectors_ND @ mean_D, -np.inf).argmax()))
        nearest_N = vectors_ND @ vectors_ND[chosen[0]]
    while len(chosen) < num:
        nearest_N = np.where(is_open_N, nearest_N, np.inf)
        nearest_N[chosen] = np.inf
        farthest = int(nearest_N.argmin())
        chosen.append(farthest)
        nearest_N = np.maximum(nearest_N, vectors_ND @ vectors_ND[farthest])
    return np.array(chosen, dtype=np.int64)


def any_open(
    generator: np.random.Generator, *, is_open_N: Bool[np.ndarray, " N"], num: int = 1
) -> Int[np.ndarray, " K"]:
    """Open texts drawn uniformly at random."""
    places = np.flatnonzero(is_open_N)
    return generator.choice(places, size=min(num, len(places)), replace=False)
