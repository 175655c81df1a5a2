"""The studio as a person meets it: in a headless Chromium, with keyboard and mouse.

Where there is no browser, these tests are skipped and say so.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import opened, wait_told
from conftest import make_examples
from random_runs import LABELS, write_run
from studios import open_session, running
from tampering import change_facts

from regraft.apps.studio.inside import Shape, parameters, shapes
from regraft.classifiers.attribution import Explainer
from regraft.training.run_folder import RunFolder

CONTROLS = "button, input, select, textarea, iframe"
VIEWS = ("runs", "try", "inside", "label", "generate")
REVIEW = (
    "The story is charming. <script>document.title = 'stolen'</script><img src=x onerror=alert(1)>"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "base", preset="lab", objective="causal")
    write_run(folder / "reviews", preset="modern", objective="masked", pooling="mean")
    write_run(folder / "bag", preset="bag", objective="contrast", pooling="mean")
    (folder / "told").mkdir()
    (folder / "told" / "report.html").write_text("<!doctype html><h1>What was found</h1>")
    return folder


@pytest.fixture(scope="module")
def studio(folder, tmp_path_factory) -> Iterator[Any]:
    session = open_session(tmp_path_factory.mktemp("labels") / "labels.csv")
    with running(folder, session=session) as found:
        yield found


def classify(page: Any, text: str, *, run: str) -> None:
    page.wait_for_selector("#try-form:not([hidden])")
    page.select_option("#try-run", label=run)
    page.fill("#try-text", text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#try-label")


def test_a_review_gets_its_label_and_coloured_words(page, studio):
    opened(page, studio, "try")
    text = make_examples(1, seed=4)[0][0]
    classify(page, text, run="reviews")
    assert page.inner_text("#try-label") in LABELS
    assert re.fullmatch(r"\d+\.\d %", page.inner_text("#try-chance"))
    assert page.text_content("#try-words") == text
    marks = page.locator("#try-words mark")
    assert marks.count() >= 2
    colours = {
        marks.nth(place).evaluate("e => getComputedStyle(e).backgroundColor")
        for place in range(marks.count())
    }
    assert len(colours) >= 2


def test_the_words_that_count_are_told_without_colours_and_the_run_is_named(page, studio, folder):
    opened(page, studio, "try")
    text = make_examples(1, seed=4)[0][0]
    classify(page, text, run="reviews")
    pro, contra = Explainer.load(folder / "reviews").explain(text).strongest()
    tables = page.locator("#try-tops table")
    assert tables.locator("caption").all_inner_texts() == ["for the label", "against the label"]
    for place, words in enumerate((pro, contra)):
        told = tables.nth(place).locator("th bdi").all_inner_texts()
        assert told == [word.text for word in words if abs(word.score) >= 0.005]
    assert page.text_content("#try-status").startswith("reviews says ")
    page.select_option("#try-run", label="bag")
    assert page.is_hidden("#try-result")
    assert page.is_hidden("#attention")
    assert page.text_content("#try-status") == ""


def test_a_refusal_stays_until_it_is_closed_or_something_else_is_done(page, studio):
    opened(page, studio, "try")
    classify(page, "the story is charming again", run="reviews")
    page.fill("#try-text", "   ")
    page.keyboard.press("Control+Enter")
    wait_told(page, "problem", "The text has no word in it.")
    assert page.is_hidden("#try-result")
    assert page.is_hidden("#attention")
    with page.expect_response("**/api/runs"):  # what the page asks by itself, and gets
        pass
    page.wait_for_timeout(300)
    assert page.is_visible("#problem")
    page.get_by_role("button", name="Close").click()
    assert page.is_hidden("#problem")
    page.focus("#try-text")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#problem:not([hidden])")
    page.fill("#try-text", "the story is charming again")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#try-label")
    assert page.is_hidden("#problem")
    page.fill("#try-text", "   ")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#problem:not([hidden])")
    page.get_by_role("link", name="Inside").click()
    page.wait_for_selector("#view-inside:not([hidden])")
    assert page.is_hidden("#problem")


def test_a_script_in_a_review_is_read_and_never_run(page, studio):
    opened(page, studio, "try")
    classify(page, REVIEW, run="reviews")
    page.wait_for_selector("#attention:not([hidden])")
    assert page.text_content("#try-words") == REVIEW
    assert "stolen" not in page.title()
    assert page.locator("#view-try script, #view-try img").count() == 0


def test_attention_follows_the_mouse_and_the_keyboard(page, studio):
    opened(page, studio, "try")
    classify(page, "the story is charming again", run="reviews")
    page.wait_for_selector("#attention:not([hidden])")
    page.hover('[data-head="0.1"]')
    wait_told(page, "attention-status", "Layer 1, head 2")
    page.hover('#attention-tokens [data-place="1"]')
    assert page.locator("#attention-tokens .reader").get_attribute("data-place") == "1"
    depths = page.locator("#attention-tokens span").evaluate_all(
        "all => all.map(e => e.style.getPropertyValue('--depth'))"
    )
    assert len(set(depths)) > 1
    assert 0.4 < max(map(float, depths)) <= 1
    page.focus("#attention-tokens .reader")
    page.keyboard.press("ArrowRight")
    assert page.locator("#attention-tokens .reader").get_attribute("data-place") == "2"


def test_a_bag_has_coloured_words_and_no_attention(page, studio):
    opened(page, studio, "try")
    classify(page, "the story is charming again", run="bag")
    assert page.is_hidden("#attention")
    assert "in this model no token reads another" in page.text_content("#try-result")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_strongest_colour_of_attention_can_be_read_through(page, studio, scheme):
    page.emulate_media(color_scheme=scheme)
    opened(page, studio, "try")
    classify(page, "the story is charming again", run="reviews")
    page.wait_for_selector("#attention:not([hidden])")
    page.evaluate(
        "document.querySelector('#attention-tokens span').style.setProperty('--depth', '1')"
    )
    ink, shade, card = page.evaluate(
        """() => {
          const token = getComputedStyle(document.querySelector('#attention-tokens span'));
          const card = getComputedStyle(document.getElementById('attention')).backgroundColor;
          return [token.color, token.backgroundColor, card]
            .map((colour) => colour.match(/[\\d.]+/g).map(Number));
        }"""
    )
    mixed = [
        shade[3] * over + (1 - shade[3]) * under for over, under in zip(shade, card, strict=False)
    ]
    assert contrast(ink[:3], mixed) >= 4.5


def contrast(one: list[float], other: list[float]) -> float:
    """As WCAG 2 counts it."""
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [part / 255 for part in colour]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_dragging_a_slider_makes_21_018_401_what_the_formula_says(page, studio):
    opened(page, studio, "inside")
    wait_told(page, "parameters-total", "21,018,401")
    box = page.locator("#parameters-d").bounding_box()
    middle = box["y"] + box["height"] / 2
    width = 200 / 1024
    page.mouse.move(box["x"] + box["width"] * width, middle)
    page.mouse.down()
    seen = set()
    for share in (0.3, 0.45, 0.6):
        page.mouse.move(box["x"] + box["width"] * share, middle, steps=3)
        d = int(page.input_value("#parameters-d"))
        expected = parameters(Shape(preset="lab", V=50_001, d=d, L=4, H=2))
        wait_told(page, "parameters-total", f"{expected['total']:,}")
        seen.add(d)
    page.mouse.up()
    assert len(seen - {200}) == 3
    cells = page.locator("#parameters-terms .number").all_inner_texts()
    assert [int(cell.replace(",", "")) for cell in cells] == [
        term["count"] for term in expected["terms"]
    ]


def test_a_slider_moves_by_keyboard_and_says_its_value(page, studio):
    opened(page, studio, "inside")
    wait_told(page, "parameters-total", "21,018,401")
    page.focus("#parameters-L")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#parameters-L", "aria-valuetext") == "5"
    wait_told(page, "parameters-total", f"{21_018_401 + 242_000:,}")


def typed(page: Any, place: str, value: float) -> None:
    page.fill(f"#{place}-typed", str(value))
    page.keyboard.press("Tab")


def test_values_are_typed_next_to_sliders_and_kept_within_their_bounds(page, studio):
    opened(page, studio, "inside")
    wait_told(page, "parameters-total", "21,018,401")
    typed(page, "parameters-d", 300)
    expected = parameters(Shape(preset="lab", V=50_001, d=300, L=4, H=2))
    wait_told(page, "parameters-total", f"{expected['total']:,}")
    wait_told(page, "parameters-note", "150 wide")
    typed(page, "parameters-V", 9_999_999)
    assert page.input_value("#parameters-V-typed") == "100001"
    typed(page, "parameters-L", 0)
    assert page.input_value("#parameters-L-typed") == "1"
    page.select_option("#parameters-preset", "bag")
    assert page.input_value("#parameters-L-typed") == "0"
    assert page.is_disabled("#parameters-L")


def test_classes_make_it_a_classifier_and_every_letter_is_told(page, studio):
    opened(page, studio, "inside")
    wait_told(page, "parameters-total", "21,018,401")
    assert page.text_content("#parameters-letters") == "F = 200, feed-forward width"
    typed(page, "parameters-C", 22)
    assert page.input_value("#parameters-what") == "classifier"
    expected = parameters(Shape(preset="lab", V=50_001, d=200, L=4, H=2, C=22))
    wait_told(page, "parameters-total", f"{expected['total']:,}")
    for preset in shapes():
        page.select_option("#parameters-preset", preset["name"])
        shape = {letter: preset[letter] for letter in "VdLHC"}
        expected = parameters(Shape(preset=preset["name"], **shape))
        wait_told(page, "parameters-total", f"{expected['total']:,}")
        told = page.text_content("#parameters-letters")
        formulas = " ".join(page.locator("#parameters-terms td:nth-child(2)").all_inner_texts())
        for letter in "FMN":
            assert (letter in formulas) == (f"{letter} = " in told), preset["name"]


def test_padding_is_drawn_as_padding_and_sliders_leave_room_for_documents(page, studio):
    opened(page, studio, "inside")
    page.select_option("#mask-causal", "false")
    typed(page, "mask-form-documents", 3)
    typed(page, "mask-form-padding", 12)
    assert page.input_value("#mask-form-padding-typed") == "7"
    page.wait_for_function("() => document.getElementById('mask-plot').data?.[0].z[0][9] === 2")
    cells = page.evaluate("document.getElementById('mask-plot').data[0].z")
    assert [line[:3] for line in cells[:3]] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert {cell for line in cells[3:] for cell in line} == {2}
    assert {cell for line in cells for cell in line[3:]} == {2}
    typed(page, "mask-form-length", 2)
    assert page.input_value("#mask-form-documents-typed") == "2"
    assert page.input_value("#mask-form-padding-typed") == "0"
    wait_told(page, "mask-status", "documents do not read each other")
    assert page.is_hidden("#problem")


def test_a_quarter_and_three_quarters_of_a_turn_have_two_colours_and_names(page, studio):
    opened(page, studio, "inside")
    page.select_option("#positions-kind", "rotary")
    page.wait_for_function(
        "() => document.getElementById('positions-plot').data?.[0].colorbar.ticktext?.length"
    )
    scale, names = page.evaluate(
        "(({ colorscale, colorbar }) => [colorscale, colorbar.ticktext])"
        "(document.getElementById('positions-plot').data[0])"
    )
    colours = dict(scale)
    assert colours[0] == colours[1]
    assert len({colours[0], colours[0.25], colours[0.5], colours[0.75]}) == 4
    assert names == ["no turn", "¼ turn", "½ turn", "¾ turn", "a turn"]


def test_positions_of_a_run_are_drawn_as_it_learned_them(page, tmp_path):
    write_run(tmp_path / "bert", preset="bert", objective="masked")
    with running(tmp_path) as studio:
        opened(page, studio, "inside")
        page.locator("#positions-kind option", has_text="learned by bert").wait_for(
            state="attached"
        )
        page.select_option("#positions-kind", label="learned by bert")
        wait_told(page, "positions-status", "the run was trained on")
        page.wait_for_function(
            "() => document.getElementById('positions-plot').data[0].z.length === 32"
        )
        assert page.is_disabled("#positions-form-length")


def test_a_live_run_appears_and_its_curve_moves(page, tmp_path):
    with running(tmp_path) as studio:
        opened(page, studio, "runs")
        page.wait_for_selector("#runs-none:not([hidden])")
        write_run(tmp_path / "live", preset="lab", objective="causal")
        folder = RunFolder(tmp_path / "live")
        change_facts(tmp_path / "live" / "run.json", status="training")
        folder.log({"step": 10, "loss": 7.25})
        with folder.locked():
            page.wait_for_selector("#runs-rows .status.training")
            wait_told(page, "curve-status", "live: step 10, loss 7.25")
            for step in (20, 30):
                folder.log({"step": step, "loss": 100 / step})
            wait_told(page, "curve-status", "step 30, loss 3.333")
            points = page.evaluate("document.getElementById('curve-plot').data[0].x")
            assert list(points) == [10, 20, 30]
        change_facts(tmp_path / "live" / "run.json", status="complete")
        page.wait_for_selector("#runs-rows .status.complete")


def test_curves_are_compared_and_a_report_is_shown_in_a_sandbox(page, studio, folder):
    for name in ("base", "reviews"):
        (folder / name / "metrics.jsonl").write_text(
            '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n'
        )
    opened(page, studio, "runs")
    for name in ("base", "reviews"):
        page.get_by_label(f"Compare {name}").check()
    page.wait_for_function("() => document.getElementById('curve-plot').data?.length === 2")
    page.get_by_role("button", name="Report of told").click()
    assert page.get_attribute("#report-frame", "sandbox") == ""
    page.frame_locator("#report-frame").get_by_text("What was found").wait_for()
    page.get_by_role("button", name="Close").click()
    assert page.is_hidden("#report-panel")


def test_a_base_continues_a_text(page, studio):
    opened(page, studio, "generate")
    page.wait_for_selector("#generate-form:not([hidden])")
    page.fill("#generate-prompt", "the story")
    page.get_by_role("button", name="Continue it").click()
    page.wait_for_selector("#generate-result:not([hidden])")
    first = page.text_content("#generate-result")
    assert first.startswith("the story")
    assert page.text_content("#generate-status").startswith("This is seed 0")
    page.focus("#generate-prompt")
    page.keyboard.press("Control+Enter")
    wait_told(page, "generate-status", "This is seed 1")
    assert page.text_content("#generate-result") != first
    page.fill("#generate-seed-typed", "0")
    page.keyboard.press("Enter")
    wait_told(page, "generate-status", "This is seed 0")
    assert page.text_content("#generate-result") == first


def test_a_base_begins_by_itself_and_at_temperature_0_says_that_nothing_is_drawn(page, studio):
    opened(page, studio, "generate")
    page.wait_for_selector("#generate-form:not([hidden])")
    assert page.input_value("#generate-prompt") == ""
    typed(page, "generate-temperature", 0)
    page.get_by_role("button", name="Continue it").click()
    wait_told(page, "generate-status", "At temperature 0 it is always the same text.")


@pytest.mark.parametrize("width", [390, 1180])
def test_no_view_is_wider_than_its_screen_and_every_control_has_a_name(page, studio, width):
    page.set_viewport_size({"width": width, "height": 800})
    for view in VIEWS:
        opened(page, studio, view)
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        nameless = page.locator(f"#view-{view} :is({CONTROLS})").evaluate_all(
            "all => all.filter(e => !(e.labels?.length || e.ariaLabel || e.title "
            "|| e.textContent.trim())).map(e => e.outerHTML)"
        )
        assert nameless == []
        assert page.locator(f"#view-{view} h1").count() == 1
        assert page.locator("nav a[aria-current]").count() == 1


def test_dark_follows_the_system_and_a_server_that_is_gone_is_told(page, folder):
    with running(folder) as studio:
        opened(page, studio, "runs")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        page.wait_for_selector("#runs-rows tr")
    wait_told(page, "problem", "The studio does not answer")


def test_no_script_breaks_a_rule_of_the_page(page, studio):
    page.add_init_script(
        "window.broken = [];"
        "addEventListener('securitypolicyviolation', e => broken.push(e.sourceFile))"
    )
    for view in VIEWS:
        opened(page, studio, view)
        page.wait_for_timeout(500)
        assert page.evaluate("broken") == []


def test_only_drawings_of_plotly_have_their_styles_written_another_way(page, studio):
    page.add_init_script(
        "window.broken = [];"
        "addEventListener('securitypolicyviolation', e => broken.push(e.effectiveDirective))"
    )
    opened(page, studio, "inside")
    page.wait_for_selector("#view-inside .js-plotly-plot .heatmaplayer image")
    styled = (
        "([place]) => {"
        " const one = document.createElementNS('http://www.w3.org/2000/svg', 'g');"
        " document.querySelector(place).append(one);"
        " one.setAttribute('style', 'opacity: 0.5');"
        " return getComputedStyle(one).opacity; }"
    )
    assert page.evaluate(styled, ["#view-inside .js-plotly-plot svg"]) == "0.5"
    assert page.evaluate("broken") == []
    assert page.evaluate(styled, ["#view-inside"]) == "1"
    page.wait_for_function("() => broken.includes('style-src-attr')")


def test_words_that_the_model_does_not_read_are_grey(page, studio):
    opened(page, studio, "try")
    text = " ".join(f"word{number} is good" for number in range(100))
    classify(page, text, run="reviews")
    unread = page.locator("#try-words .rx-unread")
    assert unread.count() > 10
    assert unread.last.inner_text() == "good"
    assert unread.last.get_attribute("title") == "not read by the model"
    colour = "e => getComputedStyle(e).color"
    assert unread.last.evaluate(colour) != page.locator("#try-words").evaluate(colour)
    assert page.text_content("#try-words") == text
    assert "Grey words are not read by the model." in page.text_content("#try-result")
    classify(page, "a good film", run="reviews")
    page.wait_for_function("() => !document.querySelector('#try-words .rx-unread')")
    assert "Grey words" not in page.text_content("#try-result")
