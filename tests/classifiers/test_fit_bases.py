"""Bases side by side: as many as fit into the time, the same as made one by one, planned once."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from conftest import Recorder
from safetensors.torch import load_file
from tampering import change_facts

from regraft.classifiers import fit_plan
from regraft.classifiers.embeddings import base_dir
from regraft.classifiers.fit_bases import BaseJob, _Bar, make_bases, num_processes
from regraft.classifiers.fit_plan import (
    CLOCK_NAME,
    MOST_PASSES,
    Clock,
    FitLimit,
    Plan,
    read_plan,
)
from regraft.config.resolution import replace, resolve
from regraft.data.synthetic import synthetic_reviews
from regraft.data.tokens.store import open_store
from regraft.data.tokens.store_writer import write_store
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import RunFolderError
from regraft.training.loaded_run import load_run
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import RunFolder, read_info, read_settings

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


def make(text: tuple[Path, Tokenizer], run_dir: Path, limit: FitLimit, **given) -> Plan:
    run_dir.mkdir(exist_ok=True)
    arguments = {
        "folder": RunFolder(run_dir),
        "settings": SETTINGS,
        "num_examples": 100,
        "clock": Clock(run_dir),
        "progress": Recorder(),
        **given,
    }
    return make_bases(text[0], tokenizer=text[1], limit=limit, **arguments)


PLAN = Plan(minutes=None, pass_steps=4, num_pairs=700, base_steps=[4, 4, 4], is_settled=True)
TWO = dataclasses.replace(PLAN, base_steps=[4, 4])


def like(plan: Plan) -> FitLimit:
    return FitLimit.like(plan, minutes=plan.minutes)


@pytest.mark.parametrize("budget", [None, 60.0])
def test_bases_that_are_interrupted_are_not_called_done(tmp_path, budget):
    class Counted(Recorder):
        finished = 0

        def finish(self) -> None:
            self.finished += 1

    said = Counted()
    job = BaseJob(tmp_path / "store", tmp_path / "base", replace(SETTINGS, "train", steps=4))

    def make_some() -> None:
        with _Bar(Clock(tmp_path), budget=budget, progress=said) as bar:
            bar.follow([job])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_some()
    explained, stopped = said.messages
    expected = "up to 16 are made" if budget else "1 base."
    assert explained.startswith(f"Bases are small models of your text: {expected}")
    assert ("up to 16" in explained) == (budget is not None)
    assert stopped == "bases: stopped (0 of 1 bases made)."
    assert said.finished == 0


@pytest.mark.slow
def test_bases_side_by_side_equal_those_made_one_by_one_but_for_their_precision(text, tmp_path):
    run_dir, said = tmp_path / "run", Recorder()
    assert make(text, run_dir, like(PLAN), progress=said) == PLAN
    assert said.tasks == ["bases"]
    settings = read_settings(base_dir(run_dir, 1))
    pretrain([text[0]], out=tmp_path / "alone", settings=settings)
    alone = load_file(tmp_path / "alone" / "model.safetensors")
    kept = load_file(base_dir(run_dir, 1) / "model.safetensors")
    assert alone.keys() == kept.keys()
    for name, tensor in alone.items():
        expected = tensor.half() if tensor.dtype == torch.float32 else tensor
        assert torch.equal(kept[name], expected), name
    assert (settings.train.seed, settings.train.steps, settings.model.num_pairs) == (1, 4, 700)
    assert (settings.train.threads, settings.train.checkpoint_every) == (1, 200)
    assert {p.dtype for p in load_run(base_dir(run_dir, 1)).model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_bases_are_the_same_on_one_core(text, tmp_path, monkeypatch):
    make(text, tmp_path / "two", like(TWO))
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    said = Recorder()
    make(text, tmp_path / "one", like(TWO), progress=said)
    assert said.tasks == ["bases"]
    for number in range(2):
        one, two = (base_dir(tmp_path / name, number) for name in ("one", "two"))
        assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_resumed_recipe_makes_what_was_planned_and_nothing_twice(text, tmp_path):
    run_dir = tmp_path / "run"
    make(text, run_dir, like(TWO))
    made = base_dir(run_dir, 0) / "model.safetensors"
    before = made.stat().st_mtime_ns
    # Planned when there was time; now there is none.
    plan = dataclasses.replace(TWO, minutes=1.0, base_steps=[4, 4, 3], is_settled=False)
    plan.save(run_dir)
    (run_dir / CLOCK_NAME).write_text(json.dumps({"seconds": 900.0}))
    settled = dataclasses.replace(plan, is_settled=True)
    assert make(text, run_dir, FitLimit(minutes=1.0)) == settled == read_plan(run_dir)
    assert made.stat().st_mtime_ns == before
    assert read_info(base_dir(run_dir, 2)).status == "complete"


@pytest.mark.slow
def test_number_of_bases_is_kept_whatever_the_clock_says(text, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / CLOCK_NAME).write_text(json.dumps({"seconds": 1e6}))
    plan = make(text, run_dir, FitLimit(num_bases=3))
    assert (plan.minutes, plan.is_settled, plan.passes) == (None, True, [3.0, 3.0, 3.0])
    # No more pairs than the text has.
    known = open_store(text[0], tokenizer=text[1]).frequent_pairs(num_pairs=5_000, min_count=5)
    assert len(known) <= plan.num_pairs < 5_000
    with pytest.raises(RunFolderError, match="was started with --bases 3"):
        make(text, run_dir, FitLimit(num_bases=4))


@pytest.mark.slow
def test_as_many_bases_are_made_as_the_time_holds(text, tmp_path, monkeypatch):
    monkeypatch.setattr(fit_plan, "MOST_BASES", 5)
    said = Recorder()
    plan = make(text, tmp_path / "run", FitLimit(minutes=60), progress=said)
    # A tiny text: the most bases, as long as any.
    assert plan.passes == [MOST_PASSES] * 5
    assert plan.is_settled
    assert said.tasks == ["bases"]
    assert not (tmp_path / "run" / "trial").exists()


@pytest.mark.slow
def test_base_left_in_single_precision_by_a_crash_is_repaired(text, tmp_path):
    run_dir = tmp_path / "run"
    make(text, run_dir, like(TWO))
    folder = RunFolder(base_dir(run_dir, 0))
    info = read_info(folder.run_dir)
    digest = info.weights_digest
    both = {**info.files, "model.safetensors": f"0 {digest}"}
    change_facts(folder.run_dir / "run.json", files=both)
    assert not folder.has_half_precision
    make(text, run_dir, like(TWO))
    assert folder.has_half_precision
    assert read_info(folder.run_dir).weights_digest == digest


@pytest.mark.slow
def test_time_that_is_gone_still_gives_a_round_of_short_bases(text, tmp_path):
    plan = make(text, tmp_path / "run", FitLimit(minutes=0.001))
    assert len(plan.base_steps) == num_processes()
    assert plan.base_steps[0] == 12
    assert not (tmp_path / "run" / "trial").exists()
