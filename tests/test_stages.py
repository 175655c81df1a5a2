"""The two stages: fair by construction, and nothing is done twice."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, Recorder, make_examples
from numpy.typing import NDArray
from test_arms import examples

from regraft.arms import ArmsFolder, Cell, Task, build_task, parse_arms, plan_cells
from regraft.batches import Batch, ExampleRows
from regraft.cells import NeuralJob
from regraft.config import resolve
from regraft.errors import DivergedError
from regraft.finetune import start_from_base
from regraft.presets import ARMS
from regraft.stages import RATE_FACTORS, Stage, Workforce, answer_cells, load_answers, train_cells
from regraft.subsets import subset_numbers

NEURAL = ("pretrained", "scratch", "frozen", "lstm", "cnn")
SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})
ALONE = Workforce(num_jobs=1, num_threads=1)


class RecordingRows(ExampleRows):
    """Rows that remember which texts were asked for, in which order; subsets tell the same list."""

    def __init__(self, task: Task) -> None:
        super().__init__(
            [example.text for example in task.train],
            targets=task.labels.targets(task.train),
            tokenizer=task.start.tokenizer,
            data=task.start.settings.data,
        )
        self.asked: list[tuple[tuple[int, ...], ...]] = []

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        self.asked.append(tuple(tuple(self._ids[number].tolist()) for number in numbers))
        return super().batch(numbers)


@pytest.fixture(scope="module")
def task(shared_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Task:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("".join(f"{text}\n" for text, _ in make_examples(60, seed=1)))
    start = start_from_base(shared_base, settings=SETTINGS)
    other = dataclasses.replace(start, settings=start.settings)
    return build_task(
        {"": start, "other": other},
        train=examples(32, seed=3),
        valid=examples(16, seed=4),
        text_paths=[text],
        text="its hash",
    )


def stage_of(task: Task, folder: Path, *names: str, grid: str = "none") -> Stage:
    arms = parse_arms(names, bases=["other"])
    return Stage(task, {arm.name: arm for arm in arms}, grid, ArmsFolder(folder), ALONE)


def recording(task: Task) -> tuple[Task, RecordingRows]:
    rows = RecordingRows(task)
    kept = {name: (rows, valid_rows) for name, (_, valid_rows) in task.rows.items()}
    return dataclasses.replace(task, rows=kept), rows


def test_arms_see_the_same_batches(task: Task, tmp_path: Path) -> None:
    asked = {}
    for seed in (0, 1):
        for name in (*NEURAL, "pretrained:other"):
            watched, rows = recording(task)
            stage = stage_of(watched, tmp_path / f"{name}-{seed}", name)
            train_cells(stage, [Cell(name, 12, seed)], num_test=8)
            asked[name, seed] = rows.asked
    for seed in (0, 1):
        assert len(asked["scratch", seed]) == 2 * 3  # epochs, batches of four
        for name in (*NEURAL, "pretrained:other"):
            assert asked[name, seed] == asked["scratch", seed], name
        seen = {ids for batch in asked["scratch", seed] for ids in batch}
        numbers = subset_numbers(task.train, size=12, seed=seed)
        whole = RecordingRows(task)
        whole.batch(numbers)
        assert seen == set(whole.asked[0])
    assert asked["scratch", 0] != asked["scratch", 1]


def test_every_arm_answers(task: Task, tmp_path: Path) -> None:
    names = [*ARMS, "embedding:other"]
    stage = stage_of(task, tmp_path, *names)
    arms = tuple(stage.arms.values())
    cells = plan_cells(arms, sizes=[12, 32], seeds=[0], num_train=32)
    trained = train_cells(stage, cells, num_test=8)
    assert list(trained) == cells
    texts = [text for text, _ in make_examples(8, seed=5)]
    answer_cells(stage, cells, test="abc", texts=texts)
    for cell, run in trained.items():
        answers = load_answers(stage.folder, cell, test="abc")
        assert answers["valid"].shape == (16, 2)
        assert answers["test"].shape == (8, 2)
        assert answers["test"].sum(axis=1) == pytest.approx(1)
        right = answers["valid"].argmax(axis=1) == task.labels.targets(task.valid)
        # What was watched while it was trained is what it answers from disk.
        assert right.mean() == pytest.approx(run.valid_accuracy[-1]), cell
        assert run.seconds > 0
        is_shallow = not stage.arms[cell.arm].is_neural
        assert run.chosen.keys() == ({"strength"} if is_shallow else set())


def test_what_is_done_is_not_done_again(task: Task, tmp_path: Path) -> None:
    names = ("frozen", "linear", "latent", "embedding")
    stage = stage_of(task, tmp_path, *names)
    cells = [Cell(name, 12, 0) for name in names]
    texts = [text for text, _ in make_examples(8, seed=5)]
    first = train_cells(stage, cells, num_test=8)
    answer_cells(stage, cells, test="abc", texts=texts)
    watched, rows = recording(task)
    progress = Recorder()
    again = dataclasses.replace(stage_of(watched, tmp_path, *names), progress=progress)
    assert train_cells(again, cells, num_test=8) == first
    answer_cells(again, cells, test="abc", texts=texts)
    assert rows.asked == []
    assert progress.tasks == []
    assert progress.messages == ["4 of 4 runs are finished already."]
    # Another test file is answered anew, by the runs that are there.
    answer_cells(again, cells, test="def", texts=texts)
    assert rows.asked == []
    assert progress.tasks[-1] == "test"


def test_grid_keeps_the_rate_that_is_best_on_valid(task: Task, tmp_path: Path) -> None:
    stage = stage_of(task, tmp_path, "scratch", "cnn", grid="small")
    cells = [Cell("scratch", 32, 0), Cell("cnn", 32, 0)]
    trained = train_cells(stage, cells, num_test=8)
    for cell, run in trained.items():
        assert run.chosen["learning rate"] in stage.rates(stage.arms[cell.arm])
        assert len(run.valid_accuracy) == 3
    rate = SETTINGS.train.lr
    assert stage.rates(stage.arms["scratch"]) == (rate, rate / 3, rate * 3)
    assert RATE_FACTORS["none"] == (1.0,)
    alone = stage_of(task, tmp_path / "none", "scratch")
    plain = train_cells(alone, cells[:1], num_test=8)[cells[0]]
    assert trained[cells[0]].valid_accuracy[-1] >= plain.valid_accuracy[-1]


def test_rate_and_epoch_are_chosen_by_the_weights_that_are_kept(task: Task, tmp_path: Path) -> None:
    start = task.starts[""]
    # Far too fast: it is best early, and worse when it ends.
    train = dataclasses.replace(start.settings.train, lr=0.03, epochs=8, patience=8)
    hasty = dataclasses.replace(start, settings=dataclasses.replace(start.settings, train=train))
    stage = stage_of(
        dataclasses.replace(task, starts={"": hasty}), tmp_path, "scratch", grid="small"
    )
    cell = Cell("scratch", 32, 0)
    run = train_cells(stage, [cell], num_test=8)[cell]
    assert run.kept_accuracy == max(run.valid_accuracy[1:])
    assert run.valid_accuracy.index(run.kept_accuracy, 1) == run.chosen["epoch"]
    answer_cells(stage, [cell], test="abc", texts=["a"])
    answers = load_answers(stage.folder, cell, test="abc")["valid"].argmax(axis=1)
    targets = task.labels.targets(task.valid)
    assert (answers == targets).mean() == pytest.approx(run.kept_accuracy)
    # No other rate has kept anything better.
    alone = stage_of(stage.task, tmp_path / "none", "scratch")
    assert train_cells(alone, [cell], num_test=8)[cell].kept_accuracy <= run.kept_accuracy


def test_runs_in_processes_are_the_same(task: Task, tmp_path: Path) -> None:
    names = ("frozen", "nbsvm", "latent")
    cells = [Cell(name, 12, 0) for name in names]
    texts = [text for text, _ in make_examples(8, seed=5)]
    found = []
    for workforce in (ALONE, Workforce(num_jobs=2, num_threads=1)):
        folder = tmp_path / str(workforce.num_jobs)
        stage = dataclasses.replace(stage_of(task, folder, *names), workforce=workforce)
        train_cells(stage, cells, num_test=8)
        answer_cells(stage, cells, test="abc", texts=texts)
        found.append([load_answers(stage.folder, cell, test="abc") for cell in cells])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one["test"], other["test"])


def test_rate_that_diverges_loses_and_only_all_of_them_end_a_comparison(task: Task) -> None:
    rows, valid_rows = task.rows[""]

    def job(*rates: float) -> NeuralJob:
        cell = Cell("scratch", 32, 0)
        start = dataclasses.replace(task.start, base=None)
        return NeuralJob(cell, "scratch", start, 2, rows, valid_rows, rates, num_threads=1)

    for rates in ((1e38, 0.001), (0.001, 1e38)):
        assert job(*rates).run().run.chosen == {"learning rate": 0.001}
    with pytest.raises(DivergedError, match="with learning rate"):
        job(1e38, 3e38).run()
