"""The page: escaped, self-contained, readable by anyone, complete, and without empty parts."""

import dataclasses
import re

import numpy as np
import pytest
from comparisons import ARMS, comparison, full_comparison, interval
from pages import check_readable, check_self_contained, outline

from regraft.comparison.results import Comparison, LabelDoubt, Mistake, Split
from regraft.report.comparison_page import comparison_page
from regraft.report.figures import comparison_figures
from regraft.report.html import to_html


def written(whole: Comparison) -> str:
    return to_html(comparison_page(whole, figures=comparison_figures(whole)))


def page(**changes: object) -> str:
    return written(comparison(**changes))


@pytest.fixture(scope="module")
def full_page() -> str:
    return written(full_comparison())


def test_page_escapes_a_script_in_a_review():
    text = page()
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in text
    assert "script" not in outline(text).tags


def test_page_escapes_every_text_that_is_not_ours():
    evil = '"><img src=x onerror=alert(1)>'
    arms = tuple(dataclasses.replace(arm, name=f"{arm.name}:{evil}") for arm in ARMS)
    full = full_comparison()
    whole = dataclasses.replace(
        full,
        arms=(dataclasses.replace(full.arms[0], name=evil, description=evil), *arms),
        labels=(evil, "positive"),
        command=evil,
        settings={evil: evil},
        environment={evil: evil},
        fingerprints={evil: evil},
        request={evil: evil},
        warnings=(evil,),
        base={"name": evil},
        verdict=evil,
        created=evil,
        worth=dataclasses.replace(full.worth, sentence=evil),
        curve=tuple(dataclasses.replace(p, arm=evil) for p in full.curve[:6]),
        mistakes=(Mistake(evil, evil, evil, 0.9),),
        label_doubts=(LabelDoubt(1, evil, evil, evil, 0.9, 3),),
        splits=(Split(evil, 10, {evil: 10}, 0.1, 1),),
        openings=tuple(
            dataclasses.replace(o, test=evil, when=evil, command=evil, fingerprint=evil)
            for o in full.openings
        ),
    )
    text = written(whole)
    assert "img" not in outline(text).tags
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 25


def test_page_needs_nothing_else(full_page: str):
    check_self_contained(full_page)
    check_self_contained(page())


def test_page_can_be_read_by_everyone(full_page: str):
    check_readable(full_page)
    check_readable(page())


def section_names(text: str) -> tuple[list[str], list[str]]:
    """The sections, and those that are folded."""
    folded = re.findall(r'<details class="detail" id="(\w+)">', text)
    return re.findall(r'<h2 id="(\w+)">', text), folded


def test_table_shows_the_texts_of_the_headline_first():
    clean = interval(0.7, 0.02)
    arms = [
        dataclasses.replace(one, test_accuracy_without_leaks=clean, macro_f1_without_leaks=0.65)
        for one in comparison().arms
    ]
    text = page(num_test_leaks=5, num_deciding=75, arms=tuple(arms))
    assert text.count('<span class="big">70.0 %</span>') == len(arms)
    assert f"<span>65.0<small>{100 * arms[0].macro_f1:.1f} on all</small>" in text
    assert f"<span>{100 * arms[0].test_accuracy.mean:.1f}<small>" in text


def test_page_has_every_section_in_order(full_page: str):
    assert section_names(full_page) == (
        ["learning", "labels", "arms", "mistakes", "doubts", "confusions", "details"],
        ["differences", "calibration", "lengths", "data", "openings", "ran"],
    )
    assert full_page.count('<li><a href="#') == 7


def test_page_leaves_out_sections_that_have_nothing_to_tell():
    text = page(mistakes=(), num_test_leaks=0, cut_share=0.0, tests=())
    assert section_names(text) == (
        ["learning", "arms", "confusions", "details"],
        ["calibration", "data", "ran"],
    )
    assert "On all test texts" not in text
    assert "truncated" not in text
    assert "--from" not in text
    check_readable(text)


def test_page_tells_the_worth_of_every_use_of_a_base(full_page: str):
    assert "<td>more than 1,200<small>900 or more</small></td><td>latent</td>" in full_page
    alone = written(full_comparison(more_worths=()))
    assert "best arm without a base needs" not in alone


def test_page_puts_verdict_and_worth_first(full_page: str):
    assert "<h1>Pre-training helped, and the fine-tuned base beats every rival.</h1>" in full_page
    assert full_page.index("<h1>") < full_page.index("worth about 700 labels")
    assert full_page.index("worth about 700 labels") < full_page.index("<h2")
    assert '<header class="good">' in full_page
    assert '<header class="caution">' in page()


def test_figures_take_the_colours_of_the_page():
    text = page()
    figure = text[text.index("<svg") : text.index("</svg>")]
    for name in ("pretrained", "scratch", "frozen", "linear", "ink", "muted", "grid"):
        assert f"var(--{name})" in figure
    assert "#ffffff" not in figure
    assert "DejaVu" not in figure


def test_page_keeps_template_syntax_of_the_data():
    braces = "worth {{ page }} and {% raw %}$5"
    assert braces in page(mistakes=(Mistake(braces, "a", "b", 0.9),))


def test_arms_show_interval_cost_and_gap(full_page: str):
    row = full_page[full_page.index("the same model with new random weights") :]
    row = row[: row.index("</tr>")]
    for told in ("77.1 %", "75.1 to 79.1", "\N{MINUS SIGN}9.3</span>", "78.1<small>", "408 s"):
        assert told in row
    assert "1 collapsed" in full_page


def test_calibration_tells_the_error_before_and_after(full_page: str):
    table = full_page[full_page.index("Calibration error on test, in percent</caption>") :]
    row = table[table.index("pretrained</th>") : table.index("</tr>", table.index("pretrained"))]
    assert re.findall(r"<td>(.*?)</td>", row) == ["6.2", "1.40", "2.1"]


def test_numbers_of_the_curve_can_be_opened(full_page: str):
    details = full_page[full_page.index("<details>") : full_page.index("</details>")]
    assert '<th scope="col">1,600 labels</th>' in details
    assert "<td>87.4<small>85.9 to 88.9</small></td>" in details
    assert "1 of 3 collapsed" in details


def test_data_tells_balance_leaks_and_contradictions(full_page: str):
    assert "<td>810<small>50.6 %</small></td>" in full_page
    assert "12 test texts occur in the unlabelled text" in full_page
    assert "In train, 2 texts occur more than once" in full_page


def test_doubts_name_row_and_runs(full_page: str):
    assert "Row 17 is labelled <strong>negative</strong>; all 33 runs predict" in full_page
    silent = page(label_doubts=(LabelDoubt(3, "", "a", "b", 0.9, 1),), mistakes=())
    assert "Row 3 is labelled" in silent
    assert "<blockquote" not in silent


def test_what_limits_the_verdict_stands_below_it(full_page: str):
    assert '<p class="limits">The fine-tuned base reaches' in full_page
    assert 'class="limits"' not in page()


def test_texts_of_the_base_in_the_test_are_leaks_too():
    assert ">On all test texts<" in page(num_test_leaks=0, num_text_leaks=1)
    assert ">On all test texts<" not in page(num_test_leaks=0, num_text_leaks=0)


def test_settings_are_told_once(full_page: str):
    assert full_page.count("<dt>train.lr</dt>") == 1
    assert "<dt>wide.model.width</dt><dd>24</dd>" in full_page
    assert "<dt>bases.first</dt><dd>runs/base</dd>" in full_page


def test_page_tells_how_to_repeat_it(full_page: str):
    assert "regraft compare --base runs/base" in full_page
    assert "regraft compare --from report.json" in full_page


def test_matrices_of_the_base_and_the_best_other_arm_come_first(full_page: str):
    section = full_page[full_page.index('<h2 id="confusions">') :]
    names = re.findall(r"<h3>(.*?)</h3>", section[: section.index("</section>")])
    assert names[:2] == ["pretrained", "fit"]
    assert len(names) == 11


def test_confusions_are_listed_when_classes_are_many():
    labels = tuple(f"topic {number}" for number in range(12))
    counts = (5 * np.eye(12, dtype=int)).tolist()
    counts[3][7] = 4
    arms = tuple(dataclasses.replace(arm, confusion=counts) for arm in ARMS)
    text = page(labels=labels, arms=arms)
    assert "4 of topic 3 predicted as topic 7" in text
    assert 'class="matrix"' not in text


def test_rare_labels_of_many_are_counted_not_listed():
    counts = {f"topic {number}": number + 1 for number in range(50)}
    text = page(splits=(Split("train", sum(counts.values()), counts, 0.0, 0),))
    assert "Examples per label, without 20 rare ones" in text
    assert "topic 49</th>" in text
    assert "topic 5</th>" not in text


def test_mistakes_name_the_arm_they_are_of():
    assert "Most confident errors of frozen" in page(arms=ARMS[1:])


def test_page_of_a_single_arm_is_sound():
    check_readable(page(arms=ARMS[:1], tests=()))
