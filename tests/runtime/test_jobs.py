"""Who does the work: in turn or in processes, the results are the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Recorder
from sample_jobs import Blocked, Counting, Killed, SlowToEnd, Square, Where

from regraft.errors import ConfigError, TrainingError
from regraft.runtime.jobs import cluster_size, end_workers, results
from regraft.runtime.progress import SILENT


def is_alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(sent, tmp_path) -> None:
    code = f"import sample_jobs; sample_jobs.sleep_in_processes({str(tmp_path)!r})"
    folders = [Path(__file__).parents[1], os.environ.get("PYTHONPATH", "")]
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        workers = [int(path.name) for path in tmp_path.iterdir()]
        if len(workers) == 2:
            break
        time.sleep(0.1)
    assert len(workers) == 2
    parent.send_signal(sent)
    assert parent.wait(timeout=30) != 0
    for _ in range(100):
        if not any(map(is_alive, workers)):
            break
        time.sleep(0.1)
    assert not any(map(is_alive, workers))
    # Nor did one of them take the job that was waiting.
    assert len(list(tmp_path.iterdir())) == 2


def test_jobs_in_turn_are_heard() -> None:
    progress = Recorder()
    found = results(
        map(Square, range(3)),
        num_jobs=1,
        num_threads=1,
        cluster=None,
        progress_of=lambda job: progress,
    )
    assert list(found) == [(number**2, os.getpid()) for number in range(3)]
    assert progress.messages == ["0", "1", "2"]


class Hearing(Recorder):
    """Remembers how far each task came."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[float] = []
        self.notes: list[str] = []

    def start(self, name: str, *, total: float | None) -> None:
        self.done.append(0.0)
        assert total == 4

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self.done[-1] += amount
        self.notes.append(note)


def test_jobs_in_processes_are_heard_while_they_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.runtime.jobs.SECONDS_BETWEEN_NOTES", 0.05)
    heard = {name: Hearing() for name in "ab"}
    found = results(
        map(Counting, "ab"),
        num_jobs=2,
        num_threads=1,
        cluster=None,
        progress_of=lambda job: heard[job.name],
    )
    assert sorted(found) == ["a", "b"]
    for progress in heard.values():
        assert len(progress.done) == 2
        assert all(0 < done <= 4 for done in progress.done)
        assert progress.notes == sorted(progress.notes)
        assert progress.messages == []


def test_processes_kept_from_before_work_where_we_are_now(tmp_path, monkeypatch) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found = results(
            [Where()], num_jobs=2, num_threads=1, cluster=None, progress_of=lambda job: SILENT
        )
        assert list(found) == [str(tmp_path / name)]


def test_processes_do_not_hear_ctrl_c_but_this_one_does() -> None:
    end_workers()  # those of earlier tests
    found = results(
        [Blocked(), Blocked()],
        num_jobs=2,
        num_threads=1,
        cluster=None,
        progress_of=lambda job: SILENT,
    )
    assert all(signal.SIGINT in blocked for blocked in found)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_jobs_in_processes_give_the_same() -> None:
    found = list(
        results(
            map(Square, range(4)),
            num_jobs=2,
            num_threads=1,
            cluster=None,
            progress_of=lambda job: SILENT,
        )
    )
    assert sorted(square for square, _ in found) == [0, 1, 4, 9]
    assert os.getpid() not in {process for _, process in found}


def test_processes_that_wait_for_jobs_are_ended_at_once() -> None:
    """At exit Python would wait until they have unloaded their libraries."""
    for _ in range(2):  # later jobs get new ones
        how = {"num_jobs": 2, "num_threads": 1, "cluster": None, "progress_of": lambda _: SILENT}
        outcomes = list(results([SlowToEnd(), SlowToEnd()], **how))
        start = time.monotonic()
        end_workers()
        assert time.monotonic() - start < SlowToEnd.seconds / 2
        assert not any(is_alive(process) for process in outcomes)
    end_workers()


def test_killed_process_is_told() -> None:
    with pytest.raises(TrainingError, match="was killed"):
        list(
            results(
                [Killed()],
                num_jobs=2,
                num_threads=1,
                cluster=None,
                progress_of=lambda job: SILENT,
            )
        )


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere://", "foo", "127.0.0.1:9"])
def test_address_without_a_scheduler_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regraft.runtime.jobs.SECONDS_TO_CONNECT", 0.3)
    with pytest.raises(ConfigError, match=f"There is no Dask scheduler at {address}"):
        cluster_size(address)


def test_command_with_a_wrong_address_ends_at_once_and_without_a_traceback() -> None:
    code = "from regraft.runtime.jobs import cluster_size; cluster_size('foo')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    message = "There is no Dask scheduler at foo: it has no port. Expected an address such as"
    assert message in done.stderr
    assert "Client" not in done.stderr
