"""Which test texts were seen before the test, and which are left to decide.

Comes in: the texts of a test file, and all that was learned from or read. Goes out: a `Seen`, by
whose rule both `compare` and `fit` decide. Asks no label, and knows no model.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regraft.runtime import SILENT, Progress
from regraft.text import Document, Example, find_leaks
from regraft.text.duplicates import duplicate_key

# Test texts that were in the text without labels are left out while so many others decide: with
# fewer, an accuracy is known to within 18 points at best, and less than a tenth is no fair sample
# of the file. A file of fewer than twice as many must keep half of what it has.
FEWEST_DECIDING = 30
SMALLEST_DECIDING_SHARE = 0.1
# Documents of running text that are held in memory at a time.
_CHUNK = 20_000


@dataclass(frozen=True)
class Seen:
    """Which texts were seen before they should be. N test texts, V of valid.

    `labelled_N` are also in train or valid and `text_N` in the text without labels, exactly or
    nearly; None where there was none to search. `repeat_N` stand earlier in the test file.
    `valid_V` are also in train.
    """

    texts: tuple[str, ...]
    labelled_N: NDArray[np.bool_]
    text_N: NDArray[np.bool_] | None
    repeat_N: NDArray[np.bool_]
    valid_V: NDArray[np.bool_]

    @property
    def clean_N(self) -> NDArray[np.bool_]:  # noqa: N802
        """Seen nowhere before, each text once; if too few are left, those in the text pass."""
        distinct_N = ~(self.labelled_N | self.repeat_N)
        if self.text_N is None:
            return distinct_N
        unread_N = distinct_N & ~self.text_N
        num_distinct = int(distinct_N.sum())
        fewest = max(
            SMALLEST_DECIDING_SHARE * num_distinct, min(FEWEST_DECIDING, num_distinct / 2), 1
        )
        return unread_N if unread_N.sum() >= fewest else distinct_N

    @property
    def num_unread(self) -> int:
        """Test texts seen nowhere before, each once, whether they are enough to decide or not."""
        in_text_N = np.zeros_like(self.labelled_N) if self.text_N is None else self.text_N
        return int((~(self.labelled_N | self.repeat_N | in_text_N)).sum())

    @property
    def num_read_deciding(self) -> int:
        """Test texts that decide although they were in the text: too few others are left."""
        return 0 if self.text_N is None else int((self.clean_N & self.text_N).sum())


def find_seen(
    test: Sequence[Example | Document],
    *,
    train: Sequence[Example],
    valid: Sequence[Example],
    documents: Iterable[Document] | None,
    progress: Progress = SILENT,
) -> Seen:
    """Search train, valid and text for test texts, and train for those of valid. Asks no label."""
    num_valid = len(valid)
    in_train = leaked([*valid, *test], train, progress=progress)
    keys = [duplicate_key(record.text, record.pair) for record in test]
    firsts = {key: place for place, key in reversed(list(enumerate(keys)))}
    return Seen(
        texts=tuple(record.text for record in test),
        labelled_N=in_train[num_valid:] | leaked(test, valid, progress=progress),
        text_N=None if documents is None else leaked(test, documents, progress=progress),
        repeat_N=np.array([firsts[key] != place for place, key in enumerate(keys)], dtype=np.bool_),
        valid_V=in_train[:num_valid],
    )


def leaked(
    test: Sequence[Example | Document],
    seen: Iterable[Example | Document],
    *,
    progress: Progress = SILENT,
) -> NDArray[np.bool_]:
    """Which test texts are also, exactly or nearly, among those seen; these may be many."""
    found: set[tuple[str, int]] = set()
    for chunk in _chunks(seen):
        leaks = find_leaks([chunk, test], progress=progress)
        found |= {(leak.source, leak.row) for leak in leaks}
    return np.array([(example.source, example.row) in found for example in test], dtype=np.bool_)


def _chunks(items: Iterable[Example | Document]) -> Iterator[list[Example | Document]]:
    rest = iter(items)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        yield chunk
