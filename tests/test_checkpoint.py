"""The run folder: round trips, resumes, and what it refuses."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from regraft.batches import StreamRows, TokenStore
from regraft.checkpoint import (
    FORMAT_VERSION,
    RunFolder,
    RunInfo,
    load_run,
    read_info,
    read_metrics,
    read_settings,
)
from regraft.config import Settings, TokenizerSettings, replace
from regraft.errors import RunFolderError
from regraft.heads import Model, build_classifier, build_language_model
from regraft.objectives import causal
from regraft.runtime import seeded
from regraft.tokenizer import Tokenizer, train_tokenizer
from regraft.trainer import TrainState, build_state, steps

INFO = RunInfo(kind="language-model", status="training", fingerprints={"text": "abc"})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a good book", "a bad book"], settings=TokenizerSettings(size=280))


def new_state(settings: Settings, tokenizer: Tokenizer) -> tuple[TrainState, StreamRows]:
    ids = np.random.default_rng(0).integers(6, tokenizer.vocab_size, size=300).astype(np.uint32)
    rows = StreamRows(TokenStore(ids, np.array([0, 300]), num_bytes=300), max_length=6)
    with seeded(0, stream="weights"):
        model = build_language_model(settings.model, vocab_size=tokenizer.vocab_size)
    return build_state(model, settings=settings.train, num_rows=len(rows.lengths)), rows


def complete_run(run_dir: Path, settings: Settings, tokenizer: Tokenizer) -> Model:
    folder = RunFolder(run_dir)
    info = folder.start(INFO, settings=settings, tokenizer=tokenizer, resume=False)
    state, _ = new_state(settings, tokenizer)
    folder.finish(info, model=state.model)
    return state.model


def test_complete_run_round_trips(tmp_path, tiny_pretrain, tokenizer):
    model = complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    run = load_run(tmp_path / "run", kind="language-model")
    assert run.settings == tiny_pretrain
    assert run.tokenizer.fingerprint == tokenizer.fingerprint
    assert run.info.fingerprints == {"text": "abc"}
    assert run.info.environment["torch"] == torch.__version__
    for name, tensor in model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], tensor)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json",
        "model.safetensors",
        "run.json",
        "tokenizer.json",
    ]


def test_classifier_run_keeps_its_label_names(tmp_path, tiny_finetune, tokenizer):
    folder = RunFolder(tmp_path / "run")
    info = RunInfo(kind="classifier", status="training", labels=("bad", "good", "so-so"))
    info = folder.start(info, settings=tiny_finetune, tokenizer=tokenizer, resume=False)
    model = build_classifier(
        tiny_finetune.model, vocab_size=tokenizer.vocab_size, num_classes=3, pooling="mean"
    )
    folder.finish(info, model=model)
    assert load_run(tmp_path / "run", kind="classifier").info.labels == ("bad", "good", "so-so")


def test_checkpoint_resumes_bit_for_bit(tmp_path, tiny_pretrain, tokenizer):
    straight, rows = new_state(tiny_pretrain, tokenizer)
    list(steps(straight, rows=rows, objective=causal, settings=tiny_pretrain.train))

    folder = RunFolder(tmp_path / "run")
    folder.start(INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False)
    first, _ = new_state(tiny_pretrain, tokenizer)
    for record in steps(first, rows=rows, objective=causal, settings=tiny_pretrain.train):
        folder.log({"step": record.step, "loss": record.loss})
        if record.step == 3:
            folder.save_checkpoint(first, keep=2, extra={"note": "kept"})
        if record.step == 5:
            break
    second, _ = new_state(tiny_pretrain, tokenizer)
    assert RunFolder(tmp_path / "run").load_checkpoint(second) == {"note": "kept"}
    assert second.step == 3
    # What was logged after the checkpoint will be logged again.
    assert [record["step"] for record in read_metrics(tmp_path / "run")] == [1, 2, 3]
    list(steps(second, rows=rows, objective=causal, settings=tiny_pretrain.train))
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor)


def test_only_the_newest_checkpoints_stay(tmp_path, tiny_pretrain, tokenizer):
    folder = RunFolder(tmp_path / "run")
    folder.start(INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False)
    state, rows = new_state(tiny_pretrain, tokenizer)
    for _ in steps(state, rows=rows, objective=causal, settings=tiny_pretrain.train):
        folder.save_checkpoint(state, keep=2)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["00000005", "00000006"]


def test_a_partial_checkpoint_is_not_read(tmp_path, tiny_pretrain, tokenizer):
    folder = RunFolder(tmp_path / "run")
    folder.start(INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False)
    state, _ = new_state(tiny_pretrain, tokenizer)
    folder.save_checkpoint(state, keep=2)
    partial = tmp_path / "run" / "checkpoints" / ".00000099.partial"
    partial.mkdir()
    (partial / "state.json").write_text("{")
    assert folder.load_checkpoint(new_state(tiny_pretrain, tokenizer)[0]) == {}


def test_an_existing_run_is_not_overwritten(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    with pytest.raises(RunFolderError, match=r"already holds a run\. Choose another --out"):
        RunFolder(tmp_path / "run").start(
            INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False
        )


def test_a_foreign_folder_is_not_written_into(tmp_path, tiny_pretrain, tokenizer):
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(RunFolderError, match="is not an empty folder"):
        RunFolder(tmp_path).start(INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=True)


def test_what_a_killed_start_left_behind_does_not_count(tmp_path, tiny_pretrain, tokenizer):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / ".config.json.x7f").write_text("{")
    RunFolder(tmp_path).check_free(resume=False)
    complete_run(tmp_path, tiny_pretrain, tokenizer)
    assert load_run(tmp_path).settings == tiny_pretrain


def test_resume_names_what_changed(tmp_path, tiny_pretrain, tokenizer):
    folder = RunFolder(tmp_path / "run")
    folder.start(INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False)
    changed = replace(tiny_pretrain, "train", lr=0.5, checkpoint_every=3)
    other = dataclasses.replace(INFO, fingerprints={"text": "xyz"})
    with pytest.raises(RunFolderError) as caught:
        folder.start(other, settings=changed, tokenizer=tokenizer, resume=True)
    assert f"train.lr was {tiny_pretrain.train.lr} and is 0.5; text has changed" in str(
        caught.value
    )
    assert "checkpoint_every" not in str(caught.value)


@pytest.mark.parametrize("name", ["run.json", "config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_run_names_the_missing_file(tmp_path, tiny_pretrain, tokenizer, name):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    (tmp_path / "run" / name).unlink()
    with pytest.raises(RunFolderError, match=name):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["run.json", "config.json", "model.safetensors"])
def test_damaged_run_names_the_file(tmp_path, tiny_pretrain, tokenizer, name):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    (tmp_path / "run" / name).write_bytes(b"\x00\x01")
    with pytest.raises(RunFolderError, match=name):
        load_run(tmp_path / "run")


def test_missing_run_says_so(tmp_path):
    with pytest.raises(RunFolderError, match="There is no run folder"):
        read_info(tmp_path / "nothing")


def test_newer_format_is_refused(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    path = tmp_path / "run" / "run.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(RunFolderError, match=r"reads up to 1\. Install a newer regraft"):
        load_run(tmp_path / "run")


def test_unfinished_run_is_refused(tmp_path, tiny_pretrain, tokenizer):
    RunFolder(tmp_path / "run").start(
        INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False
    )
    with pytest.raises(RunFolderError, match=r"has not ended.*--resume"):
        load_run(tmp_path / "run")


def test_other_kind_is_refused(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    with pytest.raises(RunFolderError, match="holds a language-model, not a classifier"):
        load_run(tmp_path / "run", kind="classifier")


def test_tokenizer_of_another_size_is_refused(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    text = ["entirely different words, repeated words, words"] * 3
    other = train_tokenizer(text, settings=TokenizerSettings(size=290))
    assert other.vocab_size != tokenizer.vocab_size
    other.save(tmp_path / "run" / "tokenizer.json")
    with pytest.raises(RunFolderError, match=f"has {other.vocab_size} tokens, but the weights"):
        load_run(tmp_path / "run")


def test_weights_of_another_shape_are_refused(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    path = tmp_path / "run" / "config.json"
    values = json.loads(path.read_text())
    values["model"]["num_layers"] = 1
    path.write_text(json.dumps(values))
    assert read_settings(tmp_path / "run").model.num_layers == 1
    with pytest.raises(RunFolderError, match="does not fit"):
        load_run(tmp_path / "run")


def test_full_disk_leaves_the_last_checkpoint(tmp_path, tiny_pretrain, tokenizer, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.start(INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False)
    state, rows = new_state(tiny_pretrain, tokenizer)
    folder.save_checkpoint(state, keep=2)
    next(steps(state, rows=rows, objective=causal, settings=tiny_pretrain.train))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="The disk is full"):
        folder.save_checkpoint(state, keep=2)
    monkeypatch.undo()
    again, _ = new_state(tiny_pretrain, tokenizer)
    assert folder.load_checkpoint(again) == {}
    assert again.step == 0
