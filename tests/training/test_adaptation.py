"""Pre-training that goes on from a base, and a base that adapts before it is grafted."""

import dataclasses
from pathlib import Path

import pytest
import torch
from conftest import TINY, Recorder, make_examples, write_examples
from safetensors.torch import load_file
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.errors import ConfigError, RunFolderError
from regraft.training.adaptation import adapt, adapted_dir
from regraft.training.loaded_run import load_run
from regraft.training.pretraining import pretrain
from regraft.training.run_folder import read_info, read_settings


@pytest.fixture
def books(tmp_path: Path) -> Path:
    path = tmp_path / "books.txt"
    path.write_text("".join(f"{text}\n" for text, _ in make_examples(40, seed=8)))
    return path


def going_on(base: Path, **overrides: object) -> Settings:
    return resolve(
        "pretrain",
        base=read_settings(base),
        overrides={
            **{key: value for key, value in TINY.items() if key.startswith(("data.", "train."))},
            "train.steps": 4,
            "train.valid_share": 0.1,
            **overrides,
        },
    )


def test_pretraining_goes_on_from_the_weights_of_a_base(
    shared_base: Path, books: Path, tmp_path: Path
):
    # At a rate of almost nothing the weights are those of the base.
    settings = going_on(shared_base, **{"train.lr": 1e-12})
    pretrain([books], out=tmp_path / "run", base=shared_base, settings=settings)
    old, new = (load_file(run / "model.safetensors") for run in (shared_base, tmp_path / "run"))
    assert old.keys() == new.keys()
    for name in old:
        torch.testing.assert_close(new[name], old[name], rtol=0, atol=1e-6)
    info = read_info(tmp_path / "run")
    assert info.kind == "language-model"
    assert info.base == {"run_dir": str(shared_base)}
    base, run = load_run(shared_base), load_run(tmp_path / "run")
    assert run.tokenizer.fingerprint == base.tokenizer.fingerprint
    # The embeddings of a base know more than those of a bag: no stage words.
    expected = dataclasses.replace(base.settings.objective, stages="documents+language")
    assert run.settings.objective == expected


def test_interrupted_continuation_equals_a_straight_one(
    shared_base: Path, books: Path, tmp_path: Path
):
    inputs = {"base": shared_base, "settings": going_on(shared_base)}
    pretrain([books], out=tmp_path / "straight", **inputs)
    with pytest.raises(KeyboardInterrupt):
        pretrain([books], out=tmp_path / "stopped", progress=Recorder(interrupt_at=2), **inputs)
    pretrain([books], out=tmp_path / "stopped", resume=True, **inputs)
    one, other = (
        load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_settings_without_the_base_take_its_shape(shared_base: Path, books: Path, tmp_path: Path):
    settings = resolve("pretrain", overrides={**TINY, "model.width": 24, "train.steps": 1})
    pretrain([books], out=tmp_path / "run", base=shared_base, settings=settings)
    assert load_run(tmp_path / "run").settings.model.width == TINY["model.width"]


def test_tokenizer_and_shape_of_a_base_cannot_be_changed(
    shared_base: Path, books: Path, tmp_path: Path
):
    with pytest.raises(ConfigError, match="has its own tokenizer"):
        pretrain(
            [books],
            out=tmp_path / "run",
            base=shared_base,
            settings=going_on(shared_base),
            tokenizer_path=shared_base,
        )
    with pytest.raises(ConfigError, match=r"model\.width: the base has 12"):
        going_on(shared_base, **{"model.width": 24})


def test_classifier_cannot_be_pretrained_further(
    shared_classifier: Path, books: Path, tmp_path: Path
):
    with pytest.raises(RunFolderError, match="holds a classifier, not a language-model"):
        pretrain(
            [books],
            out=tmp_path / "run",
            base=shared_classifier,
            settings=going_on(shared_classifier),
        )


def test_adapted_base_lies_beside_the_classifier(
    shared_base: Path, splits: dict[str, Path], books: Path, tmp_path: Path
):
    out, progress = tmp_path / "run", Recorder()
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1})
    found = adapt(
        shared_base,
        texts=[splits["train"], books],
        minutes=0.01,
        out=out,
        settings=settings,
        progress=progress,
    )
    assert found == adapted_dir(out) == tmp_path / "run-base"
    assert not out.exists()
    result = load_run(found).info.result
    assert result["num_documents"] == 32 + 40
    assert progress.messages[-1].startswith(f"Adapted {shared_base} on ")
    base, now = read_settings(shared_base).train, read_settings(found).train
    assert (now.lr, now.batch_size) == (base.lr, base.batch_size)


def test_adaptation_is_refused_before_any_work_if_the_folder_is_taken(
    shared_base: Path, shared_classifier: Path, books: Path, tiny_finetune: Settings
):
    with pytest.raises(RunFolderError, match="already holds a run"):
        adapt(shared_base, texts=[books], minutes=1, out=shared_classifier, settings=tiny_finetune)
    assert not adapted_dir(shared_classifier).exists()


def test_many_processes_are_refused(
    shared_base: Path,
    books: Path,
    tmp_path: Path,
    tiny_finetune: Settings,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"--adapt trains more than one run"):
        adapt(shared_base, texts=[books], minutes=1, out=tmp_path / "run", settings=tiny_finetune)


def test_command_adapts_then_finetunes(shared_base: Path, tmp_path: Path):
    train = write_examples(tmp_path / "train.csv", 32, seed=3)
    out = tmp_path / "run"
    arguments = ["--base", shared_base, "--train", train, "--out", out, "--adapt", 0.005]
    lengths = ["--steps", 2, "--set", "data.max_length=24", "--quiet"]
    found = CliRunner().invoke(app, ["finetune", *map(str, [*arguments, *lengths])])
    assert found.exit_code == 0, found.output
    assert load_run(out).info.base == {"run_dir": str(adapted_dir(out))}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--base", "scratch", "--adapt", "1"], "--adapt 1"),
        (["--base", "scratch", "--text", __file__], f"--text {__file__}"),
        (["--base", "scratch", "--self-train", "1"], "--text FILE"),
    ],
)
def test_flags_without_what_they_need_are_refused(
    flags: list[str], expected: str, splits: dict[str, Path], tmp_path: Path
):
    files = ["--train", str(splits["train"]), "--out", str(tmp_path / "run")]
    found = CliRunner().invoke(app, ["finetune", *flags, *files])
    assert found.exit_code == 2
    assert expected in found.output
