"""The two stages of a comparison: every cell is trained, then every cell answers the test file.

Comes in: a task, its arms and cells, and who does the work. Goes out: finished cells in the folder,
answers beside them. What lies there is not done again, so a comparison that was killed goes on. The
second stage is given texts without labels.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from regraft.arms import FIRST, Arm, ArmsFolder, Cell, Task, TrainedCell
from regraft.baselines import LinearModel, NaiveBayesModel
from regraft.batches import ExampleRows
from regraft.cells import (
    AnswerJob,
    Answers,
    NeuralAnswers,
    NeuralJob,
    TrainJob,
    VectorAnswers,
    VectorJob,
    WordAnswers,
    WordJob,
)
from regraft.errors import RunFolderError
from regraft.forecast import GUESSED_FLOPS, Forecast, Forecasting
from regraft.regression import VectorModel
from regraft.rivals import LEARNING_RATE, RIVALS
from regraft.runtime import SILENT, Progress, write_whole
from regraft.subsets import subset_numbers
from regraft.text import Example
from regraft.trainer import num_epochs
from regraft.vectors import VECTOR_ARMS, TextVectors, make_vectors, text_vectors
from regraft.workers import results

# The rate that the settings name, and one on either side: half an order of magnitude each.
RATE_FACTORS = {"none": (1.0,), "small": (1.0, 1 / 3, 3.0)}
# Guesses in seconds, for the time left only: a text of a shallow model, in all its fits.
_SHALLOW_SECONDS = 0.01


@dataclass(frozen=True)
class Workforce:
    """Who does the work: so many jobs at a time, each on so many threads, here or on a cluster."""

    num_jobs: int
    num_threads: int
    cluster: str | None = None


@dataclass(frozen=True)
class Stage:
    """What both stages share."""

    task: Task
    arms: Mapping[str, Arm]
    grid: str
    folder: ArmsFolder
    workforce: Workforce
    progress: Progress = SILENT

    def rates(self, arm: Arm) -> tuple[float, ...]:
        """The learning rates that an arm tries; what comes first wins a tie."""
        settings = self.task.starts[arm.base].settings
        rate = LEARNING_RATE if arm.kind in RIVALS else settings.train.lr
        return tuple(rate * factor for factor in RATE_FACTORS[self.grid])

    def rows_of(self, texts: Sequence[str], *, base: str = FIRST) -> ExampleRows:
        """Rows of texts whose labels stay where they are."""
        start = self.task.starts[base]
        return ExampleRows(
            texts,
            targets=np.zeros(len(texts), dtype=np.int64),
            tokenizer=start.tokenizer,
            data=start.settings.data,
        )


def train_cells(stage: Stage, cells: Sequence[Cell], *, num_test: int) -> dict[Cell, TrainedCell]:
    """Every cell, those in the folder taken from there.

    `num_test` texts will be asked for, about: what that takes belongs to the time left.
    """
    finished = stage.folder.finished()
    missing = [cell for cell in cells if cell not in finished]
    if len(missing) < len(cells):
        stage.progress.say(
            f"{len(cells) - len(missing)} of {len(cells)} runs are finished already."
        )
    if not missing:
        return {cell: finished[cell] for cell in cells}
    wanted = {cell.arm: stage.arms[cell.arm] for cell in missing}
    vectors = {
        name: make_vectors(arm, stage.task, folder=stage.folder, progress=stage.progress)
        for name, arm in wanted.items()
        if arm.kind in VECTOR_ARMS
    }
    work: dict[Any, float] = {cell: _training_work(stage, cell) for cell in missing}
    work |= {("test", cell): _asking_work(stage, cell, num_test=num_test) for cell in cells}
    jobs = (_train_job(stage, cell, vectors=vectors) for cell in missing)
    for result in _worked(stage, jobs, work, name=f"{len(missing)} runs", key=lambda cell: cell):
        cell = result.run.cell
        if result.weights is not None:
            stage.folder.save_weights(cell, result.weights)
        else:
            result.member.save(stage.folder.member_path(cell))
        stage.folder.sign(result.run)
        finished[cell] = result.run
    return {cell: finished[cell] for cell in cells}


def answer_cells(stage: Stage, cells: Sequence[Cell], *, test: str, texts: Sequence[str]) -> None:
    """Leave the answers of every cell to these texts in the folder; `test` names the file."""
    missing = [cell for cell in cells if _read_answers(stage.folder, cell, test=test) is None]
    if not missing:
        return
    arms = {cell.arm: stage.arms[cell.arm] for cell in missing}
    rows = {
        base: stage.rows_of(texts, base=base)
        for base in {arm.base for arm in arms.values() if arm.is_neural}
    }
    vectors = {
        name: (
            make_vectors(arm, stage.task, folder=stage.folder, progress=stage.progress).valid,
            text_vectors(arm, stage.task, texts, folder=stage.folder, progress=stage.progress),
        )
        for name, arm in arms.items()
        if arm.kind in VECTOR_ARMS
    }
    work = {("test", cell): _asking_work(stage, cell, num_test=len(texts)) for cell in missing}
    jobs = (_answer_job(stage, cell, texts=texts, rows=rows, vectors=vectors) for cell in missing)
    for answers in _worked(stage, jobs, work, name="test", key=lambda cell: ("test", cell)):
        data = save({"valid": answers.valid, "test": answers.test})
        path = stage.folder.answers_path(answers.cell, test=test)
        write_whole(path, lambda file, data=data: file.write(data))  # type: ignore[misc]


def load_answers(folder: ArmsFolder, cell: Cell, *, test: str) -> dict[str, Any]:
    """What `answer_cells` left: the probabilities of `valid` and of `test`."""
    found = _read_answers(folder, cell, test=test)
    assert found is not None, "answers are written before they are read"
    return found


def _read_answers(folder: ArmsFolder, cell: Cell, *, test: str) -> dict[str, Any] | None:
    try:
        arrays = load_file(folder.answers_path(cell, test=test))
        return {name: arrays[name] for name in ("valid", "test")}
    except (OSError, KeyError, SafetensorError):
        return None


def _worked(
    stage: Stage,
    jobs: Iterator[Any],
    work: Mapping[Any, float],
    *,
    name: str,
    key: Callable[[Cell], Any],
) -> Iterator[Any]:
    """Results as they come, under one bar that knows how long all the work will take."""
    workforce = stage.workforce
    kinds = {each: stage.arms[_cell_of(each).arm].kind for each in work}
    bar = Forecasting(stage.progress, Forecast(work, kinds=kinds, num_jobs=workforce.num_jobs))
    bar.start(name)
    num_jobs = sum(1 for each in work if each == key(_cell_of(each)))
    found = results(
        jobs,
        num_jobs=workforce.num_jobs,
        num_threads=workforce.num_threads,
        cluster=workforce.cluster,
        progress_of=lambda job: bar.of(
            key(job.cell),
            name=str(job.cell),
            num_tasks=len(job.rates) if isinstance(job, NeuralJob) else 1,
        ),
    )
    for num_done, result in enumerate(found, start=1):
        yield result
        done = result if isinstance(result, Answers) else result.run
        note = f"{num_done} of {num_jobs}: {done.cell}"
        if isinstance(done, TrainedCell):
            note += f", valid {done.kept_accuracy:.1%}"
        bar.end(key(done.cell), seconds=done.wall_seconds, note=note)
    bar.finish()


def _cell_of(key: Any) -> Cell:
    cell: Cell = key if isinstance(key, Cell) else key[1]
    return cell


def _train_job(stage: Stage, cell: Cell, *, vectors: Mapping[str, TextVectors]) -> TrainJob:
    task, arm = stage.task, stage.arms[cell.arm]
    numbers = subset_numbers(task.train, size=cell.num_labels, seed=cell.seed)
    train: Sequence[Example] = [task.train[number] for number in numbers]
    if arm.kind in VECTOR_ARMS:
        shared = vectors[arm.name]
        return VectorJob(
            cell=cell,
            vectors=shared.train[numbers],
            targets=task.labels.targets(train),
            valid=(shared.valid, task.labels.targets(task.valid)),
            labels=task.labels,
            shared_seconds=shared.seconds(cell.num_labels),
        )
    if not arm.is_neural:
        return WordJob(cell, arm.kind, train, task.valid, task.labels)
    rows, valid_rows = task.rows[arm.base]
    start = task.starts[arm.base]
    has_base = arm.kind in ("pretrained", "frozen")
    return NeuralJob(
        cell=cell,
        kind=arm.kind,
        start=start if has_base else dataclasses.replace(start, base=None),
        num_classes=len(task.labels),
        rows=rows.subset(numbers),
        valid_rows=valid_rows,
        rates=stage.rates(arm),
        num_threads=stage.workforce.num_threads,
    )


def _answer_job(
    stage: Stage,
    cell: Cell,
    *,
    texts: Sequence[str],
    rows: Mapping[str, ExampleRows],
    vectors: Mapping[str, tuple[Any, Any]],
) -> AnswerJob:
    task, folder, arm = stage.task, stage.folder, stage.arms[cell.arm]
    if arm.kind in VECTOR_ARMS:
        return VectorAnswers(cell, VectorModel.load(folder.member_path(cell)), *vectors[arm.name])
    if not arm.is_neural:
        kind = LinearModel if arm.kind == "linear" else NaiveBayesModel
        valid = [example.text for example in task.valid]
        return WordAnswers(cell, kind.load(folder.member_path(cell)), valid, texts)
    path = folder.weights_path(cell)
    try:
        weights = path.read_bytes()
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read: {error.strerror}.", remedy="Repeat the command."
        ) from error
    return NeuralAnswers(
        cell=cell,
        kind=arm.kind,
        start=dataclasses.replace(task.starts[arm.base], base=None),
        num_classes=len(task.labels),
        weights=weights,
        weights_path=path,
        valid_rows=task.rows[arm.base][1],
        test_rows=rows[arm.base],
        num_threads=stage.workforce.num_threads,
    )


def _training_work(stage: Stage, cell: Cell) -> float:
    """Seconds that a cell may take, guessed: only how cells compare has to be about right."""
    arm, num_valid = stage.arms[cell.arm], len(stage.task.valid)
    if not arm.is_neural:
        return _SHALLOW_SECONDS * (cell.num_labels + num_valid)
    train = stage.task.starts[arm.base].settings.train
    if train.epochs is not None:
        passes = float(num_epochs(cell.num_labels, settings=train))
    else:
        passes = max((train.steps or 1) * train.batch_size / cell.num_labels, 1)
    # A step forward costs one, the way back two; valid is read before the first epoch, too.
    trained = passes * cell.num_labels * (1 if arm.kind == "frozen" else 3)
    watched = (passes + 1) * num_valid
    return len(stage.rates(arm)) * (trained + watched) * _seconds_a_text(stage, arm)


def _asking_work(stage: Stage, cell: Cell, *, num_test: int) -> float:
    arm = stage.arms[cell.arm]
    num_texts = len(stage.task.valid) + num_test
    return num_texts * (_seconds_a_text(stage, arm) if arm.is_neural else _SHALLOW_SECONDS / 10)


def _seconds_a_text(stage: Stage, arm: Arm) -> float:
    """One pass of a text of usual length: two operations a weight of the layers and token."""
    model = stage.task.starts[arm.base].settings.model
    num_tokens = float(stage.task.rows[arm.base][0].lengths.mean())
    return 2 * 12 * max(model.num_layers, 1) * model.width**2 * num_tokens / GUESSED_FLOPS
