"""Checkpoints of a TrainState, and training steps that save them when due.

A checkpoint is complete or absent, and is verified when loaded.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from regraft.config import TrainSettings
from regraft.data import Rows
from regraft.errors import DiskError, DiskFullError, RunFolderError
from regraft.runtime import (
    SILENT,
    Interruption,
    Progress,
    disk_error,
    file_sha256,
    interruptible,
    sync_folder,
    world,
    write_json,
)
from regraft.training.loaded_run import write_tensors
from regraft.training.loop import StepRecord, TrainState, budget_plan, steps, use_threads
from regraft.training.objectives import Objective
from regraft.training.sharding import is_sharded

# Seconds between attempts to save while the disk is full.
PAUSE_SECONDS = 10.0

MANIFEST = "manifest.json"


def kept_steps(
    state: TrainState,
    *,
    rows: Rows,
    objective: Objective,
    settings: TrainSettings,
    checkpoints: "Checkpoints | None",
    extra: Callable[[], dict[str, Any]],
    name: str,
    note: Callable[[StepRecord], str],
    progress: Progress = SILENT,
) -> Iterator[StepRecord]:
    """The steps of the training loop under a progress bar, with checkpoints when due.

    Ctrl-C and SIGTERM save before they leave. What the caller does with a record belongs to its
    step: `extra` is called only after that, and saved with the state.
    """
    use_threads(state, rows=rows, objective=objective, settings=settings)
    budget_seconds = None if settings.minutes is None else settings.minutes * 60
    progress.start(name, total=budget_seconds or state.total_steps)
    done = state.seconds if budget_seconds else state.step
    progress.advance(done)
    with interruptible() as interruption:
        for record in steps(state, rows=rows, objective=objective, settings=settings):
            yield record
            now = state.seconds if budget_seconds else state.step
            progress.advance(now - done, note=note(record))
            done = now
            if plan := budget_plan(state, settings=settings, num_rows=len(rows.lengths)):
                progress.say(plan)
            stopped = world().any(interruption.requested)
            every = settings.checkpoint_every
            if checkpoints and (stopped or (every and record.step % every == 0)):
                _save_when_possible(
                    checkpoints, state, extra=extra(), interruption=interruption, progress=progress
                )
            if stopped:
                progress.say(f"{name}: stopped after step {record.step:,}.")
                raise KeyboardInterrupt
    progress.finish()


def _save_when_possible(
    checkpoints: "Checkpoints",
    state: TrainState,
    *,
    extra: dict[str, Any],
    interruption: Interruption,
    progress: Progress,
) -> None:
    """Save; if the disk is full, wait for space, so that no step is lost."""
    was_requested = interruption.requested
    is_reported = False
    while True:
        try:
            checkpoints.save(state, extra=extra)
            return
        except DiskFullError as error:
            # Interrupted while waiting: earlier checkpoints are still intact.
            if interruption.requested and (is_reported or was_requested):
                raise
            if not is_reported:
                progress.say(
                    f"{error.problem} Training waits after step {state.step:,} until there is "
                    "space; Ctrl-C discards the steps after the last checkpoint."
                )
                is_reported = True
            time.sleep(PAUSE_SECONDS)


class Checkpoints:
    """The latest checkpoints of a run: folders named by step, each with a manifest."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, state: TrainState, *, extra: dict[str, Any]) -> None:
        """Write the state to a temporary folder, rename it, and delete old checkpoints.

        Under FSDP every process writes its shards; otherwise the first process writes alone.
        """
        final = self.folder / f"{state.step:08d}"
        partial = final.with_name(f".{final.name}.partial")
        try:
            self._write(state, partial=partial, extra=extra)
        except DiskError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if world().is_first:
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            sync_folder(self.folder)
            for old in sorted(self._found())[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
        # No process may exit, which torchrun would see as a failure, while the first still writes.
        world().wait()

    def _write(self, state: TrainState, *, partial: Path, extra: dict[str, Any]) -> None:
        if world().is_first:
            shutil.rmtree(partial, ignore_errors=True)
            _make_folder(partial)
        if _is_sharded(state):
            world().wait()
            _save_shards(partial, _tensors(state))
        elif world().is_first:
            write_tensors(partial / "state.safetensors", _tensors(state))
        if world().is_first:
            write_json(partial / "state.json", {**_position(state), "extra": extra})
            write_json(partial / MANIFEST, _digests(partial))

    def load(self, state: TrainState, *, progress: Progress = SILENT) -> dict[str, Any] | None:
        """Load the latest intact checkpoint into a new state; returns its `extra`, else None.

        A damaged one is passed over with a warning: the steps after the one before run again.
        """
        found = sorted(self._found(), reverse=True)
        for path in found:
            try:
                _check(path)
            except RunFolderError as error:
                progress.say(f"note: {error.problem} The checkpoint before it is used.")
                continue
            values = json.loads((path / "state.json").read_text(encoding="utf-8"))
            _restore(state, path)
            extra: dict[str, Any] = values.pop("extra")
            for name, value in values.items():
                setattr(state, name, value)
            return extra
        if found:
            raise RunFolderError(
                f"Every checkpoint in {self.folder} is damaged.",
                remedy="Restore the folder from a copy, or remove it to start the run again.",
            )
        return None

    def remove(self) -> None:
        """Delete all checkpoints: the run has ended and has final weights."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _found(self) -> Iterator[Path]:
        if self.folder.exists():
            yield from (path for path in self.folder.iterdir() if path.name.isdigit())


def _position(state: TrainState) -> dict[str, Any]:
    """Every field of the state that is a number or a list of numbers."""
    live = ("model", "runner", "optimizer", "copies")
    names = [part.name for part in dataclasses.fields(state) if part.name not in live]
    return {name: getattr(state, name) for name in names}


def _tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """`model.NAME`, `optimizer.NAME|KEY`, `copy.NAME|KIND`: the same names for any sharding."""
    names: dict[torch.Tensor, str] = {p: name for name, p in state.model.named_parameters()}
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    for parameter, values in state.optimizer.state.items():
        for key, value in values.items():
            tensors[f"optimizer.{names[parameter]}|{key}"] = value
    for kind, weights in state.copies.items():
        tensors |= {f"copy.{name}|{kind}": tensor for name, tensor in weights.items()}
    return tensors


def _restore(state: TrainState, path: Path) -> None:
    """Load model and optimizer from one file, or from shards of any number of processes."""
    parameters = dict(state.model.named_parameters())
    files = sorted(path.glob("*.safetensors"))
    for owner, kind in _keys(files, part="copy"):
        state.copies.setdefault(kind, {})[owner] = torch.zeros_like(parameters[owner])
    for owner, key in _keys(files, part="optimizer"):
        parameter = parameters[owner]
        # Moments are sharded and placed like their parameter; `step` is a number.
        if key == "step":
            moment = torch.zeros((), device=_counter_device(parameter, state=state))
        elif key == "squares":
            moment = torch.zeros(len(parameter), 1, device=parameter.device)
        else:
            moment = torch.zeros_like(parameter)
        state.optimizer.state[parameter][key] = moment
    tensors = {name: tensor.detach() for name, tensor in _tensors(state).items()}
    if [file.name for file in files] == ["state.safetensors"] and not _is_sharded(state):
        stored = load_file(files[0])
        for name, tensor in tensors.items():
            tensor.copy_(stored[name])
    else:
        _load_shards(path, tensors)


def _keys(files: list[Path], *, part: str) -> list[tuple[str, str]]:
    """(parameter, key) of all tensors of the optimizer and of copies in the files."""
    names: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as stored:
            names.update(name for name in stored.keys() if name.startswith(f"{part}."))  # noqa: SIM118
    split = [name.removeprefix(f"{part}.").partition("|") for name in sorted(names)]
    return [(owner, key) for owner, _, key in split]


def _counter_device(parameter: torch.Tensor, *, state: TrainState) -> torch.device:
    """Fused optimizers count steps on the device of the parameter, others on the CPU."""
    fused = any(group.get("fused") for group in state.optimizer.param_groups)
    return parameter.device if fused else torch.device("cpu")


def _is_sharded(state: TrainState) -> bool:
    return any(is_sharded(parameter) for parameter in state.model.parameters())


def _save_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """torch.distributed.checkpoint with the safetensors format: no pickle, no gathering."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    try:
        save_distributed(
            tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True)
        )
    except OSError as error:
        raise disk_error(folder, error) from error


def _load_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_distributed

    load_distributed(
        tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=world().size == 1
    )


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise disk_error(path, error) from error


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in sorted(folder.iterdir())}


def _check(folder: Path) -> None:
    """Raise RunFolderError unless every file of a checkpoint exists and is unchanged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        wrong = [name for name, digest in manifest.items() if file_sha256(folder / name) != digest]
        reason = f"{', '.join(wrong)} changed since it was written" if wrong else None
    except FileNotFoundError as error:
        reason = f"{Path(error.filename).name} is missing"
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError):
        reason = f"{MANIFEST} cannot be read"
    if reason is not None:
        raise RunFolderError(
            f"The checkpoint {folder} is damaged: {reason}.", remedy="Restore it from a copy."
        )
