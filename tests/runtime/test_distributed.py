"""A process on its own: a world of one. Several are in integration/test_survival.py."""

import numpy as np
import pytest
import torch

from regraft.config.schema import ModelSettings
from regraft.data.rows import Batch
from regraft.models.heads import build_language_model
from regraft.runtime.distributed import World, joined, world
from regraft.runtime.launch import num_restarts
from regraft.training.masking import Moment
from regraft.training.objectives import causal
from regraft.training.sharding import build_runner, is_sharded, whole


def test_alone_everything_is_ones_own():
    with joined() as here:
        assert here == world() == World(rank=0, size=1)
    assert here.is_first
    assert here.sums(1.5, 2.0) == (1.5, 2.0)
    assert not here.any(False)
    assert here.any(True)
    here.wait()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_rows_are_dealt_out_completely_and_evenly(size):
    numbers = np.arange(100, 117)
    parts = [World(rank, size).part(numbers) for rank in range(size)]
    assert sorted(np.concatenate(parts)) == numbers.tolist()
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


def test_more_processes_than_rows_leave_some_without():
    assert len(World(rank=3, size=4).part(np.arange(3))) == 0


def test_restarts_are_torchruns(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert num_restarts() == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert num_restarts() == 2


def test_runner_computes_the_objective():
    settings = ModelSettings(
        width=12, num_layers=1, num_heads=3, feedforward_width=7, max_positions=16
    )
    model = build_language_model(settings, vocab_size=17).eval()
    ids = torch.tensor([[0, 3, 5, 2]])
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([[3, 5, 2, 4]]))
    moment = Moment(seed=0, step=0, rows=np.arange(1), done=0.0)
    for parallel in ("ddp", "fsdp"):
        loss_sum = build_runner(model, parallel=parallel)(causal, batch, moment)
        assert torch.equal(loss_sum.total, causal(model, batch, moment).total)
        assert loss_sum.count == 4


def test_alone_no_tensor_is_sharded():
    tensor = torch.ones(3)
    assert not is_sharded(tensor)
    assert whole(tensor) is tensor
