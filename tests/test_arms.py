"""The arms: fair by construction, whatever was trained before stays trained."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, make_examples
from numpy.typing import NDArray

from regraft.arms import ArmsFolder, Task, build_task, train_arms
from regraft.batches import Batch, ExampleRows
from regraft.config import resolve
from regraft.finetune import start_from_base
from regraft.runtime import SILENT
from regraft.text import Example, Labels

NEURAL = ("pretrained", "scratch", "frozen")
SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})


class RecordingRows(ExampleRows):
    """Rows that remember in which order they were asked for."""

    def __init__(self, examples: list[Example], *, task: Task) -> None:
        super().__init__(
            [example.text for example in examples],
            targets=task.labels.targets(examples).tolist(),
            tokenizer=task.start.tokenizer,
            data=task.start.settings.data,
        )
        self.asked: list[tuple[int, ...]] = []

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        self.asked.append(tuple(numbers.tolist()))
        return super().batch(numbers)


def examples(num_examples: int, *, seed: int) -> list[Example]:
    made = make_examples(num_examples, seed=seed)
    return [Example(text, label, "train.csv", row) for row, (text, label) in enumerate(made, 2)]


@pytest.fixture(scope="module")
def task(shared_base: Path) -> Task:
    start = start_from_base(shared_base, settings=SETTINGS)
    return build_task(start, train=examples(32, seed=3), valid=examples(16, seed=4))


def test_task_has_the_rows_and_labels_of_its_examples(task: Task) -> None:
    assert task.labels == Labels(("negative", "positive"))
    assert (len(task.train_rows.lengths), len(task.valid_rows.lengths)) == (32, 16)
    assert task.fingerprints.keys() == {"train", "valid", "base", "tokenizer"}


def test_arms_see_the_same_batches(task: Task, tmp_path: Path) -> None:
    asked: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for seed in (0, 1):
        for arm in NEURAL:
            rows = RecordingRows(list(task.train), task=task)
            settings = resolve(
                "finetune", overrides={**TINY, "train.epochs": 2, "train.seed": seed}
            )
            start = dataclasses.replace(task.start, settings=settings)
            recording = dataclasses.replace(task, start=start, train_rows=rows)
            folder = ArmsFolder(tmp_path / f"{arm}-{seed}")
            train_arms(recording, arms=[arm], seeds=1, jobs=1, folder=folder, progress=SILENT)
            asked[arm, seed] = rows.asked
    for seed in (0, 1):
        assert len(asked["scratch", seed]) == 2 * 8  # epochs, batches of four
        assert asked["pretrained", seed] == asked["scratch", seed] == asked["frozen", seed]
    assert asked["scratch", 0] != asked["scratch", 1]


def test_finished_runs_are_not_trained_again(task: Task, tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    arms = ["frozen", "pretrained"]
    first = train_arms(task, arms=arms, seeds=1, jobs=1, folder=folder, progress=SILENT)
    assert list(folder.finished().values()) == first
    rows = RecordingRows(list(task.train), task=task)
    again = dataclasses.replace(task, train_rows=rows)
    assert train_arms(again, arms=arms, seeds=1, jobs=1, folder=folder, progress=SILENT) == first
    assert rows.asked == []


def test_run_without_its_sign_is_not_finished(task: Task, tmp_path: Path) -> None:
    folder = ArmsFolder(tmp_path)
    train_arms(task, arms=["frozen"], seeds=2, jobs=1, folder=folder, progress=SILENT)
    (folder.path / "frozen-0.json").write_text("{")
    (folder.path / "frozen-1.safetensors").unlink()
    assert folder.finished() == {}
    folder.discard()
    assert not folder.path.exists()
