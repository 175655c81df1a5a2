"""report.md: complete, and no text of the data breaks out of its place."""

import dataclasses
from collections.abc import Sequence

import pytest
from comparisons import ARMS, comparison, full_comparison
from matplotlib.figure import Figure

from regraft.comparison.results import Comparison, LabelWorth
from regraft.report.comparison_page import comparison_page
from regraft.report.markdown import to_markdown

FIGURES = ("accuracy", "curve", "calibration", "lengths")


def written(whole: Comparison, figures: Sequence[str] = ()) -> str:
    return to_markdown(comparison_page(whole, figures=dict.fromkeys(figures, Figure())))


def test_table_has_a_row_for_every_arm():
    text = written(comparison(), FIGURES[:1])
    scores = "84.2 (82.2 to 86.2) | 85.2 (83.2 to 87.2)"
    row = f"| linear | {scores} | +6.2 | 84.7 | 85.2 |"
    assert f"{row} 754 s (12 min 34 s) | 1 |" in text.splitlines()
    assert text.startswith("# Pre-training did not pay: linear is 6.2 points better.\n")


def test_data_stays_in_its_place():
    text = written(comparison())
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a \\| pipe in two lines" in text


def test_leaks_in_every_test_example_leave_all_texts():
    arms = tuple(dataclasses.replace(arm, test_accuracy_without_leaks=None) for arm in ARMS)
    text = written(comparison(arms=arms))
    assert "| linear | 85.2 (83.2 to 87.2) | 85.2 (83.2 to 87.2) | +6.2 |" in text


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_shown_only_where_they_lie(name: str):
    text = written(full_comparison(), FIGURES)
    assert f"]({name}.png)" in text
    assert f"{name}.png" not in written(full_comparison())


def test_everything_found_is_told():
    text = written(full_comparison(), FIGURES)
    for told in (
        "**Your base is worth about 700 labels",
        "| pretrained | 74.2 (70.7 to 77.7) |",
        "How many more labels than 400 the best arm without a base needs",
        "| pretrained | 700 (520 to 1,000) | latent |",
        "| pretrained:wide | no gain found | latent |",
        "| embedding | more than 1,200 (900 or more) | latent |",
        "| pretrained | 6.2 | 1.40 | 2.1 |",
        "> Row 1204 is labelled **positive**; all 33 runs predict **negative**",
        "| negative | 790 (49.4 %) | 201 (50.2 %) | 1,000 (50.0 %) |",
        "- 12 test texts occur in the unlabelled text",
        "The test labels have been read twice.",
        "regraft compare --from report.json",
        "| linear | C 1 (2 seeds); C 10 (1 seed) |",
    ):
        assert told in text


def test_other_use_of_a_base_that_is_worth_more_is_told_at_the_top():
    nothing = LabelWorth("pretrained", "linear", 400, None, False, "No gain found.")
    text = written(full_comparison(worth=nothing))
    told = "**No gain found. embedding: Your base is worth more than 1,200 labels.**"
    assert told in text.partition("## ")[0]


def test_nothing_is_told_that_was_not_found():
    text = written(comparison(tests=(), mistakes=()))
    for title in ("Significance", "label errors", "openings", "Label curve", "--from"):
        assert title not in text.partition("## ")[2]
    assert "temperature" not in text
