"""The work of a comparison in two stages: fit every run, then predict the test file with each.

A job holds all it needs, so any process or machine can do it; results are saved here, in the
parent. Finished work is never repeated. The second stage gets texts without labels.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.comparison.arm import Arm, ArmData, ArmModel, Fitted, Prepared, Trainer
from regraft.comparison.folder import ArmsFolder, TrainedCell
from regraft.comparison.plan import Cell, Setup
from regraft.data import subset_numbers
from regraft.runtime import SILENT, Forecast, Forecasting, Progress, in_percent, results


@dataclass(frozen=True)
class Workforce:
    """How many jobs run at a time, each on how many threads, here or on a cluster."""

    num_jobs: int
    num_threads: int
    cluster: str | None = None


@dataclass(frozen=True)
class Stage:
    """What both stages share."""

    setup: Setup
    arms: Mapping[str, Arm]
    folder: ArmsFolder
    workforce: Workforce
    progress: Progress = SILENT
    # By what the arms read.
    _prepared: dict[str, Prepared] = field(default_factory=dict)

    def prepared(self, arm: Arm) -> Prepared:
        """What an arm reads of train and valid, made once for all arms that read the same."""
        if arm.reads not in self._prepared:
            self._prepared[arm.reads] = arm.prepare(
                self.setup, shared_dir=self.folder.shared_dir(arm.name), progress=self.progress
            )
        return self._prepared[arm.reads]

    def encoded(self, arms: Iterable[Arm], texts: Sequence[str]) -> dict[str, Any]:
        """What the arms read of further texts, by `Arm.reads`."""
        return {
            arm.reads: arm.encode(
                texts,
                setup=self.setup,
                shared_dir=self.folder.shared_dir(arm.name),
                progress=self.progress,
            )
            for arm in {arm.reads: arm for arm in arms}.values()
        }


@dataclass(frozen=True)
class FitJob:
    """One run; `shared_seconds` is the cost of its inputs, which were made for all runs."""

    cell: Cell
    trainer: Trainer
    data: ArmData
    shared_seconds: float = 0.0

    @property
    def num_tasks(self) -> int:
        """How often the progress bar of the job starts."""
        return getattr(self.trainer, "num_trainings", 1)

    def run(self, *, progress: Progress = SILENT) -> tuple[TrainedCell, ArmModel]:
        """Fit the model, and measure what the arm did not."""
        start = time.perf_counter()
        fitted: Fitted = self.trainer.fit(self.data, seed=self.cell.seed, progress=progress)
        wall_seconds = time.perf_counter() - start
        accuracy = fitted.valid_accuracy
        if accuracy is None:
            probabilities_VC = fitted.model.predict_proba(self.data.valid_inputs)
            targets_V = self.data.labels.targets(self.data.valid)
            accuracy = (float((probabilities_VC.argmax(axis=1) == targets_V).mean()),)
        seconds = wall_seconds if fitted.seconds is None else fitted.seconds
        trained = TrainedCell(
            cell=self.cell,
            valid_accuracy=accuracy,
            seconds=seconds + self.shared_seconds,
            wall_seconds=wall_seconds,
            chosen=fitted.chosen,
        )
        return trained, fitted.model


@dataclass(frozen=True)
class Answers:
    """The probabilities of one run for valid and for test."""

    cell: Cell
    valid_VC: NDArray[np.float64]
    test_NC: NDArray[np.float64]
    wall_seconds: float


@dataclass(frozen=True)
class PredictJob:
    """The model of one run, and what its arm reads of valid and test."""

    cell: Cell
    model: ArmModel
    valid_inputs: Any
    test_inputs: Any
    num_tasks: int = 1

    def run(self, *, progress: Progress = SILENT) -> Answers:
        """Predict both."""
        start = time.perf_counter()
        valid_VC = self.model.predict_proba(self.valid_inputs)
        test_NC = self.model.predict_proba(self.test_inputs)
        return Answers(self.cell, valid_VC, test_NC, time.perf_counter() - start)


def plan_cells(
    arms: Sequence[Arm], *, sizes: Sequence[int], seeds: Sequence[int], num_train: int
) -> list[Cell]:
    """All runs, seed by seed and small sizes first: soon there is a result of every arm.

    With all labels, an arm that is not random has one run.
    """
    return [
        Cell(arm.name, size, seed)
        for seed in seeds
        for size in sizes
        for arm in arms
        if arm.is_random or size < num_train or seed == seeds[0]
    ]


def train_cells(stage: Stage, cells: Sequence[Cell], *, num_test: int) -> dict[Cell, TrainedCell]:
    """Every run; those in the folder are taken from there.

    About `num_test` texts will be predicted later: the remaining time includes that.
    """
    finished = stage.folder.finished()
    missing = [cell for cell in cells if cell not in finished]
    if len(missing) < len(cells):
        stage.progress.say(
            f"{len(cells) - len(missing)} of {len(cells)} runs are finished already."
        )
    if not missing:
        return {cell: finished[cell] for cell in cells}
    for arm in {cell.arm: stage.arms[cell.arm] for cell in missing}.values():
        stage.prepared(arm)
    # Keys are (is it about the test?, cell).
    work = {(False, cell): _fit_seconds(stage, cell) for cell in missing}
    work |= {(True, cell): _read_seconds(stage, cell, num_test=num_test) for cell in cells}
    bar = _bar(stage, work, name=f"{len(missing)} runs")
    # Runs limited by time come last, one after another and in this process.
    shared, alone = (
        [cell for cell in missing if stage.arms[cell.arm].runs_alone is runs_alone]
        for runs_alone in (False, True)
    )
    num_done = 0
    for part, workforce in ((shared, stage.workforce), (alone, _alone(stage.workforce))):
        if not part:
            continue
        jobs = (_fit_job(stage, cell) for cell in part)
        for run, model in _results(jobs, workforce, bar=bar, is_test=False):
            model.save(stage.folder.model_dir(run.cell))
            stage.folder.mark_finished(run)
            finished[run.cell] = run
            num_done += 1
            note = (
                f"{num_done} of {len(missing)}: {run.cell}, valid {in_percent(run.kept_accuracy)}"
            )
            bar.end((False, run.cell), seconds=run.wall_seconds, note=note)
    bar.finish()
    return {cell: finished[cell] for cell in cells}


def answer_cells(stage: Stage, cells: Sequence[Cell], *, test: str, texts: Sequence[str]) -> None:
    """Save the probabilities of every run for these texts; `test` is the file's fingerprint."""
    missing = [cell for cell in cells if stage.folder.load_answers(cell, test=test) is None]
    if not missing:
        return
    arms = {cell.arm: stage.arms[cell.arm] for cell in missing}
    for arm in arms.values():
        stage.prepared(arm)
    test_inputs = stage.encoded(arms.values(), texts)
    work = {(True, cell): _read_seconds(stage, cell, num_test=len(texts)) for cell in missing}
    bar = _bar(stage, work, name="test")
    jobs = (_predict_job(stage, cell, test_inputs=test_inputs) for cell in missing)
    found = _results(jobs, stage.workforce, bar=bar, is_test=True)
    for num_done, answers in enumerate(found, start=1):
        arrays = {"valid": answers.valid_VC, "test": answers.test_NC}
        stage.folder.save_answers(answers.cell, arrays, test=test)
        note = f"{num_done} of {len(missing)}: {answers.cell}"
        bar.end((True, answers.cell), seconds=answers.wall_seconds, note=note)
    bar.finish()


def _alone(workforce: Workforce) -> Workforce:
    return Workforce(1, workforce.num_threads)


def _bar(stage: Stage, work: Mapping[tuple[bool, Cell], float], *, name: str) -> Forecasting:
    """One bar that estimates the time of all the work."""
    kinds = {key: stage.arms[key[1].arm].kind for key in work}
    forecast = Forecast(work, kinds=kinds, num_jobs=stage.workforce.num_jobs)
    bar = Forecasting(stage.progress, forecast)
    bar.start(name)
    return bar


def _results(
    jobs: Iterator[Any], workforce: Workforce, *, bar: Forecasting, is_test: bool
) -> Iterator[Any]:
    return results(
        jobs,
        num_jobs=workforce.num_jobs,
        num_threads=workforce.num_threads,
        cluster=workforce.cluster,
        progress_of=lambda job: bar.of(
            (is_test, job.cell), name=str(job.cell), num_tasks=job.num_tasks
        ),
    )


def _fit_job(stage: Stage, cell: Cell) -> FitJob:
    setup, arm = stage.setup, stage.arms[cell.arm]
    numbers = subset_numbers(setup.train, size=cell.num_labels, seed=cell.seed)
    prepared = stage.prepared(arm)
    data = ArmData(
        train=[setup.train[number] for number in numbers],
        valid=setup.valid,
        labels=setup.labels,
        inputs=arm.subset(prepared.train, numbers),
        valid_inputs=prepared.valid,
    )
    num_texts = cell.num_labels + len(setup.valid)
    return FitJob(
        cell,
        arm.trainer(setup, num_threads=stage.workforce.num_threads),
        data,
        shared_seconds=prepared.fixed_seconds + prepared.text_seconds * num_texts,
    )


def _predict_job(stage: Stage, cell: Cell, *, test_inputs: Mapping[str, Any]) -> PredictJob:
    arm = stage.arms[cell.arm]
    model = arm.load(
        stage.folder.model_dir(cell), setup=stage.setup, num_threads=stage.workforce.num_threads
    )
    return PredictJob(cell, model, stage.prepared(arm).valid, test_inputs[arm.reads])


def _fit_seconds(stage: Stage, cell: Cell) -> float:
    return stage.arms[cell.arm].fit_seconds(stage.setup, num_labels=cell.num_labels)


def _read_seconds(stage: Stage, cell: Cell, *, num_test: int) -> float:
    num_texts = len(stage.setup.valid) + num_test
    return stage.arms[cell.arm].read_seconds(stage.setup, num_texts=num_texts)
