"""The arms of a comparison: each trained with every seed on the same batches, and kept on disk.

Comes in: a `Task`, the same for all arms, and the names and seeds wanted. Goes out: a `TrainedArm`
for each; a finished one outlives Ctrl-C, a crash or a bad test file, and is not trained again.
Knows no test file.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from regraft.baselines import LinearModel, fit_linear
from regraft.batches import ExampleRows, example_rows
from regraft.config import flat, replace, settings_to_dict
from regraft.errors import RunFolderError
from regraft.finetune import Start, examples_fingerprint, train_classifier
from regraft.heads import Model
from regraft.runtime import SILENT, Progress, disk_error, write_json, write_whole
from regraft.text import Example, Labels, labels_of

# Settings that cannot change the weights of a run; seeds are told by the names of the files.
_MAY_CHANGE = {"train.seed", "train.checkpoint_every", "train.keep_checkpoints"}


@dataclass(frozen=True)
class Task:
    """What every arm is given; sent whole to a worker process."""

    start: Start
    labels: Labels
    train: Sequence[Example]
    valid: Sequence[Example]
    train_rows: ExampleRows
    valid_rows: ExampleRows

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of all that the arms learn from."""
        return {
            "train": examples_fingerprint(self.train),
            "valid": examples_fingerprint(self.valid),
            "base": self.start.fingerprint,
            "tokenizer": self.start.tokenizer.fingerprint,
        }


def build_task(start: Start, *, train: Sequence[Example], valid: Sequence[Example]) -> Task:
    """The task of learning `train`, watched on `valid`."""
    labels = labels_of(train)
    tokenizer, data = start.tokenizer, start.settings.data
    return Task(
        start,
        labels,
        train,
        valid,
        train_rows=example_rows(train, labels=labels, tokenizer=tokenizer, data=data),
        valid_rows=example_rows(valid, labels=labels, tokenizer=tokenizer, data=data),
    )


@dataclass(frozen=True)
class TrainedArm:
    """One run of one arm, ready for the test file."""

    name: str
    seed: int
    valid_accuracy: tuple[float, ...]
    seconds: float
    linear: LinearModel | None = None


class ArmsFolder:
    """Finished runs on disk: `NAME-SEED.safetensors`, then `NAME-SEED.json` as the sign of it.

    The linear arm is not kept: it is fitted again in seconds, to the same model.
    """

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.path = out_dir / "arms"

    @contextlib.contextmanager
    def opened(self, task: Task, *, resume: bool) -> Iterator[None]:
        """Refuse finished runs of another task, or any unless resumed; leave no empty folder."""
        is_new = not self.out_dir.exists()
        if self.finished():
            if not resume:
                raise RunFolderError(
                    f"{self.out_dir} holds a comparison that has not ended.",
                    remedy="Choose another --out, pass --resume to go on, or remove the folder.",
                )
            refuse_changes(self.out_dir, before=self._read_task(), now=task_facts(task))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(self.path, error) from error
        try:
            write_json(self._task_path, task_facts(task))
            yield
        except BaseException:
            if not self.finished():
                self.discard()
                with contextlib.suppress(OSError):  # not empty: it was the user's before
                    if is_new:
                        self.out_dir.rmdir()
            raise

    def finished(self) -> dict[tuple[str, int], TrainedArm]:
        """The runs that need not be trained again."""
        runs = {}
        for path in sorted(self.path.glob("*-*.json")):
            try:
                facts = json.loads(path.read_text(encoding="utf-8"))
                curve = tuple(facts["valid_accuracy"])
                run = TrainedArm(facts["name"], facts["seed"], curve, facts["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if self._weights_path(run).exists():
                runs[run.name, run.seed] = run
        return runs

    def save(self, run: TrainedArm, *, model: Model) -> None:
        """Keep a run: the weights, then the facts."""
        weights = save({name: t.contiguous().cpu() for name, t in model.state_dict().items()})
        write_whole(self._weights_path(run), lambda file: file.writelines([weights]))
        facts = dataclasses.asdict(run)
        del facts["linear"]
        write_json(self._weights_path(run).with_suffix(".json"), facts)

    def load(self, run: TrainedArm, *, into: Model) -> None:
        """Put the weights of a finished run into a model of its shape."""
        path = self._weights_path(run)
        try:
            into.load_state_dict(load_file(path))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise RunFolderError(
                f"{path} is damaged: {str(error).splitlines()[0]}.",
                remedy="Remove the file and repeat the command with --resume.",
            ) from error

    def discard(self) -> None:
        """Remove what was kept: its report is written, or there is nothing worth keeping."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def _task_path(self) -> Path:
        return self.path / "task.json"

    def _weights_path(self, run: TrainedArm) -> Path:
        return self.path / f"{run.name}-{run.seed}.safetensors"

    def _read_task(self) -> dict[str, Any]:
        try:
            facts = json.loads(self._task_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            facts = {}
        return facts if isinstance(facts, dict) else {}


def task_facts(task: Task) -> dict[str, Any]:
    """What decides the weights of a run, ready for JSON."""
    return {
        "settings": settings_to_dict(task.start.settings),
        "fingerprints": task.fingerprints,
    }


def refuse_changes(out_dir: Path, *, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings or data than `before`, naming what changed."""
    settings = flat(before.get("settings", {}))
    changed = [
        f"{key} was {settings.get(key)!r} and is {value!r}"
        for key, value in flat(now["settings"]).items()
        if key not in _MAY_CHANGE and settings.get(key) != value
    ]
    fingerprints = before.get("fingerprints", {})
    changed += [
        f"{name} has changed"
        for name, value in now["fingerprints"].items()
        if fingerprints.get(name) != value
    ]
    if changed:
        raise RunFolderError(
            f"{out_dir} was started otherwise: {'; '.join(changed)}.",
            "A resumed comparison must equal one that was never interrupted.",
            remedy="Resume with the same settings and data, or choose another --out.",
        )


def train_arms(
    task: Task,
    *,
    arms: Sequence[str],
    seeds: int,
    jobs: int,
    folder: ArmsFolder,
    progress: Progress,
) -> list[TrainedArm]:
    """Every arm with every seed, those in the folder taken from there; `jobs` of them at a time."""
    # Seed by seed, not arm by arm: what is interrupted or watched is balanced over the arms.
    first_seed = task.start.settings.train.seed
    wanted = [
        (name, seed)
        for seed in range(first_seed, first_seed + seeds)
        for name in arms
        if name != "linear"
    ]
    finished = folder.finished()
    missing = [key for key in wanted if key not in finished]
    if len(missing) < len(wanted):
        progress.say(f"{len(wanted) - len(missing)} of {len(wanted)} runs are finished already.")
    linear = [_fit_linear(task, progress=progress)] if "linear" in arms else []
    if jobs > 1 and len(missing) > 1:
        runs = _train_side_by_side(task, missing, jobs=jobs, folder=folder, progress=progress)
    else:
        runs = _train_in_turn(task, missing, folder=folder, progress=progress)
    finished |= {(run.name, run.seed): run for run in runs}
    return linear + [finished[key] for key in wanted]


def _fit_linear(task: Task, *, progress: Progress) -> TrainedArm:
    progress.start("linear arm", total=None)
    linear = fit_linear(task.train, task.valid, labels=task.labels)
    progress.finish()
    assert linear.valid_accuracy is not None, "valid has examples"
    return TrainedArm("linear", 0, (linear.valid_accuracy,), linear.seconds, linear)


def _train_in_turn(
    task: Task, wanted: Sequence[tuple[str, int]], *, folder: ArmsFolder, progress: Progress
) -> Iterator[TrainedArm]:
    for number, (name, seed) in enumerate(wanted, start=1):
        title = f"{name}, seed {seed} ({number} of {len(wanted)})"
        yield train_arm(task, name, seed=seed, folder=folder, progress=_Named(progress, title))


def _train_side_by_side(
    task: Task,
    wanted: Sequence[tuple[str, int]],
    *,
    jobs: int,
    folder: ArmsFolder,
    progress: Progress,
) -> Iterator[TrainedArm]:
    """Each run in a process of its own with its share of the cores.

    Small matrices leave a second thread idle much of the time; a second run does not.
    """
    from joblib import Parallel, delayed, parallel_config

    num_threads = max((os.cpu_count() or 1) // jobs, 1)
    progress.start(f"{len(wanted)} runs, {jobs} at once", total=len(wanted))
    with parallel_config(backend="loky", inner_max_num_threads=num_threads):
        results = Parallel(n_jobs=jobs, return_as="generator_unordered")(
            delayed(train_arm)(task, name, seed=seed, folder=folder) for name, seed in wanted
        )
        for run in results:
            note = f"{run.name}, seed {run.seed}: valid {run.valid_accuracy[-1]:.1%}"
            progress.advance(note=note)
            yield run
    progress.finish()


def train_arm(
    task: Task, name: str, *, seed: int, folder: ArmsFolder, progress: Progress = SILENT
) -> TrainedArm:
    """One run of one neural arm, kept in the folder."""
    settings = replace(task.start.settings, "train", seed=seed, freeze_base=name == "frozen")
    if settings.train.threads == "auto":
        # Chosen by the clock, the number would differ between arms and from one time to the next,
        # and with it the rounding of sums.
        settings = replace(settings, "train", threads=torch.get_num_threads())
    origin = dataclasses.replace(task.start, base=None) if name == "scratch" else task.start
    model, _ = origin.build_model(num_classes=len(task.labels), seed=seed)
    records = list(
        train_classifier(
            model,
            rows=task.train_rows,
            valid_rows=task.valid_rows,
            settings=settings,
            progress=progress,
        )
    )
    curve = tuple(record.valid_accuracy for record in records)
    run = TrainedArm(name, seed, curve, records[-1].seconds)
    folder.save(run, model=model)
    return run


class _Named:
    """A Progress whose tasks bear the name of the run they belong to."""

    def __init__(self, inner: Progress, name: str) -> None:
        self._inner, self._name = inner, name
        self.advance, self.finish, self.say = inner.advance, inner.finish, inner.say

    def start(self, name: str, *, total: float | None) -> None:
        self._inner.start(self._name, total=total)
