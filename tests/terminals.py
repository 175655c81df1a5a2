"""Code that is run on a terminal of its own."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def in_terminal(code: str, *, width: int = 40, **environment: str) -> str:
    """What code prints on a terminal of its own, with its escape sequences."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", f"from regraft.apps.cli import bars, terminal\n{code}"],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**kept, "TERM": "xterm", **environment},
    )
    os.close(child)
    parts = []
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the last writer has closed it
            break
        if not part:
            break
        parts.append(part)
    os.close(parent)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")
