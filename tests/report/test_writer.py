"""The files of a report, and what makes them equal and complete."""

import dataclasses
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import comparisons
import numpy as np
import pytest

from regraft.comparison.results import Comparison, Mistake
from regraft.report import sentences as words
from regraft.report import writer as report
from regraft.report.comparison_page import comparison_page
from regraft.report.html import to_html
from regraft.report.markdown import to_markdown

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
FIGURES = ("accuracy", "curve", "calibration", "lengths")


def test_report_of_everything_has_every_file(tmp_path: Path):
    paths = report.write_report(comparisons.full_comparison(), tmp_path / "new" / "folder")
    figures = {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    tables = {"arms.csv", "curve.csv", "tests.csv"}
    assert set(paths) == {"report.html", "report.md", "report.json", *tables, *figures}
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == set(paths)
    for name in FIGURES:
        assert paths[f"{name}.png"].read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(paths[f"{name}.svg"]).getroot().tag.endswith("svg")


def test_report_leaves_out_files_that_would_be_empty(tmp_path: Path):
    paths = report.write_report(comparisons.comparison(tests=()), tmp_path)
    assert set(paths) == {
        "report.html",
        "report.md",
        "report.json",
        "arms.csv",
        "accuracy.png",
        "accuracy.svg",
    }


def test_report_of_arms_without_epochs_draws_no_figure(tmp_path: Path):
    linear = comparisons.comparison(arms=(comparisons.ARMS[3],), tests=())
    paths = report.write_report(linear, tmp_path)
    assert "accuracy.png" not in paths
    assert "Training curves" not in paths["report.html"].read_text(encoding="utf-8")
    assert "accuracy.png" not in paths["report.md"].read_text(encoding="utf-8")


def test_equal_comparisons_give_equal_files(tmp_path: Path):
    whole = comparisons.full_comparison()
    first = report.write_report(whole, tmp_path / "first")
    second = report.write_report(whole, tmp_path / "second")
    for name, path in first.items():
        assert path.read_bytes() == second[name].read_bytes(), name


def test_json_holds_every_field_and_only_finite_numbers(tmp_path: Path):
    arms = comparisons.ARMS
    broken = dataclasses.replace(arms[0], calibration_error=math.nan, macro_f1=np.float64(0.5))
    whole = comparisons.comparison(arms=(broken, *arms[1:]))
    paths = report.write_report(whole, tmp_path)
    value = json.loads(paths["report.json"].read_text(encoding="utf-8"))
    fields = {field.name for field in dataclasses.fields(Comparison)}
    assert set(value) == fields - {"outcomes"}
    assert value["arms"][0]["calibration_error"] is None
    assert value["arms"][0]["macro_f1"] == 0.5
    assert value["arms"][3]["test_accuracy"]["mean"] == 0.852
    assert value["mistakes"] == [
        {
            "text": comparisons.SCRIPT,
            "label": "positive",
            "predicted": "negative",
            "probability": 0.987,
            "row": 0,
        }
    ]


def test_json_is_the_comparison_again(tmp_path: Path):
    whole = comparisons.full_comparison()
    paths = report.write_report(whole, tmp_path)
    value = json.loads(paths["report.json"].read_text(encoding="utf-8"))
    again = Comparison.from_dict(value)
    assert again == whole
    for name, path in report.write_report(again, tmp_path / "again").items():
        assert path.read_bytes() == paths[name].read_bytes(), name


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.json"])
def test_report_takes_half_a_surrogate_pair(tmp_path: Path, name: str):
    broken = (Mistake("half \ud83d of a face", "positive", "negative", 0.9),)
    paths = report.write_report(comparisons.comparison(mistakes=broken), tmp_path)
    assert "half ? of a face" in paths[name].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*/report.json")), ids=lambda p: p.parent.name
)
def test_published_reports_are_still_told_in_their_own_words(path: Path):
    found = Comparison.from_dict(json.loads(path.read_text(encoding="utf-8")))
    headline, rest = words.verdict_parts(found.verdict)
    page = comparison_page(found, figures={})
    told = to_markdown(page)
    assert f"# {headline}\n\n{rest}\n" in told
    assert found.verdict.startswith(headline)
    assert headline in to_html(page)
    assert set(words.shown_tests(found)) <= set(found.tests)
