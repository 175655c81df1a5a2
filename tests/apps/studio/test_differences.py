"""In what runs differ: scores side by side, settings and data that are not the same."""

import pytest
from random_runs import tiny_tokenizer, write_run

from regraft.apps.serve.limits import RefusedError
from regraft.apps.studio.differences import MOST_COMPARED, differences
from regraft.apps.studio.runs import RunsFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("runs"), tiny_tokenizer()
    options = {"preset": "lab", "objective": "causal", "tokenizer": tokenizer}
    write_run(folder / "first", result={"valid_loss": 2.25}, **options)
    write_run(folder / "second", overrides={"train.lr": 0.5, "train.seed": 3}, **options)
    write_run(
        folder / "reviews",
        preset="modern",
        objective="masked",
        pooling="mean",
        tokenizer=tokenizer,
        result={"valid_accuracy": [0.8]},
    )
    return folder


def compared(folder, *names):
    rows = {row.name: row for row in RunsFolder(folder).rows()}
    return differences([(rows[name], folder / name) for name in names])


def lines(found):
    return {line["name"]: line["values"] for line in found}


def test_settings_that_differ_are_told_and_those_in_common_are_not(folder):
    found = compared(folder, "first", "second")
    settings = lines(found["settings"])
    assert settings["train.seed"] == ["0", "3"]
    assert settings["train.lr"][1] == "0.5"
    assert set(settings) == {"train.seed", "train.lr"}
    assert lines(found["scores"]) == {"valid loss": ["2.250", ""]}
    assert found["note"] == ""


def test_losses_of_different_objectives_are_said_not_to_compare(folder):
    found = compared(folder, "first", "reviews")
    assert lines(found["settings"])["kind"] == ["base", "classifier"]
    assert lines(found["scores"]) == {"valid loss": ["2.250", ""], "valid accuracy": ["", "80.0 %"]}
    assert found["note"] == "Losses do not compare; what differs: kind, objective.kind."


def test_a_run_that_cannot_be_read_differs_in_all_and_breaks_nothing(folder, tmp_path):
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    (row,) = RunsFolder(tmp_path).rows()
    first = RunsFolder(folder).rows()[0]
    found = differences([(row, tmp_path), (first, folder / first.name)])
    assert {line["values"][0] for line in found["settings"]} == {""}


def test_more_runs_than_the_page_can_draw_are_refused(folder):
    names = ["first"] * (MOST_COMPARED + 1)
    with pytest.raises(RefusedError, match=r"25 runs are ticked\. The page compares up to 24"):
        compared(folder, *names)
