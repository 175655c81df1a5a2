"""Rows for contrast: documents in groups, each document cut into two halves.

A row of `HalfRows` is a whole group: negatives come from the same group, so that splitting rows
into micro-batches or over processes changes nothing. Which documents form a group, and which window
of a long one is read, is a pure function of (seed, row).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.data.rows import IGNORED, Batch, padded
from regraft.data.tokens.store import TokenStore
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.errors import DataError

# Groups whose documents are sorted by length together.
_BUCKET = 64

# A document with fewer tokens has no two halves that say something.
FEWEST_TOKENS_TO_HALVE = 16


def num_divisible(store: TokenStore) -> int:
    """How many documents of the store have two halves."""
    return int((np.diff(store.offsets) - 2 >= FEWEST_TOKENS_TO_HALVE).sum())


def are_alike(store: TokenStore) -> bool:
    """Is every document that can be halved the same one? Then halves cannot be matched."""
    documents = np.flatnonzero(np.diff(store.offsets) - 2 >= FEWEST_TOKENS_TO_HALVE)
    if len(np.unique(np.diff(store.offsets)[documents])) > 1:
        return False
    texts = (store.read(*store.offsets[document : document + 2].tolist()) for document in documents)
    first = next(texts, None)
    return first is None or all(np.array_equal(text, first) for text in texts)


class HalfRows:
    """A row is a group of documents: two halves of each, one after the other.

    On film reviews groups of 32, 64 and 256 gave equally good vectors of a bag (2026-11-16). With
    several draws every document is in as many groups, with other neighbours and, if it is long,
    another window each time: a network that reads all of them once does not see a group twice.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        tokenizer: Tokenizer,
        max_length: int,
        group_size: int,
        seed: int,
        num_draws: int = 1,
        tells_next: bool = False,
    ) -> None:
        self._store = store
        self._tokenizer = tokenizer
        self._seed = seed
        self._tells_next = tells_next
        self._longest = max_length
        self._room = max_length - tokenizer.num_framing
        # Without the start and the end token.
        num_tokens = np.diff(store.offsets) - 2
        documents = np.flatnonzero(num_tokens >= FEWEST_TOKENS_TO_HALVE)
        if len(documents) < 2:
            count = "1 document" if len(documents) else "no documents"
            raise DataError(
                f"The text holds {count} of {FEWEST_TOKENS_TO_HALVE} tokens or more; contrast "
                "needs at least 2.",
                "Contrast matches the halves of a document among those of other documents.",
                remedy="Give longer documents (--documents blank), or take --preset modern "
                "--objective masked.",
            )
        generator = np.random.default_rng(seed)
        self._groups = [
            group
            for _ in range(num_draws)
            for group in _groups(
                generator.permutation(documents), num_tokens=num_tokens, group_size=group_size
            )
        ]
        half = np.minimum(-(-num_tokens // 2), self._room) + tokenizer.num_framing
        self.lengths = np.array([2 * len(group) * half[group].max() for group in self._groups])
        self.tokens_per_document = float(2 * half[documents].mean())

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """All halves of these groups, padded to the longest; targets number the groups."""
        halves: list[NDArray[np.int64]] = []
        following: list[NDArray[np.int64]] = []
        targets: list[int] = []
        for place, number in enumerate(numbers.tolist()):
            generator = np.random.default_rng([self._seed, number])
            for document in self._groups[number].tolist():
                for text in self._halves(document, generator):
                    half = self._tokenizer.framed(text[:-1], max_length=self._longest)
                    halves.append(np.array(half))
                    following.append(self._following(text, length=len(half)))
                targets += [place, place]
        ids_BT, real_BT = padded(halves, pad_id=self._tokenizer.pad_id)
        next_BT = padded(following, pad_id=IGNORED)[0] if self._tells_next else None
        return Batch(ids_BT, real_BT, torch.tensor(targets), next_BT=next_BT)

    def _halves(self, document: int, generator: np.random.Generator) -> tuple[list[int], list[int]]:
        """The two halves of a document, or of a window of it, each with the token behind it."""
        start, stop = self._store.offsets[document : document + 2].tolist()
        start, stop = start + 1, stop - 1
        window = min(stop - start, 2 * self._room)
        start += int(generator.integers(stop - start - window + 1))
        text = self._store.read(start, start + window + 1).tolist()
        middle = window // 2
        return text[: middle + 1], text[middle:]

    def _following(self, text: list[int], *, length: int) -> NDArray[np.int64]:
        """What comes behind each token of a framed half; nothing behind what ends the frame."""
        num_before = len(self._tokenizer.prefix_ids)
        following = np.full(length, IGNORED)
        num_kept = length - self._tokenizer.num_framing
        first = max(num_before - 1, 0)
        known = text[(0 if num_before else 1) : num_kept + 1]
        following[first : first + len(known)] = known
        return following


def _groups(
    order: NDArray[np.int64], *, num_tokens: NDArray[np.int64], group_size: int
) -> list[NDArray[np.int64]]:
    """Documents in random order, dealt into groups of like lengths.

    There is less padding, and length does not give a half away.
    """
    bucket_size = group_size * _BUCKET
    for start in range(0, len(order), bucket_size):
        bucket = order[start : start + bucket_size]
        by_length = np.argsort(num_tokens[bucket], kind="stable")
        order[start : start + bucket_size] = bucket[by_length]
    return np.array_split(order, max(len(order) // group_size, 1))
