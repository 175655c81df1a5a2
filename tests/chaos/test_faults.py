"""Every write call in turn fails: what is there afterwards is the old or the new, never half."""

import errno
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from chaos.faults import Disk, on
from tiny_blends import light_blend

from regraft.classifiers.base import load_classifier
from regraft.errors import DiskError, RunFolderError
from regraft.export.numpy_folder import export_numpy
from regraft.runtime.files import remove_litter, whole_folder, write_text

FAULTS = (errno.ENOSPC, errno.EIO, errno.EACCES)
NEW = "new " * 5_000


def every_fault(write: Callable[[Path], object], check: Callable[[Path, bool], None], place: Path):
    """Write into new folders until no call is left to fail; the number of calls."""
    for failing in itertools.count(1):
        for number in FAULTS:
            folder = place / f"{failing}-{number}"
            folder.mkdir(parents=True)
            remove_litter.cache_clear()
            with on(Disk(failing=failing, number=number)) as disk:
                try:
                    write(folder)
                    is_written = True
                except DiskError:
                    is_written = False
            check(folder, is_written)
            if disk.failed not in ("unlink", "rmdir"):  # which is how litter is removed
                assert not [name for name in os.listdir(folder) if name.endswith(".regraft")]
            shutil.rmtree(folder)
        if not disk.failed:
            assert is_written
            return failing - 1


@pytest.mark.parametrize("has_old", [False, True])
def test_file_is_the_old_or_the_new(has_old, tmp_path):
    def write(folder: Path) -> None:
        if has_old:
            (folder / "a").write_text("old")
        write_text(folder / "a", NEW)

    def check(folder: Path, is_written: bool) -> None:
        path = folder / "a"
        content = path.read_text() if path.exists() else None
        # After its rename a file is the new one, even if the folder cannot be flushed.
        assert content in ([NEW] if is_written else [NEW, "old" if has_old else None])

    assert every_fault(write, check, tmp_path) > 5


def test_folder_is_whole_or_absent(tmp_path):
    def write(folder: Path) -> None:
        with whole_folder(folder / "out") as out:
            write_text(out / "a", NEW)
            write_text(out / "b", NEW)

    def check(folder: Path, is_written: bool) -> None:
        out = folder / "out"
        assert out.exists() or not is_written
        if out.exists():
            assert {path.name: path.read_text() for path in out.iterdir()} == {"a": NEW, "b": NEW}

    assert every_fault(write, check, tmp_path) > 10


@pytest.mark.slow
def test_run_folder_loads_as_it_was_or_is_refused(tmp_path):
    blend = light_blend()
    before = blend.predict_proba(["A fine book.", "No."])
    num_loaded = 0

    def check(folder: Path, is_written: bool) -> None:
        nonlocal num_loaded
        try:
            loaded = load_classifier(folder / "run")
        except RunFolderError:
            assert not is_written
            return
        np.testing.assert_array_equal(loaded.predict_proba(["A fine book.", "No."]), before)
        num_loaded += 1

    assert every_fault(lambda folder: blend.save(folder / "run"), check, tmp_path) > 20
    assert num_loaded >= len(FAULTS)


class _LastMoment(Disk):
    """Kills the process in the middle of the call that would fail."""

    def check(self, name: str) -> None:
        try:
            super().check(name)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_export_that_is_killed_leaves_nothing_half(tmp_path):
    blend = light_blend()
    blend.save(tmp_path / "run")
    export_numpy(tmp_path / "run", out=tmp_path / "straight" / "out")
    whole = files_of(tmp_path / "straight" / "out")
    for number in itertools.count(1, 4):  # an export compares itself with the run: a second each
        folder = tmp_path / f"{number}"
        folder.mkdir()
        if (child := os.fork()) == 0:
            code = 1
            try:
                with on(_LastMoment(failing=number)):
                    export_numpy(tmp_path / "run", out=folder / "out")
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if (folder / "out").exists():
            assert files_of(folder / "out") == whole
        else:
            remove_litter.cache_clear()
            export_numpy(tmp_path / "run", out=folder / "out")
            assert files_of(folder / "out") == whole
        assert os.listdir(folder) == ["out"]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert number > 20


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
