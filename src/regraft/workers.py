"""Who does the work? Jobs in turn, in processes of this machine, or on a Dask cluster.

Comes in: jobs with a method `run`, made one by one as they are needed. Goes out: their results as
they come. Knows no arm: joblib sends the jobs, whatever they are, and a job that a dying worker
took with it is sent again.
"""

import contextlib
import functools
import json
import os
import pickle
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from regraft.errors import ConfigError, TrainingError
from regraft.runtime import SILENT, Progress, keep_memory

Outcome = TypeVar("Outcome", covariant=True)
# How often a cluster tries a job again whose worker has died.
NUM_RETRIES = 3
SECONDS_TO_CONNECT = 10.0
# How often a job in another process says how far it is.
SECONDS_BETWEEN_NOTES = 0.5
# A worker process outlives its parent by so long at most.
SECONDS_TO_FOLLOW = 1.0


@runtime_checkable
class Job(Protocol[Outcome]):
    """Anything that can be done elsewhere."""

    def run(self, *, progress: Progress = SILENT) -> Outcome:
        """Do it."""


def results(
    jobs: Iterable[Job[Outcome]],
    *,
    num_jobs: int,
    num_threads: int,
    cluster: str | None,
    progress_of: Callable[[Any], Progress],
    remedy: str = "Repeat the command, with a smaller --jobs if memory is short.",
) -> Iterator[Outcome]:
    """What the jobs give, in the order in which they end.

    `progress_of` a job hears how it goes, from processes of this machine in a thread of its own
    and a little later; of a cluster only the ends are heard. `remedy` is what a user can do whose
    processes are killed for want of memory.
    """
    if cluster is not None:
        yield from _on_cluster(jobs, address=cluster)
    elif num_jobs > 1:
        with _Listener(progress_of) as listener:
            yield from _in_processes(
                jobs, num_jobs=num_jobs, num_threads=num_threads, remedy=remedy, listener=listener
            )
    else:
        for job in jobs:
            yield job.run(progress=progress_of(job))


def cluster_size(address: str) -> int:
    """How many jobs a cluster does at once; refuses an address where there is none."""
    with _connected(address) as client:
        num_threads = sum(client.nthreads().values())
    if not num_threads:
        raise ConfigError(
            f"The cluster at {address} has no workers.",
            remedy=f"Start some: `dask worker {address} --nthreads 1`.",
        )
    return int(num_threads)


def _in_processes(
    jobs: Iterable[Job[Outcome]],
    *,
    num_jobs: int,
    num_threads: int,
    remedy: str,
    listener: "_Listener",
) -> Iterator[Outcome]:
    """Each job in a process of its own with its share of the cores.

    Small matrices leave a second thread idle much of the time; a second run does not.
    """
    from joblib import parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    config = parallel_config(backend="loky", inner_max_num_threads=num_threads)
    with config, _interrupted_by_sigterm():
        try:
            here = functools.partial(_run_as_child, folder=os.getcwd())
            heard = (_Heard(job, listener.place(job)) for job in jobs)
            yield from _parallel(heard, num_jobs=num_jobs, run=here)
        except TerminatedWorkerError as error:
            raise TrainingError(
                "A process that trained a run was killed, perhaps for want of memory.",
                "What was finished before is kept.",
                remedy=remedy,
            ) from error


@dataclass(frozen=True)
class _Heard:
    """A job that leaves a note of how far it is."""

    job: Job[Any]
    place: Path

    def run(self, *, progress: Progress = SILENT) -> Any:
        try:
            return self.job.run(progress=_Noting(self.place))
        finally:
            with contextlib.suppress(OSError):
                self.place.unlink()


class _Noting:
    """A Progress that leaves its state in a file, now and then; what it says is not heard."""

    def __init__(self, place: Path) -> None:
        self._place, self._written = place, -SECONDS_BETWEEN_NOTES
        self._state: dict[str, Any] = {"num_started": 0, "total": None, "done": 0.0, "note": ""}

    def start(self, name: str, *, total: float | None) -> None:
        self._state |= {"num_started": self._state["num_started"] + 1, "total": total, "done": 0.0}
        self._write()

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self._state |= {"done": self._state["done"] + amount, "note": note or self._state["note"]}
        if time.monotonic() - self._written >= SECONDS_BETWEEN_NOTES:
            self._write()

    def finish(self) -> None: ...
    def say(self, message: str) -> None: ...

    def _write(self) -> None:
        self._written = time.monotonic()
        beside = self._place.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk is told by what matters
            beside.write_text(json.dumps(self._state), encoding="utf-8")
            beside.replace(self._place)


class _Listener:
    """Reads what jobs in other processes note, and tells it to the Progress of each."""

    def __init__(self, progress_of: Callable[[Any], Progress]) -> None:
        self._progress_of = progress_of
        self._heard: dict[Path, tuple[Progress, dict[str, Any]]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def place(self, job: Any) -> Path:
        """Where a job leaves its notes."""
        place = Path(self._folder.name) / str(len(self._heard))
        self._heard[place] = self._progress_of(job), {"num_started": 0, "done": 0.0}
        return place

    def __enter__(self) -> "_Listener":
        self._folder = tempfile.TemporaryDirectory(
            prefix="regraft-jobs-", ignore_cleanup_errors=True
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._folder.cleanup()

    def _listen(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_NOTES):
            for place in list(self._heard):
                progress, before = self._heard[place]
                try:
                    state = json.loads(place.read_text(encoding="utf-8"))
                except (OSError, ValueError):
                    continue  # not begun
                for _ in range(state["num_started"] - before["num_started"]):
                    progress.start("", total=state["total"])
                    before = {**before, "done": 0.0}
                if state != before:
                    progress.advance(state["done"] - before["done"], note=state["note"])
                self._heard[place] = progress, state


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Inside, SIGTERM is Ctrl-C: else this process would die and its workers would go on."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _on_cluster(jobs: Iterable[Job[Outcome]], *, address: str) -> Iterator[Outcome]:
    from joblib import parallel_config

    with _connected(address) as client, warnings.catch_warnings():
        # The weights of a base are large, and travel with the job: nothing else may hold them,
        # for what a dead worker held for others would be lost.
        warnings.filterwarnings("ignore", message="Sending large graph")
        with parallel_config(backend="dask", client=client, retries=NUM_RETRIES):
            yield from _parallel(jobs, num_jobs=-1, run=_run)


def _parallel(
    jobs: Iterable[Job[Outcome]], *, num_jobs: int, run: Callable[[bytes], Any]
) -> Iterator[Outcome]:
    from joblib import Parallel, delayed

    # As bytes: joblib would put objects that it thinks large where one worker alone has them. One
    # by one and not far ahead: what waits is in memory.
    parallel = Parallel(
        n_jobs=num_jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
    )
    found = parallel(delayed(run)(pickle.dumps(job)) for job in jobs)
    try:
        # Not `yield from`, which would close it before the warning is silenced.
        for outcome in found:  # noqa: UP028
            yield outcome
    finally:
        with warnings.catch_warnings():
            # When one run fails, those beside it are given up: that is no news.
            warnings.filterwarnings("ignore", message=r"\d+ tasks which were still being processed")
            found.close()


def _run(job: bytes) -> Any:
    return pickle.loads(job).run()


def _run_as_child(job: bytes, *, folder: str) -> Any:
    """In a process that we started: it has no reason to outlive us, and is where we are now.

    joblib keeps processes for the next jobs, which may come from another folder.
    """
    _end_with_parent()
    os.chdir(folder)
    keep_memory()
    return _run(job)


@functools.cache
def _end_with_parent() -> None:
    """Once a process: end it when the one that started it is gone, by SIGKILL perhaps."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_TO_FOLLOW)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _connected(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(
            "--cluster needs Dask, which is not installed.",
            remedy="Run: pip install 'regraft[cluster]'.",
        ) from error
    try:
        _knock(address)
        return Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"There is no Dask scheduler at {address}: {str(error).splitlines()[0]}.",
            "Expected an address such as tcp://host:8786.",
            remedy="Check --cluster, or start one with `dask scheduler`.",
        ) from error


def _knock(address: str) -> None:
    """An OSError if nobody listens there: a Client that never connected dies loudly, and late."""
    scheme, _, place = address.rpartition("://")
    if scheme in ("", "tcp", "tls"):
        host, _, port = place.rpartition(":")
        if not port.isdigit():
            raise ValueError("it names no port")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT):
            pass
