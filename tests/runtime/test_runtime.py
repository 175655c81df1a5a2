"""Files are whole or not there, streams of numbers are apart, signals wait for a safe moment."""

import os
import signal

import pytest
import torch

from regraft.errors import RunFolderError
from regraft.runtime.files import (
    check_format,
    file_sha256,
    fingerprint,
    hashed_number,
    hold_lock,
    sha256,
    write_text,
)
from regraft.runtime.hardware import (
    environment,
    fastest_threads,
    keep_memory,
    seed_generator,
    seeded,
)
from regraft.runtime.interruption import interruptible
from regraft.runtime.progress import Silent, tracked


def test_seed_streams_are_apart_and_reproducible():
    def draw(seed: int, stream: str) -> float:
        return float(torch.rand(1, generator=seed_generator(seed, stream=stream)))

    assert draw(1, "head") == draw(1, "head")
    assert len({draw(1, "head"), draw(2, "head"), draw(1, "order")}) == 3


def test_seeded_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(0, stream="weights"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(0, stream="weights"):
        assert torch.equal(torch.rand(3), inside)


def test_fingerprint_sees_borders_and_surrogates():
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
    assert fingerprint(["ab"]) == fingerprint([b"ab"])
    assert len(fingerprint(["\ud800"])) == 16


def test_hash_of_a_file_is_that_of_its_bytes(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"ab")
    assert file_sha256(path) == sha256([b"a", memoryview(b"b")])
    assert file_sha256(path, path) == sha256([b"abab"])
    assert hashed_number("x") == int.from_bytes(bytes.fromhex(sha256([b"x"]))[:8], "big")


def test_lock_that_is_held_is_refused_and_freed_at_the_end(tmp_path):
    busy = RunFolderError("Taken.", remedy="Wait.")
    path = tmp_path / "new" / "lock"
    with hold_lock(path, busy=busy), pytest.raises(RunFolderError, match=r"Taken\."):
        hold_lock(path, busy=busy)
    hold_lock(path, busy=busy).lock.release()


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_other_format_version_is_refused(version, tmp_path):
    with pytest.raises(RunFolderError, match=f"format_version {version}"):
        check_format({"format_version": version}, path=tmp_path)
    check_format({"format_version": 1}, path=tmp_path)


def test_environment_names_versions():
    assert environment()["torch"] == torch.__version__
    assert "regraft" in environment()


def test_interruption_waits_and_a_second_one_strikes():
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_tracked_passes_items_and_closes_its_task():
    class Recorder(Silent):
        def __init__(self) -> None:
            self.events: list[str] = []

        def start(self, name: str, *, total: float | None) -> None:
            self.events.append(f"{name} {total}")

        def advance(self, amount: float = 1, *, note: str = "") -> None:
            self.events.append("advance")

        def finish(self) -> None:
            self.events.append("finish")

    recorder = Recorder()
    assert list(tracked([4, 5], name="reading", total=2, progress=recorder)) == [4, 5]
    assert recorder.events == ["reading 2", "advance", "advance", "finish"]


def test_fastest_threads_are_some_of_those_there_are():
    calls = []
    assert fastest_threads(lambda: calls.append(1)) == torch.get_num_threads() == 1
    # One thread leaves no choice: nothing is measured.
    assert calls == []


def test_fastest_threads_measures_and_puts_the_number_back():
    torch.set_num_threads(2)
    calls = []
    try:
        chosen = fastest_threads(lambda: calls.append(torch.get_num_threads()))
        assert chosen in (1, 2)
        assert calls == [2, 1, 2, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_private_files_stay_private(tmp_path):
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "a.txt", "secret")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600


def test_keeping_memory_leaves_results_alone():
    before = torch.arange(5.0).cumsum(0)
    keep_memory()
    assert torch.equal(torch.arange(5.0).cumsum(0), before)
    assert torch.ones(1 << 20).sum() == 1 << 20
