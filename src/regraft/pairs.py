"""Rows as a pre-training objective reads them; among them pairs of sentences, made here.

Comes in: a token store. Goes out: running text, or `PairRows`: two segments a row, and whether the
second belongs behind the first (BERT's next-sentence prediction, and sentence order). Which split,
which negative: a pure function of (seed, row).
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.batches import Batch, Rows, padded, text_rows
from regraft.config import Settings
from regraft.errors import ConfigError, DataError
from regraft.store import TokenStore
from regraft.tokenizer import Tokenizer

# Classes of a pair, in BERT's order.
BELONGS, DOES_NOT = 0, 1

# <s> A <sep> B <sep>
_NUM_SPECIAL = 3

# A part of a document with fewer tokens cannot be cut into two that say something.
SHORTEST = 8


def pretraining_rows(store: TokenStore, *, tokenizer: Tokenizer, settings: Settings) -> Rows:
    """Rows as the objective reads them: running text, or pairs of sentences."""
    kind = settings.objective.kind
    if kind == "bert" or kind == "sop":
        return PairRows(
            store,
            kind=kind,
            tokenizer=tokenizer,
            max_length=settings.data.max_length,
            seed=settings.train.seed,
        )
    return text_rows(store, tokenizer=tokenizer, data=settings.data)


class PairRows:
    """One part of a document a row, cut into two at the end of a sentence.

    Half of the rows are negative. For `bert` their second segment comes from another document, and
    never from the same one: else it could well belong there. For `sop` (Lan et al. 2019) the two
    segments change places.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        kind: Literal["bert", "sop"],
        tokenizer: Tokenizer,
        max_length: int,
        seed: int,
    ) -> None:
        if kind == "bert" and store.num_documents < 2:
            raise DataError(
                f"The text holds {store.num_documents} document; next-sentence prediction needs "
                "at least 2.",
                "Wrong second sentences are taken from other documents.",
                remedy="Give one document a line (--documents), or take --objective sop or masked.",
            )
        if tokenizer.separator_id is None:
            raise ConfigError(
                f"The objective {kind} needs a token <sep>, which this tokenizer lacks.",
                remedy="Take --objective causal, or a tokenizer trained here.",
            )
        self._store = store
        self._kind = kind
        self._tokenizer = tokenizer
        self._separator_id = tokenizer.separator_id
        self._ends_sentence = tokenizer.sentence_ends()
        self._room = max_length - _NUM_SPECIAL
        self._seed = seed
        # Parts of every document, in order: a document is framed by a start and an end token.
        num_tokens = np.diff(store.offsets) - 2
        full, rest = np.divmod(np.maximum(num_tokens, 0), self._room)
        self._parts_before = np.concatenate([[0], np.cumsum(full + (rest >= SHORTEST))])
        self._num_tokens = num_tokens
        if self._parts_before[-1] == 0:
            raise DataError(
                f"No document has {SHORTEST} tokens or more, to be cut into two sentences.",
                remedy="Give longer documents (--documents blank), or take --objective masked.",
            )
        document, part = self._place(np.arange(self._parts_before[-1]))
        sizes = np.minimum(num_tokens[document] - part * self._room, self._room)
        self.lengths = sizes + _NUM_SPECIAL

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Pairs padded to the longest of them; targets are BELONGS or DOES_NOT."""
        rows, types, targets = [], [], []
        for number in numbers.tolist():
            first, second, target = self._pair(number)
            separator = [self._separator_id]
            rows.append(
                np.concatenate([[self._tokenizer.start_id], first, separator, second, separator])
            )
            types.append(np.repeat([0, 1], [len(first) + 2, len(second) + 1]))
            targets.append(target)
        ids_BT, real_BT = padded(rows, pad_id=self._tokenizer.pad_id)
        token_types_BT, _ = padded(types, pad_id=0)
        return Batch(ids_BT, real_BT, torch.tensor(targets), token_types_BT=token_types_BT)

    def _pair(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        generator = np.random.default_rng([self._seed, number])
        documents, parts = self._place(np.array([number]))
        document, part = int(documents[0]), int(parts[0])
        text = self._read(document, part * self._room, int(self.lengths[number]) - _NUM_SPECIAL)
        cut = self._cut(text, generator)
        first, second = text[:cut], text[cut:]
        if generator.random() < 0.5:
            return first, second, BELONGS
        if self._kind == "sop":
            return second, first, DOES_NOT
        return first, self._from_another(document, len(second), generator), DOES_NOT

    def _cut(self, text: NDArray[np.int64], generator: np.random.Generator) -> int:
        """Behind the end of a sentence; in a text of one sentence, anywhere but at its ends."""
        ends = np.flatnonzero(self._ends_sentence[text[:-1]]) + 1
        if len(ends):
            return int(generator.choice(ends))
        return int(generator.integers(len(text) // 4, len(text) - len(text) // 4)) or 1

    def _from_another(
        self, document: int, length: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """Up to `length` tokens of a document that is not this one, from the start of a sentence.

        Empty documents, if they are drawn, are passed over.
        """
        other = int(generator.integers(self._store.num_documents - 1))
        other += other >= document
        while self._num_tokens[other] < 1 or other == document:
            other = (other + 1) % self._store.num_documents
        room = max(int(self._num_tokens[other]) - length, 0)
        start = int(generator.integers(room + 1))
        text = self._read(other, start, length)
        ends = np.flatnonzero(self._ends_sentence[text[: len(text) // 2]]) + 1
        return text[ends[0] :] if start and len(ends) else text

    def _read(self, document: int, start: int, length: int) -> NDArray[np.int64]:
        begin = int(self._store.offsets[document]) + 1 + start
        stop = min(begin + length, int(self._store.offsets[document + 1]) - 1)
        return self._store.read(begin, stop).astype(np.int64)

    def _place(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(document, part of it) of rows."""
        document = np.searchsorted(self._parts_before, numbers, side="right") - 1
        return document, numbers - self._parts_before[document]
