"""Self-training: only sure answers, as many of each class, and rounds that can be resumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY, Recorder, make_examples, write_examples
from safetensors.torch import load_file, save_file
from tampering import accept_files, change_facts

from regraft.classifiers.self_training import (
    MOST_TAKEN,
    _name_own_rows,
    labelled_by,
    self_train,
    sure_rows,
    teachers_dir,
)
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.data.text.label_issues import LabelIssue, read_label_issues, write_label_issues
from regraft.data.text.records import Example
from regraft.errors import ConfigError, DataError
from regraft.training.loaded_run import load_run


@pytest.fixture
def texts_path(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text, _ in make_examples(30, seed=8)))
    return path


@pytest.fixture
def settings() -> Settings:
    return resolve("finetune", overrides={**TINY, "train.epochs": 1})


def read(path: Path) -> list[tuple[str, str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["text"], row["label"]) for row in rows]


def test_sure_rows_are_told_by_class_and_the_surest_come_first():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.95, 0.05], [0.4, 0.6], [0.02, 0.98]])
    first, second = sure_rows(probabilities, confidence=0.8)
    assert first.tolist() == [2, 0]
    assert second.tolist() == [4, 1]


def test_student_learns_from_labels_and_from_sure_answers(
    shared_base: Path, splits: dict[str, Path], texts_path: Path, settings: Settings, tmp_path: Path
):
    out, progress = tmp_path / "run", Recorder()
    # Any answer is sure enough for a model that has hardly learned.
    result = self_train(
        base=shared_base,
        train=splits["train"],
        valid=splits["valid"],
        unlabelled=[texts_path, splits["train"], splits["valid"]],
        out=out,
        settings=settings,
        rounds=2,
        confidence=0.01,
        progress=progress,
    )
    folder = teachers_dir(out)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("teacher-1", "teacher-2"),
        *("train-0.jsonl", "train-1.jsonl", "train-2.jsonl", "valid.jsonl"),
    ]
    labelled = read(folder / "train-0.jsonl")
    assert len(labelled) == 32
    for number in (1, 2):
        rows = read(folder / f"train-{number}.jsonl")
        assert rows[:32] == labelled
        taken = rows[32:]
        # Examples are no unlabelled texts, and the classes are even.
        assert not {text for text, _ in taken} & {
            text for text, _ in [*labelled, *read(folder / "valid.jsonl")]
        }
        names = [name for _, name in taken]
        assert names.count("positive") == names.count("negative") > 0
        told = [m for m in progress.messages if m.startswith(f"Round {number}: ")]
        assert told == [f"Round {number}: {len(taken)} of 30 texts are taken."]
    assert result.num_train == len(read(folder / "train-2.jsonl"))
    assert load_run(out).info.labels == ("negative", "positive")


def test_possible_label_errors_name_rows_of_the_users_file(tmp_path: Path):
    path = tmp_path / "label_issues.csv"
    write_label_issues(path, [LabelIssue(1, "", "Two.", "a", "b", 0.9)])
    examples = [Example("One.", "a", "v.csv", 2, id="x"), Example("Two.", "a", "v.csv", 7, id="y")]
    for _ in range(2):  # a run that is resumed after its end does it again
        _name_own_rows(path, examples)
        assert read_label_issues(path) == [LabelIssue(7, "y", "Two.", "a", "b", 0.9)]


def test_interrupted_rounds_go_on_exactly(
    shared_base: Path, splits: dict[str, Path], texts_path: Path, settings: Settings, tmp_path: Path
):
    inputs: dict[str, Any] = {
        "base": shared_base,
        "train": splits["train"],
        "unlabelled": [texts_path],
        "settings": settings,
        "confidence": 0.01,
    }
    self_train(out=tmp_path / "straight", **inputs)
    with pytest.raises(KeyboardInterrupt):
        self_train(out=tmp_path / "stopped", progress=Recorder(interrupt_at=2), **inputs)
    self_train(out=tmp_path / "stopped", resume=True, **inputs)
    one, other = (
        load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_no_more_texts_are_taken_than_labels_can_carry(shared_classifier: Path):
    texts = [text for text, _ in make_examples(60, seed=9)]
    taken = labelled_by(shared_classifier, texts, confidence=0.01, num_labelled=3)
    assert len(taken) <= MOST_TAKEN * 3


def test_sureness_is_that_of_the_training(shared_classifier: Path, tmp_path: Path):
    # The same weights as if their temperature had been eight times as high.
    warm = shutil.copytree(shared_classifier, tmp_path / "warm")
    run = load_run(warm)
    run.model.head.divide_scores(8)
    save_file(run.model.state_dict(), warm / "model.safetensors")
    temperature = run.info.temperature
    assert temperature is not None
    change_facts(warm / "run.json", temperature=8 * temperature)
    accept_files(warm)
    texts = [text for text, _ in make_examples(60, seed=9)]
    one, other = (
        labelled_by(teacher_dir, texts, confidence=0.501, num_labelled=32)
        for teacher_dir in (shared_classifier, warm)
    )
    assert [(e.text, e.label) for e in one] == [(e.text, e.label) for e in other]


def test_class_without_a_sure_answer_is_named(shared_classifier: Path):
    texts = [text for text, _ in make_examples(6, seed=9)]
    with pytest.raises(DataError, match=r"No text was labelled '(posi|nega)tive' with a probab"):
        labelled_by(shared_classifier, texts, confidence=0.999999, num_labelled=32)


def test_bad_confidence_and_known_texts_are_refused(
    splits: dict[str, Path], settings: Settings, tmp_path: Path
):
    inputs: dict[str, Any] = {"base": None, "train": splits["train"], "settings": settings}
    with pytest.raises(ConfigError, match="The confidence is 1"):
        self_train(out=tmp_path / "run", unlabelled=[splits["test"]], confidence=1.0, **inputs)
    same = write_examples(tmp_path / "same.csv", 32, seed=3)
    with pytest.raises(DataError, match="holds no text beyond the labelled ones"):
        self_train(out=tmp_path / "run", unlabelled=[same], **inputs)
