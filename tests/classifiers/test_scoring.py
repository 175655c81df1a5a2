"""The scores of every label, and the most confident errors with their rows."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import make_examples
from tiny_blends import light_blend
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.classifiers.base import load_classifier
from regraft.classifiers.scoring import ERRORS_LISTED, evaluation, score_classifier
from regraft.data.text.label_issues import read_label_issues
from regraft.data.text.records import Example, Labels

LABELS = Labels(("bad", "good"))


def scored(rows: list[tuple[float, int]], **more: float):
    """Each row is the probability of good, and the target."""
    examples = [
        Example(f"text {place}", LABELS[target], "test.csv", place + 2, id=f"r{place}")
        for place, (_, target) in enumerate(rows)
    ]
    return evaluation(
        np.array([[1 - chance, chance] for chance, _ in rows]),
        targets_N=np.array([target for _, target in rows]),
        labels=LABELS,
        cut_share=0.0,
        examples=examples,
        **more,
    )


def test_every_label_has_precision_recall_and_f1() -> None:
    bad, good = scored([(0.9, 1), (0.8, 0), (0.3, 1), (0.2, 0), (0.7, 1)]).by_label
    assert (bad.count, bad.predicted, bad.precision, bad.recall) == (2, 2, 0.5, 0.5)
    assert (good.count, good.predicted) == (3, 3)
    assert good.f1 == pytest.approx(2 / 3)
    assert good.threshold is None


def test_most_confident_errors_come_first_with_row_and_id() -> None:
    errors = scored([(0.9, 1), (0.8, 0), (0.05, 1), (0.2, 0)]).errors
    assert [(error.row, error.id, error.label, error.predicted) for error in errors] == [
        (4, "r2", "good", "bad"),
        (3, "r1", "bad", "good"),
    ]
    assert errors[0].probability == pytest.approx(0.95)
    assert len(scored([(0.9, 0)] * 30 + [(0.9, 1)]).errors) == ERRORS_LISTED


def test_coverage_falls_from_all_texts_to_the_most_confident_one() -> None:
    curve = scored([(0.9, 1), (0.8, 0), (0.05, 0), (0.6, 1)]).coverage
    assert [(point.coverage, point.accuracy) for point in curve] == [
        (0.25, 1.0),
        (0.5, 1.0),
        (0.75, pytest.approx(2 / 3)),
        (1.0, 0.75),
    ]


def test_answered_texts_are_those_that_reach_the_threshold() -> None:
    rows = [(0.9, 1), (0.8, 0), (0.05, 0), (0.6, 1)]
    assert scored(rows).answered is None
    answered = scored(rows, abstain_below=0.85).answered
    assert (answered.num_texts, answered.accuracy.mean) == (2, 1.0)
    assert scored(rows, abstain_below=1.0).answered.accuracy is None


def test_stored_threshold_counts_unless_another_is_given() -> None:
    blend = light_blend()
    info = replace(blend.info, result={**blend.info.result, "abstain_below": 0.6})
    blend = replace(blend, info=info)
    examples = [Example("A superb camera.", "positive", "test.csv", 2)] * 12
    assert score_classifier(blend, examples).answered.abstain_below == 0.6
    assert score_classifier(blend, examples, abstain_below=0.1).answered.num_texts == 12


def test_finetuned_run_abstains_and_lists_label_issues(shared_classifier, tmp_path) -> None:
    """What `fit` offers from its folds, any classifier has for examples it has not seen."""
    path = tmp_path / "test.csv"
    rows = make_examples(30, seed=8)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    issues = tmp_path / "issues.csv"
    command = ["evaluate", shared_classifier, path, "--issues", issues, "--abstain-below", 0.5]
    values = json.loads(run(*command, "--json"))
    assert values["answered"]["num_texts"] == 30
    assert values["coverage"][-1]["coverage"] == 1
    probabilities_NC = load_classifier(shared_classifier).predict_proba([row[0] for row in rows])
    proposals = {issue.row: issue.proposal for issue in read_label_issues(issues)}
    names = load_classifier(shared_classifier).labels
    for row, proposal in proposals.items():
        assert proposal == names[probabilities_NC[row - 2].argmax()] != rows[row - 2][1]
    shown = run(*command)
    assert "answered from 0.500 on" in shown
    assert "confidence from" in shown
    out = tmp_path / "out.jsonl"
    run("predict", shared_classifier, path, "--abstain-below", 1, "--top-k", 1, "--out", out)
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert {answer["predicted_label"] for answer in answers} == {None}
    assert all(answer["top_1"] in names for answer in answers)
