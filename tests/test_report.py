"""Every form of the report, from a comparison small enough to read."""

import dataclasses
import json
import math
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from regraft import report
from regraft.evidence import ArmSummary, Comparison, Mistake, PairedTest
from regraft.metrics import Interval

SCRIPT = 'A <script>alert("x")</script> & a | pipe\nin two lines'
VOID_TAGS = {"meta", "br", "img", "hr", "use"}


def arm(name: str, *, curves: tuple[tuple[float, ...], ...], test: float) -> ArmSummary:
    return ArmSummary(
        name=name,
        description=f"the {name} arm",
        num_seeds=len(curves),
        valid_accuracy=Interval(test, test - 0.03, test + 0.03),
        test_accuracy=Interval(test, test - 0.02, test + 0.02),
        test_accuracy_without_leaks=Interval(test - 0.01, test - 0.03, test + 0.01),
        macro_f1=test - 0.005,
        calibration_error=0.0625,
        seconds=754.0,
        num_collapsed=0,
        valid_curves=curves,
        confusion=[[30, 10], [8, 32]],
    )


ARMS = (
    arm("pretrained", curves=((0.66, 0.75, 0.80), (0.64, 0.77, 0.82)), test=0.79),
    arm("scratch", curves=((0.50, 0.70, 0.79), (0.48, 0.72, 0.81)), test=0.785),
    arm("frozen", curves=((0.66, 0.70, 0.71), (0.64, 0.68, 0.73)), test=0.71),
    arm("linear", curves=((0.85,),), test=0.852),
)
TESTS = (
    PairedTest("pretrained", "scratch", Interval(0.005, -0.012, 0.023), 0.41, 0.5),
    PairedTest("pretrained", "linear", Interval(-0.062, -0.08, -0.04), 0.0001, 0.002),
)


def comparison(**changes: object) -> Comparison:
    whole = Comparison(
        verdict="Pre-training did not pay: linear is 6.2 points better.",
        verdict_kind="loses-to-linear",
        arms=ARMS,
        tests=TESTS,
        labels=("negative", "positive"),
        num_train=1600,
        num_valid=400,
        num_test=80,
        num_test_leaks=3,
        cut_share=0.125,
        settings={"train": {"lr": 1e-4, "minutes": None}, "model": {"width": 12}},
        environment={"python": "3.11"},
        fingerprints={"train": "00ff"},
        command="regraft compare --base runs/base",
        created="2025-01-02 03:04 UTC",
        base={"name": "runs/base", "loss": 5.25},
        mistakes=(Mistake(SCRIPT, "positive", "negative", 0.987),),
        warnings=(),
    )
    return dataclasses.replace(whole, **changes)


def page(**changes: object) -> str:
    whole = comparison(**changes)
    return report.comparison_to_html(whole, svg=report._svg(report.accuracy_figure(whole)))


class Outline(HTMLParser):
    """Tags in order, with a check that each one opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID_TAGS:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_TAGS:
            assert self._open.pop() == tag

    def close(self) -> None:
        super().close()
        assert self._open == []


def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    parser.close()
    return parser


def test_write_report_writes_every_file(tmp_path: Path):
    paths = report.write_report(comparison(), tmp_path / "new" / "folder")
    assert list(paths) == [
        "report.html",
        "report.md",
        "report.json",
        "accuracy.png",
        "accuracy.svg",
    ]
    assert paths["accuracy.png"].read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(paths["accuracy.svg"]).getroot().tag.endswith("svg")
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == set(paths)


def test_write_report_gives_equal_files_for_equal_comparisons(tmp_path: Path):
    first = report.write_report(comparison(), tmp_path / "first")
    second = report.write_report(comparison(), tmp_path / "second")
    for name in ("report.html", "report.md", "report.json", "accuracy.svg"):
        assert first[name].read_bytes() == second[name].read_bytes()


def test_json_holds_every_field_and_only_finite_numbers(tmp_path: Path):
    broken = dataclasses.replace(ARMS[0], calibration_error=math.nan, macro_f1=np.float64(0.5))
    paths = report.write_report(comparison(arms=(broken, *ARMS[1:])), tmp_path)
    value = json.loads(paths["report.json"].read_text(encoding="utf-8"))
    assert set(value) == {field.name for field in dataclasses.fields(Comparison)}
    assert value["arms"][0]["calibration_error"] is None
    assert value["arms"][0]["macro_f1"] == 0.5
    assert value["arms"][3]["test_accuracy"]["mean"] == 0.852
    assert value["mistakes"] == [
        {"text": SCRIPT, "label": "positive", "predicted": "negative", "probability": 0.987}
    ]


def test_html_escapes_a_script_in_a_review():
    text = page()
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;" in text
    assert "script" not in outline(text).tags


def test_html_escapes_labels_command_settings_and_warnings():
    evil = "<img src=x onerror=alert(1)>"
    text = page(
        labels=(evil, "positive"),
        command=evil,
        settings={evil: evil},
        warnings=(evil,),
        base={"name": evil},
        verdict=evil,
    )
    assert "img" not in outline(text).tags
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 7


def test_html_needs_no_other_file():
    found = outline(page())
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    links = [value for name, value in found.attributes if name in ("src", "href", "xlink:href")]
    assert all(value is not None and value.startswith("#") for value in links)
    assert "http" not in page()
    assert "url(http" not in page()


def test_html_figure_takes_the_colours_of_the_page():
    text = page()
    figure = text[text.index("<svg") : text.index("</svg>")]
    for name in ("pretrained", "scratch", "frozen", "linear", "ink", "muted", "grid"):
        assert f"var(--{name})" in figure
    assert "#ffffff" not in figure


def test_html_puts_the_verdict_first():
    text = page()
    assert "<h1>Pre-training did not pay: linear is 6.2 points better.</h1>" in text
    assert text.index("<h1>") < text.index("<h2>")


def test_html_keeps_dollar_signs_of_the_data():
    assert "worth $verdict and $$5" in page(
        mistakes=(Mistake("worth $verdict and $$5", "a", "b", 0.9),)
    )


def test_html_lists_confusions_when_classes_are_many():
    labels = tuple(f"topic {number}" for number in range(12))
    counts = (5 * np.eye(12, dtype=int)).tolist()
    counts[3][7] = 4
    arms = tuple(dataclasses.replace(arm, confusion=counts) for arm in ARMS)
    text = page(labels=labels, arms=arms)
    assert "4 of topic 3 taken for topic 7" in text
    assert 'class="matrix"' not in text


def test_leaks_in_every_test_example_leave_a_dash():
    arms = tuple(dataclasses.replace(arm, test_accuracy_without_leaks=None) for arm in ARMS)
    text = report.comparison_to_markdown(comparison(arms=arms))
    assert "| linear | 85.2 (83.2 to 87.2) | \N{EN DASH} | 85.2 |" in text


def test_mistakes_name_the_arm_they_are_of():
    assert "Where the scratch arm is surest and wrong" in page(arms=ARMS[1:])


def test_html_without_leaks_or_mistakes_leaves_their_places_out():
    text = page(mistakes=(), num_test_leaks=0, cut_share=0.0)
    assert "ithout leaks" not in text
    assert "surest and wrong" not in text
    assert "longer than the model reads" not in text


def test_markdown_table_has_a_row_for_every_arm():
    text = report.comparison_to_markdown(comparison())
    row = "| linear | 85.2 (83.2 to 87.2) | 84.2 | 85.2 | 84.7 | 6.2 | 12 min 34 s | 1 |"
    assert row in text.splitlines()
    assert text.startswith("# Pre-training did not pay: linear is 6.2 points better.\n")


def test_markdown_keeps_data_in_its_place():
    text = report.comparison_to_markdown(comparison())
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a \\| pipe in two lines" in text


def test_reports_take_half_a_surrogate_pair(tmp_path: Path):
    broken = (Mistake("half \ud83d of a face", "positive", "negative", 0.9),)
    paths = report.write_report(comparison(mistakes=broken), tmp_path)
    for name in ("report.html", "report.md", "report.json"):
        assert "half ? of a face" in paths[name].read_text(encoding="utf-8")


def test_paired_test_in_words_names_the_better_arm():
    assert report.paired_test_in_words(TESTS[1]) == (
        "linear beats pretrained by 6.2 points: pretrained minus linear is \N{MINUS SIGN}6.2 "
        "points, 95 % interval \N{MINUS SIGN}8.0 to \N{MINUS SIGN}4.0; "
        "p < 0.001 by permutation, p = 0.002 by McNemar's test."
    )


def test_paired_test_in_words_does_not_claim_what_is_not_shown():
    words = report.paired_test_in_words(TESTS[0])
    assert words.startswith("No difference shown between pretrained and scratch: ")
    wide = dataclasses.replace(TESTS[1], difference=Interval(-0.06, -0.13, 0.01))
    assert report.paired_test_in_words(wide).startswith("No difference shown")


def test_figure_draws_means_bands_and_the_linear_line():
    axes = report.accuracy_figure(comparison()).axes[0]
    dashed, solid = [], []
    for line in axes.lines:
        (dashed if line.is_dashed() else solid).append(line)
    np.testing.assert_allclose(solid[0].get_ydata(), [65, 76, 81])
    np.testing.assert_allclose(dashed[0].get_ydata(), [85, 85])
    assert len(axes.collections) == 3
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((64, 82))


def test_figure_labels_do_not_collide():
    figure = report.accuracy_figure(comparison())
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    assert sorted(text.get_text() for text in texts) == [
        "frozen 72.0",
        "linear 85.0",
        "pretrained 81.0",
        "scratch 80.0",
    ]
    # Of an annotation only the words; its window extent would take in the leader line.
    boxes = sorted((super(type(t), t).get_window_extent() for t in texts), key=lambda b: b.y0)
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_figure_shows_the_mean_over_seeds_and_a_single_arm():
    arm = dataclasses.replace(ARMS[0], valid_curves=((0.5, 0.6, 0.7), (0.5, 0.8, 0.9)))
    axes = report.accuracy_figure(comparison(arms=(arm,))).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 70, 80])
    report.accuracy_figure(comparison(arms=(ARMS[3],))).draw_without_rendering()


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.26, "0.3 s"),
        (59.4, "59 s"),
        (59.7, "1 min 00 s"),
        (754, "12 min 34 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_duration_is_told_in_the_unit_that_fits(seconds: float, expected: str):
    assert report._duration(seconds) == expected
