"""The two stages: fair by construction, and nothing is done twice."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, Recorder, make_examples, make_records
from numpy.typing import NDArray

from regraft.classifiers.starts import start_from_base
from regraft.comparison.arm import ArmData, Fitted
from regraft.comparison.arms import parse_arms
from regraft.comparison.folder import ArmsFolder
from regraft.comparison.jobs import Stage, Workforce, answer_cells, plan_cells, train_cells
from regraft.comparison.network_arms import NetworkArm, NetworkTrainer
from regraft.comparison.plan import Cell, Grid, Setup, build_setup
from regraft.config.presets import ARMS
from regraft.config.resolution import resolve
from regraft.data.rows import Batch, ExampleRows
from regraft.data.subsets import subset_numbers
from regraft.errors import DivergedError
from regraft.runtime.progress import SILENT

NEURAL = ("pretrained", "scratch", "frozen", "lstm", "cnn")
SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})
ALONE = Workforce(num_jobs=1, num_threads=1)


class RecordingRows(ExampleRows):
    """Rows that remember which texts were asked for, in which order; subsets tell the same list."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(
            [example.text for example in setup.train],
            targets=setup.labels.targets(setup.train),
            tokenizer=setup.start.tokenizer,
            data=setup.start.settings.data,
        )
        self.asked: list[tuple[tuple[int, ...], ...]] = []

    def batch(self, numbers: NDArray[np.int64]) -> Batch:
        self.asked.append(tuple(tuple(self._ids[number].tolist()) for number in numbers))
        return super().batch(numbers)


@pytest.fixture(scope="module")
def setup(shared_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("".join(f"{text}\n" for text, _ in make_examples(60, seed=1)))
    start = start_from_base(shared_base, settings=SETTINGS)
    other = dataclasses.replace(start, settings=start.settings)
    return build_setup(
        {"": start, "other": other},
        train=make_records(32, seed=3),
        valid=make_records(16, seed=4),
        text_paths=[text],
        text="its hash",
    )


def stage_of(setup: Setup, folder: Path, *names: str, grid: Grid = "none") -> Stage:
    arms = parse_arms(names, bases=["other"])
    setup = dataclasses.replace(setup, grid=grid, fit_minutes=0.05)
    return Stage(setup, {arm.name: arm for arm in arms}, ArmsFolder(folder), ALONE)


def rates(stage: Stage, name: str) -> tuple[float, ...]:
    arm = stage.arms[name]
    assert isinstance(arm, NetworkArm)
    return arm.rates(stage.setup)


def recording(setup: Setup) -> tuple[Setup, RecordingRows]:
    rows = RecordingRows(setup)
    kept = {name: (rows, valid_rows) for name, (_, valid_rows) in setup.rows.items()}
    return dataclasses.replace(setup, rows=kept), rows


def test_arms_see_the_same_batches(setup: Setup, tmp_path: Path) -> None:
    asked = {}
    for seed in (0, 1):
        for name in (*NEURAL, "pretrained:other"):
            watched, rows = recording(setup)
            stage = stage_of(watched, tmp_path / f"{name}-{seed}", name)
            train_cells(stage, [Cell(name, 12, seed)], num_test=8)
            asked[name, seed] = rows.asked
    for seed in (0, 1):
        assert len(asked["scratch", seed]) == 2 * 3  # epochs, batches of four
        for name in (*NEURAL, "pretrained:other"):
            assert asked[name, seed] == asked["scratch", seed], name
        seen = {ids for batch in asked["scratch", seed] for ids in batch}
        numbers = subset_numbers(setup.train, size=12, seed=seed)
        whole = RecordingRows(setup)
        whole.batch(numbers)
        assert seen == set(whole.asked[0])
    assert asked["scratch", 0] != asked["scratch", 1]


def test_every_arm_answers(setup: Setup, tmp_path: Path) -> None:
    names = [*(name for name in ARMS if name != "fit"), "embedding:other"]
    stage = stage_of(setup, tmp_path, *names)
    arms = tuple(stage.arms.values())
    cells = plan_cells(arms, sizes=[12, 32], seeds=[0], num_train=32)
    trained = train_cells(stage, cells, num_test=8)
    assert list(trained) == cells
    texts = [text for text, _ in make_examples(8, seed=5)]
    answer_cells(stage, cells, test="abc", texts=texts)
    for cell, run in trained.items():
        answers = stage.folder.load_answers(cell, test="abc")
        assert answers["valid"].shape == (16, 2)
        assert answers["test"].shape == (8, 2)
        assert answers["test"].sum(axis=1) == pytest.approx(1)
        right = answers["valid"].argmax(axis=1) == setup.labels.targets(setup.valid)
        # What was watched while it was trained is what it answers from disk.
        assert right.mean() == pytest.approx(run.valid_accuracy[-1]), cell
        assert run.seconds > 0
        is_shallow = not stage.arms[cell.arm].is_random
        assert run.chosen.keys() == ({"strength"} if is_shallow else set())


def test_what_is_done_is_not_done_again(setup: Setup, tmp_path: Path) -> None:
    names = ("frozen", "linear", "latent", "embedding")
    stage = stage_of(setup, tmp_path, *names)
    cells = [Cell(name, 12, 0) for name in names]
    texts = [text for text, _ in make_examples(8, seed=5)]
    first = train_cells(stage, cells, num_test=8)
    answer_cells(stage, cells, test="abc", texts=texts)
    watched, rows = recording(setup)
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


def test_grid_keeps_the_rate_that_is_best_on_valid(setup: Setup, tmp_path: Path) -> None:
    stage = stage_of(setup, tmp_path, "scratch", "cnn", grid="small")
    cells = [Cell("scratch", 32, 0), Cell("cnn", 32, 0)]
    trained = train_cells(stage, cells, num_test=8)
    for cell, run in trained.items():
        assert run.chosen["learning rate"] in rates(stage, cell.arm)
        assert len(run.valid_accuracy) == 3
    rate = SETTINGS.train.lr
    assert rates(stage, "scratch") == (rate, rate / 3, rate * 3)
    alone = stage_of(setup, tmp_path / "none", "scratch")
    plain = train_cells(alone, cells[:1], num_test=8)[cells[0]]
    assert trained[cells[0]].valid_accuracy[-1] >= plain.valid_accuracy[-1]


def test_rate_and_epoch_are_chosen_by_the_weights_that_are_kept(
    setup: Setup, tmp_path: Path
) -> None:
    start = setup.starts[""]
    # Far too fast: it is best early, and worse when it ends.
    train = dataclasses.replace(start.settings.train, lr=0.03, epochs=8, patience=8)
    hasty = dataclasses.replace(start, settings=dataclasses.replace(start.settings, train=train))
    stage = stage_of(
        dataclasses.replace(setup, starts={"": hasty}), tmp_path, "scratch", grid="small"
    )
    cell = Cell("scratch", 32, 0)
    run = train_cells(stage, [cell], num_test=8)[cell]
    assert run.kept_accuracy == max(run.valid_accuracy[1:])
    assert run.valid_accuracy.index(run.kept_accuracy, 1) == run.chosen["epoch"]
    answer_cells(stage, [cell], test="abc", texts=["a"])
    answers = stage.folder.load_answers(cell, test="abc")["valid"].argmax(axis=1)
    targets = setup.labels.targets(setup.valid)
    assert (answers == targets).mean() == pytest.approx(run.kept_accuracy)
    # No other rate has kept anything better.
    alone = stage_of(stage.setup, tmp_path / "none", "scratch")
    assert train_cells(alone, [cell], num_test=8)[cell].kept_accuracy <= run.kept_accuracy


def test_runs_in_processes_are_the_same(setup: Setup, tmp_path: Path) -> None:
    names = ("frozen", "nbsvm", "latent")
    cells = [Cell(name, 12, 0) for name in names]
    texts = [text for text, _ in make_examples(8, seed=5)]
    found = []
    for workforce in (ALONE, Workforce(num_jobs=2, num_threads=1)):
        folder = tmp_path / str(workforce.num_jobs)
        stage = dataclasses.replace(stage_of(setup, folder, *names), workforce=workforce)
        train_cells(stage, cells, num_test=8)
        answer_cells(stage, cells, test="abc", texts=texts)
        found.append([stage.folder.load_answers(cell, test="abc") for cell in cells])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one["test"], other["test"])


def test_rate_that_diverges_loses_and_only_all_of_them_end_a_comparison(setup: Setup) -> None:
    (arm,) = parse_arms(["scratch"])
    assert isinstance(arm, NetworkArm)
    start = dataclasses.replace(setup.start, base=None)
    data = ArmData(setup.train, setup.valid, setup.labels, *setup.rows[""])

    def fit(*rates: float) -> Fitted:
        trainer = NetworkTrainer(arm, start, 2, rates=rates, num_threads=1)
        return trainer.fit(data, seed=0, progress=SILENT)

    for rates in ((1e38, 0.001), (0.001, 1e38)):
        assert fit(*rates).chosen == {"learning rate": 0.001}
    with pytest.raises(DivergedError, match="with learning rate"):
        fit(1e38, 3e38)
