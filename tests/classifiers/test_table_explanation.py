"""Explanations of a table: rows keep their cells, and words are added up by class."""

import csv
import json
from pathlib import Path

import pytest
from explanations import explanation
from tiny_blends import blend_dir, light_blend
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.classifiers.attribution import Explainer
from regraft.classifiers.explanation import StrongWord
from regraft.classifiers.table_explanation import WordTotals, class_words, explain_table
from regraft.config.schema import DataSettings

ROWS = [
    ("1", "A superb camera, I love it."),
    ("2", "It broke after a day, a waste of money."),
    ("3", ""),
    ("4", "Superb sound."),
]


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return Explainer(light_blend())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "texts.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("number", "text"), *ROWS])
    return path


def test_words_are_added_up_by_class_and_divided_by_its_texts():
    totals = WordTotals()
    totals.add(explanation("good film", [1.0, 0.5]))
    totals.add(explanation("good good bad", [1.0, 0.5, -1.0]))
    totals.add(explanation("dull film", [1.0, -0.25], label="bad"))
    bad, good = totals.by_class()
    assert (bad.label, bad.num_texts, good.label, good.num_texts) == ("bad", 1, "good", 2)
    pro, contra = good.strongest()
    assert pro == [StrongWord("good", 1.25, 2), StrongWord("film", 0.25, 1)]
    assert contra == [StrongWord("bad", -0.5, 1)]


def test_labelled_texts_of_a_run_give_the_words_of_its_classes(tmp_path_factory):
    run_dir = blend_dir(tmp_path_factory, num_labels=2)
    good, bad = sorted(class_words(run_dir), key=lambda words: words.label, reverse=True)
    assert (good.label, bad.label) == ("positive", "negative")
    assert good.num_texts + bad.num_texts == 45
    assert all(words.strongest()[0] for words in (good, bad))


def test_every_row_with_words_is_explained_and_keeps_its_cells(explainer, table, tmp_path):
    out = tmp_path / "out.csv"
    found = explain_table(explainer, table, data=DataSettings(), out=out)
    assert (found.num_rows, found.num_texts, found.method) == (4, 3, "contributions")
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(row["number"], row["text"]) for row in rows] == ROWS
    assert rows[2]["explained_label"] == rows[2]["words_for"] == ""
    for row in (rows[0], rows[1], rows[3]):
        alone = explainer.explain(row["text"])
        assert row["explained_label"] == alone.predicted
        assert float(row["explained_probability"]) == pytest.approx(alone.probability, abs=1e-6)
        pro, _ = alone.strongest()
        assert row["words_for"].split(" ")[0] == pro[0].text
    labels = {row["explained_label"] for row in rows} - {""}
    assert {words.label for words in found.classes} == labels


def test_one_label_can_be_explained_in_all_rows(explainer, table):
    found = explain_table(explainer, table, data=DataSettings(), label="negative")
    (words,) = found.classes
    assert (words.label, words.num_texts) == ("negative", 3)
    assert len(found.to_dict()["classes"][0]["for"]) <= 15


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "run"
    light_blend().save(folder)
    return folder


def explain(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_command_explains_a_table(run_dir, table, tmp_path):
    done = explain(run_dir, "--file", table, "--out", tmp_path / "out.jsonl")
    assert done.exit_code == 0, done.output
    assert "3 of 4 rows have words" in done.stdout
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == ["1", "2", "3", "4"]
    html = tmp_path / "words.html"
    values = json.loads(explain(run_dir, "--file", table, "--json", "--html", html).stdout)
    assert values["num_texts"] == 3
    assert {"label", "num_texts", "for", "against"} == values["classes"][0].keys()
    assert "important words" in html.read_text(encoding="utf-8")


def test_options_that_do_not_fit_are_refused(run_dir, table, tmp_path):
    for arguments, problem in (
        (["a text", "--out", tmp_path / "out.csv"], "--out is about a table"),
        (["a text", "--text-column", "body"], "--text-column is about a table"),
        (["--file", table, "--check"], "--check compares"),
        (["--file", table, "--text-column", "body"], "'body'"),
        (["--file", table, "--out", tmp_path / "out.txt"], "'.txt'"),
    ):
        done = explain(run_dir, *arguments)
        assert done.exit_code == 2, done.output
        assert problem in " ".join(done.stderr.split())
