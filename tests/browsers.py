"""The browser that is installed here, driven by Playwright; without one, tests are skipped."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A busy machine is slow, and slow is not wrong.
PATIENCE = 120_000


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """While it lives, an event loop runs, which tests of other modules cannot have."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -e '.[dev]'"
    )
    executable = _executable()
    if executable is None:
        pytest.skip("no Chromium is found: install the package chromium, or set REGRAFT_CHROMIUM")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=executable, timeout=PATIENCE)
        yield found
        found.close()


def _executable() -> str | None:
    return os.environ.get("REGRAFT_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
