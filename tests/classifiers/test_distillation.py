"""Distillation: a student of any classifier, its answers kept, resumed exactly, refused in time."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY, Recorder, make_examples, make_records, write_examples
from safetensors.torch import load_file

from regraft.classifiers.base import load_classifier
from regraft.classifiers.distillation import DistillResult, distill, divergence
from regraft.classifiers.tfidf import fit_linear
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.data.text.records import labels_of
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.training.run_folder import TEACHER_NAME, read_settings

NUM_TEXTS = 150


@pytest.fixture
def teacher_dir(tmp_path: Path) -> Path:
    return write_teacher(tmp_path / "teacher", seed=3)


def write_teacher(folder: Path, *, seed: int) -> Path:
    examples = make_records(40, seed=seed)
    fit_linear(examples, examples, labels=labels_of(examples)).save(folder)
    return folder


@pytest.fixture
def text_path(tmp_path: Path) -> Path:
    return write_texts(tmp_path)


@pytest.fixture
def settings() -> Settings:
    return student_settings({"train.epochs": 3})


@dataclass(frozen=True)
class Taught:
    """A student that is complete, and what it was made of; tests read it."""

    teacher_dir: Path
    text_path: Path
    out: Path
    settings: Settings
    result: DistillResult


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Taught:
    folder = tmp_path_factory.mktemp("taught")
    teacher_dir, text_path = write_teacher(folder / "teacher", seed=3), write_texts(folder)
    out, settings = folder / "student", student_settings({"train.epochs": 3})
    valid = write_examples(folder / "valid.csv", 40, seed=11)
    result = distill(teacher_dir, [text_path], out=out, valid=valid, settings=settings)
    return Taught(teacher_dir, text_path, out, settings, result)


def write_texts(folder: Path) -> Path:
    path = folder / "texts.txt"
    path.write_text("".join(f"{text}\n" for text, _ in make_examples(NUM_TEXTS, seed=8)))
    return path


def student_settings(length: dict[str, Any]) -> Settings:
    shape = {**TINY, "model.width": 16, "model.num_heads": 2, "train.lr": 1e-2}
    return resolve("finetune", preset="student", overrides={**shape, **length})


def test_student_answers_as_its_teacher_does(taught: Taught):
    out, result = taught.out, taught.result
    assert (result.num_texts, result.num_held_out) == (135, 15)
    assert result.agreement[-1] > 0.9
    assert result.divergence < 0.2
    assert (result.num_examples, result.teacher_accuracy, result.seen) == (40, 1.0, None)
    assert result.accuracy is not None
    assert result.accuracy > 0.9
    student, teacher = load_classifier(out), load_classifier(taught.teacher_dir)
    assert (student.kind, student.labels) == ("classifier", teacher.labels)
    assert student.export_formats == ("hf", "onnx")
    texts = [text for text, _ in make_examples(40, seed=11)]
    assert np.mean(student.predict(texts) == teacher.predict(texts)) > 0.9
    assert json.loads((out / "run.json").read_text())["result"] == json.loads(
        json.dumps(result.to_dict())
    )
    assert not (out / TEACHER_NAME).exists()


def test_complete_student_is_returned_as_it_is(taught: Taught):
    inputs: dict[str, Any] = {"out": taught.out, "settings": taught.settings}
    with pytest.raises(RunFolderError, match="already holds a run"):
        distill(taught.teacher_dir, [taught.text_path], **inputs)
    again = distill(taught.teacher_dir, [taught.text_path], resume=True, **inputs)
    assert again == taught.result


def test_interrupted_student_goes_on_exactly_and_the_teacher_is_not_asked_again(
    teacher_dir: Path,
    shared_base: Path,
    text_path: Path,
    settings: Settings,
    tmp_path: Path,
):
    inputs: dict[str, Any] = {"base": shared_base, "settings": with_base(settings, shared_base)}
    distill(teacher_dir, [text_path], out=tmp_path / "straight", **inputs)
    stopped, first, second = tmp_path / "stopped", Recorder(interrupt_at=7), Recorder()
    with pytest.raises(KeyboardInterrupt):
        distill(teacher_dir, [text_path], out=stopped, progress=first, **inputs)
    distill(teacher_dir, [text_path], out=stopped, resume=True, progress=second, **inputs)
    asked = f"The teacher answers {NUM_TEXTS} texts."
    assert asked in first.messages
    assert asked not in second.messages
    one, other = (
        load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def with_base(settings: Settings, base: Path) -> Settings:
    return resolve(
        "finetune",
        preset="student",
        base=read_settings(base),
        overrides={"data.max_length": 24, "train.epochs": 3, "train.batch_size": 4},
    )


def test_labels_that_the_teacher_was_trained_on_are_named(
    shared_classifier: Path, shared_base: Path, text_path: Path, settings: Settings, tmp_path: Path
):
    train, progress = shared_classifier.parent / "train.csv", Recorder()
    settings = with_base(settings, shared_base)
    inputs: dict[str, Any] = {"base": shared_base, "settings": settings, "progress": progress}
    result = distill(shared_classifier, [text_path], out=tmp_path / "out", valid=train, **inputs)
    assert result.seen == "train"
    assert any(f"was trained on {train}" in message for message in progress.messages)


def test_another_teacher_cannot_go_on(taught: Taught, tmp_path: Path):
    other = write_teacher(tmp_path / "other", seed=4)
    inputs: dict[str, Any] = {"out": taught.out, "settings": taught.settings}
    with pytest.raises(RunFolderError, match="teacher has changed"):
        distill(other, [taught.text_path], resume=True, **inputs)


def test_minutes_are_for_all_of_it(teacher_dir: Path, text_path: Path, tmp_path: Path):
    out, settings = tmp_path / "student", student_settings({"train.minutes": 0.05})
    distill(teacher_dir, [text_path], out=out, settings=settings)
    minutes = read_settings(out).train.minutes
    assert minutes is not None
    assert 0.0125 <= minutes < 0.05
    resumed = distill(teacher_dir, [text_path], out=out, settings=settings, resume=True)
    assert resumed.run_dir == str(out)


def test_layers_that_were_trained_are_not_skipped(
    teacher_dir: Path, shared_base: Path, text_path: Path, settings: Settings, tmp_path: Path
):
    out = tmp_path / "student"
    settings = with_base(settings, shared_base)
    assert settings.train.layers_after is not None
    distill(teacher_dir, [text_path], out=out, base=shared_base, settings=settings)
    assert read_settings(out).train.layers_after is None


def test_what_cannot_teach_is_refused(
    shared_base: Path, teacher_dir: Path, text_path: Path, settings: Settings, tmp_path: Path
):
    inputs: dict[str, Any] = {"out": tmp_path / "student", "settings": settings}
    with pytest.raises(RunFolderError, match="holds a language-model, not a classifier"):
        distill(shared_base, [text_path], **inputs)
    few = tmp_path / "few.txt"
    few.write_text("".join(f"{text}\n" for text, _ in make_examples(20, seed=8)))
    with pytest.raises(DataError, match=r"few.txt holds 20 texts\. .*100 texts or more"):
        distill(teacher_dir, [few], **inputs)
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(DataError, match="is empty"):
        distill(teacher_dir, [tmp_path / "blank.txt"], **inputs)
    with pytest.raises(ConfigError, match="standard input"):
        distill(teacher_dir, ["-"], **inputs)
    regression = resolve("finetune", preset="student", overrides={"head.start": "regression"})
    with pytest.raises(ConfigError, match=r"head\.start is regression, which needs labels"):
        distill(teacher_dir, [text_path], out=tmp_path / "student", settings=regression)
    assert not (tmp_path / "student").exists()


def test_teacher_of_pairs_is_refused(
    shared_base: Path, text_path: Path, settings: Settings, tmp_path: Path
):
    from regraft.classifiers.finetuning import finetune

    rows = [
        {"text": text, "second": text[::-1], "label": label}
        for text, label in make_examples(20, seed=1)
    ]
    train = tmp_path / "pairs.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = {**TINY, "train.epochs": 1, "data.pair_column": "second"}
    pairs = tmp_path / "pairs"
    finetune(base=None, train=train, out=pairs, settings=resolve("finetune", overrides=overrides))
    with pytest.raises(ConfigError, match="supports single texts with one label each, not pairs"):
        distill(pairs, [text_path], out=tmp_path / "student", settings=settings)


def test_divergence_is_zero_of_equal_answers_and_positive_of_others():
    teacher_NC = np.array([[0.9, 0.1], [0.3, 0.7], [1.0, 0.0]])
    assert divergence(teacher_NC, teacher_NC) == 0
    assert divergence(teacher_NC, teacher_NC[::-1]) > 0.1
