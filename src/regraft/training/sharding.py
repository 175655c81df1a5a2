"""A model over several processes, by DDP or FSDP2."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

from regraft.data import Batch
from regraft.models import Model
from regraft.runtime import device, world
from regraft.training.masking import Moment
from regraft.training.objectives import LossSum, Objective

# Our buffers (positions, bigrams of a bag) are constant: nothing to synchronize at each step. The
# argument was renamed in torch 2.13.
_WITHOUT_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


class Runner(nn.Module):
    """An objective as a `forward`, which is where DDP prepares gradients."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective, batch: Batch, moment: Moment) -> LossSum:
        return self.model.compute(objective, batch, moment)


def build_runner(model: Model, *, parallel: Literal["ddp", "fsdp"]) -> nn.Module:
    """The model as all processes run it. FSDP replaces its parameters by shards, in place."""
    runner = Runner(model)
    size = world().size
    if size == 1:
        return runner
    if parallel == "ddp":
        return nn.parallel.DistributedDataParallel(runner, **_WITHOUT_BUFFERS)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device().type, (size,))
    for block in model.backbone.blocks:
        fully_shard(block, mesh=mesh)
    # Also reshard after a forward pass: a checkpoint after validation needs the shards.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(model, "compute")
    return runner


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor; a collective call, so all processes must make it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Is it sharded by FSDP?"""
    if world().size == 1:
        return False
    # Imported here and below because it takes seconds that a single process can save.
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


@contextlib.contextmanager
def gradient_sync(runner: nn.Module, *, wanted: bool) -> Iterator[None]:
    """Synchronize gradients in the backward pass of the last micro-batch only."""
    if world().size > 1 and isinstance(runner, nn.parallel.DistributedDataParallel):
        with contextlib.nullcontext() if wanted else runner.no_sync():
            yield
        return
    if world().size > 1:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(runner, Runner)
        assert isinstance(runner.model, FSDPModule)
        runner.model.set_requires_gradient_sync(wanted)
    yield
