"""The report of `regraft fit`: with a test file and without, read by people and programs."""

import csv
import dataclasses
import json
import re
from pathlib import Path

import pytest
from comparisons import arm, comparison, interval
from pages import check_readable, check_self_contained

from regraft.apps.cli.results import show_fitted
from regraft.classifiers.explanation import ClassWords, StrongWord
from regraft.classifiers.fit_result import FitResult
from regraft.classifiers.held_out import MemberScore
from regraft.classifiers.kept_examples import KeptExamples
from regraft.classifiers.learning_curve import LabelPoint
from regraft.comparison.fit_test import MEMBER_ARMS
from regraft.comparison.results import Comparison, PairedTest
from regraft.config.resolution import resolve, settings_to_dict
from regraft.data.text.label_issues import LabelIssue, write_label_issues
from regraft.data.text.records import Example
from regraft.report.fit_page import write_fit_report
from regraft.runtime.files import write_json
from regraft.runtime.manifest import with_checksum
from regraft.stats.selective import CoveragePoint
from regraft.stats.significance import Interval

ACCURACIES = {"blend": 0.861, "linear": 0.812, "latent": 0.838, "features": 0.849}
WEIGHTS = {"linear": 0.22, "latent": 0.31, "features": 0.47}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The files of a run folder that its report is made of."""
    folder = tmp_path / "run"
    info = {
        "kind": "blend",
        "status": "complete",
        "format_version": 1,
        "created": "2025-01-02",
        "environment": {"python": "3.11"},
        "fingerprints": {"train": "00ff"},
        "result": {},
    }
    write_json(folder / "run.json", with_checksum(info))
    settings = resolve("pretrain", preset="bag")
    write_json(folder / "config.json", settings_to_dict(settings))
    return folder


def fit_result(run_dir: Path, **changes: object) -> FitResult:
    scores = {
        name: MemberScore(interval(score - 0.01, 0.03), score - 0.02, WEIGHTS.get(name), 12.5)
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
        passes=[3.0, 3.0, 2.4, 2.4],
        scores=scores,
        weights=WEIGHTS,
        temperature=1.21,
        num_label_issues=0,
        abstain_below=None,
        thresholds=(),
        priors=(),
        coverage=(),
        label_curve=(),
        minutes=10.0,
        seconds=432.0,
    )
    return dataclasses.replace(result, **changes)


def member_comparison(**changes: object) -> Comparison:
    arms = tuple(
        dataclasses.replace(
            arm("linear", curves=((score,),), test=score),
            **dataclasses.asdict(MEMBER_ARMS[name]),
            confusion=[[430, 70], [69, 431]],
        )
        for name, score in ACCURACIES.items()
    )
    return comparison(
        verdict="The blend beats every rival. The blend reaches 86.1 %.",
        verdict_kind="pays",
        arms=arms,
        tests=(
            PairedTest("blend", "linear", Interval(0.049, 0.03, 0.068), 0.0002, 0.0004),
            PairedTest("blend", "latent", Interval(0.023, 0.004, 0.041), 0.021, 0.03),
        ),
        num_test=1000,
        **changes,
    )


def test_fit_report_of_a_test_has_the_forms_of_a_comparison(run_dir: Path, tmp_path: Path):
    paths = write_fit_report(fit_result(run_dir), member_comparison(), tmp_path / "out")
    names = {"report.html", "report.md", "report.json", "members.csv", "members.png", "members.svg"}
    names |= {"arms.csv", "tests.csv"}
    assert names == {path.name for path in (tmp_path / "out").iterdir()} == set(paths)
    page = paths["report.html"].read_text(encoding="utf-8")
    check_readable(page)
    check_self_contained(page)
    assert '<header class="good">' in page
    assert "<h1>The blend beats every rival.</h1>" in page
    for title in ("Confusion matrices", "Significance tests", "The blend and its members"):
        assert title in page
    assert "blend beats latent by 2.3 points" in paths["report.md"].read_text(encoding="utf-8")


def test_fit_report_without_a_test_file_warns(run_dir: Path):
    paths = write_fit_report(fit_result(run_dir, num_bases=0), None, run_dir)
    page = paths["report.html"].read_text(encoding="utf-8")
    check_readable(page)
    assert "No test file was given" in page
    assert "too little text" in page
    assert "Confusion" not in page
    markdown = paths["report.md"].read_text(encoding="utf-8")
    assert "# The blend reaches 85.1 % by cross-validation" in markdown


def test_fit_report_for_programs(run_dir: Path):
    paths = write_fit_report(
        fit_result(run_dir), member_comparison(), run_dir, command="regraft fit"
    )
    report = json.loads(paths["report.json"].read_text(encoding="utf-8"))
    assert (report["kind"], report["command"]) == ("fit", "regraft fit")
    assert report["tested"]["arms"][0]["name"] == "blend"
    assert report["result"]["weights"] == WEIGHTS
    with paths["members.csv"].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["member"] for row in rows] == list(ACCURACIES)
    assert rows[1]["weight"] == "0.22"


def test_fit_report_shows_what_held_out_examples_say(run_dir: Path):
    issue = LabelIssue(17, "r-17", "A dull book.", "positive", "negative", 0.93)
    write_label_issues(run_dir / "label_issues.csv", [issue])
    curve = tuple(
        LabelPoint(size, interval(score, 0.02), is_forecast=size >= 400)
        for size, score in ((80, 0.7), (160, 0.75), (320, 0.8), (400, 0.81), (800, 0.84))
    )
    labels = ("positive", "negative", "positive", "negative")
    examples = [
        Example(f"Text {row}.", label, "a.csv", row, id="" if row == 15 else f"r-{row}")
        for row, label in enumerate((*labels, "positive"), start=13)
    ]
    answers = [("positive",), ("negative",), ("negative",), ("negative",), ("negative",)]
    KeptExamples(examples, [], answers, [0.9, 0.8, 0.71, 0.6, 0.93]).save(run_dir)
    result = fit_result(
        run_dir,
        num_label_issues=1,
        abstain_below=0.8,
        coverage=(CoveragePoint(0.9, 0.5, 0.97), CoveragePoint(0.6, 1.0, 0.86)),
        label_curve=curve,
    )
    words = (StrongWord("dull", 1.25, 3), StrongWord("good", -0.5, 2))
    classes = [ClassWords("negative", 4, words)]
    paths = write_fit_report(result, None, run_dir / "report", class_words=classes)
    assert {"labels.png", "coverage.svg", "confidence.svg"} <= set(paths)
    page = paths["report.html"].read_text(encoding="utf-8")
    check_readable(page)
    check_self_contained(page)
    texts = page, paths["report.md"].read_text(encoding="utf-8")
    for text in texts:
        assert "negative (4 texts): dull +1.25; against: good \N{MINUS SIGN}0.50" in text
        assert "With 800 labels instead of 400, expect 82.0 to 86.0 %" in text.replace(
            "\N{NO-BREAK SPACE}", " "
        )
        plain = " ".join(re.sub("<[^>]+>|[|]", " ", text).split())
        assert "50 % 97.0 % 0.900" in plain.replace("\N{NO-BREAK SPACE}", " ")
        for fact in ("Row 17 (r-17)", "A dull book.", "0.800"):
            assert fact in text
        for title in ("Confusion matrix", "Calibration", "Most confident errors"):
            assert title in text
        # Row 17 is wrong with more confidence, and is listed as a possible label error already.
        assert "Row 15, labelled" in text
        assert "71 %" in text.replace("\N{NO-BREAK SPACE}", " ")
        assert "Text 17." not in text
        assert "Without those that are listed below as possible label errors." in text


def test_sections_of_held_out_examples_are_told_from_those_of_the_test(run_dir: Path):
    issue = LabelIssue(2, "", "Text 2.", "positive", "negative", 0.93)
    write_label_issues(run_dir / "label_issues.csv", [issue])
    examples = [Example(f"Text {n}.", "positive", "a.csv", n) for n in (1, 2, 3)]
    answers = [("negative",), ("negative",), ("positive",)]
    KeptExamples(examples, [], answers, [0.93, 0.8, 0.41]).save(run_dir)
    paths = write_fit_report(fit_result(run_dir, num_label_issues=1), member_comparison(), run_dir)
    page = paths["report.html"].read_text(encoding="utf-8")
    names = re.findall(r' id="([\w-]+)"', page)
    assert len(names) == len(set(names))
    titles = re.findall(r"<h[23][^>]*>([^<]+)</h[23]>", page)
    assert "Confusion matrix by cross-validation" in titles
    assert "Possible label errors by cross-validation" in titles
    folded = re.findall(r'<details class="detail" id="([\w-]+)">', page)
    assert {"held-out-confusion", "held-out-errors"} <= set(folded)
    assert "held-out-issues" not in folded
    assert "<code>regraft data clean</code>" in page


def test_fit_report_names_the_files_of_a_folder(run_dir: Path, tmp_path: Path):
    """Each text is in row 1 of its file: one that is listed does not hide the others."""
    issue = LabelIssue(1, "pos/1.txt", "A dull book.", "positive", "negative", 0.93)
    write_label_issues(run_dir / "label_issues.csv", [issue])
    examples = [
        Example(f"Text {n}.", "positive", f"train/pos/{n}.txt", 1, id=f"pos/{n}.txt")
        for n in (1, 2, 3)
    ]
    answers = [("negative",), ("negative",), ("positive",)]
    KeptExamples(examples, [], answers, [0.93, 0.8, 0.7]).save(run_dir)
    (tmp_path / "train").mkdir()
    files = {"train": [str(tmp_path / "train")]}
    result = fit_result(run_dir, num_label_issues=1, files=files)
    paths = write_fit_report(result, None, run_dir / "report")
    text = paths["report.md"].read_text(encoding="utf-8")
    assert "pos/2.txt, labelled" in text
    assert "pos/1.txt is labelled" in text
    assert "Row 1" not in text
    assert "data clean" not in text
    assert "Move the files" in text


def test_terminal_shows_the_time_of_the_whole_command(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
):
    show_fitted(fit_result(run_dir), tested=None, seconds=754.0)
    assert "; 12 min 34 s" in capsys.readouterr().out
