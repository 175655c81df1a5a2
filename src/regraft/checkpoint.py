"""A TrainState on disk, and the loop that keeps one: what makes a run outlive its process.

Comes in: a state, a folder. Goes out: checkpoints that are whole or not there, checked when read,
and `kept_steps`, the trainer's steps with checkpoints, signals and a full disk taken care of. Knows
nothing of what is trained.
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from regraft.batches import Rows
from regraft.config import TrainSettings
from regraft.errors import DiskError, DiskFullError, RunFolderError
from regraft.objectives import Objective
from regraft.parallel import is_sharded, world
from regraft.runtime import (
    SILENT,
    Interruption,
    Progress,
    disk_error,
    interruptible,
    sync_folder,
    write_json,
    write_whole,
)
from regraft.trainer import StepRecord, TrainState, budget_plan, steps, use_threads

# Looked at again after this long while a full disk holds up a run.
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
    """The trainer's steps under a progress bar, with a checkpoint whenever one is due.

    Ctrl-C and SIGTERM save before they leave. What the caller does with a record belongs to its
    step: `extra` is asked for only after that, and saved beside the state.
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
                progress.finish()
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
    """Save; on a full disk wait until there is room, so that no step is lost."""
    was_requested = interruption.requested
    told = False
    while True:
        try:
            checkpoints.save(state, extra=extra)
            return
        except DiskFullError as error:
            # Asked to stop while it waits: the checkpoints before this one are still good.
            if interruption.requested and (told or was_requested):
                raise
            if not told:
                progress.say(
                    f"{error.problem} Training waits after step {state.step:,} and goes on when "
                    "there is room; Ctrl-C gives up what came after the last checkpoint."
                )
                told = True
            time.sleep(PAUSE_SECONDS)


class Checkpoints:
    """The newest few checkpoints of a run: folders named by step, each with a manifest."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, state: TrainState, *, extra: dict[str, Any]) -> None:
        """Write the state beside, rename it into place, and drop all but the newest.

        Under FSDP every process writes its shards; otherwise the first process writes alone.
        """
        final = self.folder / f"{state.step:08d}"
        beside = final.with_name(f".{final.name}.partial")
        try:
            self._write(state, beside=beside, extra=extra)
        except DiskError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        if world().is_first:
            shutil.rmtree(final, ignore_errors=True)
            beside.rename(final)
            sync_folder(self.folder)
            for old in sorted(self._found())[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
        # Nobody may leave (and be seen as failed by torchrun) while the first still writes.
        world().wait()

    def _write(self, state: TrainState, *, beside: Path, extra: dict[str, Any]) -> None:
        if world().is_first:
            shutil.rmtree(beside, ignore_errors=True)
            _make_folder(beside)
        if _is_sharded(state):
            world().wait()
            _save_shards(beside, _tensors(state))
        elif world().is_first:
            write_tensors(beside / "state.safetensors", _tensors(state))
        if world().is_first:
            write_json(beside / "state.json", {**_position(state), "extra": extra})
            write_json(beside / MANIFEST, _digests(beside))

    def load(self, state: TrainState, *, progress: Progress = SILENT) -> dict[str, Any] | None:
        """Put the newest sound checkpoint into a fresh state; its `extra`, None if there is none.

        A damaged one is passed over with a warning: the steps after the one before run again.
        """
        found = sorted(self._found(), reverse=True)
        for path in found:
            try:
                _check(path)
            except RunFolderError as error:
                progress.say(f"Warning: {error.problem} The checkpoint before it is used.")
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
                remedy="Restore the folder from a copy, or remove it to start the run anew.",
            )
        return None

    def remove(self) -> None:
        """The run has ended: its final weights say all."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _found(self) -> Iterator[Path]:
        if self.folder.exists():
            yield from (path for path in self.folder.iterdir() if path.name.isdigit())


def _position(state: TrainState) -> dict[str, Any]:
    """Every field of the state that is a plain number or a list of them."""
    live = ("model", "runner", "optimizer", "copies")
    names = [part.name for part in dataclasses.fields(state) if part.name not in live]
    return {name: getattr(state, name) for name in names}


def _tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """`model.NAME`, `optimizer.NAME|KEY`, `copy.NAME|KIND`: the same names however it is spread."""
    names: dict[torch.Tensor, str] = {p: name for name, p in state.model.named_parameters()}
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    for parameter, values in state.optimizer.state.items():
        for key, value in values.items():
            tensors[f"optimizer.{names[parameter]}|{key}"] = value
    for kind, weights in state.copies.items():
        tensors |= {f"copy.{name}|{kind}": tensor for name, tensor in weights.items()}
    return tensors


def _restore(state: TrainState, path: Path) -> None:
    """Fill the model and the optimiser, from one file or from shards of any number of processes."""
    parameters = dict(state.model.named_parameters())
    files = sorted(path.glob("*.safetensors"))
    for owner, kind in _keys(files, part="copy"):
        state.copies.setdefault(kind, {})[owner] = torch.zeros_like(parameters[owner])
    for owner, key in _keys(files, part="optimizer"):
        parameter = parameters[owner]
        # A moment is spread and placed as its parameter is; `step` is a number.
        state.optimizer.state[parameter][key] = (
            torch.zeros((), device=_counter_device(parameter, state=state))
            if key == "step"
            else torch.zeros_like(parameter)
        )
    tensors = {name: tensor.detach() for name, tensor in _tensors(state).items()}
    if [file.name for file in files] == ["state.safetensors"] and not _is_sharded(state):
        stored = load_file(files[0])
        for name, tensor in tensors.items():
            tensor.copy_(stored[name])
    else:
        _load_shards(path, tensors)


def _keys(files: list[Path], *, part: str) -> list[tuple[str, str]]:
    """(parameter, key) of everything that is kept beside the parameters, in any of the files."""
    names: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as stored:
            names.update(name for name in stored.keys() if name.startswith(f"{part}."))  # noqa: SIM118
    split = [name.removeprefix(f"{part}.").partition("|") for name in sorted(names)]
    return [(owner, key) for owner, _, key in split]


def _counter_device(parameter: torch.Tensor, *, state: TrainState) -> torch.device:
    """Fused optimisers count steps on the parameter's device, others on the CPU."""
    fused = any(group.get("fused") for group in state.optimizer.param_groups)
    return parameter.device if fused else torch.device("cpu")


def _is_sharded(state: TrainState) -> bool:
    return any(is_sharded(parameter) for parameter in state.model.parameters())


def _save_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """torch.distributed.checkpoint with safetensors as its format: no pickle, no gathering."""
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
        tensors,
        storage_reader=HuggingFaceStorageReader(str(folder)),
        no_dist=world().size == 1,
    )


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a safetensors file whole."""
    data = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})
    write_whole(path, lambda file: file.write(data))


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise disk_error(path, error) from error


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: file_digest(path) for path in sorted(folder.iterdir())}


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _check(folder: Path) -> None:
    """Raise unless every file of a checkpoint is there and is what was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        wrong = [name for name, digest in manifest.items() if file_digest(folder / name) != digest]
        reason = f"{', '.join(wrong)} changed since it was written" if wrong else None
    except FileNotFoundError as error:
        reason = f"{Path(error.filename).name} is missing"
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, AttributeError):
        reason = f"{MANIFEST} cannot be read"
    if reason is not None:
        raise RunFolderError(
            f"The checkpoint {folder} is damaged: {reason}.", remedy="Restore it from a copy."
        )
