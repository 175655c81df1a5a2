"""The run folder: what lies in it, its format version, and how it is written and read.

Comes in: a model, its tokenizer, settings, a TrainState. Goes out: files that are always whole, and
the same objects again. Only safetensors and JSON are written. Knows nothing of how to train.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from regraft.config import Settings, settings_from_dict, settings_to_dict
from regraft.errors import ConfigError, RegraftError, RunFolderError
from regraft.heads import Model, build_classifier, build_language_model
from regraft.runtime import disk_error, environment, write_json, write_whole
from regraft.tokenizer import Tokenizer, load_tokenizer
from regraft.trainer import TrainState

FORMAT_VERSION = 1

Kind = Literal["language-model", "classifier"]


@dataclass(frozen=True)
class RunInfo:
    """run.json: what this run is, where it came from, and whether it has ended."""

    kind: Kind
    status: Literal["training", "complete"]
    labels: tuple[str, ...] = ()
    base: dict[str, Any] | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class LoadedRun:
    """A complete run, ready to use."""

    run_dir: Path
    info: RunInfo
    settings: Settings
    tokenizer: Tokenizer
    model: Model


class RunFolder:
    """One run on disk, while it is being written."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @property
    def exists(self) -> bool:
        """Has a run been started here?"""
        return (self.run_dir / "run.json").exists()

    def check_free(self, *, resume: bool) -> None:
        """Refuse a folder that is taken; recipes ask before they do any work for it.

        What a start left behind that a crash or a full disk cut short does not count.
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
                "A run is written into a folder of its own.",
                remedy="Choose another --out.",
            )

    def start(
        self, info: RunInfo, *, settings: Settings, tokenizer: Tokenizer, resume: bool
    ) -> RunInfo:
        """Begin a run, or go on with the one that is here if it is the same run.

        Refuses to overwrite, and refuses to resume with other settings or data, naming them.
        """
        self.check_free(resume=resume)
        if self.exists:
            there = read_info(self.run_dir)
            self._refuse_changes(there, info=info, settings=settings)
            return there
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(self.run_dir, error) from error
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        info = dataclasses.replace(info, created=now, environment=environment())
        try:
            tokenizer.save(self.run_dir / "tokenizer.json")
            write_json(self.run_dir / "config.json", settings_to_dict(settings))
            # Last: its presence says that the files above are there.
            self._write_info(info)
        except RegraftError:
            for name in _BEFORE_RUN_JSON:
                (self.run_dir / name).unlink(missing_ok=True)
            raise
        return info

    def finish(self, info: RunInfo, *, model: Model) -> None:
        """Write the final weights and mark the run complete; checkpoints are then of no use."""
        _save_tensors(self.run_dir / "model.safetensors", model.state_dict())
        self._write_info(dataclasses.replace(info, status="complete"))
        shutil.rmtree(self.run_dir / "checkpoints", ignore_errors=True)

    def log(self, record: dict[str, Any]) -> None:
        """Append one record to metrics.jsonl."""
        try:
            with (self.run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise disk_error(self.run_dir / "metrics.jsonl", error) from error

    def save_checkpoint(
        self, state: TrainState, *, keep: int, extra: dict[str, Any] | None = None
    ) -> None:
        """Write the state beside, rename it into place, and drop all but the newest `keep`."""
        final = self.run_dir / "checkpoints" / f"{state.step:08d}"
        beside = final.with_name(f".{final.name}.partial")
        shutil.rmtree(beside, ignore_errors=True)
        position = {
            "step": state.step,
            "total_steps": state.total_steps,
            "num_tokens": state.num_tokens,
            "seconds": state.seconds,
            "decay_from": state.decay_from,
            "recent_seconds": state.recent_seconds,
            "extra": extra or {},
        }
        try:
            _save_tensors(beside / "model.safetensors", state.model.state_dict())
            _save_tensors(beside / "optimizer.safetensors", _optimizer_tensors(state))
            write_json(beside / "state.json", position)
        except RegraftError:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        shutil.rmtree(final, ignore_errors=True)
        beside.rename(final)
        for old in sorted(_checkpoints(self.run_dir))[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def load_checkpoint(self, state: TrainState) -> dict[str, Any] | None:
        """Put the newest checkpoint into a fresh state; its `extra`, or None if there is none.

        Metrics logged after that checkpoint are dropped: those steps will run again.
        """
        found = sorted(_checkpoints(self.run_dir))
        if not found:
            # Nothing of it counts, not even accuracy before the first step: all runs again.
            self._truncate_metrics(step=-1)
            return None
        newest = found[-1]
        position = _read_json(newest / "state.json")
        state.model.load_state_dict(_load_tensors(newest / "model.safetensors"))
        _restore_optimizer(state, _load_tensors(newest / "optimizer.safetensors"))
        state.step = position["step"]
        state.total_steps = position["total_steps"]
        state.num_tokens = position["num_tokens"]
        state.seconds = position["seconds"]
        state.decay_from = position["decay_from"]
        state.recent_seconds = position["recent_seconds"]
        self._truncate_metrics(step=state.step)
        extra: dict[str, Any] = position["extra"]
        return extra

    def _truncate_metrics(self, *, step: int) -> None:
        path = self.run_dir / "metrics.jsonl"
        if path.exists():
            kept = [record for record in read_metrics(self.run_dir) if record["step"] <= step]
            text = "".join(json.dumps(record) + "\n" for record in kept)
            write_whole(path, lambda file: file.write(text.encode()))

    def _write_info(self, info: RunInfo) -> None:
        write_json(self.run_dir / "run.json", dataclasses.asdict(info))

    def _refuse_changes(self, there: RunInfo, *, info: RunInfo, settings: Settings) -> None:
        before = _flat(_read_json(self.run_dir / "config.json"))
        now = _flat(settings_to_dict(settings))
        changed = [
            f"{key} was {before.get(key)!r} and is {value!r}"
            for key, value in now.items()
            if before.get(key) != value and key not in _MAY_CHANGE
        ]
        changed += [
            f"{name} has changed"
            for name, value in info.fingerprints.items()
            if there.fingerprints.get(name) != value
        ]
        if changed:
            raise RunFolderError(
                f"{self.run_dir} was started otherwise: {'; '.join(changed)}.",
                "A resumed run must equal one that was never interrupted.",
                remedy="Resume with the same settings and data, or choose another --out.",
            )


_BEFORE_RUN_JSON = ("tokenizer.json", "config.json")


def _is_foreign(path: Path) -> bool:
    return not path.name.lstrip(".").startswith((*_BEFORE_RUN_JSON, "run.json"))


# Settings that cannot change the weights.
_MAY_CHANGE = {"train.checkpoint_every", "train.keep_checkpoints"}


def load_run(run_dir: Path, *, kind: Kind | None = None) -> LoadedRun:
    """Read a complete run folder, refusing one that is incomplete, damaged or newer than we are."""
    info = read_info(run_dir)
    if info.status != "complete":
        raise RunFolderError(
            f"The run in {run_dir} has not ended: there are no final weights yet.",
            remedy="Go on with the same command and --resume.",
        )
    if kind is not None and info.kind != kind:
        raise RunFolderError(
            f"{run_dir} holds a {info.kind}, not a {kind}.",
            remedy="Use `regraft finetune` to make a classifier, `regraft pretrain` for a base.",
        )
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not (run_dir / name).exists():
            raise _incomplete(run_dir / name)
    settings = read_settings(run_dir)
    tokenizer = load_tokenizer(run_dir / "tokenizer.json")
    tensors = _load_tensors(run_dir / "model.safetensors")
    _check_vocabulary(run_dir, tensors=tensors, tokenizer=tokenizer)
    model = _build(info, settings=settings, tokenizer=tokenizer)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunFolderError(
            f"{run_dir / 'model.safetensors'} does not fit {run_dir / 'config.json'}.",
            "Weights and configuration must come from the same run.",
            remedy="Restore the folder or train again.",
        ) from error
    return LoadedRun(run_dir, info, settings, tokenizer, model.eval())


def read_info(run_dir: Path) -> RunInfo:
    """run.json, checked for format and completeness."""
    values = _read_json(run_dir / "run.json")
    version = values.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise RunFolderError(
            f"{run_dir} has folder format {version}; this regraft reads up to {FORMAT_VERSION}.",
            remedy="Install a newer regraft: pip install --upgrade regraft.",
        )
    known = {part.name for part in dataclasses.fields(RunInfo)}
    missing = {"kind", "status"} - values.keys()
    if missing:
        raise RunFolderError(
            f"{run_dir / 'run.json'} lacks {', '.join(sorted(missing))}.",
            remedy="Restore the folder or train again.",
        )
    values["labels"] = tuple(values.get("labels", ()))
    return RunInfo(**{key: value for key, value in values.items() if key in known})


def read_settings(run_dir: Path) -> Settings:
    """config.json, validated again."""
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


def _build(info: RunInfo, *, settings: Settings, tokenizer: Tokenizer) -> Model:
    if info.kind == "language-model":
        return build_language_model(settings.model, vocab_size=tokenizer.vocab_size)
    return build_classifier(
        settings.model,
        vocab_size=tokenizer.vocab_size,
        num_classes=len(info.labels),
        pooling=settings.head.pooling,
    )


def _check_vocabulary(
    run_dir: Path, *, tensors: dict[str, torch.Tensor], tokenizer: Tokenizer
) -> None:
    num_rows = len(tensors.get("backbone.embedding.weight", ()))
    if num_rows != tokenizer.vocab_size:
        raise RunFolderError(
            f"{run_dir / 'tokenizer.json'} has {tokenizer.vocab_size:,} tokens, but the weights "
            f"are made for {num_rows:,}.",
            "Tokenizer and weights must come from the same run.",
            remedy="Restore the tokenizer.json this model was trained with.",
        )


def _checkpoints(run_dir: Path) -> Iterator[Path]:
    folder = run_dir / "checkpoints"
    if folder.exists():
        yield from (path for path in folder.iterdir() if path.name.isdigit())


def _optimizer_tensors(state: TrainState) -> dict[str, torch.Tensor]:
    names: dict[torch.Tensor, str] = {p: name for name, p in state.model.named_parameters()}
    return {
        f"{names[parameter]}|{key}": value
        for parameter, values in state.optimizer.state.items()
        for key, value in values.items()
    }


def _restore_optimizer(state: TrainState, tensors: dict[str, torch.Tensor]) -> None:
    parameters = dict(state.model.named_parameters())
    for full_name, value in tensors.items():
        name, _, key = full_name.partition("|")
        state.optimizer.state[parameters[name]][key] = value


def _save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    data = save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()})
    write_whole(path, lambda file: file.write(data))


def _load_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise _incomplete(path) from error
    except (SafetensorError, OSError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}.", remedy="Restore the file or train again."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _incomplete(path) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}.", remedy="Restore the file or train again."
        ) from error
    if not isinstance(values, dict):
        raise RunFolderError(
            f"{path} holds no JSON object.", remedy="Restore the file or train again."
        )
    return values


def _incomplete(path: Path) -> RegraftError:
    if not path.parent.is_dir():
        return RunFolderError(
            f"There is no run folder {path.parent}.",
            remedy="Check the path; `regraft pretrain ... --out DIR` makes one.",
        )
    return RunFolderError(
        f"{path.parent} is not a complete run folder: {path.name} is missing.",
        remedy="Check the path, restore the file, or train again.",
    )


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for section, part in values.items():
        if isinstance(part, dict):
            flat.update({f"{section}.{key}": value for key, value in part.items()})
        else:
            flat[section] = part
    return flat
