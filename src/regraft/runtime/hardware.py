"""Device, threads, memory, random seeds and the versions of the environment.

torch is imported only inside the functions that need it.
"""

import contextlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from regraft.runtime.files import hashed_number

if TYPE_CHECKING:
    import torch


def share_cores() -> None:
    """Make waiting threads sleep soon instead of spinning; call before torch is imported.

    Measured 2026-11-15, two threads on two busy cores: a fine-tuning step takes 0.9 s with
    libgomp's default, 0.2 s with this, and 0.13 s without any spinning. The last would slow down
    small products on an idle machine.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_memory() -> None:
    """Let malloc keep freed memory for the next step instead of returning it (glibc only).

    Otherwise the large buffers of each step are unmapped, mapped and zeroed again. Measured
    2026-11-16 while fine-tuning: 9,800 page faults per step without this, none with it; 78 against
    95 reviews per second.
    """
    if sys.platform != "linux":
        return
    import ctypes

    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # musl has none
        return
    library.mallopt(mmap_threshold, 1 << 30)
    library.mallopt(trim_threshold, (1 << 31) - 1)
    library.mallopt(top_pad, 64 << 20)


def fastest_threads(work: Callable[[], None]) -> int:
    """The number of torch threads that does this work fastest: all, half of them, or one."""
    import torch

    most = torch.get_num_threads()
    candidates = sorted({1, max(most // 2, 1), most}, reverse=True)
    if len(candidates) == 1 or torch.cuda.is_available():
        return most
    seconds = dict.fromkeys(candidates, math.inf)
    # Two rounds: the first one also pays for fresh memory.
    for _ in range(2):
        for number in candidates:
            torch.set_num_threads(number)
            start = time.perf_counter()
            work()
            seconds[number] = min(seconds[number], time.perf_counter() - start)
    torch.set_num_threads(most)
    return min(candidates, key=lambda number: seconds[number])


def matrix_speed() -> float:
    """Floating-point operations per second of a large matrix product: the machine's limit."""
    import torch

    size, num_products = 1024, 8
    a = torch.randn(size, size, device=device())
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        b = a
        for _ in range(num_products):
            b = a @ b
        float(b[0, 0])  # waits for a GPU
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 * num_products / min(seconds)


def device() -> "torch.device":
    """The best available device: CUDA, then Apple's MPS, then the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def autocast() -> "contextlib.AbstractContextManager[Any]":
    """bf16 where it is fast: on CUDA. On most CPUs bf16 is slower."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Did an allocation fail? On the CPU only the message shows it."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def seed_generator(seed: int, *, stream: str) -> "torch.Generator":
    """A CPU generator for each (seed, stream): streams never share numbers."""
    import torch

    # 56 bits: torch takes no more than a signed 64-bit number.
    return torch.Generator().manual_seed(hashed_number(f"{seed}:{stream}") >> 8)


@contextlib.contextmanager
def seeded(seed: int, *, stream: str) -> Iterator[None]:
    """Seed torch's global generator inside the block (weights, dropout) and restore it after."""
    import torch

    # Only the current device: saving the state of every GPU at each step is slow.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed_generator(seed, stream=stream).initial_seed())
        yield


def environment() -> dict[str, str]:
    """Versions and hardware, for the run folder and the report."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in ("regraft", "torch", "tokenizers", "scikit-learn", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # the core works without some of them
            versions[name] = version(name)
    return {
        **versions,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }
