"""The runs in the studio as a person meets them: in a headless Chromium, with keyboard and mouse.

Where there is no browser, these tests are skipped and say so.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from browsers import opened, wait_told
from random_runs import tiny_tokenizer, write_run
from studios import running
from tampering import change_facts

from regraft.errors import RunFolderError
from regraft.runtime import hold_lock
from regraft.training.run_folder import RunFolder

PAUSE = 1_600  # a little more than the page takes between two looks


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Runs of every kind, made once; a test takes a copy."""
    folder, tokenizer = tmp_path_factory.mktemp("runs"), tiny_tokenizer()
    for name, preset in (("base", "lab"), ("other", "lab"), ("reviews", "modern")):
        write_run(
            folder / name,
            preset=preset,
            objective="causal" if preset == "lab" else "masked",
            pooling=None if preset == "lab" else "mean",
            tokenizer=tokenizer,
            overrides={"train.seed": 5} if name == "other" else {},
            result={"valid_loss": 2.25} if preset == "lab" else {"valid_accuracy": [0.8]},
        )
        (folder / name / "metrics.jsonl").write_text(
            '{"step": 1, "loss": 2.5, "lr": 0.1}\n{"step": 2, "loss": 2.0, "lr": 0.2}\n'
        )
    shutil.copytree(folder / "base", folder / "blend")
    (folder / "blend" / "metrics.jsonl").unlink()
    scores = {"blend": {"accuracy": {"mean": 0.75}}}
    change_info(folder / "blend", kind="blend", result={"scores": scores})
    for number in range(11):
        shutil.copytree(folder / "base", folder / "blend" / "bases" / str(number))
    (folder / "told").mkdir()
    (folder / "told" / "report.html").write_text("<!doctype html><h1>What was found</h1>")
    return folder


@pytest.fixture
def folder(runs, tmp_path) -> Path:
    return shutil.copytree(runs, tmp_path / "runs")


@pytest.fixture
def studio(folder):
    with running(folder) as found:
        yield found


def change_info(run_dir: Path, **values: Any) -> None:
    change_facts(run_dir / "run.json", **values)


def box(page: Any, name: str) -> Any:
    return page.get_by_label(f"Compare {name}", exact=True)


def shown_names(page: Any) -> list[str]:
    return page.locator("#runs-rows tr:visible th > span").all_inner_texts()


def test_bases_of_a_blend_are_folded_under_it_in_their_order(page, studio):
    opened(page, studio, "runs")
    page.wait_for_selector("#runs-rows tr")
    assert not [name for name in shown_names(page) if "bases" in name]
    page.get_by_role("button", name="11 bases").click()
    names = shown_names(page)
    first = names.index("blend") + 1
    assert names[first : first + 11] == [f"blend/bases/{number}" for number in range(11)]
    box(page, "blend/bases/10").check()
    page.get_by_role("button", name="11 bases").click()
    assert [name for name in shown_names(page) if "bases" in name] == ["blend/bases/10"]


def test_curves_stand_above_the_list_and_stay_in_sight(page, studio):
    opened(page, studio, "runs")
    page.wait_for_selector("#curves-panel:not([hidden])")
    page.get_by_role("button", name="11 bases").click()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    plot = page.locator("#curve-plot").bounding_box()
    header = page.locator(".top").bounding_box()
    assert plot["y"] >= header["height"]
    assert plot["y"] + plot["height"] < 600
    # Whoever goes back by keyboard is not led under the panel.
    page.locator("#runs-rows input:visible").last.focus()
    panel = page.locator("#curves-panel").bounding_box()
    for _ in range(14):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.closest('#runs-rows') !== null"):
            top = page.evaluate("document.activeElement.getBoundingClientRect().top")
            assert top >= panel["y"] + panel["height"]


def test_a_click_that_takes_its_time_is_not_lost_while_a_run_trains(page, folder, studio):
    change_info(folder / "other", status="training")
    with RunFolder(folder / "other").locked():
        opened(page, studio, "runs")
        page.wait_for_selector("#runs-rows .status.training")
        place = box(page, "base").bounding_box()
        page.mouse.move(place["x"] + 5, place["y"] + 5)
        page.mouse.down()
        for step in (3, 4):
            RunFolder(folder / "other").log({"step": step, "loss": 1.5})
            page.wait_for_timeout(PAUSE)
        page.mouse.up()
    assert box(page, "base").is_checked()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Compare base"


def test_a_damaged_run_is_not_ticked_and_cannot_be(page, folder, studio):
    (folder / "other" / "run.json").write_text("{", encoding="utf-8")
    opened(page, studio, "runs")
    page.wait_for_selector("#runs-rows .status.damaged")
    wait_told(page, "curve-status", "step 2")
    assert "other" not in page.text_content("#curve-status")
    assert box(page, "other").is_hidden()


def test_a_comparison_that_runs_is_listed_as_training(page, folder, studio):
    (folder / "compared" / "arms").mkdir(parents=True)
    (folder / "compared" / "arms" / "setup.json").write_text("{}", encoding="utf-8")
    with hold_lock(
        folder / "compared" / "arms" / "lock", busy=RunFolderError("In use.", remedy="Wait.")
    ):
        opened(page, studio, "runs")
        page.wait_for_selector("#runs-rows .status.training")
    row = page.locator("#runs-rows tr", has_text="compared")
    assert "0 trainings finished so far." in row.inner_text()


def test_runs_are_told_side_by_side_and_the_choice_outlives_a_reload(page, studio):
    opened(page, studio, "runs")
    page.wait_for_selector("#curves-panel:not([hidden])")
    box(page, "reviews").uncheck()
    for name in ("base", "other"):
        box(page, name).uncheck()
        box(page, name).check()
    page.wait_for_function("() => document.getElementById('curve-plot').data?.length === 2")
    wait_told(page, "differences-caption", "Scores, and the setting that differs")
    table = page.locator("#differences")
    assert table.locator("thead th").all_inner_texts() == ["base", "other"]
    lines = [row.inner_text().split("\t") for row in table.locator("tbody tr").all()]
    assert lines == [["valid loss", "2.250", "2.250"], ["train.seed", "0", "5"]]
    page.select_option("#curve-metric", "lr")
    assert page.evaluate("location.hash") == "#runs?run=base&run=other&show=lr"
    page.reload()
    wait_told(page, "curve-status", "other: step 2, lr 0.2")
    assert box(page, "base").is_checked()
    box(page, "base").uncheck()
    box(page, "other").uncheck()
    page.wait_for_selector("#curves-panel", state="hidden")
    page.reload()
    page.wait_for_selector("#runs-rows tr")
    assert page.is_hidden("#curves-panel")


def test_losses_of_different_tasks_are_said_not_to_compare(page, studio):
    page.goto(f"{studio.url}/#runs?run=base&run=reviews")
    wait_told(
        page, "differences-status", "Losses do not compare; what differs: kind, objective.kind"
    )
    box(page, "blend").check()
    page.wait_for_function("() => document.querySelectorAll('#differences thead th').length === 3")
    assert page.evaluate("document.getElementById('curve-plot').data.length") == 2


def test_the_choice_is_still_there_after_another_view(page, studio):
    page.goto(f"{studio.url}/#runs?run=other")
    wait_told(page, "curve-status", "other: step 2")  # now it is known what can be shown
    page.get_by_role("link", name="Generate").click()
    page.get_by_role("link", name="Runs").click()
    wait_told(page, "curve-status", "other: step 2")
    page.wait_for_function("() => location.hash === '#runs?run=other&show=loss'")


def test_a_report_opens_below_the_header_and_escape_closes_it(page, studio):
    opened(page, studio, "runs")
    opener = page.get_by_role("button", name="Report of told")
    opener.click()
    page.frame_locator("#report-frame").get_by_text("What was found").wait_for()
    header = page.locator(".top").bounding_box()
    assert page.locator("#report-close").bounding_box()["y"] > header["height"]
    assert page.evaluate("document.activeElement.id") == "report-close"
    page.keyboard.press("Escape")
    assert page.is_hidden("#report-panel")
    assert opener.evaluate("e => e === document.activeElement")
    opener.click()
    page.get_by_role("button", name="Close").click()
    assert opener.evaluate("e => e === document.activeElement")


def test_on_a_phone_the_report_button_stands_below_the_name(page, studio):
    page.set_viewport_size({"width": 390, "height": 800})
    opened(page, studio, "runs")
    page.wait_for_selector("#runs-rows tr")
    row = page.locator("#runs-rows tr", has_text="told")
    name, button = (row.locator(part).bounding_box() for part in ("th", "button:visible"))
    assert button["x"] == pytest.approx(name["x"], abs=1)
    assert button["y"] >= name["y"] + name["height"]
    names = page.locator("#runs-rows tr:visible:not(.part) th")
    lefts = {round(names.nth(place).bounding_box()["x"]) for place in range(names.count())}
    assert len(lefts) == 1
