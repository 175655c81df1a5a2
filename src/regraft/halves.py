"""Rows for contrast: documents in groups, each document cut into two halves.

Comes in: a token store. Goes out: `HalfRows`, whose rows are whole groups: a half is told apart
from the others of its group, so that micro-batches and processes, which deal out rows, change
nothing.
Which documents are together, and which window of a long one: a pure function of (seed, row).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.batches import Batch, padded
from regraft.errors import DataError
from regraft.store import TokenStore
from regraft.tokenizer import Tokenizer

# Groups whose documents are sorted by length together.
_BUCKET = 64

# A document with fewer tokens has no two halves that say something.
SHORTEST = 16


def num_divisible(store: TokenStore) -> int:
    """How many documents of the store have two halves."""
    return int((np.diff(store.offsets) - 2 >= SHORTEST).sum())


class HalfRows:
    """A row is a group of documents: two halves of each, one behind the other.

    On film reviews groups of 32, 64 and 256 gave equally good vectors, and so did groups that stay
    the same and groups drawn anew for every pass (2026-11-16).
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        tokenizer: Tokenizer,
        max_length: int,
        group_size: int,
        seed: int,
    ) -> None:
        self._store = store
        self._tokenizer = tokenizer
        self._seed = seed
        self._room = max_length - tokenizer.num_framing
        # Without the start and the end token.
        num_tokens = np.diff(store.offsets) - 2
        documents = np.flatnonzero(num_tokens >= SHORTEST)
        if len(documents) < 2:
            count = "1 document" if len(documents) else "no documents"
            raise DataError(
                f"The text holds {count} of {SHORTEST} tokens or more; contrast needs at least 2.",
                "The halves of a document are told apart from those of others.",
                remedy="Give longer documents (--documents blank), or take --preset modern "
                "--objective masked.",
            )
        order = np.random.default_rng(seed).permutation(documents)
        # Like lengths together: less padding, and length does not tell whose half it is.
        bucket_size = group_size * _BUCKET
        for start in range(0, len(order), bucket_size):
            bucket = order[start : start + bucket_size]
            by_length = np.argsort(num_tokens[bucket], kind="stable")
            order[start : start + bucket_size] = bucket[by_length]
        self._groups = np.array_split(order, max(len(order) // group_size, 1))
        half = np.minimum(-(-num_tokens // 2), self._room) + tokenizer.num_framing
        self.lengths = np.array([2 * len(group) * half[group].max() for group in self._groups])

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """All halves of these groups, padded to the longest; targets number the groups."""
        halves: list[NDArray[np.int64]] = []
        targets: list[int] = []
        for place, number in enumerate(numbers.tolist()):
            generator = np.random.default_rng([self._seed, number])
            for document in self._groups[number].tolist():
                halves += self._halves(document, generator)
                targets += [place, place]
        ids_BT, real_BT = padded(halves, pad_id=self._tokenizer.pad_id)
        return Batch(ids_BT, real_BT, torch.tensor(targets))

    def _halves(
        self, document: int, generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The two halves of a document, or of a window of it as long as two rows."""
        start, stop = self._store.offsets[document : document + 2].tolist()
        start, stop = start + 1, stop - 1
        window = min(stop - start, 2 * self._room)
        start += int(generator.integers(stop - start - window + 1))
        text = self._store.read(start, start + window).tolist()
        first, second = text[: window // 2], text[window // 2 :]
        longest = self._room + self._tokenizer.num_framing
        framed = [self._tokenizer.framed(half, max_length=longest) for half in (first, second)]
        return np.array(framed[0]), np.array(framed[1])
