"""Duplicate texts within a set, and leaks between splits.

Near duplicates have a high Jaccard similarity of word shingles: MinHash finds candidates, the exact
similarity decides.
"""

import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from regraft.data.text.records import Document, Example
from regraft.runtime import SILENT, Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Record = TypeVar("Record", Document, Example)

_WORD = re.compile(r"\w+")
_SHINGLE_WORDS = 3
_NUM_PERMUTATIONS = 128
# Candidates are searched below the threshold: MinHash only estimates it, and a candidate too
# many costs one true comparison while one too few is a leak not found.
_CANDIDATE_MARGIN = 0.15


@dataclass(frozen=True)
class Leak:
    """A row of a later split that is also, exactly or nearly, in an earlier one."""

    kind: Literal["exact", "near"]
    source: str
    row: int
    other_source: str
    other_row: int
    similarity: float


def normalised(text: str) -> str:
    """The key of exact duplicates: composed Unicode, white space folded; case and marks kept."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def duplicate_key(text: str, pair: str | None) -> str:
    """The key of a record: of its text, or of both, with a line end between, which no key holds."""
    key = normalised(text)
    return key if pair is None else f"{key}\n{normalised(pair)}"


def without_duplicates(items: Sequence[Record]) -> list[Record]:
    """The items without exact repeats; the first occurrence stays."""
    first_by_key: dict[str, Record] = {}
    for item in items:
        first_by_key.setdefault(duplicate_key(item.text, item.pair), item)
    return list(first_by_key.values())


def find_leaks(
    splits: Sequence[Sequence[Document | Example]],
    *,
    near: bool = True,
    threshold: float = 0.8,
    progress: Progress = SILENT,
) -> list[Leak]:
    """Rows of each split found in an earlier split, in the order of the splits and their rows.

    A row is reported once for each earlier split it is in, with the exact match before the nearest.
    Empty texts are no leaks.
    """
    keys = [[duplicate_key(item.text, item.pair) for item in split] for split in splits]
    shingled = _Shingled(keys, progress=progress) if near and len(splits) > 1 else None
    leaks: list[Leak] = []
    for later, split in enumerate(splits):
        for earlier in range(later):
            places = _first_places(keys[earlier])
            matches = {
                index: (places[key], 1.0) for index, key in enumerate(keys[later]) if key in places
            }
            exact = set(matches)
            if shingled is not None:
                rest = [index for index in range(len(split)) if index not in exact]
                matches |= shingled.near_matches(earlier, later, rest, threshold=threshold)
            for index, (place, similarity) in sorted(matches.items()):
                item, other = split[index], splits[earlier][place]
                kind: Literal["exact", "near"] = "exact" if index in exact else "near"
                leaks.append(Leak(kind, item.source, item.row, other.source, other.row, similarity))
    return leaks


def _first_places(keys: Iterable[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, key in enumerate(keys):
        if key:
            places.setdefault(key, place)
    return places


class _Shingled:
    """Shingles and MinHash signatures of every split, made once and compared in pairs."""

    def __init__(self, keys: Sequence[Sequence[str]], *, progress: Progress) -> None:
        self.shingles: list[list[NDArray[np.uint64]]] = []
        self.signatures: list[list[Any]] = []
        progress.start("near duplicates", total=sum(len(texts) for texts in keys))
        for texts in keys:
            self.shingles.append([])
            self.signatures.append([])
            for text in texts:
                self.shingles[-1].append(_shingles(text))
                self.signatures[-1].append(_signature(self.shingles[-1][-1]))
                progress.advance()
        progress.finish()

    def near_matches(
        self, earlier: int, later: int, indices: Sequence[int], *, threshold: float
    ) -> dict[int, tuple[int, float]]:
        """The most similar place in the earlier split for each index that has one."""
        from datasketch import MinHashLSH

        index = MinHashLSH(
            threshold=max(0.1, threshold - _CANDIDATE_MARGIN), num_perm=_NUM_PERMUTATIONS
        )
        for place, signature in enumerate(self.signatures[earlier]):
            if len(self.shingles[earlier][place]):
                index.insert(place, signature)
        matches: dict[int, tuple[int, float]] = {}
        for at in indices:
            shingles = self.shingles[later][at]
            candidates = sorted(index.query(self.signatures[later][at])) if len(shingles) else []
            scored = [(_jaccard(shingles, self.shingles[earlier][c]), -c) for c in candidates]
            similarity, place = max(scored, default=(0.0, 0))
            if similarity >= threshold:
                matches[at] = (-place, similarity)
        return matches


def _shingles(text: str) -> "NDArray[np.uint64]":
    """The distinct hashes of every three words in a row; of all words if there are fewer."""
    import numpy as np

    words = [zlib.crc32(word.encode()) for word in _WORD.findall(text.casefold())]
    if not words:
        return np.empty(0, dtype=np.uint64)
    words += [0] * (_SHINGLE_WORDS - len(words))
    hashes = np.array(words, dtype=np.uint64)
    num_shingles = len(words) - _SHINGLE_WORDS + 1
    mixed = np.zeros(num_shingles, dtype=np.uint64)
    for offset in range(_SHINGLE_WORDS):
        # Multiply and fold, modulo 2**64: order counts, and every word reaches the low bits.
        mixed = (mixed + hashes[offset : offset + num_shingles]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.unique(mixed)


def _signature(shingles: "NDArray[np.uint64]") -> Any:
    import numpy as np

    signature = _empty_signature().copy()
    signature.update_batch((shingles & np.uint64(0xFFFFFFFF)).tolist())
    return signature


@lru_cache(maxsize=1)
def _empty_signature() -> Any:
    from datasketch import MinHash

    # The shingles are hashes already; a copy of one signature shares its permutations.
    return MinHash(num_perm=_NUM_PERMUTATIONS, hashfunc=int)


def _jaccard(one: "NDArray[np.uint64]", other: "NDArray[np.uint64]") -> float:
    import numpy as np

    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)
