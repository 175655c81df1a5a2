"""The run folder: its files, its format version, and how they are written and read.

Its files are always whole. Only safetensors and JSON are written, by the first process alone. Knows
nothing of training, and needs no torch: networks are loaded by loaded_run.py.
"""

import contextlib
import dataclasses
import difflib
import json
import math
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from safetensors import safe_open

from regraft.config import Settings, flat, settings_from_dict, settings_to_dict
from regraft.data import ROLES_NAME, Tokenizer
from regraft.errors import ConfigError, RegraftError, RunFolderError
from regraft.models import is_foreign_folder
from regraft.runtime import (
    FORMAT_VERSION,
    check_checksum,
    check_files,
    check_format,
    checksums,
    disk_error,
    environment,
    file_sha256,
    hold_lock,
    is_held,
    joined,
    launch_id,
    num_restarts,
    read_json,
    sha256,
    with_checksum,
    world,
    write_json,
    write_whole,
    wrong_format,
)

if TYPE_CHECKING:
    from regraft.models import Model
    from regraft.training.checkpoint import Checkpoints

WEIGHTS_NAME = "model.safetensors"
# What a network is for. A base is a backbone without a head: it can be fine-tuned, nothing more.
Kind = Literal["language-model", "classifier", "base"]


@dataclass(frozen=True)
class RunInfo:
    """run.json: what this run is, where it came from, and whether it has ended."""

    # One of `Kind`, or a kind of classifier that is registered in classifiers/base.py.
    kind: str
    status: Literal["training", "complete"]
    labels: tuple[str, ...] = ()
    # Of a classifier that gives any number of labels: the probability from which each counts.
    thresholds: tuple[float, ...] = ()
    # Of a calibrated classifier: what its scores were divided by. Its weights hold it already.
    temperature: float | None = None
    # The confidence below which a fine-tuned classifier does not answer.
    abstain_below: float | None = None
    base: dict[str, Any] | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    # The SHA-256 of every file that loading reads, by its path in the folder.
    files: dict[str, str] = field(default_factory=dict)
    launch: str | None = None
    format_version: int = FORMAT_VERSION

    @property
    def is_network(self) -> bool:
        """Is it one network that regraft trained?"""
        return self.kind in get_args(Kind)

    @property
    def is_classifier(self) -> bool:
        """Does it give labels? Everything does that is not only there to be fine-tuned."""
        return self.kind not in ("language-model", "base")

    @property
    def is_language_model(self) -> bool:
        """Does it have the head it was pre-trained with?"""
        return self.kind == "language-model"

    @property
    def weights_digest(self) -> str | None:
        """The SHA-256 of the weights; None if there are none, or while others replace them."""
        digest = self.files.get(WEIGHTS_NAME)
        return None if digest is None or " " in digest else digest


class RunFolder:
    """One run on disk, while it is being written."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @property
    def exists(self) -> bool:
        """Has a run been started here?"""
        return (self.run_dir / "run.json").exists()

    @property
    def tokens_dir(self) -> Path:
        """The token store of this run, while it trains."""
        return self.run_dir / "tokens"

    @property
    def stages_dir(self) -> Path:
        """What the stages that have ended leave for the next one, while the run trains."""
        return self.run_dir / "stages"

    def checkpoints(self, *, keep: int, name: str = "") -> "Checkpoints":
        """The states of this run while it trains; each of several stages has its own, by name."""
        # Here, so that loading a run does not import the training loop.
        from regraft.training.checkpoint import Checkpoints

        return Checkpoints(self.run_dir / "checkpoints" / name, keep=keep)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing here.

        A folder that is still empty at the end, because the input was refused, is removed.
        """
        if not world().is_first:
            yield
            return
        busy = RunFolderError(
            f"{self.run_dir} is in use by another process.",
            "Two runs cannot write into one folder.",
            remedy="Wait for it to end, stop it, or choose another --out.",
        )
        lock = hold_lock(self.run_dir / _LOCK, busy=busy, wait_seconds=_LOCK_SECONDS).lock
        try:
            yield
        finally:
            (self.run_dir / _LOCK).unlink(missing_ok=True)
            lock.release()
            if not any(self.run_dir.iterdir()):
                self.run_dir.rmdir()

    def check_free(self, *, resume: bool) -> None:
        """Refuse a folder that is in use, before any work is done for it.

        Files left by a start that crashed or met a full disk do not count.
        """
        if self.exists:
            if not resume:
                raise RunFolderError(
                    f"{self.run_dir} already holds a run.",
                    remedy="Choose another --out, pass --resume to go on, or remove the folder.",
                )
        elif self.run_dir.exists() and (
            not self.run_dir.is_dir() or any(map(_is_foreign, self.run_dir.iterdir()))
        ):
            raise RunFolderError(
                f"{self.run_dir} exists and is not an empty folder.",
                "A run is written into its own folder.",
                remedy="Choose another --out.",
            )

    def start(
        self, info: RunInfo, *, settings: Settings, tokenizer: Tokenizer, resume: bool
    ) -> RunInfo:
        """Start a run, or continue the one in this folder if it is the same run.

        Refuses to overwrite, and refuses to resume with other settings or data, naming them.
        """
        self.check_free(resume=resume)
        if not self.exists:
            self._begin(info, settings=settings, tokenizer=tokenizer)
        there = read_info(self.run_dir)
        self._refuse_changes(there, info=info, settings=settings)
        if there.launch != launch_id():
            there = dataclasses.replace(there, launch=launch_id())
            self._write_info(there)
        if there.status == "complete" and world().is_first:
            # A kill may have come between its completion and the removal of this.
            self._remove_scaffolding()
        return there

    def _begin(self, info: RunInfo, *, settings: Settings, tokenizer: Tokenizer) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        info = dataclasses.replace(info, created=now, environment=environment())
        try:
            tokenizer.save(self.run_dir / "tokenizer.json")
            write_json(self.run_dir / "config.json", settings_to_dict(settings))
            # Last: its presence says that the files above are there.
            self._write_info(info)
        except RegraftError:
            for name in BEFORE_RUN_JSON:
                (self.run_dir / name).unlink(missing_ok=True)
            raise

    def finish(self, info: RunInfo, *, model: "Model") -> None:
        """Write the final weights and mark the run complete; what only training needs goes."""
        from regraft.training.loaded_run import write_tensors
        from regraft.training.sharding import whole

        tensors = {name: whole(tensor) for name, tensor in model.state_dict().items()}
        if world().is_first:
            write_tensors(self.run_dir / WEIGHTS_NAME, tensors)
            self._write_complete(info)
            self._remove_scaffolding()

    def _remove_scaffolding(self) -> None:
        """What only training needs."""
        self.checkpoints(keep=1).remove()
        shutil.rmtree(self.stages_dir, ignore_errors=True)
        shutil.rmtree(self.tokens_dir, ignore_errors=True)
        (self.run_dir / TEACHER_NAME).unlink(missing_ok=True)

    def keep_half_precision(self) -> None:
        """Store the weights of a finished run in half precision; loading converts them back.

        For weights that are not trained further: half the disk space. The vectors of a French bag
        rounded this way keep 80.3 % in cross-validation (2026-11-17).
        """
        from safetensors.numpy import load_file, save

        path, info = self.run_dir / WEIGHTS_NAME, read_info(self.run_dir)
        data = save(
            {
                name: array.astype(np.float16) if array.dtype == np.float32 else array
                for name, array in load_file(path).items()
            }
        )
        # Both checksums while one file replaces the other: a crash in between leaves a run that
        # loads, and that `has_half_precision` does not take for finished.
        both = f"{file_sha256(path)} {sha256([data])}"
        self._write_info(dataclasses.replace(info, files={**info.files, WEIGHTS_NAME: both}))
        write_whole(path, lambda file: file.write(data))
        self._write_complete(info)

    @property
    def has_half_precision(self) -> bool:
        """Did `keep_half_precision` complete here?"""
        with safe_open(self.run_dir / "model.safetensors", framework="numpy") as file:
            kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        return "F32" not in kinds and read_info(self.run_dir).weights_digest is not None

    def complete(self, result: dict[str, Any]) -> None:
        """Mark a run without weights of its own complete, such as a blend; remove its tokens."""
        self._write_complete(dataclasses.replace(read_info(self.run_dir), result=result))
        shutil.rmtree(self.tokens_dir, ignore_errors=True)

    def log(self, record: dict[str, Any]) -> None:
        """Append one record to metrics.jsonl."""
        if not world().is_first:
            return
        try:
            with (self.run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise disk_error(self.run_dir / "metrics.jsonl", error) from error

    def truncate_metrics(self, *, after: int, most: int | None = None) -> int:
        """Drop what was logged after a step: a resumed run repeats those steps.

        At `most` so many records stay. Returns how many did; 0 in all processes but the first.
        """
        path = self.run_dir / "metrics.jsonl"
        if not world().is_first or not path.exists():
            return 0
        records = list(read_metrics(self.run_dir))[:most]
        kept = [record for record in records if record["step"] <= after]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        write_whole(path, lambda file: file.write(text.encode()))
        return len(kept)

    def _write_complete(self, info: RunInfo) -> None:
        """Mark the run complete, with the checksums of its files: the last file that is written."""
        paths = [*_loaded_files(self.run_dir), self.run_dir / PLAN_NAME]
        files = checksums(self.run_dir, paths)
        self._write_info(dataclasses.replace(info, status="complete", files=files))

    def _write_info(self, info: RunInfo) -> None:
        write_json(self.run_dir / "run.json", with_checksum(dataclasses.asdict(info)))

    def _refuse_changes(self, there: RunInfo, *, info: RunInfo, settings: Settings) -> None:
        now, known = settings_to_dict(settings), there.fingerprints
        refuse_changes(
            self.run_dir,
            settings=(_read_json(self.run_dir / "config.json"), now),
            fingerprints=({name: known.get(name) for name in info.fingerprints}, info.fingerprints),
        )


def refuse_changes(
    folder: Path,
    *,
    settings: tuple[Mapping[str, Any], Mapping[str, Any]],
    fingerprints: tuple[Mapping[str, Any], Mapping[str, Any]],
    may_change: Collection[str] = (),
) -> None:
    """Refuse to resume with other settings or data, naming what changed; each is (before, now)."""
    before, now = map(flat, settings)
    changed = [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in {**now, **before}
        if before.get(key) != now.get(key) and key not in {*_MAY_CHANGE, *may_change}
    ]
    known, found = fingerprints
    changed += [
        f"{name} has changed" for name in {**found, **known} if found.get(name) != known.get(name)
    ]
    if changed:
        raise RunFolderError(
            f"{folder} was started with other settings or data: {'; '.join(changed)}.",
            "A resumed run must equal one that was never interrupted.",
            remedy="Continue with the same settings and data, or choose another --out.",
        )


@contextlib.contextmanager
def open_run(out: str | Path, *, resume: bool) -> Iterator[tuple[RunFolder, bool]]:
    """A folder for a recipe to write into, held by all processes of one world until the end.

    Yields the folder, and whether to resume the run in it.
    """
    folder = RunFolder(Path(out))
    with joined() as here:
        # A run that torchrun restarts is resumed without --resume, if torchrun started it.
        if num_restarts() and folder.exists:
            resume = resume or read_info(folder.run_dir).launch == launch_id()
        if here.is_first and not folder.run_dir.is_dir():
            folder.check_free(resume=resume)
        with folder.locked():
            # Inside the lock: a folder in use is reported as such, not as one to remove.
            if here.is_first:
                folder.check_free(resume=resume)
            yield folder, resume


def is_running(run_dir: Path) -> bool:
    """Does a process of this machine work on the run?"""
    return is_held(run_dir / _LOCK)


# Where a blend keeps its classifiers.
MEMBERS_NAME = "members"
# How long each base of a blend trained; read to repeat it.
PLAN_NAME = "plan.json"
_LOCK = "run.lock"
# A worker process outlives a parent that was killed by a second or more.
_LOCK_SECONDS = 5.0
# What the teacher of a student answers, while the student trains.
TEACHER_NAME = "teacher.safetensors"
BEFORE_RUN_JSON = ("tokenizer.json", ROLES_NAME, "config.json")


def _is_foreign(path: Path) -> bool:
    ours = (*BEFORE_RUN_JSON, "run.json", "tokens", TEACHER_NAME, _LOCK)
    return not path.name.lstrip(".").startswith(ours)


# More run folders are counted, not listed.
_MOST_LISTED = 8
# Settings that cannot change the weights.
_MAY_CHANGE = {"train.checkpoint_every", "train.keep_checkpoints"}


def check_run_folder(path: Path, *, expected: str, remedy: str) -> None:
    """Raise an error for a path that can only serve as a base."""
    if os.path.isfile(path):
        raise RunFolderError(
            f"{path} is a file, not a run folder.",
            "Runs are folders that regraft has written.",
            remedy=f"If it is a checkpoint of the lab, run `regraft import {path} --out RUN`.",
        )
    if not is_run_folder(path):
        raise RunFolderError(
            f"{path} is a Hugging Face folder, not a run folder.", expected, remedy=remedy
        )


def is_run_folder(path: Path) -> bool:
    """Is it anything but a file or a Hugging Face folder? Errors then say what is missing."""
    # Not Path.is_file, which raises if the name is too long.
    return os.path.isfile(path / "run.json") or not (
        os.path.isfile(path) or is_foreign_folder(path)
    )


def _loaded_files(run_dir: Path) -> list[Path]:
    """The files that loading reads if they are there, not hidden ones that are being written."""
    names = (*BEFORE_RUN_JSON, WEIGHTS_NAME)
    paths = [*(run_dir / name for name in names), *(run_dir / MEMBERS_NAME).rglob("*")]
    return [path for path in paths if path.name[0] != "." and path.is_file()]


def check_run_files(run_dir: Path, info: RunInfo, *, needed: Iterable[str]) -> None:
    """Refuse a complete run unless all files that loading reads are there, listed and unchanged."""
    for name in needed:
        if not (run_dir / name).exists():
            raise incomplete(run_dir / name)
    for path in _loaded_files(run_dir):
        name = path.relative_to(run_dir).as_posix()
        if name not in info.files:
            raise RunFolderError(
                f"{run_dir / 'run.json'} has no checksum of {name}.",
                "It lists every file that loading reads.",
                remedy="Restore the folder or train again.",
            )
    check_files(run_dir, info.files)


def read_info(run_dir: Path) -> RunInfo:
    """run.json, checked for format, completeness, damage and sensible values."""
    path = run_dir / "run.json"
    values = _read_json(path)
    check_format(values, path=run_dir)
    values = check_checksum(values, path=path)
    try:
        _check_values(values)
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else "a value has the wrong type"
        raise RunFolderError(
            f"{path} describes no run: {reason}.", remedy="Restore the folder or train again."
        ) from error
    for name in ("labels", "thresholds"):
        values[name] = tuple(values.get(name, ()))
    fields = dataclasses.fields(RunInfo)
    required = {part.name for part in fields if part.default is part.default_factory}
    if wrong := (values.keys() - {part.name for part in fields}) | (required - values.keys()):
        raise wrong_format(run_dir, f"run.json differs in {', '.join(sorted(wrong))}")
    return RunInfo(**values)


def _check_values(values: dict[str, Any]) -> None:
    """Refuse values that cannot be right; ValueError says which."""
    labels, thresholds = values.get("labels", []), values.get("thresholds", [])
    for name in ("kind", "status"):
        if not isinstance(values.get(name, ""), str):
            raise ValueError(f"{name} is no text")
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        raise ValueError("its labels are not different texts")
    if not all(0 <= threshold <= 1 for threshold in thresholds):
        raise ValueError("a threshold is not between 0 and 1")
    temperature = values.get("temperature")
    if temperature is not None and not 0 < temperature < math.inf:
        raise ValueError(f"its temperature is {temperature}")
    for name in ("fingerprints", "result", "environment", "files"):
        if not isinstance(values.get(name, {}), dict):
            raise ValueError(f"{name} is no JSON object")
    if not all(isinstance(digest, str) for digest in values.get("files", {}).values()):
        raise ValueError("a checksum is no text")


def read_settings(run_dir: Path) -> Settings:
    """config.json, validated again."""
    # A folder of a newer format is reported as newer, not as damaged.
    read_info(run_dir)
    try:
        return settings_from_dict(_read_json(run_dir / "config.json"))
    except ConfigError as error:
        raise RunFolderError(
            f"{run_dir / 'config.json'} is damaged: {error.problem}",
            remedy="Restore the folder or train again.",
        ) from error


def read_metrics(run_dir: Path) -> Iterator[dict[str, Any]]:
    """The records of metrics.jsonl; a last line cut off by a crash is left out."""
    with (run_dir / "metrics.jsonl").open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise incomplete(path) from error
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}.", remedy="Restore the file or train again."
        ) from error
    if not isinstance(values, dict):
        raise RunFolderError(
            f"{path} holds no JSON object.", remedy="Restore the file or train again."
        )
    return values


def _runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder, by name."""
    with contextlib.suppress(OSError):
        return sorted(path.parent for path in folder.glob("*/run.json"))
    return []


def _nearest_run(folder: Path) -> Path | None:
    """The run folder that is probably meant by a path: next to it, or in the usual place."""
    runs = [*_runs_in(folder.parent), *_runs_in(Path("runs"))]
    same = [path for path in runs if path.name == folder.name]
    near = difflib.get_close_matches(folder.name, [path.name for path in runs], n=1)
    return next((path for path in [*same, *runs] if path.name in {folder.name, *near}), None)


def incomplete(path: Path) -> RegraftError:
    """The error for a file that a run folder lacks."""
    folder = path.parent
    if not folder.is_dir():
        near = _nearest_run(folder)
        return RunFolderError(
            f"There is no run folder {folder}.",
            remedy="Check the path; `regraft fit` and `regraft pretrain` make one."
            if near is None
            else f"Did you mean {near}?",
        )
    if path.name == "run.json" and (runs := _runs_in(folder)):
        more = f" and {len(runs) - _MOST_LISTED:,} more" if len(runs) > _MOST_LISTED else ""
        return RunFolderError(
            f"{folder} is not a run folder, but holds some.",
            f"They are {', '.join(map(str, runs[:_MOST_LISTED]))}{more}.",
            remedy=f"Pass one of them, such as {runs[0]}.",
        )
    return RunFolderError(
        f"{path.parent} is not a complete run folder: {path.name} is missing.",
        remedy="Check the path, restore the file, or train again.",
    )
