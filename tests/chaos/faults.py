"""A disk that fails: every call that writes, one after the other, through the one output module."""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

CALLS = ("open", "fsync", "replace", "rename", "mkdir", "rmdir", "fchmod", "chmod", "unlink")


class Disk:
    """Counts calls; the one with the number `failing`, counted from 1, fails with this errno."""

    def __init__(self, *, failing: int = 0, number: int = 0) -> None:
        self.num_calls = 0
        self.failed = ""
        self._failing, self._number = failing, number

    def check(self, name: str) -> None:
        self.num_calls += 1
        if self.num_calls == self._failing:
            self.failed = name
            raise OSError(self._number, os.strerror(self._number))


class _File(io.FileIO):
    """An open file on such a disk."""

    disk: Disk

    def write(self, data: Any, /) -> int | None:
        self.disk.check("write")
        # A part only, as a disk that is nearly full does it.
        return super().write(memoryview(data)[: max(len(data) // 2, 1)])


@contextlib.contextmanager
def on(disk: Disk) -> Iterator[Disk]:
    """Everything that writes goes to this disk."""

    def patched(name: str) -> Any:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            is_read = name == "open" and not arguments[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
            if not is_read:
                disk.check(name)
            return real(*arguments, **options)

        return mock.patch.object(os, name, call)

    def opened(handle: int, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode != "wb":
            return real_open(handle, mode, *arguments, **options)
        file = _File(handle, "wb")
        file.disk = disk
        return io.BufferedWriter(file)

    real_open = os.fdopen
    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(patched(name))
        stack.enter_context(mock.patch.object(os, "fdopen", opened))
        yield disk
