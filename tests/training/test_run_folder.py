"""The run folder: round trips, resumes, and what it refuses."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tampering import accept_files, change_facts

from regraft.config.resolution import replace
from regraft.config.schema import Settings, TokenizerSettings
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import DiskError, RunFolderError
from regraft.models.heads import Model, build_classifier, build_language_model
from regraft.runtime.hardware import seeded
from regraft.training.loaded_run import load_run
from regraft.training.run_folder import (
    RunFolder,
    RunInfo,
    read_info,
    read_metrics,
    read_settings,
)

INFO = RunInfo(kind="language-model", status="training", fingerprints={"text": "abc"})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["a good book", "a bad book"], settings=TokenizerSettings(size=280))


def complete_run(run_dir: Path, settings: Settings, tokenizer: Tokenizer) -> Model:
    folder = RunFolder(run_dir)
    info = folder.start(INFO, settings=settings, tokenizer=tokenizer, resume=False)
    with seeded(0, stream="weights"):
        model = build_language_model(settings.model, vocab_size=tokenizer.vocab_size)
    folder.finish(info, model=model)
    return model


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


def test_run_without_a_temperature_is_an_older_one(shared_classifier, tmp_path):
    temperature = read_info(shared_classifier).temperature
    assert temperature is not None
    old = shutil.copytree(shared_classifier, tmp_path / "old")
    result = read_info(old).result
    assert result.pop("temperature") == temperature
    change_facts(old / "run.json", temperature=..., result=result)
    run = load_run(old, kind="classifier")
    assert run.info.temperature is None
    assert run.fingerprint == load_run(shared_classifier).fingerprint


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
    path.write_text(json.dumps({**values, "format_version": 2}))
    with pytest.raises(RunFolderError, match=r"format_version 2"):
        load_run(tmp_path / "run")


def test_run_of_another_commit_is_refused_by_its_fields(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    path = tmp_path / "run" / "run.json"
    change_facts(path, mood="good")
    with pytest.raises(RunFolderError, match=r"another version of regraft.*mood"):
        load_run(tmp_path / "run")


def test_unfinished_run_is_refused(tmp_path, tiny_pretrain, tokenizer):
    RunFolder(tmp_path / "run").start(
        INFO, settings=tiny_pretrain, tokenizer=tokenizer, resume=False
    )
    with pytest.raises(RunFolderError, match=r"is not finished.*--resume"):
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
    accept_files(tmp_path / "run")
    with pytest.raises(RunFolderError, match=f"has {other.vocab_size} tokens, but the weights"):
        load_run(tmp_path / "run")


def test_weights_of_another_shape_are_refused(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    path = tmp_path / "run" / "config.json"
    values = json.loads(path.read_text())
    values["model"]["num_layers"] = 1
    path.write_text(json.dumps(values))
    accept_files(tmp_path / "run")
    assert read_settings(tmp_path / "run").model.num_layers == 1
    with pytest.raises(RunFolderError, match="does not fit"):
        load_run(tmp_path / "run")


def test_changed_weights_are_refused(tmp_path, tiny_pretrain, tokenizer):
    complete_run(tmp_path / "run", tiny_pretrain, tokenizer)
    path = tmp_path / "run" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match=r"model\.safetensors is damaged: it changed since"):
        load_run(tmp_path / "run")


def test_folder_in_use_is_refused(tmp_path):
    script = """
import sys, time
from pathlib import Path
from regraft.training.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        with (
            pytest.raises(RunFolderError, match="is in use by another process"),
            RunFolder(tmp_path / "run").locked(),
        ):
            pass
    finally:
        owner.kill()
        owner.communicate()
    # Killed, its lock is gone with it.
    with RunFolder(tmp_path / "run").locked():
        assert (tmp_path / "run").is_dir()


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(KeyError), RunFolder(tmp_path / "run").locked():
        raise KeyError
    assert not (tmp_path / "run").exists()


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DiskError, match=r"Cannot write .*file.run.*Choose a folder you may write"),
        RunFolder(tmp_path / "file" / "run").locked(),
    ):
        pass


def test_metrics_after_a_step_are_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.log({"step": step})
    folder.truncate_metrics(after=2)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2]
