"""The report of `regraft fit`: with a test file and without, read by people and programs."""

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from comparisons import interval
from pages import check_readable, check_self_contained

from regraft.config import resolve, settings_to_dict
from regraft.evaluate import Evaluation
from regraft.evidence import PairedTest
from regraft.fit import FitResult, MemberScore
from regraft.fitted import FinalScore
from regraft.metrics import Interval
from regraft.report import write_fit_report
from regraft.runtime import write_json

ACCURACIES = {"blend": 0.861, "linear": 0.812, "latent": 0.838, "features": 0.849}
WEIGHTS = {"linear": 0.22, "latent": 0.31, "features": 0.47}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The files of a run folder that its report is made of."""
    folder = tmp_path / "run"
    write_json(
        folder / "run.json",
        {
            "kind": "blend",
            "status": "complete",
            "format_version": 1,
            "created": "2025-01-02",
            "environment": {"python": "3.11"},
            "fingerprints": {"train": "00ff"},
        },
    )
    settings = resolve("pretrain", preset="bag")
    write_json(folder / "config.json", settings_to_dict(settings))
    return folder


def fit_result(run_dir: Path, **changes: object) -> FitResult:
    scores = {
        name: MemberScore(interval(score - 0.01, 0.03), weight=WEIGHTS.get(name), seconds=12.5)
        for name, score in ACCURACIES.items()
    }
    result = FitResult(
        run_dir=str(run_dir),
        labels=("negative", "positive"),
        num_train=400,
        num_valid=0,
        num_documents=23_000,
        num_tokens=5_600_000,
        num_bases=4,
        passes=1.0,
        scores=scores,
        weights=WEIGHTS,
        temperature=1.21,
        minutes=10.0,
        seconds=432.0,
    )
    return dataclasses.replace(result, **changes)


def final_score(**changes: object) -> FinalScore:
    scores = {
        name: Evaluation(
            num_examples=1000,
            accuracy=interval(score, 0.02),
            macro_f1=score - 0.002,
            calibration_error=0.031,
            cut_share=0.0,
            labels=("negative", "positive"),
            confusion=[[430, 70], [69, 431]],
        )
        for name, score in ACCURACIES.items()
    }
    tested = FinalScore(
        num_test=1000,
        num_leaks=0,
        num_in_text=0,
        scores=scores,
        clean_scores=scores,
        tests=(
            PairedTest("blend", "linear", Interval(0.049, 0.03, 0.068), 0.0002, 0.0004),
            PairedTest("blend", "latent", Interval(0.023, 0.004, 0.041), 0.021, 0.03),
        ),
    )
    return dataclasses.replace(tested, **changes)


def test_fit_report_has_every_form(run_dir: Path, tmp_path: Path):
    paths = write_fit_report(fit_result(run_dir), final_score(), tmp_path / "out")
    names = {"report.html", "report.md", "report.json", "members.csv", "members.png", "members.svg"}
    assert set(paths) == names == {path.name for path in (tmp_path / "out").iterdir()}
    page = paths["report.html"].read_text(encoding="utf-8")
    check_readable(page)
    check_self_contained(page)


def test_fit_report_begins_with_whom_the_blend_beats(run_dir: Path):
    paths = write_fit_report(fit_result(run_dir), final_score(), run_dir)
    page = paths["report.html"].read_text(encoding="utf-8")
    assert '<header class="good">' in page
    assert "<h1>The blend reaches 86.1%; it beats linear (81.2%, +4.9 points" in page
    markdown = paths["report.md"].read_text(encoding="utf-8")
    assert "- blend beats latent by 2.3 points: " in markdown


def test_fit_report_is_not_proud_of_a_gap_that_was_not_shown(run_dir: Path):
    tests = (PairedTest("blend", "linear", Interval(0.01, -0.02, 0.04), 0.4, 0.5),)
    paths = write_fit_report(fit_result(run_dir), final_score(tests=tests), run_dir)
    page = paths["report.html"].read_text(encoding="utf-8")
    assert '<header class="caution">' in page
    assert "No difference shown between blend and linear." in page


def test_fit_report_without_a_test_says_what_its_scores_are(run_dir: Path):
    paths = write_fit_report(fit_result(run_dir), None, run_dir)
    page = paths["report.html"].read_text(encoding="utf-8")
    check_readable(page)
    assert "The blend reaches 85.1\N{NO-BREAK SPACE}% by cross-validation" in page
    assert "No test file was given" in page
    assert "Are the differences real?" not in page
    valid = write_fit_report(fit_result(run_dir, num_valid=200), None, run_dir)
    assert "% by valid;" in valid["report.md"].read_text(encoding="utf-8")


def test_fit_report_tells_leaks_and_missing_bases(run_dir: Path):
    result = fit_result(run_dir, num_bases=0, passes=0.0)
    paths = write_fit_report(result, final_score(num_leaks=3, num_in_text=7), run_dir)
    text = paths["report.md"].read_text(encoding="utf-8")
    assert "3 of 1,000 test examples are also among the labelled ones" in text
    assert "Of the test examples, 7 were read, exactly or nearly, without their labels" in text
    assert "too little text to learn a base from" in text


def test_fit_report_tells_members_plan_and_commands(run_dir: Path):
    command = "regraft fit --text a.txt --train b.csv --out run"
    paths = write_fit_report(fit_result(run_dir), final_score(), run_dir, command=command)
    text = paths["report.md"].read_text(encoding="utf-8")
    row = "| latent | 83.8 (81.8 to 85.8) | 82.8 (79.8 to 85.8) | 0.31 | 12 s |"
    assert row in text
    assert "| blend | 86.1 (84.1 to 88.1) | 85.1 (82.1 to 88.1) | all | 432 s |" in text
    assert "A temperature of 1.21, fitted on cross-validation" in text
    assert "| bases | 4 |" in text
    assert f"regraft predict {run_dir} FILE" in text
    assert command in text


def test_fit_report_tells_what_is_taken_for_what(run_dir: Path):
    tested = write_fit_report(fit_result(run_dir), final_score(), run_dir)
    page = tested["report.html"].read_text(encoding="utf-8")
    assert '<td style="--share:0.860">430</td>' in page
    untested = write_fit_report(fit_result(run_dir), None, run_dir)
    assert "taken for" not in untested["report.html"].read_text(encoding="utf-8")


def test_fit_report_for_programs(run_dir: Path):
    paths = write_fit_report(fit_result(run_dir), final_score(), run_dir)
    value = json.loads(paths["report.json"].read_text(encoding="utf-8"))
    assert value["kind"] == "fit"
    assert FitResult.from_dict(value["result"]) == fit_result(run_dir)
    assert value["tested"]["scores"]["blend"]["accuracy"]["mean"] == 0.861
    with paths["members.csv"].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["member"] for row in rows] == list(ACCURACIES)
    assert rows[0]["weight"] == ""
    assert float(rows[3]["test_accuracy"]) == 0.849


def test_fit_report_escapes_labels_and_commands(run_dir: Path):
    evil = "<img src=x>"
    result = fit_result(run_dir, labels=(evil, "b"))
    paths = write_fit_report(result, None, run_dir, command=evil)
    page = paths["report.html"].read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page
