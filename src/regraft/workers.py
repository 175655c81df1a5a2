"""Who does the work? Jobs in turn, in processes of this machine, or on a Dask cluster.

Comes in: jobs with a method `run`, made one by one as they are needed. Goes out: their results as
they come. Knows no arm: joblib sends the jobs, whatever they are, and a job that a dying worker
took with it is sent again.
"""

import contextlib
import functools
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from regraft.errors import ConfigError, TrainingError
from regraft.runtime import SILENT, Progress, keep_memory

Outcome = TypeVar("Outcome", covariant=True)
# How often a cluster tries a job again whose worker has died.
NUM_RETRIES = 3
SECONDS_TO_CONNECT = 10.0
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

    In this process `progress_of` a job hears how it goes; from others only their ends are heard.
    `remedy` is what a user can do whose processes are killed for want of memory.
    """
    if cluster is not None:
        yield from _on_cluster(jobs, address=cluster)
    elif num_jobs > 1:
        yield from _in_processes(jobs, num_jobs=num_jobs, num_threads=num_threads, remedy=remedy)
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
    jobs: Iterable[Job[Outcome]], *, num_jobs: int, num_threads: int, remedy: str
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
            yield from _parallel(jobs, num_jobs=num_jobs, run=here)
        except TerminatedWorkerError as error:
            raise TrainingError(
                "A process that trained a run was killed, perhaps for want of memory.",
                "What was finished before is kept.",
                remedy=remedy,
            ) from error


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
        return Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"There is no Dask scheduler at {address}: {str(error).splitlines()[0]}.",
            "Expected an address such as tcp://host:8786.",
            remedy="Check --cluster, or start one with `dask scheduler`.",
        ) from error
