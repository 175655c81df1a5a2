"""The sealed test file: every opening is written down."""

import json
from pathlib import Path

import pytest
from conftest import write_examples
from filelock import FileLock

from regraft.comparison.test_set import (
    Opened,
    file_fingerprint,
    note_opening,
    open_sealed,
    sealed_texts,
)
from regraft.config.resolution import resolve
from regraft.errors import RunFolderError

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
    with pytest.raises(RunFolderError, match=r"openings\.json"):
        opened(test)


def test_score_does_not_wait_for_a_ledger_that_stays_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = write_examples(tmp_path / "test.csv", 6, seed=1)
    ledger = tmp_path / "runs" / "openings.json"
    opened(test)
    before = ledger.read_text()
    monkeypatch.setattr("regraft.comparison.test_set.SECONDS_TO_NOTE", 0.1)
    with FileLock(ledger.with_suffix(".lock")):
        note_opening(test, data=DATA, choices="b", command="regraft evaluate", ledger_path=ledger)
    assert ledger.read_text() == before


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
