"""Runs jobs one after the other, in processes of this machine, or on a Dask cluster.

joblib sends the jobs, which are created as they are needed; a job whose worker dies on a cluster is
sent again.
"""

import contextlib
import functools
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from regraft.errors import ConfigError, TrainingError
from regraft.runtime.extras import optional
from regraft.runtime.files import scratch_folder
from regraft.runtime.hardware import keep_memory
from regraft.runtime.progress import SILENT, Progress

Outcome = TypeVar("Outcome", covariant=True)
# How often a cluster repeats a job after its worker died.
NUM_RETRIES = 3
SECONDS_TO_CONNECT = 10.0
# How often a job in another process reports its progress.
SECONDS_BETWEEN_NOTES = 0.5
# How often a worker process checks that its parent is alive.
SECONDS_TO_FOLLOW = 1.0


@runtime_checkable
class Job(Protocol[Outcome]):
    """Work that can be sent to another process."""

    def run(self, *, progress: Progress = SILENT) -> Outcome:
        """Do the work and return its result."""


def results(
    jobs: Iterable[Job[Outcome]],
    *,
    num_jobs: int,
    num_threads: int,
    cluster: str | None,
    progress_of: Callable[[Any], Progress],
    remedy: str = "Repeat the command, with a smaller --jobs if memory is short.",
) -> Iterator[Outcome]:
    """The results of the jobs, in the order in which they end.

    `progress_of(job)` receives the progress of a job: from processes of this machine in a thread,
    slightly delayed; from a cluster not at all. `remedy` is the advice if a process is killed.
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
    """How many jobs the cluster at this address runs at once."""
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
    """Each job in its own process with its share of the cores.

    With small matrices, two processes use two cores better than two threads do.
    """
    from joblib import parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    config = parallel_config(backend="loky", inner_max_num_threads=num_threads)
    with config, _interrupted_by_sigterm():
        try:
            here = functools.partial(_run_as_child, folder=os.getcwd())
            reporting = (_Reporting(job, listener.path_for(job)) for job in jobs)
            yield from _parallel(reporting, num_jobs=num_jobs, run=here)
        except TerminatedWorkerError as error:
            raise TrainingError(
                "A worker process was killed, perhaps because memory ran out.",
                "Finished runs are kept.",
                remedy=remedy,
            ) from error


def end_workers() -> None:
    """End the processes that wait for more jobs, if there are any.

    By itself Python waits at exit until each has unloaded its libraries: with torch 4 to 9 s on
    two busy cores (2026-11-19). They have nothing left to save.
    """
    module = sys.modules.get("joblib.externals.loky.reusable_executor")
    executor = getattr(module, "_executor", None)
    if executor is not None:
        executor.shutdown(wait=True, kill_workers=True)


@dataclass(frozen=True)
class _Reporting:
    """A job that writes its progress into a file."""

    job: Job[Any]
    path: Path

    def run(self, *, progress: Progress = SILENT) -> Any:
        try:
            return self.job.run(progress=_ProgressFile(self.path))
        finally:
            with contextlib.suppress(OSError):
                self.path.unlink()


class _ProgressFile:
    """A Progress that writes its state into a file now and then; messages are dropped."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, -SECONDS_BETWEEN_NOTES
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
        temporary = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a full disk is reported by more important files
            temporary.write_text(json.dumps(self._state), encoding="utf-8")
            temporary.replace(self._path)


class _Listener:
    """Reads the progress files of jobs in other processes and forwards them."""

    def __init__(self, progress_of: Callable[[Any], Progress]) -> None:
        self._progress_of = progress_of
        self._states: dict[Path, tuple[Progress, dict[str, Any]]] = {}
        self._stack = contextlib.ExitStack()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def path_for(self, job: Any) -> Path:
        """The progress file of a job."""
        path = self._folder / str(len(self._states))
        self._states[path] = self._progress_of(job), {"num_started": 0, "done": 0.0}
        return path

    def __enter__(self) -> "_Listener":
        self._folder = self._stack.enter_context(scratch_folder("jobs"))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._stack.close()

    def _listen(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_NOTES):
            for path in list(self._states):
                progress, before = self._states[path]
                try:
                    state = json.loads(path.read_text(encoding="utf-8"))
                except (OSError, ValueError):
                    continue  # not started, or already removed
                for _ in range(state["num_started"] - before["num_started"]):
                    progress.start("", total=state["total"])
                    before = {**before, "done": 0.0}
                if state != before:
                    progress.advance(state["done"] - before["done"], note=state["note"])
                self._states[path] = progress, state


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Inside, SIGTERM acts like Ctrl-C: otherwise this process would die before its workers."""
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
        # The weights of a base are large and are sent with each job. A shared copy on one worker
        # would be lost if that worker died.
        warnings.filterwarnings("ignore", message="Sending large graph")
        with parallel_config(backend="dask", client=client, retries=NUM_RETRIES):
            yield from _parallel(jobs, num_jobs=-1, run=_run)


def _parallel(
    jobs: Iterable[Job[Outcome]], *, num_jobs: int, run: Callable[[bytes], Any]
) -> Iterator[Outcome]:
    from joblib import Parallel, delayed

    # As bytes, because joblib would place large objects on one worker only. One by one and not far
    # ahead, because waiting jobs take memory.
    parallel = Parallel(
        n_jobs=num_jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs"
    )
    with _ctrl_c_kept_from_children():
        outcomes = parallel(delayed(run)(pickle.dumps(job)) for job in jobs)
    try:
        # Not `yield from`, which would close it before the warning is silenced.
        for outcome in outcomes:  # noqa: UP028
            yield outcome
    finally:
        with warnings.catch_warnings():
            # After one job fails, the others are cancelled as intended.
            warnings.filterwarnings("ignore", message=r"\d+ tasks which were still being processed")
            outcomes.close()


@contextlib.contextmanager
def _ctrl_c_kept_from_children() -> Iterator[None]:
    """Processes started inside never hear Ctrl-C, which a terminal sends to all of them.

    This process ends them. One that still imports its libraries would print a traceback. Here the
    signal waits until the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_resource_tracker

    # Each lets the signal through again when it starts its own process.
    resource_tracker.ensure_running()
    loky_resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(job: bytes) -> Any:
    return pickle.loads(job).run()


def _run_as_child(job: bytes, *, folder: str) -> Any:
    """In a worker process: end with the parent, and use its current folder.

    joblib reuses processes for later jobs, which may come from another folder.
    """
    end_with_parent()
    os.chdir(folder)
    keep_memory()
    return _run(job)


@functools.cache
def end_with_parent() -> None:
    """From now on, end this process when its parent is gone, even by SIGKILL."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(SECONDS_TO_FOLLOW)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _connected(address: str) -> Any:
    with optional("--cluster", extra="cluster"):
        from distributed import Client
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
    """Raise OSError if nothing listens there: a Client would take long and log much to do so."""
    scheme, _, place = address.rpartition("://")
    if scheme in ("", "tcp", "tls"):
        host, _, port = place.rpartition(":")
        if not port.isdigit():
            raise ValueError("it has no port")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_CONNECT):
            pass
