"""Rows of tokens, from which any batch is built by row numbers, and their order in an epoch."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Num
from numpy.typing import NDArray
from torch import Tensor

from regraft.config import DataSettings
from regraft.data.text.records import Content, Example, Labels
from regraft.data.tokens.store import TokenStore
from regraft.data.tokens.tokenizer import Tokenizer

# A target that counts for nothing: padding.
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """What one forward pass reads. `targets` are tokens (language model), classes, label sets
    as rows of 0 and 1, or probabilities of the classes.

    `segments_BT` numbers the documents of a row from 0, where they are to be kept apart.
    `token_types_BT` is 0 in the first sentence of a pair and 1 in the second. `next_BT` is the
    token behind each position, where `targets` are for another objective.
    """

    ids_BT: Int[Tensor, "B T"]
    real_BT: Bool[Tensor, "B T"]
    targets: Num[Tensor, "*shape"]
    segments_BT: Int[Tensor, "B T"] | None = None
    token_types_BT: Int[Tensor, "B T"] | None = None
    next_BT: Int[Tensor, "B T"] | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        there = {name: _moved(part, device) for name, part in parts.items() if part is not None}
        return Batch(**there)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    # From pinned memory the copy overlaps with the computation of the previous batch.
    return tensor.pin_memory().to(device, non_blocking=True)


@runtime_checkable
class Rows(Protocol):
    """Anything that can be batched by row number."""

    lengths: NDArray[np.int64]

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """The rows with these numbers, padded on the right to the longest of them."""


class StreamRows:
    """Documents one after the other, cut into full rows: no padding. For pre-training."""

    def __init__(self, store: TokenStore, *, max_length: int) -> None:
        # A row reads max_length tokens and predicts the same shifted by one.
        num_targets = store.num_tokens - 1
        num_rows = max(num_targets // max_length, 1)
        self._store = store
        self._start_id = int(store.read(0, 1)[0])
        self._row_length = min(max_length, num_targets)
        self.lengths = np.full(num_rows, self._row_length, dtype=np.int64)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Rows of equal length."""
        rows = self._rows(self._store.read, numbers)
        ids_BT, targets_BT = rows[:, :-1], rows[:, 1:]
        # That a document begins behind the end of another is no achievement: never a target.
        targets_BT = targets_BT.masked_fill(targets_BT == self._start_id, IGNORED)
        return Batch(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool), targets_BT)

    def _rows(
        self, read: Callable[[int, int], NDArray[Any]], numbers: NDArray[np.int64]
    ) -> Int[Tensor, "B _"]:
        starts = (numbers * self._row_length).tolist()
        rows = [read(start, start + self._row_length + 1) for start in starts]
        return torch.from_numpy(np.stack(rows).astype(np.int64))


class IsolatedRows(StreamRows):
    """The same rows with the document number of each token."""

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Rows of equal length, with segments."""
        documents_BT = self._rows(self._store.document_numbers, numbers)[:, :-1]
        segments_BT = documents_BT - documents_BT[:, :1]
        return dataclasses.replace(super().batch(numbers), segments_BT=segments_BT)


class DocumentRows:
    """One document a row, as in the lab: `<sos> A B C` predicts `A B C <eos>`, cut to length."""

    def __init__(self, store: TokenStore, *, max_length: int, pad_id: int) -> None:
        self._store = store
        self._pad_id = pad_id
        self.lengths = np.minimum(np.diff(store.offsets) - 1, max_length)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Documents padded to the longest of them."""
        starts = self._store.offsets[numbers]
        stops = starts + self.lengths[numbers] + 1
        ends = zip(starts.tolist(), stops.tolist(), strict=True)
        rows = [self._store.read(start, stop) for start, stop in ends]
        inputs = [row[:-1] for row in rows]
        ids_BT, real_BT = padded(inputs, pad_id=self._pad_id)
        targets_BT, _ = padded([row[1:] for row in rows], pad_id=IGNORED)
        return Batch(ids_BT, real_BT, targets_BT)


class ExampleRows:
    """One labelled text, or one pair, a row, cut to length, with what the tokenizer puts around it.

    With `data.windows`, a longer text goes on in the rows of `windows`, for who predicts. Texts and
    pairs do not mix.
    """

    def __init__(
        self,
        texts: Sequence[Content],
        *,
        targets: Sequence[int] | NDArray[np.int64] | NDArray[np.float32],
        tokenizer: Tokenizer,
        data: DataSettings,
    ) -> None:
        assert len(texts) == len(targets)
        self._pad_id = tokenizer.pad_id
        targets = np.asarray(targets)
        kind = np.float32 if np.issubdtype(targets.dtype, np.floating) else np.int64
        self.targets: NDArray[Any] = targets.astype(kind)
        self._types: list[NDArray[np.int64]] | None = None
        pairs = [text for text in texts if isinstance(text, tuple)]
        if pairs:
            self._encode_pairs(pairs, tokenizer=tokenizer, max_length=data.max_length)
        else:
            singles = [text for text in texts if isinstance(text, str)]
            self._encode_texts(singles, tokenizer=tokenizer, data=data)
        assert len(self._windows) == len(texts), "texts and pairs do not mix"
        self._ids = [windows[0] for windows in self._windows]
        self.lengths = np.array([len(ids) for ids in self._ids], dtype=np.int64)

    def _encode_texts(
        self, texts: Sequence[str], *, tokenizer: Tokenizer, data: DataSettings
    ) -> None:
        encoded = tokenizer.encode_batch(texts)
        room = data.max_length - tokenizer.num_framing
        most = data.windows or 1
        self._windows = [
            [
                np.array(
                    tokenizer.framed(ids[start : start + room], max_length=data.max_length),
                    dtype=np.int64,
                )
                for start in range(0, max(min(len(ids), room * most), 1), room)
            ]
            for ids in encoded
        ]
        self._is_long = np.array([len(ids) > room for ids in encoded], dtype=np.bool_)
        self._is_cut = np.array([len(ids) > room * most for ids in encoded], dtype=np.bool_)

    def _encode_pairs(
        self, pairs: Sequence[tuple[str, str]], *, tokenizer: Tokenizer, max_length: int
    ) -> None:
        encoded = [tokenizer.encode_batch(texts) for texts in zip(*pairs, strict=True)]
        both = list(zip(*encoded, strict=True))
        framed = [tokenizer.framed_pair(*ids, max_length=max_length) for ids in both]
        self._windows = [[np.array(ids, dtype=np.int64)] for ids, _ in framed]
        self._types = [np.array(types, dtype=np.int64) for _, types in framed]
        room = max_length - sum(map(len, tokenizer.pair_frame))
        sizes = [len(first) + len(second) for first, second in both]
        self._is_long = self._is_cut = np.array([size > room for size in sizes], dtype=np.bool_)

    @property
    def num_long(self) -> int:
        """How many texts are longer than a row: of them training reads the first part."""
        return int(self._is_long.sum())

    @property
    def num_cut(self) -> int:
        """How many texts even a prediction does not read to their end."""
        return int(self._is_cut.sum())

    @property
    def cut_share(self) -> float:
        """The share of texts that even a prediction does not read to their end."""
        return self.num_cut / max(len(self.lengths), 1)

    @property
    def windows(self) -> "WindowRows | None":
        """All rows of all texts; None where every text has one."""
        is_longer = any(len(windows) > 1 for windows in self._windows)
        return WindowRows(self._windows, pad_id=self._pad_id) if is_longer else None

    def subset(self, numbers: NDArray[np.int64]) -> "ExampleRows":
        """Some of the rows, in this order, without encoding them again."""
        part = copy.copy(self)
        part._ids = [self._ids[number] for number in numbers]
        part._windows = [self._windows[number] for number in numbers]
        if self._types is not None:
            part._types = [self._types[number] for number in numbers]
        part._is_long, part._is_cut = self._is_long[numbers], self._is_cut[numbers]
        part.targets, part.lengths = self.targets[numbers], self.lengths[numbers]
        return part

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Texts padded to the longest of them, with their classes."""
        ids_BT, real_BT = padded([self._ids[n] for n in numbers], pad_id=self._pad_id)
        types_BT = None
        if self._types is not None:
            types_BT, _ = padded([self._types[n] for n in numbers], pad_id=0)
        targets = torch.from_numpy(self.targets[numbers])
        return Batch(ids_BT, real_BT, targets, token_types_BT=types_BT)


class WindowRows:
    """Several rows per text; `text_numbers` maps rows to texts."""

    def __init__(self, by_text: Sequence[Sequence[NDArray[np.int64]]], *, pad_id: int) -> None:
        self._pad_id = pad_id
        self._ids = [ids for windows in by_text for ids in windows]
        self.text_numbers = np.repeat(np.arange(len(by_text)), [len(part) for part in by_text])
        self.lengths = np.array([len(ids) for ids in self._ids], dtype=np.int64)

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        """Windows padded to the longest of them, without targets."""
        ids_BT, real_BT = padded([self._ids[n] for n in numbers], pad_id=self._pad_id)
        return Batch(ids_BT, real_BT, ids_BT.new_zeros(len(numbers)))


def example_rows(
    examples: Sequence[Example], *, labels: Labels, tokenizer: Tokenizer, data: DataSettings
) -> ExampleRows:
    """Rows of labelled examples."""
    texts = [example.content for example in examples]
    return ExampleRows(texts, targets=labels.targets(examples), tokenizer=tokenizer, data=data)


def text_rows(
    store: TokenStore, *, tokenizer: Tokenizer, data: DataSettings
) -> StreamRows | DocumentRows:
    """Rows of running text for pre-training, packed as in `data.packing`."""
    if data.packing == "stream":
        return StreamRows(store, max_length=data.max_length)
    if data.packing == "isolated":
        return IsolatedRows(store, max_length=data.max_length)
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


def budget_batches(
    lengths: NDArray[np.int64], *, numbers: NDArray[np.int64], max_tokens: int
) -> list[NDArray[np.int64]]:
    """Row numbers in groups of similar length that fit the token budget, padding included.

    The longest come first, so that what does not fit in memory shows at once; a row longer than the
    budget is alone. Within a group rows keep their order: one group is `numbers` itself.
    """
    by_length = np.argsort(-lengths[numbers], kind="stable")
    groups = []
    start = 0
    while start < len(numbers):
        longest = int(lengths[numbers[by_length[start]]])
        stop = start + max(max_tokens // max(longest, 1), 1)
        groups.append(numbers[np.sort(by_length[start:stop])])
        start = stop
    return groups


def padded(rows: Sequence[NDArray[np.generic]], *, pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows side by side, as long as the longest, and which of their places are real."""
    longest = max(len(row) for row in rows)
    # In numpy: row by row it takes a tenth of torch's time (64 rows, 2026-11-18).
    ids_BT = np.full((len(rows), longest), pad_id, dtype=np.int64)
    real_BT = np.zeros((len(rows), longest), dtype=np.bool_)
    for number, row in enumerate(rows):
        ids_BT[number, : len(row)] = row
        real_BT[number, : len(row)] = True
    return torch.from_numpy(ids_BT), torch.from_numpy(real_BT)
