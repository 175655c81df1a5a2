"""Texts as chunks between blanks, and a table of what each distinct chunk holds.

Words, character n-grams and tokens of whole words depend on nothing outside their chunk. So they
are found once per distinct chunk, and looked up from then on. Letters: N texts, L chunks of all
texts, I items of all distinct chunks, T items of all texts.
"""

import itertools
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

# Then the table of chunks starts again, so that a server does not grow without limit.
_MOST_CHUNKS = 500_000

# The items of each of some chunks, as integers.
ItemsOf = Callable[[Sequence[str]], Iterable[Sequence[int]]]


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

    def extend(self, numbers: Sequence[int] | NDArray[np.int64]) -> None:
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
    """The items of every distinct chunk, one chunk behind the other."""

    items_I: Int[np.ndarray, " I"]
    chunk_ends: NDArray[np.int32]


@dataclass(frozen=True)
class Cut:
    """Texts as numbers of chunks, and tables of what these chunks hold."""

    chunks_L: Int[np.ndarray, " L"]
    text_ends: NDArray[np.int32]
    tables: tuple[ItemTable, ...]

    @property
    def num_texts(self) -> int:
        """How many texts were cut."""
        return len(self.text_ends) - 1

    def items(self, table: int) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " N"]]:
        """The items of all texts, one text behind the other, and how many each text has."""
        ends, chunks_L = self.tables[table].chunk_ends, self.chunks_L
        num_items_L = np.diff(ends)[chunks_L]
        behind = starts(num_items_L)
        shifts_L = ends[chunks_L] - behind[:-1]
        places = np.arange(behind[-1]) + np.repeat(shifts_L, num_items_L)
        return self.tables[table].items_I[places], np.diff(behind[self.text_ends])


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
                    rows = list(items_of(new))
                    ends.extend(len(items.now) + starts(list(map(len, rows)))[1:])
                    items.extend(list(itertools.chain.from_iterable(rows)))
                new.clear()
            tables = tuple(ItemTable(items.now, ends.now) for items, ends in self._tables)
        return Cut(np.array(chunks_L, dtype=np.int32), np.array(text_ends, dtype=np.int32), tables)


def starts(lengths: Any) -> NDArray[np.int64]:
    """Where each begins if they lie one behind the other, and where the last one ends."""
    places = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=places[1:])
    return places
