"""The next text to label: the least certain, the least similar to those seen, or a random one.

Pure functions, so that `benchmarks/active.py` measures what the page uses. Letters: N texts,
C classes, D dimensions.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

Query = Literal["uncertainty", "diversity", "random"]
QUERIES: dict[Query, str] = {
    "uncertainty": "the texts that the model is least sure of",
    "diversity": "the texts least like those that were labelled",
    "random": "any text: the honest control",
}


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
