"""Outputs go where they may, whole or not at all; what a killed process left is removed."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from regraft.errors import DiskError, DiskFullError
from regraft.runtime import files
from regraft.runtime.files import (
    output_path,
    remove_litter,
    scratch_folder,
    temporary_folder,
    whole_file,
    whole_folder,
    write_json,
    write_text,
    write_whole,
)


@pytest.fixture
def umask():
    """The umask most people have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_write_whole_replaces_a_file(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "one")
    write_text(tmp_path / "deep" / "a.txt", "two")
    assert (tmp_path / "deep" / "a.txt").read_text() == "two"
    assert os.listdir(tmp_path / "deep") == ["a.txt"]


def test_write_whole_keeps_the_old_file_when_the_disk_is_full(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": True})

    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DiskError, match=r"The disk is full: .*a\.json was not written"):
        write_whole(path, write)
    assert path.read_text() == '{\n  "old": true\n}\n'
    assert os.listdir(tmp_path) == ["a.json"]


def test_write_whole_names_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"Cannot write .*Choose a folder you may write to"):
        write_text(tmp_path / "file" / "a.txt", "x")


def test_folder_appears_at_the_end(tmp_path):
    out = tmp_path / "deep" / "out"
    with whole_folder(out) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("whole")
        assert not out.exists()
    assert (out / "sub" / "file").read_text() == "whole"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_error_inside_leaves_nothing(tmp_path):
    def write_half() -> None:
        with whole_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("half")
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_nothing_and_is_reported(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(DiskFullError, match="The disk is full"), whole_folder(out):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["a file", "a folder with a file in it"])
def test_place_that_is_taken_is_refused(what, tmp_path):
    out = tmp_path / "out"
    if what == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    with pytest.raises(DiskError) as caught, whole_folder(out):
        pass
    assert str(caught.value) == (
        f"{out} exists and is not an empty folder. This is written into its own folder. "
        "Choose another --out."
    )


def test_place_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    def refuse(self: Path, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskError) as caught, whole_folder(tmp_path / "out"):
        pass
    assert str(caught.value) == (
        f"Cannot write {tmp_path / 'out'}: Permission denied. Choose a folder you may write to."
    )


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/full"])
def test_devices_are_refused(device):
    with pytest.raises(DiskError, match=rf"Cannot write {device}: it is a device"):
        write_text(Path(device), "x")
    assert stat.S_ISCHR(os.stat(device).st_mode)


def test_fifo_is_refused(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(DiskError, match="it is a device, FIFO or socket"):
        write_text(fifo, "x")
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_folder_is_refused(tmp_path):
    with pytest.raises(DiskError, match="it is a folder"):
        write_text(tmp_path, "x")


def test_link_is_followed(tmp_path):
    target = tmp_path / "deep" / "target"
    target.parent.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    write_text(link, "one")
    write_text(link, "two")
    assert link.is_symlink()
    assert target.read_text() == "two"
    assert os.listdir(target.parent) == ["target"]


def test_circle_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(DiskError, match=r"Cannot write .*/a: Too many levels of symbolic links"):
        write_text(tmp_path / "a", "x")


@pytest.mark.parametrize("old_mode", [0o600, 0o640, 0o666, 0o755])
def test_mode_of_a_file_is_kept(old_mode, tmp_path, umask):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(old_mode)
    with whole_file(path) as file:
        [temporary] = set(tmp_path.iterdir()) - {path}
        assert mode(temporary) & ~old_mode == 0  # never wider, not even for a moment
        file.write(b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", old_mode)


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600)])
def test_mode_of_a_new_file_is_what_the_umask_allows(mask, expected, tmp_path, umask):
    os.umask(mask)
    write_text(tmp_path / "a", "x")
    assert mode(tmp_path / "a") == expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_file_that_may_not_be_written_is_refused(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(DiskError, match="Permission denied"):
        write_text(path, "new")
    assert path.read_text() == "old"


@pytest.mark.parametrize("how", ["itself", "a link to it", "a hard link to it"])
def test_input_is_never_an_output(how, tmp_path):
    given, out = tmp_path / "given.csv", tmp_path / "out.csv"
    given.write_text("mine")
    if how == "itself":
        out = given
    elif how == "a link to it":
        out.symlink_to(given)
    else:
        out.hardlink_to(given)
    with pytest.raises(DiskError, match=r"it is an input of this command.*given\.csv"):
        write_text(out, "new", inputs=[tmp_path / "nowhere", given])
    assert given.read_text() == "mine"


def test_output_inside_an_input_folder_is_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(DiskError, match="inside one"):
        write_text(tmp_path / "link" / "run.json", "x", inputs=[run])
    assert output_path(tmp_path / "run.csv", inputs=[run]) == tmp_path / "run.csv"


def test_standard_input_is_an_input(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mine")
    script = (
        "from pathlib import Path; from regraft.runtime import output_path; "
        "output_path(Path('a.csv'), inputs=[Path('-')])"
    )
    with path.open() as file:
        done = subprocess.run(
            [sys.executable, "-c", script], stdin=file, cwd=tmp_path, capture_output=True, text=True
        )
    assert "it is an input of this command" in done.stderr


def test_error_of_another_file_is_not_that_of_the_output(tmp_path):
    def copy() -> None:
        with whole_file(tmp_path / "out") as file:
            file.write((tmp_path / "nowhere").read_bytes())

    with pytest.raises(FileNotFoundError, match="nowhere"):
        copy()
    assert list(tmp_path.iterdir()) == []


def test_long_names_can_be_written(tmp_path):
    path = tmp_path / ("ü" * 127)
    write_text(path, "x")
    assert list(tmp_path.iterdir()) == [path]


def test_litter_of_a_killed_process_is_removed_and_that_of_a_live_one_kept(tmp_path):
    script = """
import os, sys
from pathlib import Path
from regraft.runtime import temporary_folder, whole_file
with temporary_folder(Path("folder")) as folder, whole_file(Path("file")) as file:
    (folder / "half").write_text("half")
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    if sys.stdin.read():
        os.kill(os.getpid(), 9)
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    (tmp_path / ".mine.regraft").write_text("of another program")
    assert writer.stdout.readline() == b"ready\n"
    before = set(os.listdir(tmp_path))
    assert len(before) == 3
    remove_litter.cache_clear()
    remove_litter(tmp_path)
    assert set(os.listdir(tmp_path)) == before
    writer.communicate(b"die")
    assert set(os.listdir(tmp_path)) == before
    remove_litter.cache_clear()
    write_text(tmp_path / "other", "x")
    assert set(os.listdir(tmp_path)) == {".mine.regraft", "other"}


def test_writer_whose_new_file_is_taken_for_litter_makes_another(tmp_path, monkeypatch):
    lock, names = files._lock, []

    def late(handle: int, *, wait: bool = True) -> bool:
        if not names:  # another process comes first, and removes the file
            names.extend(tmp_path.iterdir())
            names[0].unlink()
        return lock(handle, wait=wait)

    monkeypatch.setattr(files, "_lock", late)
    write_text(tmp_path / "a", "whole")
    assert (tmp_path / "a").read_text() == "whole"


def test_scratch_folder_is_private_and_removed_after_a_kill(tmp_path, monkeypatch):
    script = "import os; from regraft.runtime import scratch_folder\n"
    script += "with scratch_folder('a'): os.kill(os.getpid(), 9)"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", script], check=False)
    (left,) = tmp_path.iterdir()
    assert mode(left) == 0o700
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder("b") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_scratch_folder_of_a_killed_process_is_removed_by_one_that_needs_none(
    tmp_path, monkeypatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    write = "from pathlib import Path; from regraft.runtime import write_text\n"
    write += f"write_text(Path({str(tmp_path / 'other')!r}), 'x')"
    kill = "import os; from regraft.runtime import scratch_folder\n"
    kill += "with scratch_folder('a'): os.kill(os.getpid(), 9)"
    for script, num_left in ((kill, 1), (write, 0)):
        subprocess.run([sys.executable, "-c", script], check=False)
        assert len(list(temporary.iterdir())) == num_left


def test_temporary_folder_is_gone_at_the_end(tmp_path):
    with temporary_folder(tmp_path / "deep" / "x") as folder:
        (folder / "a").write_text("x")
        assert folder.parent == tmp_path / "deep"
    assert os.listdir(tmp_path / "deep") == []
