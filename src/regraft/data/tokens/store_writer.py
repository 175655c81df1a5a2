"""Text files to the shards of a token store, in one pass with constant memory.

Intact shards are kept, so that an interrupted job continues where it stopped.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regraft.config import DataSettings
from regraft.data.text.lines import STANDARD_INPUT, check_present
from regraft.data.text.readers import folder_files, kind_of, read_documents
from regraft.data.text.records import Document
from regraft.data.tokens.encoding import Encoded, encode_units
from regraft.data.tokens.store import (
    Part,
    StoreFolder,
    StoreInfo,
    TextEnd,
    TokenStore,
    check_tokenizer,
    is_store,
)
from regraft.data.tokens.tokenizer import FILE_NAME, Tokenizer
from regraft.errors import DataError
from regraft.runtime import SILENT, Plain, Progress, read_blocks, sha256

# Text in one shard: so much is held as ids in memory, and lost when a job is killed.
SHARD_BYTES = 32_000_000
# Text in one unit of work: large enough that sending it to a process is cheap.
UNIT_BYTES = 2_000_000

# The settings that change which documents a file holds, and their flags.
_READING = {"text_column": "--text-column", "encoding": "--encoding", "documents": "--documents"}


@dataclass(frozen=True)
class Written(Plain):
    """What one job of tokenising found and did; missing shards are left to other jobs."""

    num_documents: int
    num_shards: int
    num_missing_shards: int
    num_new_shards: int
    num_new_tokens: int
    num_new_bytes: int
    seconds: float


def write_store(
    paths: Sequence[str | Path],
    *,
    data: DataSettings,
    tokenizer: Tokenizer,
    store_dir: str | Path,
    part: Part | None = None,
    progress: Progress = SILENT,
) -> Written:
    """Encode files into a folder; with a `part`, only its shards. All parts make the store."""
    part = part or Part()
    # Before the text is read, which may take its time.
    _check_folder(StoreFolder(store_dir), tokenizer=tokenizer)
    source = source_fingerprint(paths, progress=progress)
    if source is None and (part.of > 1 or is_store(store_dir)):
        raise DataError(
            f"Standard input can be read once only, so {store_dir} cannot be continued.",
            "Parts of a store, or the rest of one, are made from files.",
            remedy="Save the text to a file, or choose another --out.",
        )
    info = StoreInfo(
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        source=source,
        reading={name: str(getattr(data, name)) for name in _READING},
        shard_bytes=SHARD_BYTES,
    )
    return write_shards(
        read_documents(paths, data=data),
        info=info,
        tokenizer=tokenizer,
        store_dir=store_dir,
        part=part,
        num_bytes=_text_size(paths),
        progress=progress,
    )


def write_shards(
    documents: Iterable[Document],
    *,
    info: StoreInfo,
    tokenizer: Tokenizer,
    store_dir: str | Path,
    part: Part,
    num_bytes: int | None = None,
    progress: Progress = SILENT,
) -> Written:
    """Encode documents into the shards of a part; `num_bytes` is about how much text they are.

    Documents are read to the end, for that is where the borders of shards come from.
    """
    start = time.perf_counter()
    folder = StoreFolder(store_dir)
    info = _begin(folder, info=info, tokenizer=tokenizer)

    def is_needed(number: int) -> bool:
        return part.has(number) and not _is_sound(folder, number)

    new_shards = new_tokens = new_bytes = 0
    end = next(iter(folder.read_ends().values()), None)
    if end is None or any(map(is_needed, range(1, end.num_shards + 1))):
        units = _Units(
            documents, shard_bytes=info.shard_bytes, is_needed=is_needed, on_skip=progress.advance
        )
        progress.start("tokenise", total=num_bytes)
        try:
            shards = _encoded_shards(units, tokenizer=tokenizer, progress=progress)
            with contextlib.closing(shards):
                for number, encoded, shard_bytes in shards:
                    folder.write_shard(number, encoded, num_bytes=shard_bytes)
                    new_shards += 1
                    new_tokens += len(encoded.ids)
                    new_bytes += shard_bytes
        finally:
            progress.finish()
        end = TextEnd(units.num_shards, units.num_documents)
    if not end.num_documents:
        raise DataError(
            "There is no text to learn from: every document is empty.",
            "Pre-training needs at least one document with words in it.",
            remedy="Check the files, and --text-column if the text column has another name.",
        )
    folder.write_end(end, part=part)
    return Written(
        num_documents=end.num_documents,
        num_shards=end.num_shards,
        num_missing_shards=len(folder.missing(end.num_shards)),
        num_new_shards=new_shards,
        num_new_tokens=new_tokens,
        num_new_bytes=new_bytes,
        seconds=time.perf_counter() - start,
    )


def write_view(view: TokenStore, *, tokenizer: Tokenizer, store_dir: str | Path) -> None:
    """A view of another store as a new store; the same view gives the same files."""
    folder = StoreFolder(store_dir)
    info = StoreInfo(
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        source=view.fingerprint,
        reading=dict.fromkeys(_READING, ""),
        shard_bytes=SHARD_BYTES,
    )
    _begin(folder, info=info, tokenizer=tokenizer)
    bytes_per_token = view.num_bytes / max(view.num_tokens, 1)
    shard_tokens = max(int(SHARD_BYTES / max(bytes_per_token, 1e-9)), 1)
    start, number = 0, 0
    while start < view.num_documents:
        stop = int(np.searchsorted(view.offsets, view.offsets[start] + shard_tokens))
        stop = min(max(stop, start + 1), view.num_documents)
        offsets = view.offsets[start : stop + 1]
        ids = view.read(int(offsets[0]), int(offsets[-1]))
        number += 1
        num_bytes = round(len(ids) * bytes_per_token)
        folder.write_shard(number, Encoded(ids, np.diff(offsets)), num_bytes=num_bytes)
        start = stop
    folder.write_end(TextEnd(number, view.num_documents), part=Part())


def _begin(folder: StoreFolder, *, info: StoreInfo, tokenizer: Tokenizer) -> StoreInfo:
    """Create a store, or continue an existing one of the same text and tokenizer."""
    there = _check_folder(folder, tokenizer=tokenizer)
    if there is not None:
        _check_text(there, info=info, store_dir=folder.dir)
        return there
    tokenizer.save(folder.dir / FILE_NAME)
    # Last: this file marks the folder as a store.
    folder.write_info(info)
    return info


def _check_folder(folder: StoreFolder, *, tokenizer: Tokenizer) -> StoreInfo | None:
    """The store that is there; None if nothing is, or a start that came to nothing."""
    if is_store(folder.dir):
        there = folder.read_info()
        if not any(folder.dir.glob("shard-*")) and not folder.read_ends():
            return None
        check_tokenizer(there, tokenizer=tokenizer, store_dir=folder.dir)
        return there
    own = (FILE_NAME, ".")  # what a start that was killed leaves behind
    if folder.dir.exists() and (
        not folder.dir.is_dir()
        or any(not path.name.startswith(own) for path in folder.dir.iterdir())
    ):
        raise DataError(
            f"{folder.dir} exists and is neither a token store nor an empty folder.",
            "A token store needs its own folder.",
            remedy="Choose another --out.",
        )
    return None


def _check_text(there: StoreInfo, *, info: StoreInfo, store_dir: Path) -> None:
    for name, flag in _READING.items():
        if there.reading[name] != info.reading[name]:
            raise DataError(
                f"The token store {store_dir} was made with {flag} {there.reading[name]}, "
                f"not {info.reading[name]}.",
                "Its shards would not fit together.",
                remedy=f"Pass the same {flag}, or choose another --out.",
            )
    if there.source != info.source:
        raise DataError(
            f"The token store {store_dir} was made from other text.",
            "Its shards would not fit together.",
            remedy="Give the same files in the same order, or choose another --out.",
        )


def _is_sound(folder: StoreFolder, number: int) -> bool:
    if not folder.shard_path(number).exists():
        return False
    try:
        return folder.read_shard(number).is_sound()
    except DataError:
        return False


def _encoded_shards(
    units: "_Units", *, tokenizer: Tokenizer, progress: Progress
) -> Generator[tuple[int, Encoded, int], None, None]:
    """(number, documents, bytes of text) of every shard that is needed."""
    num_tokens = 0
    with contextlib.closing(encode_units(units, tokenizer=tokenizer)) as encoded_units:
        for number, group in itertools.groupby(encoded_units, key=lambda pair: pair[0].shard):
            parts: list[Encoded] = []
            num_bytes = 0
            for unit, encoded in group:
                parts.append(encoded)
                num_bytes += unit.num_bytes
                num_tokens += len(encoded.ids)
                progress.advance(unit.num_bytes, note=f"{num_tokens:,} tokens")
            ids = np.concatenate([part.ids for part in parts])
            lengths = np.concatenate([part.lengths for part in parts])
            yield number, Encoded(ids, lengths), num_bytes


@dataclass(frozen=True)
class _Unit:
    """What is known of a unit of work."""

    shard: int
    num_bytes: int


class _Units:
    """Documents with text in units of work, each within one shard; counts what it has read."""

    def __init__(
        self,
        documents: Iterable[Document],
        *,
        shard_bytes: int,
        is_needed: Callable[[int], bool],
        on_skip: Callable[[int], None],
    ) -> None:
        self.num_shards = 0
        self.num_documents = 0
        self._documents = documents
        self._shard_bytes = shard_bytes
        self._is_needed = is_needed
        self._on_skip = on_skip

    def __iter__(self) -> Iterator[tuple[_Unit, list[str]]]:
        room = 0
        is_needed = False
        texts: list[str] = []
        num_bytes = 0
        for document in self._documents:
            if not document.text.strip():
                continue
            if room <= 0:
                self.num_shards += 1
                room = self._shard_bytes
                is_needed = self._is_needed(self.num_shards)
            size = len(document.text.encode("utf-8", "surrogatepass"))
            self.num_documents += 1
            room -= size
            num_bytes += size
            if is_needed:
                texts.append(document.text)
            if room <= 0 or num_bytes >= UNIT_BYTES:
                yield from self._unit(texts, num_bytes=num_bytes)
                texts, num_bytes = [], 0
        yield from self._unit(texts, num_bytes=num_bytes)

    def _unit(self, texts: list[str], *, num_bytes: int) -> Iterator[tuple[_Unit, list[str]]]:
        if texts:
            yield _Unit(self.num_shards, num_bytes), texts
        else:
            self._on_skip(num_bytes)


def source_fingerprint(paths: Sequence[str | Path], *, progress: Progress = SILENT) -> str | None:
    """A hash of the raw bytes of files and folders in order; None if standard input is among them.

    The kind of a file is part of it: the same bytes hold other documents in a .csv than in a .txt.
    """
    if STANDARD_INPUT in map(Path, paths):
        return None
    files = list(_files(paths))

    def read_parts() -> Iterator[bytes]:
        for path in files:
            yield f"{kind_of(path)}:{path.stat().st_size}:".encode()
            for block in read_blocks(path):
                yield block
                progress.advance(len(block))

    progress.start("hash text", total=sum(path.stat().st_size for path in files))
    try:
        return sha256(read_parts())
    except OSError as error:
        raise DataError(
            f"Cannot read {error.filename}: {error.strerror}.",
            remedy="Check the path and its permissions.",
        ) from error
    finally:
        progress.finish()


def _files(paths: Sequence[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        check_present(path)
        if path.is_dir():
            yield from folder_files(path)
        else:
            yield path


def _text_size(paths: Sequence[str | Path]) -> int | None:
    """Approximate bytes of text in files, for the time left; None if unknown."""
    sizes = [_unzipped_size(path) for path in _files(paths)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _unzipped_size(path: Path) -> int | None:
    if path == STANDARD_INPUT or kind_of(path) == ".parquet":
        return None
    size = path.stat().st_size
    if path.suffix != ".gz":
        return size
    with path.open("rb") as file:
        file.seek(max(size - 4, 0))
        unzipped = int.from_bytes(file.read(4), "little")
    # gzip counts up to 4 GB only.
    return unzipped if unzipped > size else None
