"""Pre-training: what lies in the folder, that it learns, and that stopping changes nothing."""

import io
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Recorder
from safetensors.torch import load_file

from regraft.config.resolution import replace, resolve
from regraft.config.schema import Settings
from regraft.errors import DataError, RunFolderError
from regraft.training.loaded_run import load_run
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import TEACHER_NAME, RunFolder, read_metrics

FILES = ["config.json", "metrics.jsonl", "model.safetensors", "run.json", "tokenizer.json"]


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "model.safetensors")


def assert_equal_weights(first_dir: Path, second_dir: Path) -> None:
    first, second = weights_of(first_dir), weights_of(second_dir)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def metrics_without_times(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if key != "tokens_per_second"}
        for record in read_metrics(run_dir)
    ]


def test_run_folder_holds_what_a_graft_needs(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    settings = replace(tiny_pretrain, "train", checkpoint_every=2)
    result = pretrain([documents_path], out=out, settings=settings)
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert result.run_dir == str(out)
    assert (result.num_steps, result.num_documents) == (6, 60)

    run = load_run(out, kind="language-model")
    assert run.settings == settings
    assert run.tokenizer.vocab_size == result.vocab_size <= 300
    assert run.info.status == "complete"
    assert run.info.result == result.to_dict()
    assert run.info.fingerprints.keys() == {"text", "tokenizer"}


def test_loss_falls_below_the_unigram_entropy(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sees the dog and the dog sees the cat\n" * 60)
    length = {"train.steps": 120, "train.lr": 0.01, "train.valid_share": 0.1}
    objective = {"objective.kind": "causal"}
    settings = resolve("pretrain", overrides={**TINY, "model.dropout": 0, **length, **objective})
    progress = Recorder()
    result = pretrain([text], out=tmp_path / "run", settings=settings, progress=progress)
    assert result.valid_loss < 0.5 * result.unigram_entropy
    assert result.beats_unigram
    losses = [record["loss"] for record in read_metrics(tmp_path / "run") if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    assert any(
        f"the line to beat: {result.unigram_entropy:.3f} nats a token." in message
        for message in progress.messages
    )


def test_pairs_are_validated_on_the_training_text_if_too_little_is_held_out(
    documents_path: Path, tmp_path: Path
) -> None:
    overrides = {**TINY, "train.steps": 2, "train.valid_share": 0.02}
    settings = resolve("pretrain", preset="bert", overrides=overrides)
    progress = Recorder()
    result = pretrain([documents_path], out=tmp_path / "run", settings=settings, progress=progress)
    assert any("Validation reads the others." in message for message in progress.messages)
    assert 0 <= result.readings["valid_pair_accuracy"] <= 1


def test_bits_per_byte_belong_to_the_loss(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    settings = replace(tiny_pretrain, "objective", kind="causal")
    settings = replace(settings, "model", attention="causal")
    result = pretrain([documents_path], out=tmp_path / "run", settings=settings)
    evaluations = [r for r in read_metrics(tmp_path / "run") if "valid_loss" in r]
    ratio = result.bits_per_byte / result.valid_loss
    assert evaluations
    for record in evaluations:
        assert record["valid_bits_per_byte"] / record["valid_loss"] == pytest.approx(ratio)
    # Hardly more tokens than bytes, or many fewer: a token covers one byte or more.
    assert ratio <= 1.1 / math.log(2)


@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_resumed_run_equals_a_straight_one(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path, checkpoint_every: int | None
) -> None:
    settings = replace(tiny_pretrain, "train", steps=12, checkpoint_every=checkpoint_every)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    expected = pretrain([documents_path], out=straight, settings=settings)

    for step in (3, 11):
        with pytest.raises(KeyboardInterrupt):
            pretrain(
                [documents_path],
                out=stopped,
                settings=settings,
                resume=True,
                progress=Recorder(interrupt_at=step),
            )
        assert f"{step:08d}" in [path.name for path in (stopped / "checkpoints").iterdir()]
    progress = Recorder()
    result = pretrain(
        [documents_path], out=stopped, settings=settings, resume=True, progress=progress
    )

    assert f"Resuming {stopped} after step 11." in progress.messages
    assert_equal_weights(straight, stopped)
    assert metrics_without_times(straight) == metrics_without_times(stopped)
    assert result.valid_loss == expected.valid_loss
    assert result.num_tokens == expected.num_tokens
    assert sorted(path.name for path in stopped.iterdir()) == FILES


def test_run_stopped_after_its_last_step_can_be_resumed(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    pretrain([documents_path], out=straight, settings=tiny_pretrain)
    with pytest.raises(KeyboardInterrupt):
        pretrain(
            [documents_path],
            out=stopped,
            settings=tiny_pretrain,
            progress=Recorder(interrupt_at=tiny_pretrain.train.steps),
        )
    result = pretrain([documents_path], out=stopped, settings=tiny_pretrain, resume=True)
    assert result.num_steps == tiny_pretrain.train.steps
    assert_equal_weights(straight, stopped)
    assert metrics_without_times(straight) == metrics_without_times(stopped)


def test_run_killed_after_its_last_validation_logs_it_once(
    documents_path: Path,
    tiny_pretrain: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    steps = tiny_pretrain.train.steps
    settings = replace(tiny_pretrain, "train", checkpoint_every=steps)
    pretrain([documents_path], out=straight, settings=settings)

    def end(*arguments: object, **options: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", end)
        with pytest.raises(SystemExit):
            pretrain([documents_path], out=killed, settings=settings)
    assert metrics_without_times(straight) == metrics_without_times(killed)
    pretrain([documents_path], out=killed, settings=settings, resume=True)
    assert metrics_without_times(straight) == metrics_without_times(killed)


def test_interruption_gives_the_signals_back(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        pretrain(
            [documents_path],
            out=tmp_path / "run",
            settings=tiny_pretrain,
            progress=Recorder(interrupt_at=1),
        )
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("is_there", [True, False])
def test_resume_without_a_run_starts_one(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path, is_there: bool
) -> None:
    out = tmp_path / "run"
    if is_there:
        out.mkdir()
    result = pretrain([documents_path], out=out, settings=tiny_pretrain, resume=True)
    assert result.num_steps == 6


def test_resume_of_a_complete_run_returns_its_result(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = pretrain([documents_path], out=out, settings=tiny_pretrain)
    written = {path.name: path.read_bytes() for path in out.iterdir()}
    # As if killed between its completion and their removal.
    for name in ("checkpoints/00000012", "stages", "tokens"):
        (out / name).mkdir(parents=True)
        (out / name / "manifest.json").touch()
    (out / TEACHER_NAME).touch()
    progress = Recorder()
    second = pretrain(
        [documents_path], out=out, settings=tiny_pretrain, resume=True, progress=progress
    )
    assert second == first
    assert {path.name: path.read_bytes() for path in out.iterdir()} == written
    assert progress.messages[-1] == f"{out} is complete already."


def test_resume_with_other_settings_is_refused(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    pretrain([documents_path], out=out, settings=tiny_pretrain)
    other = replace(tiny_pretrain, "train", lr=0.002, checkpoint_every=7)
    with pytest.raises(RunFolderError) as caught:
        pretrain([documents_path], out=out, settings=other, resume=True)
    assert caught.value.problem == (
        f"{out} was started with other settings or data: train.lr was 0.001 and is 0.002."
    )


def test_resume_with_other_text_is_refused(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    pretrain([documents_path], out=out, settings=tiny_pretrain)
    with documents_path.open("a") as file:
        file.write("one line more\n")
    with pytest.raises(
        RunFolderError, match="was started with other settings or data: text has changed"
    ):
        pretrain([documents_path], out=out, settings=tiny_pretrain, resume=True)


def test_folder_with_a_run_is_not_overwritten(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    pretrain([documents_path], out=out, settings=tiny_pretrain)
    before = weights_of(out)
    with pytest.raises(RunFolderError, match=r"already holds a run\. .* pass --resume to go on"):
        pretrain([documents_path], out=out, settings=replace(tiny_pretrain, "train", seed=1))
    assert torch.equal(
        before["backbone.embedding.weight"], weights_of(out)["backbone.embedding.weight"]
    )


def test_folder_with_other_files_is_refused(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="exists and is not an empty folder"):
        pretrain([documents_path], out=tmp_path, settings=tiny_pretrain, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == [documents_path.name]


def test_seed_decides_the_weights(
    documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        settings = replace(tiny_pretrain, "train", seed=seed)
        pretrain([documents_path], out=tmp_path / name, settings=settings)
    assert_equal_weights(tmp_path / "first", tmp_path / "again")
    first, other = weights_of(tmp_path / "first"), weights_of(tmp_path / "other")
    assert not torch.equal(first["backbone.embedding.weight"], other["backbone.embedding.weight"])


def test_minutes_end_the_run(documents_path: Path, tmp_path: Path) -> None:
    settings = resolve("pretrain", overrides={**TINY, "train.minutes": 0.02})
    result = pretrain([documents_path], out=tmp_path / "run", settings=settings)
    # A step that began within the budget may end beyond it; on a busy machine far beyond.
    assert result.seconds < 3 * 1.2
    assert result.num_steps > 1
    steps = [record["step"] for record in read_metrics(tmp_path / "run") if "loss" in record]
    assert steps[-1] == result.num_steps


def test_text_comes_from_standard_input(
    documents: list[str], tiny_pretrain: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = io.TextIOWrapper(io.BytesIO("\n".join(documents).encode()))
    monkeypatch.setattr("sys.stdin", given)
    assert pretrain(["-"], out=tmp_path / "run", settings=tiny_pretrain).num_documents == 60


def test_several_files_are_one_corpus(
    documents: list[str], documents_path: Path, tiny_pretrain: Settings, tmp_path: Path
) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"text": documents[0]}) + "\n")
    result = pretrain([documents_path, more], out=tmp_path / "run", settings=tiny_pretrain)
    assert result.num_documents == 61


def test_given_tokenizer_is_kept(
    documents_path: Path, tiny_pretrain: Settings, shared_base: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    pretrain([documents_path], out=out, settings=tiny_pretrain, tokenizer_path=shared_base)
    theirs, ours = load_run(shared_base).tokenizer, load_run(out).tokenizer
    assert ours.fingerprint == theirs.fingerprint


def test_validation_on_the_training_text_is_told(tiny_pretrain: Settings, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one document only, and a short one\n")
    progress = Recorder()
    result = pretrain([text], out=tmp_path / "run", settings=tiny_pretrain, progress=progress)
    assert result.num_documents == 1
    assert progress.messages[0] == (
        "Too few documents to hold any out (train.valid_share is 0.1): "
        "validation reads the training text."
    )


def test_empty_texts_leave_no_folder(tiny_pretrain: Settings, tmp_path: Path) -> None:
    text = tmp_path / "text.csv"
    text.write_text('text\n""\n" "\n')
    with pytest.raises(DataError, match="are empty"):
        pretrain([text], out=tmp_path / "run", settings=tiny_pretrain)
    assert os.listdir(tmp_path) == ["text.csv"]
