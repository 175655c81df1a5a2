"""Bases side by side: as many as fit into the time, the same as made one by one, planned once."""

import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Recorder
from safetensors.torch import load_file

from regraft.classifiers import fit_bases as ensemble
from regraft.classifiers.embeddings import base_dir
from regraft.classifiers.fit_bases import (
    MOST_BASES,
    PLAN_NAME,
    Clock,
    Plan,
    make_bases,
    next_bases,
)
from regraft.config.resolution import replace, resolve
from regraft.config.schema import Settings
from regraft.data.synthetic import synthetic_reviews
from regraft.data.tokens.store import open_store
from regraft.data.tokens.store_writer import write_store
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.training import train_tokenizer
from regraft.errors import RunFolderError
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import RunFolder, load_run, read_info

SETTINGS = resolve(
    "pretrain",
    preset="bag",
    overrides={
        "model.width": 12,
        "model.num_pairs": 5_000,
        "tokenizer.size": 300,
        "data.max_length": 48,
        "train.batch_size": 2,
    },
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    folder = tmp_path_factory.mktemp("text")
    reviews = [review.text for review in synthetic_reviews(num_documents=250, seed=1)]
    (folder / "text.txt").write_text("".join(" ".join(r.split()) + "\n" for r in reviews))
    tokenizer = train_tokenizer(reviews, settings=SETTINGS.tokenizer)
    write_store(
        [folder / "text.txt"],
        data=SETTINGS.data,
        tokenizer=tokenizer,
        store_dir=folder / "store",
    )
    return folder / "store", tokenizer


def make(text: tuple[Path, Tokenizer], run_dir: Path, **given) -> tuple[int, float]:
    run_dir.mkdir(exist_ok=True)
    arguments = {
        "folder": RunFolder(run_dir),
        "settings": SETTINGS,
        "num_examples": 100,
        "clock": Clock(time.perf_counter(), 600.0),
        "progress": Recorder(),
        **given,
    }
    return make_bases(text[0], tokenizer=text[1], **arguments)


def write_plan(run_dir: Path, **given) -> Plan:
    plan = Plan(
        passes=1.0,
        pass_steps=4,
        num_pairs=700,
        base_steps=[4, 4, 4],
        is_side_by_side=True,
        is_settled=True,
    )
    plan = dataclasses.replace(plan, **given)
    run_dir.mkdir()
    (run_dir / PLAN_NAME).write_text(json.dumps(dataclasses.asdict(plan)))
    return plan


def one_by_one(text: tuple[Path, Tokenizer], out: Path, *, plan: Plan, seed: int) -> Settings:
    settings = ensemble._alone(replace(SETTINGS, "train", seed=seed, epochs=None, steps=4))
    settings = replace(settings, "model", num_pairs=plan.num_pairs)
    pretrain([text[0]], out=out, settings=settings)
    return settings


@pytest.mark.slow
def test_bases_side_by_side_equal_those_made_one_by_one_but_for_their_precision(text, tmp_path):
    run_dir, told = tmp_path / "run", Recorder()
    plan = write_plan(run_dir)
    assert make(text, run_dir, progress=told) == (3, 1.0)
    assert told.tasks == ["bases"]
    settings = one_by_one(text, tmp_path / "alone", plan=plan, seed=1)
    alone = load_file(tmp_path / "alone" / "model.safetensors")
    kept = load_file(base_dir(run_dir, 1) / "model.safetensors")
    assert alone.keys() == kept.keys()
    for name, tensor in alone.items():
        expected = tensor.half() if tensor.dtype == torch.float32 else tensor
        assert torch.equal(kept[name], expected), name
    loaded = load_run(base_dir(run_dir, 1))
    assert loaded.settings == settings
    assert (settings.train.threads, settings.train.checkpoint_every) == (1, 200)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_resumed_recipe_makes_what_was_planned_and_nothing_twice(text, tmp_path):
    run_dir = tmp_path / "run"
    write_plan(run_dir, base_steps=[4, 4])
    make(text, run_dir)
    made = base_dir(run_dir, 0) / "model.safetensors"
    before = made.stat().st_mtime_ns
    plan = json.loads((run_dir / PLAN_NAME).read_text())
    (run_dir / PLAN_NAME).write_text(json.dumps({**plan, "base_steps": [4, 4, 3]}))
    # A clock that has run out: the plan was made when it had not.
    assert make(text, run_dir, clock=Clock(time.perf_counter() - 900, 600.0)) == (3, 1.0)
    assert made.stat().st_mtime_ns == before
    assert read_info(base_dir(run_dir, 2)).status == "complete"


@pytest.mark.slow
def test_as_many_bases_are_made_as_the_time_holds(text, tmp_path, monkeypatch):
    monkeypatch.setattr(ensemble, "MOST_BASES", 5)
    run_dir = tmp_path / "run"
    assert make(text, run_dir) == (5, 3.0)
    plan = json.loads((run_dir / PLAN_NAME).read_text())
    # No larger than its text has pairs.
    known = open_store(text[0], tokenizer=text[1]).frequent_pairs(num_pairs=5_000, min_count=5)
    assert len(plan["base_steps"]) == 5
    assert plan["is_settled"]
    assert 0 < plan["num_pairs"] < 5_000
    assert plan["num_pairs"] >= len(known)


def plan_of(num_bases: int, *, passes: float = 3.0) -> Plan:
    steps = [round(passes * 100)] * num_bases
    return Plan(passes, 100, 700, steps, is_side_by_side=True, is_settled=False)


@pytest.mark.parametrize(
    ("num_made", "left", "expected"),
    [
        (2, 350.0, [300, 300]),  # a round, then the rest is seen again
        (2, 1_600.0, [300] * 6),  # three rounds of five at once
        (2, 250.0, [250, 250]),  # a shorter last round
        (2, 99.0, []),  # a third of the length is the least
        (2, -20.0, []),
        (MOST_BASES - 1, 1e6, [300]),
        (MOST_BASES, 1e6, []),
    ],
)
def test_rounds_of_bases_fill_the_time_that_is_left(num_made, left, expected):
    found = next_bases(plan_of(num_made), step_seconds=1.0, left=left, num_jobs=2)
    assert found == expected


def test_large_text_ends_with_half_a_pass_at_least():
    plan = plan_of(2, passes=1.0)
    assert next_bases(plan, step_seconds=1.0, left=51.0, num_jobs=2) == [51, 51]
    assert next_bases(plan, step_seconds=1.0, left=49.0, num_jobs=2) == []


def test_planned_rounds_use_nearly_all_of_any_time():
    for left in np.linspace(320, 4_000, 57):
        plan, remaining = plan_of(2), left
        while more := next_bases(plan, step_seconds=1.0, left=remaining, num_jobs=2):
            remaining -= sum(more) / 2
            plan = dataclasses.replace(plan, base_steps=[*plan.base_steps, *more])
            assert remaining >= -1e-9
        assert remaining < 100 or len(plan.base_steps) == MOST_BASES


@pytest.mark.slow
def test_recipe_resumed_in_its_first_round_goes_on_by_the_whole_time(text, tmp_path):
    run_dir = tmp_path / "run"
    write_plan(run_dir, base_steps=[4, 4])
    make(text, run_dir)
    plan = json.loads((run_dir / PLAN_NAME).read_text())
    (run_dir / PLAN_NAME).write_text(json.dumps({**plan, "is_settled": False}))
    # Both are there, so that nothing is waited for; each says that it took ten minutes.
    for number in range(2):
        path = base_dir(run_dir, number) / "run.json"
        facts = json.loads(path.read_text())
        path.write_text(json.dumps({**facts, "result": {**facts["result"], "seconds": 6_000.0}}))
    assert make(text, run_dir, clock=Clock(time.perf_counter(), 500.0))[0] == 2


@pytest.mark.slow
def test_base_left_in_single_precision_by_a_crash_is_mended(text, tmp_path):
    run_dir = tmp_path / "run"
    write_plan(run_dir, base_steps=[4, 4])
    make(text, run_dir)
    folder = RunFolder(base_dir(run_dir, 0))
    path = folder.run_dir / "run.json"
    digest = read_info(folder.run_dir).weights_digest
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights_digest": None}))
    assert not folder.has_half_precision
    make(text, run_dir)
    assert folder.has_half_precision
    assert read_info(folder.run_dir).weights_digest == digest


def test_plan_of_another_version_is_refused(text, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PLAN_NAME).write_text(json.dumps({"num_bases": 4, "passes": 3.0}))
    with pytest.raises(RunFolderError, match="resumed by the version that began it"):
        make(text, tmp_path / "run")


def test_features_get_their_time_but_never_more_than_their_share():
    clock = Clock(time.perf_counter(), 1_000.0)
    assert clock.left_for_bases(2_000) == pytest.approx(1_000 - 50, abs=1)
    assert clock.left_for_bases(50_000_000) == pytest.approx(800, abs=1)


def test_text_that_cannot_be_seen_once_gives_one_base_that_says_so(text, tmp_path):
    told = Recorder()
    num_bases, passes = make(
        text, tmp_path / "run", clock=Clock(time.perf_counter(), 0.01), progress=told
    )
    assert num_bases == 1
    assert 0 < passes < 1
    assert any("More --minutes would help." in message for message in told.messages)
