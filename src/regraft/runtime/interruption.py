"""Ctrl-C and SIGTERM, held back until training reaches a safe point."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interruption:
    """`requested` is set by the first Ctrl-C or SIGTERM; the training loop checks it."""

    requested = False


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Hold back the first Ctrl-C or SIGTERM; a second one interrupts at once.

    Only the main thread can handle signals: elsewhere this does nothing.
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
