"""Labelling as a person does it: keys in a headless Chromium, labels in a file.

Where there is no browser, these tests are skipped and say so.
"""

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsers import careful_page, opened, wait_told
from studios import CLASSES, documents, open_session, running, word_vectors

from regraft.apps.studio.labelfile import LabelFile
from regraft.apps.studio.labelling import Session
from regraft.data.text.records import Document


def num_labelled(page: Any, num: int) -> None:
    wait_told(page, "label-status", f"{num} of 40 texts")


@contextlib.contextmanager
def studio_process(folder: Path, texts: Path, *more: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command itself, in a process that can be killed."""
    command = [sys.executable, "-m", "regraft", "studio", str(folder), "--port", "0", "--no-open"]
    process = subprocess.Popen(
        [*command, "--text", str(texts), "--labels", "negative,positive", *more],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert "Ctrl-C stops it" in process.stderr.readline()
        yield process, process.stderr.readline().strip()
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


def give_labels(page: Any, keys: str, *, first: int) -> None:
    for num, key in enumerate(keys, start=first):
        page.wait_for_selector("#label-buttons button:not([disabled])")
        page.keyboard.press(key)
        num_labelled(page, num)


def trained(page: Any, num: int) -> list[str]:
    """The cells of the newest training, once there are so many."""
    page.wait_for_function(
        "num => document.querySelectorAll('#training-rows tr').length === num", arg=num
    )
    return page.locator("#training-rows tr").first.locator("th, td").all_inner_texts()


@pytest.mark.slow
def test_labels_are_trained_on_and_all_is_found_again_after_a_kill(page, tmp_path):
    texts, runs = tmp_path / "texts.txt", tmp_path / "runs"
    runs.mkdir()
    texts.write_text("".join(f"{one.text}\n" for one in documents()), encoding="utf-8")
    with studio_process(runs, texts) as (process, url):
        page.goto(f"{url}/#label")
        give_labels(page, "122112211221", first=1)
        page.keyboard.press("t")
        name, num_labels, score = trained(page, 1)
        assert (name, num_labels) == ("texts-1", "12")
        assert re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", score)
        wait_told(page, "training-notes", "too few labels to forecast")
        # The next texts come with a guess of the new classifier; Enter agrees.
        wait_told(page, "label-why", "The model guesses")
        page.keyboard.press("Enter")
        num_labelled(page, 13)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with studio_process(runs, texts) as (process, url):
        page.goto(f"{url}/#label")
        num_labelled(page, 13)
        assert trained(page, 1) == ["texts-1", "12", score]
        assert "fit --update" in page.text_content("#training-command")
        give_labels(page, "21", first=14)
        page.click("#training-start")
        assert trained(page, 2)[:2] == ["texts-2", "15"]
        wait_told(page, "training-notes", "On the same 15 texts")
        page.goto(f"{url}/#runs")
        # Rows appear one after the other.
        complete = "() => document.querySelectorAll('#runs-rows .status.complete').length === 2"
        page.wait_for_function(complete)
        shown = page.locator("#runs-rows th span").all_inner_texts()
        assert shown[:2] == ["texts-2", "texts-1"]
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_training_is_stopped_and_one_that_died_is_interrupted_at_once(page, tmp_path):
    texts, runs = tmp_path / "texts.txt", tmp_path / "runs"
    runs.mkdir()
    # Enough text for a base, which takes longer than the test waits.
    words = "".join(
        f"{one.text} {number} {one.text}\n" for number in range(30) for one in documents()
    )
    texts.write_text(words, encoding="utf-8")
    with studio_process(runs, texts, "--minutes", "30") as (process, url):
        page.goto(f"{url}/#label")
        for num, key in enumerate("1221122112", start=1):
            page.wait_for_selector("#label-buttons button:not([disabled])")
            page.keyboard.press(key)
            wait_told(page, "label-status", f"{num} of ")
        page.keyboard.press("t")
        wait_told(page, "training-line", "bases")
        page.reload()
        wait_told(page, "training-line", "bases")
        page.click("#training-stop")
        wait_told(page, "training-status", "Stopped.")
        page.click("#training-start")
        wait_told(page, "training-line", "bases")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with studio_process(runs, texts) as (process, url):
        page.goto(f"{url}/#label")
        wait_told(page, "training-status", "The last training was interrupted.")
        page.goto(f"{url}/#runs")
        page.wait_for_selector("#runs-rows .status.interrupted")
        assert page.locator("#runs-rows .status.training").count() == 0


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


def test_without_texts_the_page_says_how_to_bring_some(page, tmp_path):
    with running(tmp_path) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-none:not([hidden])")
        assert "regraft studio --text FILE" in page.text_content("#label-none")


def is_shown(page: Any, text: str) -> None:
    page.wait_for_function(
        "text => document.getElementById('label-text').textContent === text", arg=text
    )


def test_a_long_text_is_read_by_keyboard_and_the_next_begins_at_its_beginning(page, tmp_path):
    texts = [Document(f"{number} " + "a long text " * 900, "t.txt", number) for number in range(6)]
    file = LabelFile(tmp_path / "labels.csv")
    session = Session(texts, file=file, vectors=word_vectors, classes=CLASSES)
    with running(tmp_path, session=session) as studio:
        opened(page, studio, "label")
        page.wait_for_function("() => document.activeElement.id === 'label-text'")
        page.keyboard.press("End")
        page.wait_for_function("() => document.activeElement.scrollTop > 300")
        first = page.text_content("#label-text")
        page.keyboard.press("1")
        wait_told(page, "label-status", "1 of 6 texts")
        assert page.text_content("#label-text") != first
        assert page.evaluate("document.activeElement.id") == "label-text"
        assert page.evaluate("document.activeElement.scrollTop") == 0


def test_the_next_text_is_told_to_a_screen_reader_and_buttons_stay(page, tmp_path):
    texts = [Document("short", "t.txt", 1), Document("a longer text " * 60, "t.txt", 2)]
    file = LabelFile(tmp_path / "labels.csv")
    session = Session(texts, file=file, vectors=word_vectors, classes=CLASSES)
    with running(tmp_path, session=session) as studio:
        opened(page, studio, "label")
        with page.expect_response("**/next*"):  # another text may take the place of the first
            page.select_option("#label-query", "random")
        page.wait_for_timeout(300)
        places = []
        for key in ("s", "u", "s", "u"):
            page.wait_for_function("() => document.activeElement.id === 'label-text'")
            tree = page.locator("#label-work").aria_snapshot()
            assert f'article "Text to label": {page.text_content("#label-text").strip()}' in tree
            places.append(page.locator("#label-buttons").bounding_box()["y"])
            before = page.text_content("#label-text")
            page.keyboard.press(key)
            page.wait_for_function(
                "text => document.getElementById('label-text').textContent !== text", arg=before
            )
        assert len(set(places[1:])) == 1


def test_what_the_disk_refuses_is_told_until_the_next_key(page, tmp_path, monkeypatch):
    session, write = open_session(tmp_path / "labels.csv"), os.write

    def full(handle, data):
        if handle == session._file._handle:
            raise OSError(28, "No space left on device")
        return write(handle, data)

    with running(tmp_path, session=session) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-buttons button:not([disabled])")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            page.keyboard.press("1")
            wait_told(page, "problem", "The disk is full")
        with page.expect_response("**/api/label"):  # what the page asks by itself, and gets
            pass
        page.wait_for_timeout(300)
        assert page.is_visible("#problem")
        page.keyboard.press("1")
        num_labelled(page, 1)
        assert page.is_hidden("#problem")


def test_undo_after_skip_keeps_every_label(page, tmp_path):
    with running(tmp_path, session=open_session(tmp_path / "labels.csv")) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-buttons button:not([disabled])")
        page.keyboard.press("1")
        num_labelled(page, 1)
        skipped = page.text_content("#label-text")
        page.keyboard.press("s")
        page.wait_for_function(
            "text => document.getElementById('label-text').textContent !== text", arg=skipped
        )
        page.keyboard.press("u")
        is_shown(page, skipped)
        num_labelled(page, 1)


def test_a_window_that_is_behind_another_takes_up_its_text(page, browser, tmp_path):
    with (
        running(tmp_path, session=open_session(tmp_path / "labels.csv")) as studio,
        careful_page(browser) as other,
    ):
        for window in (page, other):
            opened(window, studio, "label")
            window.wait_for_selector("#label-buttons button:not([disabled])")
        page.keyboard.press("1")
        num_labelled(page, 1)
        other.keyboard.press("2")
        wait_told(other, "problem", "another window may be labelling, too")
        is_shown(other, page.text_content("#label-text"))
        num_labelled(other, 1)
        other.keyboard.press("2")
        num_labelled(other, 2)


def test_buttons_and_keys_give_the_class_they_name_after_another_window_named_them(page, tmp_path):
    with running(tmp_path, session=open_session(tmp_path / "labels.csv")) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-buttons button:not([disabled])")
        assert studio.label("classes", classes=CLASSES[::-1]).status_code == 200
        wait_told(page, "label-buttons", "1 positive2 negative")
        page.keyboard.press("1")
        num_labelled(page, 1)
        page.click("#label-buttons button:nth-child(2)")
        num_labelled(page, 2)
        last = page.locator("#label-last strong").all_inner_texts()
        assert last == ["negative", "positive"]
        with (tmp_path / "labels.csv").open(encoding="utf-8", newline="") as file:
            assert [row["label"] for row in csv.DictReader(file)] == ["positive", "negative"]


def test_the_page_says_why_a_text_is_shown_and_what_to_do_with_labels(page, tmp_path):
    with running(tmp_path, session=open_session(tmp_path / "labels.csv")) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-buttons button:not([disabled])")
        # The vectors of forty short texts may be there already, or not yet.
        first = "Drawn at random, while the texts are being read|The first text is the one most"
        assert re.match(first, page.text_content("#label-why"))
        assert page.is_hidden("#label-before")
        assert page.is_hidden("#label-plot")
        assert page.is_disabled("#training-start")
        wait_told(page, "training-status", "It needs 10 labels, of two classes.")
        page.keyboard.press("1")
        num_labelled(page, 1)
        wait_told(page, "label-why", "Nothing is learned yet")
        page.keyboard.press("2")
        num_labelled(page, 2)
        assert "regraft fit --text texts.txt --train " in page.text_content("#training-command")
        assert page.is_visible("#label-before")


def test_keys_that_came_too_early_are_told(page, tmp_path):
    with running(tmp_path, session=open_session(tmp_path / "labels.csv")) as studio:
        opened(page, studio, "label")
        page.wait_for_selector("#label-buttons button:not([disabled])")
        page.evaluate(
            "for (const key of '1111')"
            " document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
        )
        wait_told(page, "label-missed", "3 presses came before the next text was shown")
        num_labelled(page, 1)
