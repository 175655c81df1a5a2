"""Labels are never lost: the file, its undo, and the session that learns from them."""

import csv
import os
import time

import numpy as np
import pytest
from studios import CLASSES, documents, open_session, true_label, word_vectors

from regraft.apps.serve.limits import RefusedError
from regraft.apps.studio.labelfile import LabelFile, LabelRecord
from regraft.apps.studio.labelling import (
    SHOWN_CHARACTERS,
    Session,
    checked_classes,
    share_interval,
    shortened,
)
from regraft.apps.studio.server import build_session
from regraft.classifiers.logistic import unit_length
from regraft.config.resolution import resolve
from regraft.data.text.readers import load_examples
from regraft.errors import DataError, DiskFullError

ODD_TEXTS = (
    "plain",
    'with "quotes", commas\nand a newline',
    "\r carriage",
    "تجربة 🙂",
    " \t",
    "=1+1",
)


def record(text: str, label: str = "positive") -> LabelRecord:
    return LabelRecord(text, label, "train", "random", 7)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "labels.csv"


def reopened(path):
    file = LabelFile(path)
    file.close()
    return file.records


def test_labels_are_found_again_whatever_the_texts_hold(path):
    file = LabelFile(path)
    for text in ODD_TEXTS:
        file.append(record(text))
    file.close()
    assert [found.text for found in reopened(path)] == list(ODD_TEXTS)
    assert reopened(path)[0] == record("plain")


def test_a_label_is_on_disk_before_append_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    file = LabelFile(path)
    file.append(record("a"))
    assert synced[-1] == path.stat().st_size
    assert path.read_text(encoding="utf-8").endswith('"a","positive","train","random","7"\n')
    file.close()


def test_undo_takes_the_last_label_off_and_no_other(path):
    file = LabelFile(path)
    for text in ODD_TEXTS:
        file.append(record(text))
    assert file.undo() == record(ODD_TEXTS[-1])
    file.append(record("new", "negative"))
    file.close()
    assert [found.text for found in reopened(path)] == [*ODD_TEXTS[:-1], "new"]
    empty = LabelFile(path.with_name("empty.csv"))
    assert empty.undo() is None
    empty.close()


@pytest.mark.parametrize("num_cut", range(1, 30))
def test_a_record_cut_off_by_a_power_cut_is_forgotten_and_all_others_stay(path, num_cut):
    file = LabelFile(path)
    file.append(record('first "text"\nin two lines'))
    size = path.stat().st_size
    file.append(record('second, "quoted"'))
    file.close()
    os.truncate(path, max(path.stat().st_size - num_cut, size))
    again = LabelFile(path)
    again.append(record("third"))
    again.close()
    texts = [found.text for found in reopened(path)]
    assert texts == ['first "text"\nin two lines', "third"]


def test_a_full_disk_leaves_no_half_record(path, monkeypatch):
    file = LabelFile(path)
    file.append(record("first"))
    before = path.read_bytes()
    write = os.write

    def full(handle, data):
        write(handle, data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError, match=r"The disk is full: .*labels.csv was not written"):
        file.append(record("second"))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [found.text for found in file.records] == ["first"]
    file.close()


def test_the_file_is_training_data_as_it_is(path):
    file = LabelFile(path)
    file.append(record('a "good", long\ntext'))
    file.append(record("another", "negative"))
    file.close()
    examples = load_examples(path, data=resolve("finetune").data)
    assert [(one.text, one.label) for one in examples] == [
        ('a "good", long\ntext', "positive"),
        ("another", "negative"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,b\n", "begins with 'text,label'"),
        ("text,label,use,query,row\na,b\n", "record 1 cannot be read: it has 2 fields, not 5"),
        (
            "text,label,use,query,row\na,b,c,d,1\n",
            "record 1 cannot be read: 'c', 'd', '1' is not ours",
        ),
        ("text,label,use,query,row\n\n", "record 1 cannot be read"),
    ],
)
def test_other_files_are_refused_and_stay_as_they_are(path, content, message):
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        LabelFile(path)
    assert path.read_text(encoding="utf-8") == content


def test_two_studios_cannot_write_one_file(path):
    file = LabelFile(path)
    with pytest.raises(DataError, match="is being written by another studio"):
        LabelFile(path)
    file.close()
    LabelFile(path).close()


def label_next(session, label=None):
    offer = session.next_text()
    session.label(offer["number"], label or true_label(offer["text"]))
    return offer


def wait_until(is_so):
    for _ in range(3_000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_a_session_goes_on_after_it_was_killed(path):
    session = open_session(path)
    texts = [label_next(session)["text"] for _ in range(10)]
    # What SIGKILL does: nothing is closed. Only the lock dies with the process.
    session._file._lock.release()
    again = open_session(path)
    assert [one.text for one in again._file.records] == texts
    assert again.state()["num_labelled"] == 10
    assert again.next_text()["text"] not in texts
    again.close()


def test_every_fourth_text_is_drawn_to_judge_by_and_guesses_are_not_told_then(path):
    session = open_session(path)
    session.start()
    offers = []
    for _ in range(12):
        offers.append(label_next(session))
        num_train = session.state()["num_train"]
        wait_until(lambda num=num_train: session.state()["num_learned"] >= num or num < 4)
    uses = [offer["use"] for offer in offers]
    assert [place for place, use in enumerate(uses) if use == "evaluation"] == [3, 7, 11]
    assert all(offer["guess"] is None for offer in offers if offer["use"] == "evaluation")
    assert offers[10]["query"] == "uncertainty"
    assert offers[10]["guess"]["label"] in CLASSES
    session.close()


def test_the_curve_moves_and_is_the_same_after_a_restart(path):
    session = open_session(path)
    session.start()
    for _ in range(24):
        label_next(session)
    wait_until(lambda: session.state()["num_learned"] == 18)
    wait_until(lambda: {10, 16, 18} <= {point["num"] for point in session.state()["curve"]})
    curve = session.state()["curve"]
    session.close()
    assert all(point["low"] <= point["accuracy"] <= point["high"] for point in curve)
    again = open_session(path)
    again.start()
    wait_until(lambda: again.state()["num_learned"] == 18)
    wait_until(lambda: {10, 16} <= {point["num"] for point in again.state()["curve"]})
    points = {point["num"]: point["accuracy"] for point in again.state()["curve"]}
    shared = {point["num"]: point["accuracy"] for point in curve if point["num"] in points}
    assert shared == {num: points[num] for num in shared}
    again.close()


def test_undo_shows_the_text_again_and_takes_back_what_was_learned(path):
    session = open_session(path)
    session.start()
    for _ in range(6):
        label_next(session)
    offer = label_next(session)
    wait_until(lambda: session.state()["num_learned"] == 6)
    assert session.undo()
    again = session.next_text()
    assert (again["number"], again["use"], again["query"]) == tuple(
        offer[name] for name in ("number", "use", "query")
    )
    assert session.state()["num_labelled"] == 6
    assert all(point["num"] <= 5 for point in session.state()["curve"])
    session.close()


def test_undo_takes_back_what_was_done_last_a_label_or_a_skip(path):
    session = open_session(path)
    label_next(session)
    skipped = session.next_text()["number"]
    session.skip(skipped)
    labelled = label_next(session)["number"]
    assert session.undo()
    assert (session.next_text()["number"], session.state()["num_labelled"]) == (labelled, 1)
    assert session.undo()
    assert (session.next_text()["number"], session.state()["num_labelled"]) == (skipped, 1)
    assert session.state()["can_undo"]
    assert session.undo()
    assert not session.state()["can_undo"]
    assert not session.undo()
    session.close()


def first_command(session):
    session.start()
    return session.state()["training"]["command"]


def built(text, *, out=None, **settings):
    data = resolve("pretrain", overrides={f"data.{key}": settings[key] for key in settings}).data
    return build_session(text, classes=CLASSES, folder=text.parent / "runs", out=out, data=data)


def test_the_command_for_labels_reads_the_texts_as_the_studio_did(tmp_path):
    folder = tmp_path / "my texts"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    runs = f"--minutes 5 --out '{tmp_path}/runs/my texts-1'"
    session = built(folder)
    assert first_command(session) == (
        f"regraft fit --text '{folder}' --train '{folder}-labels.csv' {runs}"
    )
    session.close()
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n\ntwo\n\nthree\n", encoding="utf-8")
    session = built(plain, documents="blank", encoding="utf-8-sig")
    assert first_command(session) == (
        f"regraft fit --text {plain} --documents blank --train {tmp_path}/plain-labels.csv "
        f"--minutes 5 --out {tmp_path}/runs/plain-1"
    )
    session.close()


def test_texts_of_a_folder_are_named_by_their_files(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in {
        "a": "one two",
        "b": "three four",
        "c": "five six",
        "d": "five  six",
    }.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    session = built(folder)
    assert (session.state()["num_texts"], session.state()["num_duplicates"]) == (3, 1)
    places = set()
    for _ in range(3):
        text = session.next_text()
        places.add(text["place"])
        session.label(text["number"], "positive")
    session.close()
    assert places == {"a.txt", "b.txt", "c.txt"}
    with (tmp_path / "texts-labels.csv").open(encoding="utf-8", newline="") as file:
        assert {row["text"]: row["file"] for row in csv.DictReader(file)} == {
            "one two": "a.txt",
            "three four": "b.txt",
            "five six": "c.txt",
        }


def test_other_columns_of_a_table_are_kept_with_the_labels(tmp_path):
    tickets = tmp_path / "tickets.csv"
    tickets.write_text('id,body,label\n7,"one, two",old\n8,three,\n9,four,\n', encoding="utf-8")
    session = built(tickets, text_column="body")
    command = f"--train {tmp_path}/tickets-labels.csv --text-column body --minutes 5"
    assert command in first_command(session)
    for _ in range(3):
        session.label(session.next_text()["number"], "positive")
    session.close()
    with (tmp_path / "tickets-labels.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert list(rows["7"]) == ["body", "label", "use", "query", "row", "id", "source_label"]
    assert (rows["7"]["body"], rows["7"]["source_label"]) == ("one, two", "old")
    assert {row["label"] for row in rows.values()} == {"positive"}
    again = built(tickets, text_column="body")
    assert again.state()["num_labelled"] == 3
    again.undo()
    again.close()


def test_texts_that_fit_could_not_read_with_their_labels_are_not_trained_on(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n", encoding="utf-8")
    session = built(lines, encoding="latin-1")
    assert session.state()["training"] is None
    with pytest.raises(RefusedError, match="Convert the texts to UTF-8"):
        session.train()
    session.close()


def test_who_labels_faster_than_we_learn_is_shown_what_was_learned_so_far(path):
    session = open_session(path)
    session._vectors_ND = unit_length(word_vectors([one.text for one in documents()]))
    for _ in range(8):
        label_next(session)
    session._learn(session._records("train")[:4])
    assert session.state()["num_learned"] == 4
    assert label_next(session)["query"] == "uncertainty"
    session.close()


def test_what_a_label_taught_is_forgotten_with_it(path):
    session = open_session(path)
    session.start()
    for _ in range(6):
        label_next(session)
    wait_until(lambda: session.state()["num_learned"] == 5)
    learned = session._chances_NC
    assert session.undo()
    wait_until(lambda: session.state()["num_learned"] == 4)
    assert not np.array_equal(session._chances_NC, learned)
    session.close()


def test_last_labels_show_the_beginning_of_long_texts():
    assert shortened("a" * SHOWN_CHARACTERS) == "a" * SHOWN_CHARACTERS
    assert shortened("a " * SHOWN_CHARACTERS).endswith("a…")
    assert len(shortened("a" * 1_000)) == SHOWN_CHARACTERS


def test_labels_for_another_text_or_class_are_refused(path):
    session = open_session(path)
    number = session.next_text()["number"]
    with pytest.raises(RefusedError, match="is not the one that is asked for now") as refusal:
        session.label(number + 1, "positive")
    assert refusal.value.status == 409
    assert "Take the one that is shown now" in refusal.value.remedy
    with pytest.raises(RefusedError, match="'neutral' is no class of this session"):
        session.label(number, "neutral")
    assert session.state()["num_labelled"] == 0
    session.close()


def test_skipped_texts_and_repeats_are_not_shown_and_all_texts_come_to_an_end(path):
    some = documents(6)
    session = Session([*some, *some], file=LabelFile(path), vectors=word_vectors, classes=CLASSES)
    session.skip(session.next_text()["number"])
    seen = [label_next(session)["number"] for _ in range(5)]
    assert len(set(seen)) == 5
    assert session.next_text() == {"number": None}
    session.close()


def test_classes_are_named_once_and_remembered(path):
    session = open_session(path, classes=())
    with pytest.raises(RefusedError, match="The classes have no names yet"):
        session.next_text()
    session.choose_classes(["negative", " positive "])
    label_next(session)
    with pytest.raises(RefusedError, match="There are 1 labels of the classes negative, positive"):
        session.choose_classes(["a", "b"])
    session.close()
    again = open_session(path, classes=())
    assert again.state()["classes"] == list(CLASSES)
    again.close()
    with pytest.raises(DataError, match=r"holds the label '\w+', which is no class here"):
        open_session(path, classes=("a", "b"))


@pytest.mark.parametrize(
    "names", [["a"], ["a", "a"], ["a", " "], ["a", "b" * 61], ["x"] * 10, ["a", "b\x00"]]
)
def test_classes_that_have_no_key_or_name_are_refused(names):
    with pytest.raises(DataError, match="There are 2 to 9, for each has a key"):
        checked_classes(names)


def test_labels_of_texts_that_are_gone_count_all_the_same(path):
    file = LabelFile(path)
    file.append(record("a text that is no longer in the file"))
    file.close()
    session = open_session(path)
    assert session.state()["num_texts"] == len(documents()) + 1
    assert session.state()["counts"] == {"negative": 0, "positive": 1}
    session.close()


def test_trouble_with_vectors_is_told_and_labels_are_saved(path):
    def no_vectors(texts):
        raise DataError("The texts share no words.", remedy="Take others.")

    session = Session(documents(), file=LabelFile(path), vectors=no_vectors, classes=CLASSES)
    session.start()
    wait_until(lambda: session.state()["trouble"])
    assert "The texts share no words" in session.state()["trouble"]
    assert label_next(session)["query"] == "random"
    assert session.state()["num_labelled"] == 1
    session.close()


def test_share_interval_is_wilsons():
    low, high = share_interval(9, 10)
    assert (round(low, 4), round(high, 4)) == (0.5958, 0.9821)
    assert share_interval(0, 4)[0] == 0
    assert share_interval(4, 4)[1] == 1
