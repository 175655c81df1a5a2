"""Rows of tokens and the order they come in.

Comes in: documents or examples and a tokenizer. Goes out: `Rows` that build any batch from row
numbers, and `epoch_order`, a pure function of (seed, epoch). Knows nothing of models or losses.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from regraft.config import DataSettings
from regraft.errors import DataError
from regraft.runtime import SILENT, Progress
from regraft.text import Document, Example, Labels
from regraft.tokenizer import Tokenizer

# A target that counts for nothing: padding.
IGNORED = -100

# Documents encoded at once: enough to keep the tokenizer's threads busy, few enough to stay flat.
_ENCODE_CHUNK = 2000


@dataclass(frozen=True)
class Batch:
    """What one forward pass reads. `targets` are tokens (language model) or classes."""

    ids_BT: Int[Tensor, "B T"]
    real_BT: Bool[Tensor, "B T"]
    targets: Int[Tensor, "*shape"]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(self.ids_BT.to(device), self.real_BT.to(device), self.targets.to(device))


@runtime_checkable
class Rows(Protocol):
    """Anything that can be batched by row number."""

    lengths: NDArray[np.int64]

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, padded on the right to the longest of them."""


@dataclass(frozen=True)
class TokenStore:
    """All documents' tokens in one array; document i is `ids[offsets[i]:offsets[i + 1]]`.

    Every document begins with the start token and ends with the end token.
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    num_bytes: int

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.offsets) - 1

    @property
    def fingerprint(self) -> str:
        """A hash of every token and every border: equal stores train equal models."""
        digest = hashlib.sha256(self.ids.tobytes())
        digest.update(self.offsets.tobytes())
        return digest.hexdigest()[:16]

    def counts(self, *, vocab_size: int) -> NDArray[np.int64]:
        """How often each token occurs as a target (the start token never does)."""
        counts = np.bincount(self.ids, minlength=vocab_size)
        counts[self.ids[0]] -= self.num_documents
        return counts

    def split(self, *, share: float, seed: int) -> tuple["TokenStore", "TokenStore"]:
        """(rest, held out): whole documents, drawn by seed."""
        num_held = round(self.num_documents * share)
        order = np.random.default_rng(seed).permutation(self.num_documents)
        held = np.zeros(self.num_documents, dtype=bool)
        held[order[:num_held]] = True
        return self._take(~held), self._take(held)

    def _take(self, chosen: NDArray[np.bool_]) -> "TokenStore":
        lengths = np.diff(self.offsets)
        ids = self.ids[np.repeat(chosen, lengths)]
        offsets = np.concatenate([[0], np.cumsum(lengths[chosen])])
        share = len(ids) / max(len(self.ids), 1)
        return TokenStore(ids, offsets.astype(np.int64), round(self.num_bytes * share))


def build_token_store(
    documents: Sequence[Document], *, tokenizer: Tokenizer, progress: Progress = SILENT
) -> TokenStore:
    """Encode documents; empty ones are left out."""
    pieces: list[NDArray[np.uint32]] = []
    lengths: list[int] = []
    num_bytes = num_tokens = 0
    progress.start("tokenise", total=len(documents))
    for start in range(0, len(documents), _ENCODE_CHUNK):
        chunk = documents[start : start + _ENCODE_CHUNK]
        texts = [document.text for document in chunk if document.text.strip()]
        num_bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        for ids in tokenizer.encode_batch(texts):
            row = [tokenizer.start_id, *ids, tokenizer.end_id]
            pieces.append(np.array(row, dtype=np.uint32))
            lengths.append(len(row))
            num_tokens += len(row)
        progress.advance(len(chunk), note=f"{num_tokens:,} tokens")
    progress.finish()
    if not pieces:
        raise DataError(
            "There is no text to learn from: every document is empty.",
            "Pre-training needs at least one document with words in it.",
            remedy="Check the files, and --text if the text column has another name.",
        )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenStore(np.concatenate(pieces), offsets, num_bytes)


class StreamRows:
    """Documents one behind the other, cut into full rows: no padding. For pre-training."""

    def __init__(self, store: TokenStore, *, max_length: int) -> None:
        # A row reads max_length tokens and predicts the same shifted by one.
        num_targets = len(store.ids) - 1
        num_rows = max(num_targets // max_length, 1)
        self._store = store
        self._row_length = min(max_length, num_targets)
        self.lengths = np.full(num_rows, self._row_length, dtype=np.int64)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Rows of equal length."""
        starts_B1 = numbers[:, None] * self._row_length
        places = starts_B1 + np.arange(self._row_length + 1)
        rows = torch.from_numpy(self._store.ids[places].astype(np.int64))
        ids_BT = rows[:, :-1]
        return Batch(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), rows[:, 1:])


class DocumentRows:
    """One document a row, as in the lab: `<sos> A B C` predicts `A B C <eos>`, cut to length."""

    def __init__(self, store: TokenStore, *, max_length: int, pad_id: int) -> None:
        self._store = store
        self._pad_id = pad_id
        self.lengths = np.minimum(np.diff(store.offsets) - 1, max_length)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Documents padded to the longest of them."""
        rows = []
        for number in numbers:
            start = self._store.offsets[number]
            rows.append(self._store.ids[start : start + self.lengths[number] + 1])
        inputs = [row[:-1] for row in rows]
        ids_BT, real_BT = _padded(inputs, pad_id=self._pad_id)
        targets_BT, _ = _padded([row[1:] for row in rows], pad_id=IGNORED)
        return Batch(ids_BT, real_BT, targets_BT)


class ExampleRows:
    """One labelled text a row: start token, then the text, cut to length."""

    def __init__(
        self,
        texts: Sequence[str],
        *,
        targets: Sequence[int],
        tokenizer: Tokenizer,
        data: DataSettings,
    ) -> None:
        assert len(texts) == len(targets)
        self._pad_id = tokenizer.pad_id
        full = [[tokenizer.start_id, *ids] for ids in tokenizer.encode_batch(texts)]
        self._ids = [np.array(ids[: data.max_length], dtype=np.int64) for ids in full]
        self.targets = np.array(targets, dtype=np.int64)
        self.num_cut = sum(len(ids) > data.max_length for ids in full)
        self.lengths = np.array([len(ids) for ids in self._ids], dtype=np.int64)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Texts padded to the longest of them, with their classes."""
        ids_BT, real_BT = _padded([self._ids[n] for n in numbers], pad_id=self._pad_id)
        return Batch(ids_BT, real_BT, torch.from_numpy(self.targets[numbers]))


def example_rows(
    examples: Sequence[Example], *, labels: Labels, tokenizer: Tokenizer, data: DataSettings
) -> ExampleRows:
    """Rows of labelled examples."""
    targets = [labels.target(example.label) for example in examples]
    texts = [example.text for example in examples]
    return ExampleRows(texts, targets=targets, tokenizer=tokenizer, data=data)


def language_model_rows(
    store: TokenStore, *, tokenizer: Tokenizer, data: DataSettings
) -> StreamRows | DocumentRows:
    """Rows for pre-training, packed as the settings say."""
    if data.packing == "stream":
        return StreamRows(store, max_length=data.max_length)
    return DocumentRows(store, max_length=data.max_length, pad_id=tokenizer.pad_id)


# Batches sorted by length together: rows of one batch are alike, batches still come at random.
_BUCKET = 16


def epoch_order(
    lengths: NDArray[np.int64], *, batch_size: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Row numbers of every batch of an epoch, in order: a pure function of its arguments.

    Rows are shuffled, sorted by length within buckets (less padding), and the batches shuffled.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    bucket_size = batch_size * _BUCKET
    batches = []
    for start in range(0, len(order), bucket_size):
        bucket = order[start : start + bucket_size]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[i : i + batch_size] for i in range(0, len(bucket), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def sorted_batches(lengths: NDArray[np.int64], *, batch_size: int) -> list[NDArray[np.int64]]:
    """Row numbers by length: the least padding, for evaluation, where order does not matter."""
    order = np.argsort(lengths, kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def _padded(rows: Sequence[NDArray[np.generic]], *, pad_id: int) -> tuple[Tensor, Tensor]:
    longest = max(len(row) for row in rows)
    ids_BT = torch.full((len(rows), longest), pad_id, dtype=torch.int64)
    real_BT = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids_BT[number, : len(row)] = torch.from_numpy(row.astype(np.int64))
        real_BT[number, : len(row)] = True
    return ids_BT, real_BT
