"""The machine: device, seeds, the environment, progress, signals, files written whole.

Comes in: nothing but the machine. Goes out: facts about it and the few ways to touch it. Knows
nothing of text or models; torch is imported only where a function needs it.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Protocol, runtime_checkable

from regraft.errors import DiskError, DiskFullError

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Progress(Protocol):
    """How a recipe talks while it runs. One task is open at a time."""

    def start(self, name: str, *, total: float | None) -> None:
        """Open a task; `total` is in whatever unit `advance` counts, None if unknown."""

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        """Move the open task; `note` replaces the text behind the bar."""

    def finish(self) -> None:
        """Close the open task."""

    def say(self, message: str) -> None:
        """One line a user should read even when the bar is gone."""


class Silent:
    """The library's default Progress: says nothing."""

    def start(self, name: str, *, total: float | None) -> None: ...
    def advance(self, amount: float = 1, *, note: str = "") -> None: ...
    def finish(self) -> None: ...
    def say(self, message: str) -> None: ...


SILENT = Silent()


def tracked(
    items: Iterable[Any], *, name: str, total: float | None, progress: Progress
) -> Iterator[Any]:
    """The same items, with a task that moves by one for each."""
    progress.start(name, total=total)
    try:
        for item in items:
            yield item
            progress.advance()
    finally:
        progress.finish()


def share_cores() -> None:
    """Let waiting threads sleep soon instead of spinning; call before torch is imported.

    Measured 2026-11-15, two threads on two cores that other work keeps busy: a fine-tuning step
    takes 0.9 s with libgomp's default, 0.2 s with this, and 0.13 s without any spinning, which
    would cost a wake-up at every small product on a quiet machine.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def keep_memory() -> None:
    """Let malloc keep what is freed for the next step instead of giving it back (glibc only).

    Buffers of a step are large: without this each is unmapped, mapped and zeroed anew. Measured
    2026-11-16 while fine-tuning, in turns: 9,800 page faults a step without, none with it, and 78
    against 95 reviews a second.
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
    """How many of torch's threads do this work fastest: all, half of them, or one."""
    import torch

    most = torch.get_num_threads()
    candidates = sorted({1, max(most // 2, 1), most}, reverse=True)
    if len(candidates) == 1 or torch.cuda.is_available():
        return most
    seconds = dict.fromkeys(candidates, math.inf)
    # Two rounds: the first touches memory for the first time.
    for _ in range(2):
        for number in candidates:
            torch.set_num_threads(number)
            start = time.perf_counter()
            work()
            seconds[number] = min(seconds[number], time.perf_counter() - start)
    torch.set_num_threads(most)
    return min(candidates, key=lambda number: seconds[number])


def matrix_speed() -> float:
    """Floating-point operations a second of a comfortable matrix product: the machine's limit."""
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
    """The best device present: CUDA, then Apple's MPS, then the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def autocast() -> "contextlib.AbstractContextManager[Any]":
    """bf16 where the hardware multiplies it fast: on CUDA. On a CPU without it, bf16 is slower."""
    import torch

    if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Did an allocation fail? On the CPU torch says so in words only."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def seed_generator(seed: int, *, stream: str) -> "torch.Generator":
    """A CPU generator of its own for each (seed, stream), so that streams never share numbers."""
    import torch

    digest = hashlib.sha256(f"{seed}:{stream}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextlib.contextmanager
def seeded(seed: int, *, stream: str) -> Iterator[None]:
    """Torch's global generator seeded inside the block and put back after it (weights, dropout)."""
    import torch

    # The devices in use only: saving the state of every GPU at each step would take its time.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed_generator(seed, stream=stream).initial_seed())
        yield


class Interruption:
    """Set by the first Ctrl-C or SIGTERM inside `interruptible`; the loop looks between steps."""

    requested = False


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Hold back Ctrl-C and SIGTERM until a safe moment; a second one strikes at once.

    Signals belong to the main thread: elsewhere nothing is changed.
    """
    interruption = Interruption()

    def handle(number: int, frame: FrameType | None) -> None:
        if interruption.requested:
            raise KeyboardInterrupt
        interruption.requested = True

    previous = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle)
    except ValueError:
        previous = {}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def fingerprint(parts: Iterable[str | bytes]) -> str:
    """A short hash of texts in order; equal texts give equal fingerprints on any machine."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:16]


def environment() -> dict[str, str]:
    """Versions and hardware, for the run folder and the report."""
    from importlib.metadata import version

    names = ("regraft", "torch", "tokenizers", "scikit-learn", "numpy")
    return {
        **{name: version(name) for name in names},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
    }


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside, fsync, rename: a crash or a full disk leaves the old file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp gives a private file; what the user's umask allows is theirs to decide.
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(path: Path) -> None:
    """A rename outlives a power cut only when its folder is on disk, too (POSIX)."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, as UTF-8."""
    write_whole(path, lambda file: file.write(text.encode("utf-8")))


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole: indented, readable, ending in a newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def disk_error(path: Path, error: OSError) -> DiskError:
    """The error a user sees when a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(
            f"The disk is full: {path} was not written.",
            remedy="Nothing was half-written. Free some space and repeat the command.",
        )
    return DiskError(
        f"Cannot write {path}: {error.strerror}.",
        remedy="Choose a folder you may write to.",
    )
