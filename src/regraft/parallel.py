"""Many processes as one: who we are under torchrun, sums over all, one model kept by all.

Comes in: the environment that torchrun sets, a model. Goes out: a `World` to ask, and a runner
whose gradients are everyone's. All of it is torch.distributed (DDP, FSDP2); a process on its own is
a world of one. Knows no loop and no files.
"""

import contextlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from regraft.batches import Batch
from regraft.corruption import Moment
from regraft.errors import TrainingError
from regraft.heads import Model
from regraft.objectives import LossSum, Objective
from regraft.runtime import device

# Others wait this long while the first process trains a tokenizer and encodes the corpus. A process
# that died is noticed at once, by its closed connection.
PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    """The processes that train one model together; alone, a world of one."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """The first process alone logs and writes."""
        return self.rank == 0

    def sums(self, *values: float) -> tuple[float, ...]:
        """Each value summed over all processes: the same numbers on every one of them."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(tensor)
        return tuple(tensor.tolist())

    def any(self, flag: bool) -> bool:
        """Is it true in any process?"""
        return self.sums(float(flag))[0] > 0

    def part(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """This process's share of row numbers; rows sorted by length are dealt out evenly."""
        return numbers[self.rank :: self.size]

    def wait(self) -> None:
        """Until every process has come to this line."""
        if self.size > 1:
            distributed.barrier()


def world() -> World:
    """The world this process has joined."""
    if distributed.is_available() and distributed.is_initialized():
        return World(distributed.get_rank(), distributed.get_world_size())
    return World()


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """Inside the block, the processes that torchrun started together are one world."""
    if not distributed.is_torchelastic_launched() or distributed.is_initialized():
        yield world()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    store.set_timeout(PATIENCE)
    # torchrun keeps one store over its restarts. Without a prefix of their own, processes started
    # anew would find the addresses of those that died there, and wait for them (torch 2.13).
    attempt = PrefixStore(f"attempt {num_restarts()}", store)
    # No backend named: gloo for tensors on the CPU, nccl for those on GPUs.
    distributed.init_process_group(store=attempt, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield world()
        # Who leaves first would tear down connections that others still use.
        world().wait()
    except RuntimeError as error:
        if "gloo" not in str(error).lower() and not isinstance(error, distributed.DistError):
            raise
        raise TrainingError(
            "Another process of this run has ended.", remedy="Its own message says why."
        ) from error
    finally:
        distributed.destroy_process_group()


def num_restarts() -> int:
    """How often torchrun has started us anew after a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


# Our buffers, the table of positions and the pairs that a bag knows, are equal everywhere: nothing
# to send at each step. The argument that says so has another name since torch 2.13.
_WITHOUT_BUFFERS: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


def launch_id() -> str | None:
    """torchrun's name for this launch, the same after a restart; None without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


class Runner(nn.Module):
    """An objective as a forward pass: DDP prepares gradients where `forward` begins and ends."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, objective: Objective, batch: Batch, moment: Moment) -> LossSum:
        return self.model.compute(objective, batch, moment)


def build_runner(model: Model, *, parallel: Literal["ddp", "fsdp"]) -> nn.Module:
    """The model as all processes run it. Under FSDP its parameters become shards, in place."""
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
    # Resharded after a forward pass, too: a checkpoint after a validation must find the shards.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(model, "compute")
    return runner


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as one process alone would hold it; all processes must ask together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Does FSDP hold a part of it in each process?"""
    if world().size == 1:
        return False
    # Here and below: seconds of imports that one process alone need not pay.
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


@contextlib.contextmanager
def gradient_sync(runner: nn.Module, *, wanted: bool) -> Iterator[None]:
    """Gradients are exchanged in the backward pass of the last micro-batch only."""
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
