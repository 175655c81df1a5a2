"""The processes of a torchrun launch: ranks, sums over all of them, barriers.

A single process is a world of size one, and needs no torch.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from regraft.errors import TrainingError
from regraft.runtime.launch import launch_id, num_restarts

# The first process may train a tokenizer and encode the corpus while others wait. A dead process is
# noticed at once, because its connection closes.
PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    """The processes that train one model together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Only the first process logs and writes."""
        return self.rank == 0

    def sums(self, *values: float) -> tuple[float, ...]:
        """Each value summed over all processes; all of them get the same numbers."""
        if self.size == 1:
            return values
        import torch
        from torch import distributed

        tensor = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(tensor)
        return tuple(tensor.tolist())

    def any(self, flag: bool) -> bool:
        """Is the flag true in any process?"""
        return self.sums(float(flag))[0] > 0

    def part(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every n-th row, the share of this process; rows sorted by length spread evenly."""
        return numbers[self.rank :: self.size]

    def wait(self) -> None:
        """Wait until every process gets here."""
        if self.size > 1:
            from torch import distributed

            distributed.barrier()


def world() -> World:
    """The world this process belongs to."""
    if not _is_joined():
        return World()
    from torch import distributed

    return World(distributed.get_rank(), distributed.get_world_size())


def _is_joined() -> bool:
    # Where torch was not imported, this process has joined no other.
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """Inside the block, the processes launched by torchrun form one world."""
    if launch_id() is None or _is_joined():
        yield world()
        return
    import torch
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    store.set_timeout(PATIENCE)
    # torchrun keeps one store across restarts. Without a prefix, restarted processes would find the
    # addresses of dead ones there and wait for them (torch 2.13).
    attempt = PrefixStore(f"attempt {num_restarts()}", store)
    # No backend named: gloo for tensors on the CPU, nccl for those on GPUs.
    distributed.init_process_group(store=attempt, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield world()
        # Leaving early would close connections that other processes still use.
        world().wait()
    except RuntimeError as error:
        if "gloo" not in str(error).lower() and not isinstance(error, distributed.DistError):
            raise
        raise TrainingError(
            "Another process of this run has ended.",
            remedy="See the error message of that process.",
        ) from error
    finally:
        distributed.destroy_process_group()
