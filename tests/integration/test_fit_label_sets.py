"""`regraft fit` on texts with any number of labels, through every command that reads the run."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import regraft
from regraft.apps.cli import app
from regraft.apps.serve.engine import load_engine
from regraft.classifiers.attribution import Explainer
from regraft.classifiers.base import load_classifier
from regraft.classifiers.fit_result import FitResult
from regraft.classifiers.kept_examples import KeptExamples
from regraft.data.text.label_issues import read_label_issues
from regraft.errors import ConfigError, DataError

WORDS = {
    "food": "soup bread cheese salad butter rice".split(),  # noqa: SIM905
    "travel": "train ticket hotel airport suitcase map".split(),  # noqa: SIM905
    "music": "guitar song piano concert drum melody".split(),  # noqa: SIM905
}
FILLER = "the a of and with under my some this old new then".split()  # noqa: SIM905


def rows(num: int, *, seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """Texts of twelve words; each topic is there or not, and so are three of its words."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(num):
        names = tuple(name for name in sorted(WORDS) if draw.random() < 0.4)
        own = [word for name in names for word in draw.choice(WORDS[name], 3).tolist()]
        words = [*own, *draw.choice(FILLER, 12 - len(own)).tolist()]
        found.append((" ".join(draw.permutation(words).tolist()), names))
    return found


def write(path: Path, examples: list[tuple[str, tuple[str, ...]]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = [(text, "|".join(names)) for text, names in examples]
        csv.writer(file).writerows([("text", "label"), *lines])
    return path


def run(*words: object) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tags")
    write(folder / "test.csv", rows(100, seed=2))
    train = write(folder / "train.csv", rows(120, seed=1))
    options = ["--label-separator", "|", "--bases", 1, "--json", "-q"]
    shown = json.loads(run("fit", "--train", train, *options, "--out", folder / "run").stdout)
    assert shown["labels"] == ["food", "music", "travel"]
    assert len(shown["thresholds"]) == 3
    report = Path(shown["report"]).read_text(encoding="utf-8")
    assert "Micro-F1 by cross-validation" in report
    assert "Macro-F1" in report
    return folder


def test_evaluate_counts_label_sets_and_the_folds_foretell_it(fitted):
    scores = json.loads(run("evaluate", fitted / "run", fitted / "test.csv", "--json", "-q").stdout)
    assert scores["micro_f1"]["mean"] > 0.9
    result = FitResult.from_dict(load_classifier(fitted / "run").info.result)
    blend = result.scores["blend"]
    assert blend.accuracy.low <= scores["micro_f1"]["mean"]
    assert blend.macro_f1 == pytest.approx(scores["macro_f1"]["mean"], abs=0.1)
    assert result.measure == "micro-F1"
    assert next(point.num_labels for point in result.label_curve if point.is_forecast) == 120


def test_probabilities_are_those_of_the_members_label_by_label(fitted):
    blend = load_classifier(fitted / "run")
    texts = [text for text, _ in rows(5, seed=3)]
    log_odds = 0.0
    for name, member in blend.active_members.items():
        chances = member.predict_proba(texts)
        log_odds += blend.weights[name] * (np.log(chances) - np.log(1 - chances))
    expected = 1 / (1 + np.exp(-log_odds / blend.temperature))
    assert blend.predict_proba(texts) == pytest.approx(expected, abs=1e-9)
    assert blend.task.has_label_sets
    assert (blend.predict(texts) == (expected >= np.array(blend.thresholds))).all()


def test_predict_writes_label_sets(fitted, tmp_path):
    new = write(tmp_path / "new.csv", [("soup bread cheese on the train hotel map", ())])
    shown = json.loads(run("predict", fitted / "run", new, "--json", "-q").stdout)
    assert shown[0]["predicted_label"] == ["food", "travel"]


def test_words_add_up_to_the_log_odds_of_a_label(fitted):
    explanation = Explainer.load(fitted / "run").explain("the soup and the train", "food")
    total = sum(word.score for word in explanation.words) + explanation.elsewhere
    assert total + explanation.baseline == pytest.approx(explanation.output, abs=1e-6)
    scores = {word.text: word.score for word in explanation.words}
    assert scores["soup"] == max(scores.values())


def test_serve_answers_with_lists(fitted):
    engine = load_engine(fitted / "run")
    (answer,) = engine.classify(["soup bread cheese on the train hotel map"])
    assert answer["label"] == ["food", "travel"]


def test_update_adds_a_label(fitted, tmp_path):
    more = [(f"{text} goal match", ("sport", *names)) for text, names in rows(12, seed=4)]
    train = write(tmp_path / "more.csv", [*more, *rows(12, seed=5)])
    words = ["fit", "--update", fitted / "run", "--train", train, "--out", tmp_path / "new"]
    shown = json.loads(run(*words, "--json", "-q").stdout)
    assert shown["update"]["new_labels"] == ["sport"]
    assert {change["texts"] for change in shown["update"]["changes"]} == {
        "all",
        "earlier",
        "new",
        "new class",
    }
    chances = load_classifier(tmp_path / "new").predict_proba(["a goal in the match"])[0]
    assert chances[shown["labels"].index("sport")] > 0.3


def test_label_issues_propose_whole_sets(fitted, tmp_path):
    examples = rows(120, seed=1)
    # Two texts lose a label that their words show.
    wrong = [at for at, (_, names) in enumerate(examples) if len(names) == 2][:2]
    for at in wrong:
        examples[at] = (examples[at][0], examples[at][1][:1])
    train = write(tmp_path / "train.csv", examples)
    run("fit", "--train", train, "--label-separator", "|", "--out", tmp_path / "run", "-q")
    issues = {issue.row: issue for issue in read_label_issues(tmp_path / "run/label_issues.csv")}
    found = [issues[at + 2] for at in wrong if at + 2 in issues]
    assert found
    assert all("|" in issue.proposal and "|" not in issue.label for issue in found)


def test_python_takes_sets_and_keeps_them(tmp_path):
    texts, labels = zip(*rows(60, seed=6), strict=True)
    model = regraft.fit(list(texts), [set(names) for names in labels], out=tmp_path / "run")
    assert model.predict_sets(["soup bread cheese with butter"]) == [("food",)]
    kept = KeptExamples.load(tmp_path / "run").train
    assert [example.names for example in kept] == list(labels)
    with pytest.raises(DataError, match="a set of labels"):
        regraft.fit(["a text"], ["food"], update=tmp_path / "run")


def test_options_for_one_label_are_refused(fitted, tmp_path):
    words = ["fit", "--train", str(fitted / "train.csv"), "--label-separator", "|"]
    for more in (
        ["--target-accuracy", "0.9"],
        ["--set", "train.class_weight=balanced"],
        ["--test", str(fitted / "test.csv")],
    ):
        result = CliRunner().invoke(app, [*words, *more, "--out", str(tmp_path / "run")])
        assert result.exit_code == 2, result.output
        assert "label" in result.stderr
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError):
        regraft.fit({"a": ["x"]}, settings={"data.pair_column": "pair"})


def test_separator_that_never_occurs_is_warned_of(fitted, tmp_path):
    words = ["fit", "--train", str(fitted / "train.csv"), "--label-separator", ";"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert "never occurs" in result.stderr
