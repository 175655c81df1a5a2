"""Texts as chunks between blanks, and a table of what each distinct chunk holds.

Words, character n-grams and tokens of whole words depend on nothing outside their chunk. So they
are found once per distinct chunk, and looked up from then on. Letters: N texts, L chunks of all
texts, I items of all distinct chunks, T items of all texts, K keys.
"""

import itertools
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from regraft.runtime import Progress

# Then the table of chunks starts again, so that a server does not grow without limit.
_MOST_CHUNKS = 500_000

# Texts and characters that are read at a time: few enough for arrays that stay in the memory of the
# process, enough to read a frequent row once for many texts.
_BATCH_TEXTS = 512
_BATCH_CHARACTERS = 1_000_000

# An odd number near 2**64 divided by the golden ratio: its multiples differ in their first bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, such as the ids of texts, concatenated."""

    values_T: Int[np.ndarray, " T"]
    lengths_N: Int[np.ndarray, " N"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """The same rows."""
        lengths_N = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = itertools.chain.from_iterable(rows)
        return cls(np.fromiter(flat, dtype=np.int32, count=int(lengths_N.sum())), lengths_N)

    def truncated(self, most: int) -> "Ragged":
        """No more than so many values of each row, from its start."""
        if self.lengths_N.max(initial=0) <= most:
            return self
        firsts_N = starts(self.lengths_N)[:-1]
        places_T = np.arange(len(self.values_T)) - np.repeat(firsts_N, self.lengths_N)
        return Ragged(self.values_T[places_T < most], np.minimum(self.lengths_N, most))


class Keys:
    """The places of distinct keys, all 0 or more: a hash table that is asked for many at once."""

    def __init__(self, keys_K: Int[np.ndarray, " K"]) -> None:
        num_bits = len(keys_K).bit_length() + 1
        self._shift, self._last = np.uint64(64 - num_bits), (1 << num_bits) - 1
        self._places = np.full(1 << num_bits, -1, dtype=np.int32)
        waiting, slots = np.arange(len(keys_K), dtype=np.int32), self._slots(keys_K)
        while len(waiting):
            is_free = self._places[slots] < 0
            self._places[slots[is_free]] = waiting[is_free]  # of several, one stays
            is_waiting = self._places[slots] != waiting
            waiting, slots = waiting[is_waiting], (slots[is_waiting] + 1) & self._last
        self._keys = np.append(keys_K, -1)[self._places]  # -1 where none is

    def _slots(self, keys: Int[np.ndarray, " keys"]) -> NDArray[np.int64]:
        """Where to look first; then in the next slot, up to an empty one."""
        slots: NDArray[np.int64] = (keys.astype(np.uint64) * _SPREAD >> self._shift).view(np.int64)
        return slots

    def places(self, keys: Int[np.ndarray, " keys"]) -> NDArray[np.int32]:
        """The place of each key; -1 for one that is not there."""
        places = np.full(len(keys), -1, dtype=np.int32)
        asked, slots = np.arange(len(keys)), self._slots(keys)
        while len(asked):
            there = self._keys[slots]
            is_here = there == keys
            places[asked[is_here]] = self._places[slots[is_here]]
            goes_on = ~is_here & (there >= 0)
            asked, keys, slots = asked[goes_on], keys[goes_on], (slots[goes_on] + 1) & self._last
        return places


# The items of each of some chunks, as integers.
ItemsOf = Callable[[Sequence[str]], Ragged]


class Numbers(dict[str, int]):
    """Numbers strings when they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class _Growing:
    """An array of integers that grows; what was read from it before stays as it is."""

    def __init__(self, first: Sequence[int] = ()) -> None:
        self._room = np.array([*first, 0], dtype=np.int32)
        self._size = len(first)

    def extend(self, numbers: NDArray[Any]) -> None:
        size = self._size + len(numbers)
        if size > len(self._room):
            room = np.empty(2 * size, dtype=np.int32)
            room[: self._size] = self.now
            self._room = room
        self._room[self._size : size] = numbers
        self._size = size

    @property
    def now(self) -> NDArray[np.int32]:
        return self._room[: self._size]


@dataclass(frozen=True)
class ItemTable:
    """The items of every distinct chunk, concatenated."""

    items_I: Int[np.ndarray, " I"]
    chunk_ends: NDArray[np.int32]


@dataclass(frozen=True)
class Cut:
    """Texts as numbers of chunks, and tables of what these chunks hold."""

    chunks_L: Int[np.ndarray, " L"]
    text_ends: NDArray[np.int32]
    tables: tuple[ItemTable, ...]

    def only(self, tables: slice) -> "Cut":
        """With some of its tables."""
        return replace(self, tables=self.tables[tables])

    @property
    def num_texts(self) -> int:
        """How many texts were cut."""
        return len(self.text_ends) - 1

    def items(self, table: int) -> Ragged:
        """The items of each text."""
        ends, chunks_L = self.tables[table].chunk_ends, self.chunks_L
        num_items_L = np.diff(ends)[chunks_L]
        behind = starts(num_items_L)
        shifts_L = ends[chunks_L] - behind[:-1]
        places = np.arange(behind[-1]) + np.repeat(shifts_L, num_items_L)
        return Ragged(self.tables[table].items_I[places], np.diff(behind[self.text_ends]))


class Chunks:
    """The distinct chunks seen so far, with one table for each function that finds their items."""

    def __init__(self, *items_of: ItemsOf) -> None:
        self._items_of = items_of
        self._lock = threading.Lock()
        self._start()

    def __reduce__(self) -> tuple[Any, ...]:
        """Without its tables and its lock, which stay in this process."""
        return Chunks, self._items_of

    def _start(self) -> None:
        self._numbers = Numbers()
        self._tables = [(_Growing(), _Growing([0])) for _ in self._items_of]

    def cut(self, texts: Iterable[str]) -> Cut:
        """Cut texts, one thread at a time, and extend the tables by chunks that are new."""
        chunks_L, text_ends = array("i"), array("i", [0])
        with self._lock:
            if len(self._numbers) > _MOST_CHUNKS:
                self._start()
            number_of = self._numbers.__getitem__
            for text in texts:
                chunks_L.extend(map(number_of, text.split()))
                text_ends.append(len(chunks_L))
            if new := self._numbers.new:
                for (items, ends), items_of in zip(self._tables, self._items_of, strict=True):
                    found = items_of(new)
                    ends.extend(len(items.now) + starts(found.lengths_N)[1:])
                    items.extend(found.values_T)
                new.clear()
            tables = tuple(ItemTable(items.now, ends.now) for items, ends in self._tables)
        return Cut(np.array(chunks_L, dtype=np.int32), np.array(text_ends, dtype=np.int32), tables)


_Read = TypeVar("_Read")


def read_in_batches(
    texts: Sequence[str], read: Callable[[Sequence[str]], _Read], *, progress: Progress
) -> Iterator[_Read]:
    """What `read` makes of texts, a batch at a time, on all cores.

    Texts are cut by one thread at a time; meanwhile others multiply what is cut.
    """
    batches = list(_batches(texts))
    progress.start(f"read {len(texts):,} texts", total=len(texts))
    try:
        with ThreadPoolExecutor(min(os.cpu_count() or 1, max(len(batches), 1))) as threads:
            parts = threads.map(lambda batch: read(texts[batch]), batches)
            for batch, part in zip(batches, parts, strict=True):
                yield part
                progress.advance(batch.stop - batch.start)
    finally:
        progress.finish()


def _batches(texts: Sequence[str]) -> Iterator[slice]:
    """Neighbouring texts that are read at a time."""
    start, num_characters = 0, 0
    for number, text in enumerate(texts):
        is_full = number - start == _BATCH_TEXTS or num_characters + len(text) > _BATCH_CHARACTERS
        if is_full and number > start:
            yield slice(start, number)
            start, num_characters = number, 0
        num_characters += len(text)
    if start < len(texts):
        yield slice(start, len(texts))


def starts(lengths: Any) -> NDArray[np.int64]:
    """Where each begins if they are concatenated, and where the last one ends."""
    places = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=places[1:])
    return places
