"""What the list of runs says of whole, growing, damaged and foreign folders."""

import json
import os
import shutil
import time
from dataclasses import asdict, replace

import pytest
from comparisons import ARMS, comparison
from random_runs import write_run
from tampering import change_facts

from regraft.apps.serve.limits import RefusedError
from regraft.apps.studio import runs
from regraft.apps.studio.runs import RunsFolder, curve, report
from regraft.comparison.folder import ArmsFolder, TrainedCell
from regraft.comparison.plan import Cell
from regraft.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "base", preset="lab", objective="causal")
    write_run(tmp_path / "deep" / "reviews", preset="modern", objective="masked", pooling="mean")
    return tmp_path


def rows_by_name(folder):
    return {row.name: row for row in RunsFolder(folder).rows()}


def change_info(run_dir, **values):
    change_facts(run_dir / "run.json", **values)


def make_old(folder, *, seconds):
    """As if nothing below had changed for so long."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - seconds,) * 2)


def test_rows_say_what_can_be_done_with_each_run(folder):
    rows = rows_by_name(folder)
    assert set(rows) == {"base", "deep/reviews"}
    base, reviews = rows["base"], rows["deep/reviews"]
    assert (base.kind, base.status, base.can_continue) == ("language-model", "complete", True)
    assert not base.can_classify
    assert reviews.can_classify
    assert reviews.has_attention
    assert not reviews.can_continue
    assert reviews.labels == ("bad", "good", "so so")
    json.dumps(reviews.to_dict(), allow_nan=False)


def test_a_masked_base_cannot_continue_and_a_bag_has_no_attention(tmp_path):
    write_run(tmp_path / "masked", preset="modern", objective="masked")
    write_run(tmp_path / "bag", preset="bag", objective="contrast", pooling="mean")
    rows = rows_by_name(tmp_path)
    assert not rows["masked"].can_continue
    assert rows["bag"].can_classify
    assert not rows["bag"].has_attention


def test_score_is_that_of_the_weights_kept(tmp_path):
    accuracies = {"valid_accuracy": [0.5, 0.9, 0.7]}
    options = {"preset": "lab", "objective": "causal", "pooling": "last"}
    write_run(tmp_path / "last", result=accuracies, **options)
    write_run(tmp_path / "best", result={**accuracies, "best_epoch": 1}, **options)
    rows = rows_by_name(tmp_path)
    assert rows["last"].score.text == "70.0 %"
    assert rows["best"].score.text == "90.0 %"


def test_a_run_that_trains_comes_first(folder):
    change_info(folder / "base", status="training")
    with RunFolder(folder / "base").locked():
        first = RunsFolder(folder).rows()[0]
    assert (first.name, first.status, first.can_continue) == ("base", "training", False)


def test_runs_that_train_keep_their_places_whichever_has_news(folder):
    change_info(folder / "base", status="training", created="2026-11-17T08:00:00+00:00")
    change_info(folder / "deep/reviews", status="training", created="2026-11-17T09:00:00+00:00")
    with RunFolder(folder / "base").locked(), RunFolder(folder / "deep/reviews").locked():
        for name in ("deep/reviews", "base"):
            RunFolder(folder / name).log({"step": 1, "loss": 2.5})
            found = [row.name for row in RunsFolder(folder).rows()]
            assert found == ["deep/reviews", "base"]


def test_damaged_runs_are_listed_with_their_problem_and_without_their_place(folder):
    (folder / "base" / "run.json").write_text("{", encoding="utf-8")
    row = rows_by_name(folder)["base"]
    assert row.status == row.kind == "damaged"
    assert "base/run.json cannot be read" in row.note
    assert str(folder) not in row.note


def test_parts_of_runs_are_no_runs_but_bases_of_a_blend_are(folder):
    shutil.copytree(folder / "base", folder / "blend")
    shutil.copytree(folder / "base", folder / "blend" / "bases" / "0")
    for inner in ("blend/checkpoints/1", "arms/scratch", ".hidden"):
        shutil.copytree(folder / "base", folder / inner)
    rows = rows_by_name(folder)
    assert set(rows) == {"base", "blend", "blend/bases/0", "deep/reviews"}
    assert rows["blend/bases/0"].part_of == rows["blend"].id
    assert {rows[name].part_of for name in ("base", "blend", "deep/reviews")} == {""}


def test_bases_come_behind_their_blend_in_the_order_they_were_made_in(folder):
    change_info(folder / "base", kind="blend")
    for number in (10, 9, 0):
        shutil.copytree(folder / "deep" / "reviews", folder / "base" / "bases" / str(number))
    names = [row.name for row in RunsFolder(folder).rows()]
    first = names.index("base")
    assert names[first : first + 4] == ["base", "base/bases/0", "base/bases/9", "base/bases/10"]
    # Opened on the bases alone, they are no parts of anything.
    assert {row.part_of for row in RunsFolder(folder / "base" / "bases").rows()} == {""}


def test_what_a_base_logs_is_news_of_its_blend(folder):
    blend, base = folder / "base", folder / "base" / "bases" / "0"
    change_info(blend, kind="blend", status="training")
    shutil.copytree(folder / "deep" / "reviews", base)
    change_info(base, status="training")
    make_old(folder, seconds=1_000)
    assert time.time() - rows_by_name(folder)["base"].updated > 900
    RunFolder(base).log({"step": 1, "loss": 2.5})
    assert time.time() - rows_by_name(folder)["base"].updated < 900
    make_old(folder, seconds=1_000)
    (blend / "members" / "linear").mkdir(parents=True)
    assert time.time() - rows_by_name(folder)["base"].updated < 900


def test_a_training_without_its_process_is_interrupted_at_once(folder):
    change_info(folder / "base", status="training")
    assert rows_by_name(folder)["base"].status == "interrupted"
    with RunFolder(folder / "base").locked():
        assert rows_by_name(folder)["base"].status == "training"
    (folder / "base" / "run.lock").touch()  # as a kill leaves it
    assert rows_by_name(folder)["base"].status == "interrupted"


def test_a_checkpoint_is_news_of_a_run(folder):
    change_info(folder / "base", status="training")
    make_old(folder, seconds=1_000)
    (folder / "base" / "checkpoints" / "00000010").mkdir(parents=True)
    assert time.time() - rows_by_name(folder)["base"].updated < 900


def test_a_folder_that_is_a_run_itself_is_listed(folder):
    assert list(rows_by_name(folder / "base")) == ["base"]


def write_comparison(out_dir, **changes):
    found = comparison(**changes)
    (out_dir / "report.html").write_text("<!doctype html>", encoding="utf-8")
    (out_dir / "report.json").write_text(json.dumps(asdict(found)), encoding="utf-8")


def test_a_comparison_is_listed_with_its_verdict_and_the_score_of_its_base(tmp_path):
    write_comparison(tmp_path)
    (row,) = RunsFolder(tmp_path).rows()
    assert (row.kind, row.status) == ("comparison", "complete")
    assert row.note == "Pre-training did not pay: linear is 6.2 points better."
    assert (row.score.name, row.score.text) == ("test accuracy, pretrained", "78.0 %")
    assert report(tmp_path) == b"<!doctype html>"


def test_a_comparison_that_all_test_examples_decide_has_the_score_of_all(tmp_path):
    arms = tuple(replace(arm, test_accuracy_without_leaks=None) for arm in ARMS)
    write_comparison(tmp_path, arms=arms)
    (row,) = RunsFolder(tmp_path).rows()
    assert row.score.text == "79.0 %"


def test_a_comparison_without_a_base_has_the_score_of_its_first_arm(tmp_path):
    write_comparison(tmp_path, arms=ARMS[1::2], tests=())
    (row,) = RunsFolder(tmp_path).rows()
    assert row.score.name == "test accuracy, scratch"


def test_a_fit_has_the_test_score_where_there_is_one(folder):
    scores = {"blend": {"accuracy": {"mean": 0.75}}}
    change_info(folder / "base", kind="blend", result={"scores": scores})
    score = rows_by_name(folder)["base"].score
    assert (score.name, score.text) == ("accuracy on unseen labels", "75.0 %")
    (folder / "base" / "report").mkdir()
    tested = comparison(arms=(replace(ARMS[0], name="blend"), *ARMS[1:]), tests=())
    for found, expected in (
        (tested, ("test accuracy", "78.0 %")),
        (None, (score.name, score.text)),
    ):
        values = {"tested": None if found is None else asdict(found)}
        path = folder / "base" / "report" / "report.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        path.with_suffix(".html").write_text("<!doctype html>", encoding="utf-8")
        score = rows_by_name(folder)["base"].score
        assert (score.name, score.text) == expected


def test_a_report_that_is_not_ours_is_listed_without_a_score(tmp_path):
    write_comparison(tmp_path)
    for text in ("{", "[]", "{}", '{"arms": [], "verdict": 1}'):
        (tmp_path / "report.json").write_text(text, encoding="utf-8")
        (row,) = RunsFolder(tmp_path).rows()
        assert (row.kind, row.score, row.has_report) == ("comparison", None, True)


def test_a_comparison_that_runs_is_listed_from_its_first_moment(tmp_path):
    arms = ArmsFolder(tmp_path / "compared")
    with arms.opened({"settings": {}}):
        (row,) = RunsFolder(tmp_path).rows()
        assert (row.name, row.kind, row.status) == ("compared", "comparison", "training")
        assert row.note == "0 trainings finished so far."
        assert row.created
        assert not row.has_report
        make_old(tmp_path, seconds=10_000)
        cell = Cell("linear", 50, 0)
        arms.model_dir(cell).mkdir(parents=True)
        arms.mark_finished(TrainedCell(cell, (0.5,), 1.0, 1.0, {}))
        (row,) = RunsFolder(tmp_path).rows()
        assert row.note == "1 training finished so far."
        assert time.time() - row.updated < 900
        write_comparison(tmp_path / "compared")
        (row,) = RunsFolder(tmp_path).rows()
        assert row.status == "complete"


def test_a_folder_that_is_not_there_yet_has_no_runs(folder):
    assert RunsFolder(folder / "runs").rows() == []


def test_an_unknown_id_and_a_run_that_went_are_refused(folder):
    found = RunsFolder(folder)
    run_id = {row.name: row.id for row in found.rows()}["base"]
    assert found.path(run_id) == folder / "base"
    shutil.rmtree(folder / "base")
    for asked in (run_id, "0" * 16, "../base", "base"):
        with pytest.raises(
            RefusedError, match="This run is not in the folder, or no longer"
        ) as refusal:
            found.path(asked)
        assert refusal.value.status == 404


def test_curve_goes_on_where_it_stopped_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3.5}\n{"step": 2, "lo', encoding="utf-8")
    first = curve(tmp_path)
    assert first["records"] == [{"step": 1, "loss": 3.5}]
    with path.open("a", encoding="utf-8") as file:
        file.write('ss": NaN}\n')
    second = curve(tmp_path, cursor=first["cursor"])
    assert second["records"] == [{"step": 2, "loss": None}]
    assert not second["is_new"]
    assert curve(tmp_path, cursor=second["cursor"])["records"] == []


def test_curve_of_a_run_that_was_begun_anew_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n', encoding="utf-8")
    cursor = curve(tmp_path)["cursor"]
    beside = tmp_path / "beside"
    beside.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n', encoding="utf-8")
    beside.replace(path)
    found = curve(tmp_path, cursor=cursor)
    assert found["is_new"]
    assert len(found["records"]) == 3


@pytest.mark.parametrize("cursor", ["", "x", "1.-5", "1.9999999999999999999999", ".", "1.²"])
def test_curve_takes_any_cursor(tmp_path, cursor):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nnot json\n[]\n', encoding="utf-8")
    assert curve(tmp_path, cursor=cursor)["records"] == [{"step": 1}]


def test_a_long_curve_comes_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MOST_CURVE_BYTES", 30)
    lines = "".join(f'{{"step": {step}}}\n' for step in range(1, 8))
    (tmp_path / "metrics.jsonl").write_text(lines, encoding="utf-8")
    found, cursor, is_all = [], "", False
    while not is_all:
        part = curve(tmp_path, cursor=cursor)
        found += [record["step"] for record in part["records"]]
        cursor, is_all = part["cursor"], part["is_all"]
    assert found == list(range(1, 8))


def test_the_report_of_fit_is_found_in_its_run(folder):
    (folder / "base" / "report").mkdir()
    (folder / "base" / "report" / "report.html").write_text("<!doctype html>", encoding="utf-8")
    rows = rows_by_name(folder)
    assert set(rows) == {"base", "deep/reviews"}
    assert rows["base"].has_report
    assert not rows["deep/reviews"].has_report
    assert report(folder / "base") == b"<!doctype html>"


def test_a_run_without_report_says_so(tmp_path):
    with pytest.raises(RefusedError, match="This run has no report to show"):
        report(tmp_path)
