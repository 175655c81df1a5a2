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


@contextlib.contextmanager
def careful_page(browser: Any) -> Iterator[Any]:
    """A page in a profile of its own, which must not fail while a test uses it."""
    context = browser.new_context(viewport={"width": 1180, "height": 860})
    context.set_default_timeout(PATIENCE)
    found = context.new_page()
    failures: list[str] = []
    found.on("pageerror", lambda error: failures.append(str(error)))
    found.on("dialog", lambda dialog: failures.append(f"a dialog: {dialog.message}"))
    yield found
    context.close()
    assert failures == []


def wait_told(page: Any, place: str, text: str) -> None:
    """Until an element says this."""
    page.wait_for_function(
        "([place, text]) => document.getElementById(place).textContent.includes(text)",
        arg=[place, text],
    )


def opened(page: Any, studio: Any, view: str) -> Any:
    """The page of a studio, at one of its views."""
    page.goto(f"{studio.url}/#{view}")
    page.wait_for_selector(f"#view-{view}:not([hidden])")
    return page


def _executable() -> str | None:
    return os.environ.get("REGRAFT_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
