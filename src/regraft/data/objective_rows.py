"""Rows as a pre-training objective reads them; among them pairs of sentences, made here.

From a token store they are running text, or `PairRows`: two segments per row, and whether the
second follows the first (BERT's next-sentence prediction, and sentence order). Which cut,
which negative: a pure function of (seed, row).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.config import Settings
from regraft.data.contrastive_rows import HalfRows
from regraft.data.rows import Batch, Rows, padded, text_rows
from regraft.data.tokens.store import TokenStore
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.errors import ConfigError, DataError

# Classes of a pair, in BERT's order.
BELONGS, DOES_NOT = 0, 1

# <s> A <sep> B <sep>
_NUM_SPECIAL = 3

# A document with fewer tokens cannot be cut into two that say something.
FEWEST_TOKENS_TO_PAIR = 8

# A part of a document ends with a sentence, if one ends in the last quarter of the row.
_REACH = 0.25
# Tokens looked through at once for ends of sentences.
_BLOCK = 1_000_000

# Other texts that a wrong second segment is looked for in.
_TRIES = 4


def pretraining_rows(store: TokenStore, *, tokenizer: Tokenizer, settings: Settings) -> Rows:
    """Rows as the objective reads them: running text, pairs of sentences, or halves of texts."""
    kind = settings.objective.kind
    rows = settings.objective.traits.rows
    if rows == "halves":
        return HalfRows(
            store,
            tokenizer=tokenizer,
            max_length=settings.data.max_length,
            group_size=settings.objective.group_size,
            seed=settings.train.seed,
        )
    if rows == "sentence pairs":
        return PairRows(
            store,
            kind="sop" if kind == "sop" else "bert",
            tokenizer=tokenizer,
            max_length=settings.data.max_length,
            seed=settings.train.seed,
        )
    return text_rows(store, tokenizer=tokenizer, data=settings.data)


class PairRows:
    """Whole sentences of one document a row, cut into two segments between two of them.

    For `bert` every part of a document makes two rows: one with its own second segment, one with
    sentences of another document. Never of the same one: they could well belong there. For `sop`
    (Lan et al. 2019) it makes one row, and in half of them the two segments change places.
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
        self._seed = seed
        self._parts = _parts(
            store, room=max_length - _NUM_SPECIAL, ends_sentence=self._ends_sentence
        )
        num_documents = np.count_nonzero(np.diff(self._parts.before))
        if num_documents == 0:
            raise DataError(
                f"No document has {FEWEST_TOKENS_TO_PAIR} tokens or more, to be cut into two "
                "sentences.",
                remedy="Give longer documents (--documents blank), or take --objective masked.",
            )
        if kind == "bert" and num_documents == 1:
            raise DataError(
                f"The text holds 1 document of {FEWEST_TOKENS_TO_PAIR} tokens or more; "
                "next-sentence prediction needs at least 2.",
                "Wrong second sentences are taken from other documents.",
                remedy="Give one document a line (--documents), or take --objective sop or masked.",
            )
        sizes = self._parts.stops - self._parts.starts
        self.lengths = np.repeat(sizes, 2 if kind == "bert" else 1) + _NUM_SPECIAL

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
        is_bert = self._kind == "bert"
        part, is_wrong = divmod(number, 2) if is_bert else (number, generator.random() < 0.5)
        text = self._read(part)
        ends = self._sentence_ends(text)[:-1]
        if len(ends):
            cut = int(generator.choice(ends))
        else:  # one sentence: anywhere but near its ends
            margin = len(text) // 4
            cut = max(int(generator.integers(margin, len(text) - margin)), 1)
        first, second = text[:cut], text[cut:]
        if not is_wrong:
            return first, second, BELONGS
        if not is_bert:
            return second, first, DOES_NOT
        wrong = self._from_another(
            part, like=second, begins_sentence=len(ends) > 0, generator=generator
        )
        return first, wrong, DOES_NOT

    def _from_another(
        self,
        part: int,
        *,
        like: NDArray[np.int64],
        begins_sentence: bool,
        generator: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Tokens of another document that begin and end as the right ones, and are hardly shorter.

        Only their content may reveal the wrong ones: where they were cut anywhere, length,
        beginning and end revealed 80 to 93 % of French pairs (2026-11-16).
        """
        best = like[:0]
        for _ in range(_TRIES):
            text = self._read(self._another_part(part, generator))
            found = self._sentences(text, like=like) if begins_sentence else text[-len(like) :]
            best = max(best, found, key=len)
        return best if len(best) else text[-len(like) :]

    def _sentences(self, text: NDArray[np.int64], *, like: NDArray[np.int64]) -> NDArray[np.int64]:
        """The longest run of sentences, but for the first, that is no longer than `like`.

        The last of them is whole if that of `like` is, and is not if not.
        """
        starts = self._sentence_ends(text)[:-1]
        is_stop = self._ends_sentence[text] == self._ends_sentence[like[-1]]
        stops = np.concatenate([[0], np.flatnonzero(is_stop) + 1])
        sizes = stops[np.searchsorted(stops, starts + len(like), side="right") - 1] - starts
        if not (sizes > 0).any():
            return text[:0]
        start = starts[sizes.argmax()]
        return text[start : start + sizes.max()]

    def _sentence_ends(self, text: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places in a text behind a sentence, the end of the text among them."""
        return np.append(np.flatnonzero(self._ends_sentence[text[:-1]]) + 1, len(text))

    def _another_part(self, part: int, generator: np.random.Generator) -> int:
        """Any part of any other document."""
        document = self._parts.documents[part]
        first, behind = self._parts.before[document : document + 2].tolist()
        another = int(generator.integers(len(self._parts.documents) - (behind - first)))
        return another if another < first else another + behind - first

    def _read(self, part: int) -> NDArray[np.int64]:
        start, stop = int(self._parts.starts[part]), int(self._parts.stops[part])
        return self._store.read(start, stop).astype(np.int64)


@dataclass(frozen=True)
class _Parts:
    """Parts of documents, in order: the document of each, and its place in the store.

    `before` says for each document how many parts come before its first, and at last how many
    there are.
    """

    documents: NDArray[np.int64]
    before: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


def _parts(store: TokenStore, *, room: int, ends_sentence: NDArray[np.bool_]) -> _Parts:
    """Every document in as few parts of whole sentences as surely fit the room, about equal."""
    reach = int(room * _REACH)
    # Without the start and the end token.
    begins, num_tokens = store.offsets[:-1] + 1, np.diff(store.offsets) - 2
    num_parts = np.where(num_tokens <= room, 1, -(-num_tokens // (room - reach)))
    num_parts[num_tokens < FEWEST_TOKENS_TO_PAIR] = 0
    before = np.concatenate([[0], np.cumsum(num_parts)])
    documents = np.repeat(np.arange(len(num_parts)), num_parts)
    number = np.arange(len(documents)) - before[documents]
    starts = begins[documents] + num_tokens[documents] * number // num_parts[documents]
    is_inner = number > 0
    starts[is_inner] = _behind_sentences(
        starts[is_inner], store=store, reach=reach, ends_sentence=ends_sentence
    )
    # A part stops where the next one starts, and the last one with its document.
    stops = (begins + num_tokens)[documents]
    stops[:-1] = np.where(is_inner[1:], starts[1:], stops[:-1])
    return _Parts(documents, before, starts, stops)


def _behind_sentences(
    places: NDArray[np.int64], *, store: TokenStore, reach: int, ends_sentence: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Each of these places, in order, moved back to the end of a sentence, if one is in reach."""
    moved: NDArray[np.int64] = places.copy()
    for block in range(0, store.num_tokens, _BLOCK):
        here = slice(*np.searchsorted(places, [block, block + _BLOCK]).tolist())
        if here.start == here.stop:
            continue
        begin = max(block - reach - 1, 0)
        text = store.read(begin, int(places[here][-1]))
        # A place that no sentence ends before is behind the last of them, -1.
        ends = np.append(np.flatnonzero(ends_sentence[text]) + begin + 1, -1)
        last = ends[np.searchsorted(ends[:-1], places[here], side="right") - 1]
        moved[here] = np.where(last >= places[here] - reach, last, places[here])
    return moved
