"""More labels for a fitted run: bases stay, old examples count, the old folder is not touched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder
from tiny_blends import blend_dir
from typer.testing import CliRunner

import regraft
from regraft.apps.cli import app
from regraft.classifiers.base import load_classifier
from regraft.classifiers.fit_result import FitResult
from regraft.classifiers.fitting import fit_again
from regraft.classifiers.kept_examples import KeptExamples, merged
from regraft.classifiers.updating import fit_update
from regraft.config.schema import DataSettings
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.records import Example
from regraft.errors import ConfigError, DataError, RegraftError, RunFolderError
from regraft.runtime.files import sha256


@pytest.fixture
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return blend_dir(tmp_path_factory, num_labels=2)


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def new_rows(num: int = 12) -> list[dict[str, str]]:
    """Every third is of a class that the run does not know."""
    reviews = synthetic_reviews(num_documents=num, seed=9)
    return [
        {"text": review.text, "label": review.label if row % 3 else "mixed"}
        for row, review in enumerate(reviews)
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


def test_update_adds_labels_and_a_class_and_keeps_the_bases(run_dir, tmp_path):
    before = contents(run_dir)
    train = write(tmp_path / "more.jsonl", new_rows())
    result = fit_update(run_dir, train=train, out=tmp_path / "new")
    assert contents(run_dir) == before
    assert result.labels == ("mixed", "negative", "positive")
    assert (result.num_train, result.num_bases) == (57, 2)
    assert result.update is not None
    assert (result.update.num_added, result.update.new_labels) == (12, ("mixed",))
    assert {c.texts: c.num_texts for c in result.update.changes} == {
        "all": 57,
        "earlier": 45,
        "new": 8,
        "new class": 4,
    }
    by_texts = {change.texts: change for change in result.update.changes}
    assert by_texts["new class"].before.mean == 0
    old, new = load_classifier(run_dir), load_classifier(tmp_path / "new")
    assert np.array_equal(
        old.members["features"].space.table_RK, new.members["features"].space.table_RK
    )
    assert new.predict_proba(["A superb camera."]).shape == (1, 3)
    assert FitResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_score_change_is_of_the_same_texts_by_both_classifiers(run_dir, tmp_path):
    result = fit_update(
        run_dir, train=write(tmp_path / "more.jsonl", new_rows()), out=tmp_path / "new"
    )
    was = FitResult.from_dict(load_classifier(run_dir).info.result)
    by_texts = {change.texts: change for change in result.update.changes}
    assert by_texts["earlier"].before.mean == pytest.approx(was.scores["blend"].accuracy.mean)
    assert by_texts["all"].after.mean == pytest.approx(result.scores["blend"].accuracy.mean)
    known = [row for row in new_rows() if row["label"] != "mixed"]
    answers = load_classifier(run_dir).predict([row["text"] for row in known])
    right = np.mean([answer == row["label"] for answer, row in zip(answers, known, strict=True)])
    assert by_texts["new"].before.mean == pytest.approx(right)


def test_updates_can_follow_each_other_and_equal_one_large_update(run_dir, tmp_path):
    rows = new_rows()
    first = write(tmp_path / "first.jsonl", rows[:8])
    second = write(tmp_path / "second.jsonl", rows[8:])
    everything = write(tmp_path / "all.jsonl", rows)
    fit_update(run_dir, train=first, out=tmp_path / "one")
    fit_update(tmp_path / "one", train=second, out=tmp_path / "two")
    fit_update(run_dir, train=everything, out=tmp_path / "at-once")
    texts = ["A superb camera.", "It broke after a day."]
    chances = [load_classifier(tmp_path / n).predict_proba(texts) for n in ("two", "at-once")]
    assert np.array_equal(*chances)
    files = FitResult.from_dict(load_classifier(tmp_path / "two").info.result).files
    assert [Path(path).name for path in files["train"]] == [
        "train.jsonl",
        "first.jsonl",
        "second.jsonl",
    ]
    with pytest.raises(RunFolderError, match="--update"):
        fit_again(tmp_path / "two", out=tmp_path / "again")


def test_a_text_that_is_labelled_again_has_its_new_label(run_dir, tmp_path):
    old = KeptExamples.load(run_dir).train
    other = {"negative": "positive", "positive": "negative"}
    rows = [{"text": e.text, "label": other[e.label]} for e in old[:2]]
    rows += [{"text": old[2].text, "label": old[2].label}]
    progress = Recorder()
    result = fit_update(
        run_dir,
        train=write(tmp_path / "more.jsonl", rows),
        out=tmp_path / "new",
        progress=progress,
    )
    assert (result.num_train, result.update.num_added, result.update.num_relabelled) == (45, 0, 2)
    kept = {example.text: example.label for example in KeptExamples.load(tmp_path / "new").train}
    assert [kept[e.text] for e in old[:3]] == [*(other[e.label] for e in old[:2]), old[2].label]
    assert any("row 1 is" in line and "row 2 is" in line for line in progress.messages)


def test_merged_keeps_one_example_of_a_text():
    def example(text: str, label: str) -> Example:
        return Example(text, label, "file", 1)

    old, new = [example("a", "x"), example("b", "x")], [example("a ", "y"), example("c", "x")]
    examples, relabelled = merged(old, new)
    assert [(e.text, e.label) for e in examples] == [("b", "x"), ("a ", "y"), ("c", "x")]
    assert relabelled == [(old[0], new[0])]


def test_bad_updates_are_refused(run_dir, tmp_path):
    train = write(tmp_path / "more.jsonl", new_rows())
    with pytest.raises(RunFolderError, match="no finished run"):
        fit_update(tmp_path / "nowhere", train=train, out=tmp_path / "new")
    data = DataSettings(label_separator="|")
    with pytest.raises(ConfigError, match="several labels"):
        fit_update(run_dir, train=train, out=tmp_path / "new", data=data)
    other = write(tmp_path / "other.jsonl", [{"body": "A text.", "sort": "good"}])
    with pytest.raises(DataError, match="body"):
        fit_update(run_dir, train=other, out=tmp_path / "new")
    one = write(tmp_path / "one.jsonl", [{"text": "A text.", "label": "rare"}])
    with pytest.raises(DataError, match="'rare'"):
        fit_update(run_dir, train=one, out=tmp_path / "new")
    with pytest.raises(RunFolderError, match="already holds a run"):
        fit_update(run_dir, train=train, out=run_dir)
    assert not (tmp_path / "new").exists()


def test_examples_that_have_gone_or_changed_are_refused(run_dir, tmp_path):
    train = write(tmp_path / "more.jsonl", new_rows())
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    path = copy / "examples.jsonl"
    path.write_text(path.read_text().replace("positive", "negative", 1))
    with pytest.raises(RunFolderError, match="changed since"):
        fit_update(copy, train=train, out=tmp_path / "new")
    # With a right checksum, and yet incomplete.
    rows = [json.loads(line) for line in (run_dir / "examples.jsonl").read_text().splitlines()]
    body = "".join(json.dumps(row) + "\n" for row in rows[1:])
    body = body.replace('"confidence"', '"sureness"')
    head = {**rows[0], "sha256": sha256([body.encode()])}
    path.write_text(json.dumps(head) + "\n" + body)
    with pytest.raises(RunFolderError, match="damaged: 'confidence'"):
        KeptExamples.load(copy)
    path.unlink()
    assert load_classifier(copy).predict(["A superb camera."]).shape == (1,)
    with pytest.raises(RunFolderError, match="no longer has its labelled examples"):
        fit_update(copy, train=train, out=tmp_path / "new")


def test_another_language_is_warned_of(run_dir, tmp_path):
    words = ["zwölf", "große", "Öltürme", "überzögen", "früher", "hölzerne", "Dächer"]
    rows = [
        {"text": " ".join(words[at % 7] for at in range(row, row + 20)), "label": label}
        for row, label in enumerate(["positive", "negative"] * 3)
    ]
    progress = Recorder()
    fit_update(
        run_dir,
        train=write(tmp_path / "more.jsonl", rows),
        out=tmp_path / "new",
        progress=progress,
    )
    assert any("another language" in line for line in progress.messages)


def test_command_writes_the_next_folder_and_a_report(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    train = write(tmp_path / "more.jsonl", new_rows())
    words = ["fit", "--update", str(tmp_path / "run"), "--train", str(train)]
    (tmp_path / "run-2").mkdir()
    answer = CliRunner().invoke(app, [*words, "--json", "-q"])
    assert answer.exit_code == 0, answer.output
    shown = json.loads(answer.stdout)
    assert Path(shown["run_dir"]) == tmp_path / "run-3"
    assert shown["update"]["new_labels"] == ["mixed"]
    report = Path(shown["report"]).read_text(encoding="utf-8")
    assert "What the new labels changed" in report
    refused = CliRunner().invoke(app, [*words, "--bases", "3", "--set", "train.lr=1"])
    assert refused.exit_code == 2
    assert "--bases, --set" in refused.stderr


def test_python_adds_labels_to_its_own_run(tmp_path):
    reviews = synthetic_reviews(num_documents=40, seed=2)
    texts, labels = [r.text for r in reviews], [int(r.label == "positive") for r in reviews]
    regraft.fit(texts, labels, out=tmp_path / "run", num_bases=1)
    more = regraft.fit(
        [row["text"] for row in new_rows()],
        [2 if row["label"] == "mixed" else int(row["label"] == "positive") for row in new_rows()],
        update=tmp_path / "run",
        out=tmp_path / "new",
    )
    assert more.classes_.tolist() == [0, 1, 2]
    assert (more.result_.num_train, more.result_.update.new_labels) == (52, ("2",))
    assert KeptExamples.load(tmp_path / "new").train[0].label in ("0", "1")
    with pytest.raises(RegraftError, match="num_bases"):
        regraft.fit(texts, labels, update=tmp_path / "run", num_bases=2)
