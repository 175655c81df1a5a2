"""The studio as a person meets it: in a headless Chromium, with keyboard and mouse.

Where there is no browser, these tests are skipped and say so.
"""

import contextlib
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import careful_page, chromium, opened, wait_told
from conftest import make_examples
from random_runs import LABELS, write_run
from studios import documents, open_session, running

from regraft.runfolder import RunFolder
from regraft.studio.inside import Shape, counted, shapes

CONTROLS = "button, input, select, textarea, iframe"
VIEWS = ("runs", "try", "inside", "label", "generate")
REVIEW = (
    "The story is charming. <script>document.title = 'stolen'</script><img src=x onerror=alert(1)>"
)


# Of the module: while it lives, an event loop runs, which tests of other modules cannot have.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser) -> Iterator[Any]:
    with careful_page(browser) as found:
        yield found


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
    wait_told(page, "attention-told", "Layer 1, head 2")
    page.hover('#attention-tokens [data-place="1"]')
    assert page.locator("#attention-tokens .reader").get_attribute("data-place") == "1"
    depths = page.locator("#attention-tokens span").evaluate_all(
        "all => all.map(e => e.style.getPropertyValue('--depth'))"
    )
    assert len(set(depths)) > 1
    page.focus("#attention-tokens .reader")
    page.keyboard.press("ArrowRight")
    assert page.locator("#attention-tokens .reader").get_attribute("data-place") == "2"


def test_a_bag_has_coloured_words_and_no_attention(page, studio):
    opened(page, studio, "try")
    classify(page, "the story is charming again", run="bag")
    assert page.is_hidden("#attention")


def shown_total(page: Any) -> int:
    return int(page.inner_text("#ledger-total").replace(",", ""))


def test_dragging_a_slider_makes_21_018_401_what_the_formula_says(page, studio):
    opened(page, studio, "inside")
    wait_told(page, "ledger-total", "21,018,401")
    box = page.locator("#ledger-d").bounding_box()
    middle = box["y"] + box["height"] / 2
    width = 200 / 1024
    page.mouse.move(box["x"] + box["width"] * width, middle)
    page.mouse.down()
    seen = set()
    for share in (0.3, 0.45, 0.6):
        page.mouse.move(box["x"] + box["width"] * share, middle, steps=3)
        seen.add(shown_total(page))
    page.mouse.up()
    assert len(seen) == 3
    d = int(page.input_value("#ledger-d"))
    assert d != 200
    expected = counted(Shape(preset="lab", V=50_001, d=d, L=4, H=2))
    assert shown_total(page) == expected["total"]
    cells = page.locator("#ledger-terms .number").all_inner_texts()
    assert [int(cell.replace(",", "")) for cell in cells] == [
        term["count"] for term in expected["terms"]
    ]
    wait_told(page, "ledger-check", "counts the same")


def test_a_slider_moves_by_keyboard_and_says_its_value(page, studio):
    opened(page, studio, "inside")
    wait_told(page, "ledger-total", "21,018,401")
    page.focus("#ledger-L")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#ledger-L", "aria-valuetext") == "5"
    assert shown_total(page) == 21_018_401 + 242_000


def test_the_page_counts_as_ledger_py_does_for_any_shape(page, studio):
    opened(page, studio, "inside")
    source = random.Random(7)
    for preset in shapes():
        for what in ("language", "classifier"):
            for _ in range(6):
                shape = {
                    "V": source.randint(100, 100_000),
                    "d": 8 * source.randint(1, 128),
                    "L": 0 if preset["family"] == "bag" else source.randint(1, 24),
                    "H": source.randint(1, 16),
                    "C": source.randint(2, 100),
                }
                found = page.evaluate(
                    "async (asked) => (await import('/web/ledger.js')).terms(...asked)",
                    [preset, shape, what],
                )
                asked = dict(shape, C=shape["C"] if what == "classifier" else None)
                assert found == counted(Shape(preset=preset["name"], **asked))["terms"]


def test_a_live_run_appears_and_its_curve_moves(page, tmp_path):
    with running(tmp_path) as studio:
        opened(page, studio, "runs")
        page.wait_for_selector("#runs-none:not([hidden])")
        write_run(tmp_path / "live", preset="lab", objective="causal")
        folder = RunFolder(tmp_path / "live")
        info = tmp_path / "live" / "run.json"
        values = json.loads(info.read_text(encoding="utf-8"))
        info.write_text(json.dumps({**values, "status": "training"}), encoding="utf-8")
        folder.log({"step": 10, "loss": 7.25})
        page.wait_for_selector("#runs-rows .status.training")
        wait_told(page, "curve-told", "live: step 10, loss 7.25")
        for step in (20, 30):
            folder.log({"step": step, "loss": 100 / step})
        wait_told(page, "curve-told", "step 30, loss 3.333")
        points = page.evaluate("document.getElementById('curve-plot').data[0].x")
        assert list(points) == [10, 20, 30]
        info.write_text(json.dumps(values), encoding="utf-8")
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
    assert page.text_content("#generate-result").startswith("the story")


def num_labelled(page: Any, num: int) -> None:
    wait_told(page, "label-told", f"{num} of 40 texts")


@contextlib.contextmanager
def studio_process(folder: Path, texts: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command itself, in a process that can be killed."""
    command = [sys.executable, "-m", "regraft", "studio", str(folder), "--port", "0", "--no-open"]
    process = subprocess.Popen(
        [*command, "--text", str(texts), "--labels", "negative,positive"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process, re.search(r"http://[\d.:]+", process.stderr.readline()).group()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_ten_labels_given_by_keyboard_outlive_sigkill(page, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{one.text}\n" for one in documents()), encoding="utf-8")
    (tmp_path / "runs").mkdir()
    given = []
    with studio_process(tmp_path / "runs", texts) as (process, url):
        page.goto(f"{url}/#label")
        for num, key in enumerate("1221122112", start=1):
            page.wait_for_selector("#label-buttons button:not([disabled])")
            given.append((page.text_content("#label-text"), ("negative", "positive")[int(key) - 1]))
            page.keyboard.press(key)
            num_labelled(page, num)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with (tmp_path / "texts-labels.csv").open(encoding="utf-8", newline="") as file:
        assert [(row["text"], row["label"]) for row in csv.DictReader(file)] == given
    with studio_process(tmp_path / "runs", texts) as (process, url):
        page.goto(f"{url}/#label")
        num_labelled(page, 10)
        assert page.text_content("#label-text") not in [text for text, _ in given]
        page.keyboard.press("u")
        num_labelled(page, 9)
        assert page.text_content("#label-text") == given[-1][0]


def test_labels_by_keyboard_move_the_curve_and_are_taken_back(page, tmp_path):
    with running(tmp_path, session=open_session(tmp_path / "labels.csv", classes=())) as studio:
        opened(page, studio, "label")
        page.fill("#classes-names", "negative, positive, <b>neutral</b>")
        page.keyboard.press("Enter")
        page.wait_for_selector("#label-buttons button")
        assert page.locator("#label-buttons button").all_inner_texts()[2] == "3 <b>neutral</b>"
        first = page.text_content("#label-text")
        for num, key in enumerate("12312312", start=1):
            page.keyboard.press(key)
            num_labelled(page, num)
        wait_told(page, "label-score", "With 6 labels")
        assert page.evaluate("document.getElementById('label-plot').data[2].x.length") >= 1
        for num in range(7, -1, -1):
            page.keyboard.press("Backspace")
            num_labelled(page, num)
        assert page.text_content("#label-text") == first
        page.keyboard.press("s")
        page.wait_for_function(
            "first => document.getElementById('label-text').textContent !== first", arg=first
        )


def test_without_texts_the_page_says_how_to_bring_some(page, folder):
    with running(folder) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-none:not([hidden])")
        assert "regraft studio --text FILE" in page.text_content("#label-none")


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
