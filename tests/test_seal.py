"""The sealed test file: every opening is written down, every leak found."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, write_examples

from regraft.config import resolve
from regraft.errors import RunFolderError
from regraft.finetune import finetune
from regraft.seal import (
    Opened,
    Seen,
    file_fingerprint,
    find_seen,
    leaked,
    note_opening,
    open_sealed,
    part_in_training,
    sealed_texts,
)
from regraft.text import Document, Example

DATA = resolve("finetune").data


def opened(path: Path, *, choices: str = "a", command: str = "regraft compare") -> Opened:
    return open_sealed(
        path,
        data=DATA,
        choices=choices,
        command=command,
        ledger_path=path.parent / "runs" / "openings.json",
    )


def test_every_opening_is_written_down(tmp_path: Path) -> None:
    test = write_examples(tmp_path / "test.csv", 6, seed=1)
    first = opened(test)
    assert [example.row for example in first.examples] == list(range(2, 8))
    assert [opening.command for opening in first.openings] == ["regraft compare"]
    assert first.openings[0].fingerprint == first.fingerprint
    second = opened(test, choices="b", command="regraft compare --seeds 5")
    assert [opening.command for opening in second.openings] == [
        "regraft compare",
        "regraft compare --seeds 5",
    ]
    assert second.openings[0] == first.openings[0]


def test_reading_for_the_same_choices_is_one_opening(tmp_path: Path) -> None:
    test = write_examples(tmp_path / "test.csv", 6, seed=1)
    assert opened(test) == opened(test)


def test_openings_of_other_files_are_not_told(tmp_path: Path) -> None:
    one, other = (write_examples(tmp_path / f"{n}.csv", 6, seed=n) for n in (1, 2))
    opened(one)
    assert [opening.test for opening in opened(other).openings] == [str(other)]
    ledger = json.loads((tmp_path / "runs" / "openings.json").read_text())
    assert [entry["test"] for entry in ledger] == [str(one), str(other)]


def test_file_under_another_name_is_the_same_file(tmp_path: Path) -> None:
    one, other = (write_examples(tmp_path / f"{n}.csv", 6, seed=1) for n in (1, 2))
    opened(one)
    assert [opening.test for opening in opened(other, choices="b").openings] == [
        str(one),
        str(other),
    ]
    assert file_fingerprint(one) == file_fingerprint(other)
    assert file_fingerprint(tmp_path) != file_fingerprint(one)


def test_damaged_ledger_is_refused(tmp_path: Path) -> None:
    test = write_examples(tmp_path / "test.csv", 6, seed=1)
    opened(test)
    (tmp_path / "runs" / "openings.json").write_text("{}")
    with pytest.raises(RunFolderError, match="it holds no list of openings"):
        opened(test)


def test_sealed_texts_ask_no_label_and_are_no_opening(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text("text,label\nfine,positive\ndull,\n", encoding="utf-8")
    assert [record.text for record in sealed_texts(path, data=DATA)] == ["fine", "dull"]
    assert not any(hasattr(record, "label") for record in sealed_texts(path, data=DATA))
    assert sealed_texts("-", data=DATA) == []
    assert [file.name for file in tmp_path.iterdir()] == ["test.csv"]


def test_opening_is_noted_where_there_can_be_a_ledger(tmp_path: Path) -> None:
    test = write_examples(tmp_path / "test.csv", 6, seed=1)
    runs, file = tmp_path / "runs", tmp_path / "file"
    file.write_text("mine")
    for folder in (runs, file, runs):
        note_opening(
            test,
            data=DATA,
            choices="weights",
            command="regraft evaluate",
            ledger_path=folder / "openings.json",
        )
    assert [opening.command for opening in opened(test).openings] == [
        "regraft evaluate",
        "regraft compare",
    ]
    assert file.read_text() == "mine"


def examples(*texts: str, source: str) -> list[Example]:
    return [Example(text, "a", source, row) for row, text in enumerate(texts, start=2)]


def test_texts_seen_too_early_are_found() -> None:
    long = " ".join(f"word{number}" for number in range(40))
    seen = find_seen(
        examples("one", "two", "three", "two ", "four", source="test.csv"),
        train=examples("one", long, source="train.csv"),
        valid=examples(f"{long} Indeed.", "three", source="valid.csv"),
        documents=iter([Document("four", "text.txt", 1)]),
    )
    assert seen.labelled_N.tolist() == [True, False, True, False, False]
    assert seen.text_N is not None
    assert seen.text_N.tolist() == [False, False, False, False, True]
    assert seen.repeat_N.tolist() == [False, False, False, True, False]
    assert seen.valid_V.tolist() == [True, False]
    assert seen.clean_N.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("num_test", "num_read", "num_deciding"),
    [
        (400, 0, 400),
        (400, 360, 40),  # a tenth is left
        (400, 361, 400),
        (400, 399, 400),
        (400, 400, 400),
        (100, 70, 30),  # more than a tenth, and just enough
        (100, 71, 100),
        (20, 10, 10),  # of a small file, half is enough
        (20, 11, 20),
        (1, 1, 1),
    ],
)
def test_texts_that_were_read_decide_where_too_few_others_are_left(
    num_test: int, num_read: int, num_deciding: int
) -> None:
    is_read_N = np.arange(num_test) < num_read
    none_N = np.zeros(num_test, dtype=np.bool_)
    seen = Seen(("",) * num_test, none_N, is_read_N, none_N, none_N)
    assert seen.clean_N.sum() == num_deciding
    assert seen.num_unread == num_test - num_read
    assert seen.num_read_deciding == (num_read if num_deciding == num_test else 0)


def test_text_that_holds_every_test_text_leaves_them_to_decide() -> None:
    test = examples("one", "two", source="test.csv")
    documents = [Document("one", "text.txt", 1), Document("two", "text.txt", 2)]
    found = find_seen(test, train=examples("x", source="train.csv"), valid=[], documents=documents)
    assert found.clean_N.tolist() == [True, True]


def test_leaks_are_exact_or_near() -> None:
    words = [f"word{number}" for number in range(40)]
    texts = [" ".join(words), " ".join([*words[:-1], "other"]), "nothing of the kind"]
    test = [Example(text, "a", "test.csv", row) for row, text in enumerate(texts, start=2)]
    seen = (Document(text, "text.txt", 1) for text in [" ".join(words), "something else"])
    assert leaked(test, seen).tolist() == [True, True, False]
    assert leaked(test, []).tolist() == [False, False, False]


def test_run_knows_the_file_it_was_trained_on(shared_classifier: Path, tmp_path: Path) -> None:
    train = shared_classifier.parent / "train.csv"
    assert part_in_training(shared_classifier, train, data=DATA) == "train"
    copy = tmp_path / "named otherwise.csv"
    copy.write_bytes(train.read_bytes())
    assert part_in_training(shared_classifier, copy, data=DATA) == "train"
    other = write_examples(tmp_path / "test.csv", 32, seed=4)
    assert part_in_training(shared_classifier, other, data=DATA) is None
    assert part_in_training(shared_classifier, "-", data=DATA) is None


def test_run_knows_the_file_it_was_watched_on(shared_base: Path, tmp_path: Path) -> None:
    files = {
        name: write_examples(tmp_path / f"{name}.csv", 12, seed=n) for n, name in enumerate("abc")
    }
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1})
    run = tmp_path / "run"
    finetune(base=shared_base, train=files["a"], valid=files["b"], out=run, settings=settings)
    found = [part_in_training(run, file, data=DATA) for file in files.values()]
    assert found == ["train", "valid", None]
