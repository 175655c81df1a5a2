"""Fast encoding of large text: words are cached, and processes share the work.

The ids are those of the tokenizer, in order; memory is bounded.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regraft.data.tokens.tokenizer import Tokenizer
from regraft.errors import DataError

# So many units are encoded here before processes, which take a second to start, are worth it.
SERIAL_UNITS = 4
# One process reads and writes, and keeps no more than these busy.
MOST_WORKERS = 16

# What is remembered of words, at most 200 MB in each process; then the rarer half is forgotten.
# French text of 95 MB has 500,000 words, punctuation included, and more than half of them once.
MOST_WORDS = 500_000
MOST_WORD_IDS = 4_000_000

_CUT = "\0"  # readers refuse it in text
_OPENERS = " \n"
_CHAIN = 200  # words encoded as one text

Ids = NDArray[np.unsignedinteger[Any]]  # uint16 or uint32
Tag = TypeVar("Tag")


@dataclass(frozen=True)
class Encoded:
    """Documents one after the other, each from its start token to its end token."""

    ids: Ids
    lengths: NDArray[np.int64]


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """The smaller type that holds every id."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


class Encoder:
    """A tokenizer that remembers words: what is between two cuts is encoded once.

    A cut is made before every space and newline. The tokenizer splits there, too, unless the cut
    falls into blank space that goes on behind it: such pieces are glued together again.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._id_type = id_type(tokenizer.vocab_size)
        self._sizes = np.array(tokenizer.token_bytes)
        self._words = _Words()
        self._ids: Ids = np.empty(0, dtype=self._id_type)
        self._lengths = np.empty(0, dtype=np.int64)
        self._opens_blank = np.empty(0, dtype=bool)
        self._ends_blank = np.empty(0, dtype=bool)
        self._uses = np.empty(0, dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Every text as the tokenizer encodes it, between start and end token."""
        joined = _CUT.join(texts)
        if not self._tokenizer.splits_at_spaces or joined.count(_CUT) != len(texts) - 1:
            rows = self._tokenizer.encode_batch(texts)
            return self._framed(self._flat(rows), lengths=_lengths(rows))
        for opener in _OPENERS:
            joined = joined.replace(opener, _CUT + opener)
        pieces = joined.split(_CUT)
        num_pieces = np.array([1 + sum(map(text.count, _OPENERS)) for text in texts])
        numbers = self._numbers(pieces)
        is_glued = self._is_glued(numbers, firsts=_starts(num_pieces))
        if is_glued.any():
            num_pieces -= np.add.reduceat(is_glued, _starts(num_pieces), dtype=np.int64)
            borders = [*np.flatnonzero(~is_glued).tolist(), len(pieces)]
            pieces = ["".join(pieces[a:b]) for a, b in itertools.pairwise(borders)]
            numbers = self._numbers(pieces)
        lengths = self._lengths[numbers]
        ids = self._ids[_places(_starts(self._lengths)[numbers], lengths)]
        return self._framed(ids, lengths=np.add.reduceat(lengths, _starts(num_pieces)))

    def _numbers(self, words: Sequence[str]) -> NDArray[np.int64]:
        """The number of each word, under which its ids are found."""
        if len(self._words) > MOST_WORDS or len(self._ids) > MOST_WORD_IDS:
            self._forget_rare()
        numbers = np.fromiter(map(self._words.__getitem__, words), np.int64, len(words))
        if new := self._words.new:
            self._learn(new)
            new.clear()
        self._uses += np.bincount(numbers, minlength=len(self._uses))
        return numbers

    def _learn(self, words: Sequence[str]) -> None:
        opens_blank = np.array([word[:1] in _OPENERS and not word[1:2].strip() for word in words])
        ends_blank = np.array([word[-1:].isspace() for word in words])
        # One text of many words is encoded in half the time of the words alone. A word can follow
        # another in it if the tokenizer splits between them.
        is_first = opens_blank | np.array([word[:1] not in _OPENERS for word in words])
        is_first[1:] |= ends_blank[:-1]
        is_first[::_CHAIN] = True
        borders = [*np.flatnonzero(is_first).tolist(), len(words)]
        chains = ["".join(words[a:b]) for a, b in itertools.pairwise(borders)]
        ids = self._flat(self._tokenizer.encode_batch(chains))
        ends = np.cumsum(self._sizes[ids])
        word_ends = np.cumsum([len(word.encode("utf-8", "surrogatepass")) for word in words])
        lengths = np.diff(np.searchsorted(ends, word_ends, side="right"), prepend=0)
        if word_ends[-1] != ends.max(initial=0):  # two halves of a surrogate pair became one
            rows = self._tokenizer.encode_batch(words)
            ids, lengths = self._flat(rows), _lengths(rows)
        self._ids = np.concatenate([self._ids, ids])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._opens_blank = np.concatenate([self._opens_blank, opens_blank])
        self._ends_blank = np.concatenate([self._ends_blank, ends_blank])
        self._uses = np.concatenate([self._uses, np.zeros(len(words), dtype=np.int64)])

    def _forget_rare(self) -> None:
        words = list(self._words)
        kept = np.sort(np.argsort(-self._uses, kind="stable")[: len(words) // 2])
        self._words = _Words({words[old]: new for new, old in enumerate(kept.tolist())})
        self._ids = self._ids[_places(_starts(self._lengths)[kept], self._lengths[kept])]
        self._lengths = self._lengths[kept]
        self._opens_blank = self._opens_blank[kept]
        self._ends_blank = self._ends_blank[kept]
        self._uses = self._uses[kept] // 2  # what was frequent long ago counts less and less

    def _is_glued(
        self, numbers: NDArray[np.int64], *, firsts: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which pieces belong to the one before: blank space to the left and right of the cut."""
        is_glued = np.zeros(len(numbers), dtype=bool)
        is_glued[1:] = self._ends_blank[numbers[:-1]] & self._opens_blank[numbers[1:]]
        is_glued[firsts] = False
        return is_glued

    def _flat(self, rows: Sequence[Sequence[int]]) -> Ids:
        return np.fromiter(itertools.chain.from_iterable(rows), dtype=self._id_type)

    def _framed(self, ids: Ids, *, lengths: NDArray[np.int64]) -> Encoded:
        lengths = lengths + 2
        framed = np.empty(lengths.sum(), dtype=self._id_type)
        starts = _starts(lengths)
        is_text = np.ones(len(framed), dtype=bool)
        is_text[starts] = is_text[starts + lengths - 1] = False
        framed[is_text] = ids
        framed[starts] = self._tokenizer.start_id
        framed[starts + lengths - 1] = self._tokenizer.end_id
        return Encoded(framed, lengths)


class _Words(dict[str, int]):
    """Word -> number; an unknown word gets the next number and is recorded as new."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        super().__init__(known or {})
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _lengths(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.fromiter(map(len, rows), np.int64, len(rows))


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    starts: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return starts


def _places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each start on, as many as its length, concatenated."""
    places: NDArray[np.int64] = np.repeat(starts - _starts(lengths), lengths)
    places += np.arange(len(places))
    return places


def encode_units(
    units: Iterable[tuple[Tag, Sequence[str]]], *, tokenizer: Tokenizer
) -> Generator[tuple[Tag, Encoded], None, None]:
    """Encode units of texts in order, on all cores if they are many; tags are passed through."""
    units = iter(units)
    head = list(itertools.islice(units, SERIAL_UNITS))
    num_workers = _num_workers() if len(head) == SERIAL_UNITS else 1
    units = itertools.chain(head, units)
    if num_workers == 1:
        encoder = Encoder(tokenizer)
        for tag, texts in units:
            yield tag, encoder.encode(texts)
        return
    waiting: deque[tuple[Tag, Any]] = deque()
    with _workers(num_workers, tokenizer=tokenizer) as executor:
        for tag, texts in units:
            waiting.append((tag, executor.submit(_encode, texts)))
            # Two for each worker: one in work, one at hand.
            if len(waiting) == 2 * num_workers:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


def _num_workers() -> int:
    import joblib

    return min(int(joblib.cpu_count()), MOST_WORKERS)


@contextlib.contextmanager
def _workers(number: int, *, tokenizer: Tokenizer) -> Iterator[Any]:
    """Processes with an encoder each; they are gone after the block, however it is left.

    Not multiprocessing: a fork would copy locks that other threads hold, and its clean start would
    run the user's script again.
    """
    from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor

    executor = ProcessPoolExecutor(
        number, initializer=_start_worker, initargs=(tokenizer, os.getpid())
    )
    try:
        yield executor
    except BrokenProcessPool as error:
        raise DataError(
            "A worker process was killed, most likely because memory ran out.",
            "Each takes up to 300 MB.",
            remedy="Free some memory and repeat the command: it continues where it stopped.",
        ) from error
    finally:
        executor.shutdown(kill_workers=True)


_ENCODERS: list[Encoder] = []  # in a worker: its own


def _start_worker(tokenizer: Tokenizer, parent: int) -> None:
    # Ctrl-C reaches every process of a terminal; it is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Every core has a worker already: no threads below them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _ENCODERS.append(Encoder(tokenizer))
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """A parent that is killed cannot end its workers, and they would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _encode(texts: Sequence[str]) -> Encoded:
    return _ENCODERS[0].encode(texts)
