"""Checkpoints: exact, checked, and there after whatever happened."""

import errno
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Recorder

from regraft.config.schema import ModelSettings, TrainSettings
from regraft.data.rows import StreamRows
from regraft.data.tokens.store import TokenStore
from regraft.errors import DiskFullError, RunFolderError
from regraft.models.heads import build_language_model
from regraft.runtime.hardware import seeded
from regraft.training import checkpoint
from regraft.training.checkpoint import MANIFEST, Checkpoints, kept_steps
from regraft.training.loop import TrainState, build_state, steps
from regraft.training.objectives import causal

VOCAB = 17
TRAIN = TrainSettings(
    steps=6, batch_size=4, lr=1e-2, warmup_steps=2, seed=3, checkpoint_every=2, threads=1
)
MODEL = ModelSettings(
    width=12, num_layers=2, num_heads=3, feedforward_width=7, dropout=0.2, max_positions=16
)


def rows() -> StreamRows:
    ids = np.random.default_rng(0).integers(2, VOCAB, size=200).astype(np.uint16)
    ids[0] = 0  # the start token
    store = TokenStore.from_arrays(ids, np.array([0, 200]), num_bytes=200)
    return StreamRows(store, max_length=5)


def new_state(settings: TrainSettings = TRAIN) -> TrainState:
    with seeded(0, stream="weights"):
        model = build_language_model(MODEL, vocab_size=VOCAB)
    return build_state(model, settings=settings, num_rows=len(rows().lengths))


def train(state: TrainState, *, until: int = 6) -> None:
    for record in steps(state, rows=rows(), objective=causal, settings=TRAIN):
        if record.step == until:
            return


def keep(
    state: TrainState, checkpoints: Checkpoints, *, progress: Recorder | None = None
) -> list[int]:
    """Train to the end with checkpoints; the steps that were seen."""
    seen: list[int] = []
    for record in kept_steps(
        state,
        rows=rows(),
        objective=causal,
        settings=TRAIN,
        checkpoints=checkpoints,
        extra=lambda: {"seen": seen[-1]},
        name="pre-train",
        note=lambda record: f"step {record.step}",
        progress=progress or Recorder(),
    ):
        seen.append(record.step)
    return seen


def assert_equal(one: TrainState, other: TrainState) -> None:
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], tensor), name


@pytest.fixture
def two(tmp_path: Path) -> Checkpoints:
    """A run with checkpoints after steps 2 and 4."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    state = new_state()
    for step in (2, 4):
        train(state, until=step)
        checkpoints.save(state, extra={"after": step})
    return checkpoints


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_resumed_run_equals_one_never_stopped_bit_for_bit(tmp_path, optimizer):
    settings = TrainSettings(steps=6, batch_size=4, lr=1e-2, optimizer=optimizer, seed=3)
    straight = new_state(settings)
    list(steps(straight, rows=rows(), objective=causal, settings=settings))
    first = new_state(settings)
    for record in steps(first, rows=rows(), objective=causal, settings=settings):
        if record.step == 3:
            Checkpoints(tmp_path, keep=1).save(first, extra={"note": "kept"})
            break
    second = new_state(settings)
    assert Checkpoints(tmp_path, keep=1).load(second) == {"note": "kept"}
    assert (second.step, second.num_tokens, second.seconds) == (3, first.num_tokens, first.seconds)
    list(steps(second, rows=rows(), objective=causal, settings=settings))
    assert_equal(straight, second)


def test_only_the_newest_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    keep(new_state(), checkpoints)
    checkpoints.save(new_state(), extra={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000004", "00000006"]


def test_nothing_to_load_is_no_error(tmp_path):
    state = new_state()
    assert Checkpoints(tmp_path / "none", keep=2).load(state) is None
    assert state.step == 0


def test_a_partial_checkpoint_is_not_read(two):
    partial = two.folder / ".00000099.partial"
    partial.mkdir()
    (partial / "state.json").write_text("{")
    assert two.load(new_state()) == {"after": 4}


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", MANIFEST])
@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, Path.unlink])
def test_damage_falls_back_to_the_checkpoint_before(two, name, damage):
    damage(two.folder / "00000004" / name)
    state, recorder = new_state(), Recorder()
    assert two.load(state, progress=recorder) == {"after": 2}
    assert state.step == 2
    (message,) = recorder.messages
    assert message.startswith("note: The checkpoint")
    assert "00000004 is damaged" in message
    # And what was lost is trained again, to the same end.
    straight = new_state()
    train(straight)
    train(state)
    assert_equal(straight, state)


def test_damage_to_all_is_an_error(two):
    for path in two.folder.iterdir():
        _truncate(path / "state.safetensors")
    with pytest.raises(RunFolderError, match=r"Every checkpoint in .* is damaged\. Restore"):
        two.load(new_state())


def test_damage_is_told_by_file(two):
    (two.folder / "00000004" / "state.json").unlink()
    recorder = Recorder()
    two.load(new_state(), progress=recorder)
    assert "state.json is missing" in recorder.messages[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_before_it_stops(tmp_path, number):
    checkpoints = Checkpoints(tmp_path, keep=2)

    class Signals(Recorder):
        def advance(self, amount: float = 1, *, note: str = "") -> None:
            if note == "step 3":
                os.kill(os.getpid(), number)

    said = Signals()
    with pytest.raises(KeyboardInterrupt):
        keep(new_state(), checkpoints, progress=said)
    assert said.messages == ["pre-train: stopped after step 3."]
    state = new_state()
    assert checkpoints.load(state) == {"seen": 3}
    straight = new_state()
    train(straight)
    assert keep(state, checkpoints) == [4, 5, 6]
    assert_equal(straight, state)


class FullDisk:
    """os.fsync as a disk without room answers it, as often as said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
        self.left = times
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self)
        monkeypatch.setattr(checkpoint, "PAUSE_SECONDS", 0.0)

    def __call__(self, handle: int) -> None:
        if self.left:
            self.left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self._fsync(handle)


def test_full_disk_pauses_and_loses_nothing(tmp_path, monkeypatch):
    FullDisk(monkeypatch, times=3)
    checkpoints, state, recorder = Checkpoints(tmp_path, keep=9), new_state(), Recorder()
    assert keep(state, checkpoints, progress=recorder) == [1, 2, 3, 4, 5, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "00000004", "00000006"]
    (message,) = recorder.messages
    assert message.startswith("The disk is full")
    assert "Training waits after step 2" in message


def test_full_disk_and_ctrl_c_leave_the_last_checkpoint(tmp_path, monkeypatch):
    checkpoints, state = Checkpoints(tmp_path, keep=2), new_state()
    train(state, until=1)
    checkpoints.save(state, extra={"after": 1})
    FullDisk(monkeypatch, times=10**9)

    class Impatient(Recorder):
        def say(self, message: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(DiskFullError, match="The disk is full"):
        keep(state, checkpoints, progress=Impatient())
    again = new_state()
    assert checkpoints.load(again) == {"after": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["00000001"]


def test_only_safetensors_and_json_are_written(two):
    names = {path.name for path in (two.folder / "00000004").iterdir()}
    assert names == {"state.safetensors", "state.json", MANIFEST}
    position = json.loads((two.folder / "00000004" / "state.json").read_text())
    assert position["step"] == 4
