"""Documents as token ids on disk: a folder of memory-mapped shards, read through a `TokenStore`.

Needs 16 bytes of memory per document and none for tokens.
"""

import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.data.tokens.encoding import Encoded, Ids
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.errors import ConfigError, DataError
from regraft.runtime import (
    FORMAT_VERSION,
    check_format,
    fingerprint,
    parse_json,
    read_json,
    sha256,
    write_json,
    write_whole,
)

STORE_NAME = "store.json"

# Shards mapped at once: each keeps a file open, and systems allow a thousand or so.
_MOST_MAPPED = 256
_COUNT_BLOCK = 1_000_000  # tokens counted at once
# Pairs of neighbours that are counted at once, at most.
_MOST_PAIRS = 20_000_000
_TOKEN_BITS = 32


def pair_key(before: Any, here: Any) -> Any:
    """One number for a token and the one before it; for integers or arrays of numpy or torch."""
    return (before << _TOKEN_BITS) + here


@dataclass(frozen=True, eq=False)
class TokenStore:
    """Documents, each from its start token to its end token, as if concatenated.

    Document i is `read(offsets[i], offsets[i + 1])`. A part of a store is a view of the same
    shards: `starts` says where a document begins if these are concatenated.
    """

    read_shard: Callable[[int], Ids]
    shard_starts: NDArray[np.int64]
    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    num_bytes: int
    content: str

    @classmethod
    def from_arrays(cls, ids: Ids, offsets: NDArray[np.int64], *, num_bytes: int) -> "TokenStore":
        """A small store in memory."""
        content = fingerprint([ids.tobytes(), offsets.tobytes()])
        shard_starts = np.zeros(1, dtype=np.int64)
        return cls([ids].__getitem__, shard_starts, offsets[:-1], offsets, num_bytes, content)

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.starts)

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, start and end tokens included."""
        return int(self.offsets[-1])

    @property
    def num_targets(self) -> int:
        """How many tokens can be predicted: all but the start tokens."""
        return self.num_tokens - self.num_documents

    @property
    def fingerprint(self) -> str:
        """Equal for the same documents of equal shards: such stores train equal models."""
        return fingerprint([self.content, self.starts.tobytes()])

    def read(self, start: int, stop: int) -> Ids:
        """The tokens from place `start` to before `stop`, over any borders."""
        first, lengths = self._documents(start, stop)
        last = first + len(lengths)
        shifts = self.starts[first:last] - self.offsets[first:last]
        places = np.arange(start, stop) + np.repeat(shifts, lengths)
        ends = np.searchsorted(self.shard_starts, places[[0, -1]], side="right").tolist()
        cuts = np.searchsorted(places, self.shard_starts[ends[0] : ends[1]]).tolist()
        borders = itertools.pairwise([0, *cuts, len(places)])
        parts = [
            self.read_shard(shard)[places[a:b] - self.shard_starts[shard]]
            for shard, (a, b) in enumerate(borders, start=ends[0] - 1)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def document_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """For each of these places, the number of the document it belongs to."""
        first, lengths = self._documents(start, stop)
        return np.repeat(np.arange(first, first + len(lengths)), lengths)

    def _documents(self, start: int, stop: int) -> tuple[int, NDArray[np.int64]]:
        """The first document of a range, and how many tokens of it and the next are in it."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop, side="left"))
        return first, np.diff(self.offsets[first : last + 1].clip(start, stop))

    def counts(self, *, vocab_size: int) -> NDArray[np.int64]:
        """How often each token occurs as a target (the start token never does)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for start in range(0, self.num_tokens, _COUNT_BLOCK):
            block = self.read(start, min(start + _COUNT_BLOCK, self.num_tokens))
            counts += np.bincount(block, minlength=vocab_size)
        counts[self.read(0, 1)[0]] -= self.num_documents
        return counts

    def frequent_pairs(self, *, num_pairs: int, min_count: int) -> NDArray[np.int64]:
        """(first, second) of the most frequent pairs of neighbours, seen so often at least.

        Equally frequent ones come in the order of their ids. The end of a document and the start
        of the next are no neighbours.
        """
        start_id = self.read(0, 1)[0]
        keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for start in range(0, self.num_tokens, _COUNT_BLOCK):
            block = self.read(start, min(start + _COUNT_BLOCK + 1, self.num_tokens))
            block = block.astype(np.int64)
            pairs = pair_key(block[:-1], block[1:])
            found, num_found = np.unique(pairs[block[1:] != start_id], return_counts=True)
            keys, places = np.unique(np.concatenate([keys, found]), return_inverse=True)
            counts = np.bincount(places, weights=np.concatenate([counts, num_found]))
            if len(keys) > _MOST_PAIRS:  # those seen once so far are the least likely to matter
                keys, counts = keys[counts > 1], counts[counts > 1]
        order = np.argsort(-counts, kind="stable")[:num_pairs]
        keys = keys[order[counts[order] >= min_count]]
        return np.stack(np.divmod(keys, 1 << _TOKEN_BITS), axis=1)

    def split(self, *, share: float, seed: int) -> tuple["TokenStore", "TokenStore"]:
        """(rest, held out): whole documents, drawn by seed, in their order."""
        num_held = round(self.num_documents * share)
        order = np.random.default_rng(seed).permutation(self.num_documents)
        is_held = np.zeros(self.num_documents, dtype=bool)
        is_held[order[:num_held]] = True
        return self.view(~is_held), self.view(is_held)

    def view(self, is_chosen: NDArray[np.bool_]) -> "TokenStore":
        """The documents chosen, in their order."""
        offsets = offsets_of(np.diff(self.offsets)[is_chosen])
        share = int(offsets[-1]) / max(self.num_tokens, 1)
        return dataclasses.replace(
            self,
            starts=self.starts[is_chosen],
            offsets=offsets,
            num_bytes=round(self.num_bytes * share),
        )


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Start of each in their concatenation, and the end of the last."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class Part:
    """One of several jobs that fill a store: it writes every `of`-th shard, from `number` on."""

    number: int = 1
    of: int = 1

    def has(self, shard: int) -> bool:
        """Is this shard one of ours? Shards count from 1."""
        return (shard - self.number) % self.of == 0


def parse_part(text: str) -> Part:
    """`3/4` is the third of four jobs."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    part = Part(int(match[1]), int(match[2])) if match else None
    if part is None or not 1 <= part.number <= part.of:
        raise ConfigError(
            f"There is no shard {text!r}.",
            "i/n is the i-th of n jobs: from 1/n to n/n.",
            remedy="Pass, for example, --shard 1/4.",
        )
    return part


@dataclass(frozen=True)
class StoreInfo:
    """store.json: what the ids were made from, so that anything else is noticed."""

    tokenizer: str
    vocab_size: int
    source: str | None
    reading: dict[str, str]
    shard_bytes: int
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class TextEnd:
    """part-i-of-n.json: what a job knows when it has seen the end of the text."""

    num_shards: int
    num_documents: int


@dataclass(frozen=True)
class Shard:
    """The header of a shard, and where its arrays start in the file."""

    path: Path
    num_bytes: int
    sha256: str
    id_type: str
    ids_start: int
    num_ids: int
    offsets_start: int
    num_offsets: int

    def ids(self) -> Ids:
        """The ids, mapped into memory."""
        return self._mapped(self.id_type, start=self.ids_start, size=self.num_ids)

    def offsets(self) -> NDArray[np.int64]:
        """Where its documents begin, and the end of the last, mapped into memory."""
        return self._mapped("int64", start=self.offsets_start, size=self.num_offsets)

    def is_sound(self) -> bool:
        """Are the arrays unchanged since they were written? Reads all of them."""
        return sha256([self.ids().data, self.offsets().data]) == self.sha256

    def _mapped(self, dtype: str, *, start: int, size: int) -> NDArray[Any]:
        mapped = np.memmap(self.path, dtype=dtype, mode="r", offset=start, shape=(size,))
        # The plain class: memmap's own indexing is slower.
        return mapped.view(np.ndarray)


class StoreFolder:
    """The files of a store."""

    def __init__(self, store_dir: str | Path) -> None:
        self.dir = Path(store_dir)

    def read_info(self) -> StoreInfo:
        """store.json, if it is there, whole, and of a format this version knows."""
        path = self.dir / STORE_NAME
        try:
            values = read_json(path)
            check_format(values, path=self.dir)
            return StoreInfo(**values)
        except OSError as error:
            raise DataError(
                f"{self.dir} is not a token store: {STORE_NAME} cannot be read ({error.strerror}).",
                remedy="Make one with `regraft tokenize`.",
            ) from error
        except (ValueError, AttributeError, TypeError) as error:
            raise DataError(
                f"{path} is damaged: {error}.", remedy="Run `regraft tokenize` into a new folder."
            ) from error

    def write_info(self, info: StoreInfo) -> None:
        """Begin a store."""
        write_json(self.dir / STORE_NAME, dataclasses.asdict(info))

    def read_ends(self) -> dict[Part, TextEnd]:
        """What the jobs that came to the end of the text have left."""
        ends = {}
        for path in sorted(self.dir.glob("part-*-of-*.json")):
            if not (numbers := re.fullmatch(r"part-(\d+)-of-(\d+)\.json", path.name)):
                continue
            try:
                end = TextEnd(**read_json(path))
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{path} is damaged: {error}.",
                    remedy="Remove it and run `regraft tokenize` with the same text again.",
                ) from error
            ends[Part(int(numbers[1]), int(numbers[2]))] = end
        return ends

    def write_end(self, end: TextEnd, *, part: Part) -> None:
        """Note that a job has seen the end of the text."""
        name = f"part-{part.number}-of-{part.of}.json"
        write_json(self.dir / name, dataclasses.asdict(end))

    def missing(self, num_shards: int) -> list[int]:
        """The numbers of shards that are not there."""
        return [n for n in range(1, num_shards + 1) if not self.shard_path(n).exists()]

    def shard_path(self, number: int) -> Path:
        """Shards count from 1."""
        return self.dir / f"shard-{number:05d}.safetensors"

    def write_shard(self, number: int, encoded: Encoded, *, num_bytes: int) -> None:
        """Write a shard whole; equal documents give equal files."""
        from safetensors.numpy import save

        offsets = offsets_of(encoded.lengths)
        facts = {"num_bytes": num_bytes, "sha256": sha256([encoded.ids.data, offsets.data])}
        # One value: the library writes several in random order.
        metadata = {"regraft": json.dumps(facts)}
        data = save({"ids": encoded.ids, "offsets": offsets}, metadata=metadata)
        write_whole(self.shard_path(number), lambda file: file.write(data))

    def read_shard(self, number: int) -> Shard:
        """The header of a shard; raises DataError if the file does not have the size it gives."""
        path = self.shard_path(number)
        try:
            with path.open("rb") as file:
                header_size = int.from_bytes(file.read(8), "little")
                header = parse_json(file.read(min(header_size, os.path.getsize(path))))
            facts = parse_json(header["__metadata__"]["regraft"])
            start = 8 + header_size
            size = start + max(header[name]["data_offsets"][1] for name in ("ids", "offsets"))
            if size != os.path.getsize(path):
                raise ValueError(f"it has {os.path.getsize(path):,} bytes instead of {size:,}")
            return Shard(
                path=path,
                num_bytes=facts["num_bytes"],
                sha256=facts["sha256"],
                id_type=_TYPES[header["ids"]["dtype"]],
                ids_start=start + header["ids"]["data_offsets"][0],
                num_ids=header["ids"]["shape"][0],
                offsets_start=start + header["offsets"]["data_offsets"][0],
                num_offsets=header["offsets"]["shape"][0],
            )
        except OSError as error:
            raise DataError(
                f"Cannot read {path}: {error.strerror}.",
                remedy="Run `regraft tokenize` with the same text and --out again.",
            ) from error
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"{path} is damaged: {error}.",
                remedy="Run `regraft tokenize` with the same text and --out again.",
            ) from error


_TYPES = {"U16": "uint16", "U32": "uint32"}


def is_store(path: str | Path) -> bool:
    """Is this the folder of a token store?"""
    return os.path.isfile(os.path.join(path, STORE_NAME))


def open_store(store_dir: str | Path, *, tokenizer: Tokenizer) -> TokenStore:
    """All documents of a complete store made with this tokenizer."""
    folder = StoreFolder(store_dir)
    check_tokenizer(folder.read_info(), tokenizer=tokenizer, store_dir=folder.dir)
    shards = [folder.read_shard(number) for number in range(1, _num_shards(folder) + 1)]
    shard_starts = offsets_of(np.array([shard.num_ids for shard in shards]))[:-1]
    starts = [
        shard.offsets()[:-1] + start for shard, start in zip(shards, shard_starts, strict=True)
    ]
    num_tokens = sum(shard.num_ids for shard in shards)
    offsets = np.concatenate([*starts, [num_tokens]])
    return TokenStore(
        read_shard=functools.lru_cache(_MOST_MAPPED)(lambda number: shards[number].ids()),
        shard_starts=shard_starts,
        starts=offsets[:-1],
        offsets=offsets,
        num_bytes=sum(shard.num_bytes for shard in shards),
        content=fingerprint(shard.sha256 for shard in shards),
    )


def check_tokenizer(info: StoreInfo, *, tokenizer: Tokenizer, store_dir: Path) -> None:
    """Raise DataError if the store was made with another tokenizer."""
    if info.tokenizer != tokenizer.fingerprint:
        raise DataError(
            f"The token store {store_dir} was made with another tokenizer, of "
            f"{info.vocab_size:,} tokens.",
            f"The one given has {tokenizer.vocab_size:,} and other ids.",
            remedy=f"Use the store's own (--tokenizer {store_dir}), or make another store.",
        )


def _num_shards(folder: StoreFolder) -> int:
    """How many shards there are, if none is missing."""
    ends = folder.read_ends()
    again = "Run `regraft tokenize` with the same text and --out again"
    if not ends:
        raise DataError(
            f"The token store {folder.dir} is not complete: its text has not been read to the end.",
            remedy=f"{again}: it continues where it stopped.",
        )
    part = max(ends, key=lambda part: part.of)
    num_shards = ends[part].num_shards
    if missing := folder.missing(num_shards):
        jobs = sorted({(number - 1) % part.of + 1 for number in missing})
        named = " and ".join(f"--shard {number}/{part.of}" for number in jobs)
        job = f", with {named}" if part.of > 1 else ""
        others = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise DataError(
            f"Shard {missing[0]} of {num_shards}{others} missing from the token store "
            f"{folder.dir}.",
            remedy=f"{again}{job}.",
        )
    return num_shards
