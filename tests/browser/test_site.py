"""The built site in a headless Chromium, from the disk: wide and narrow, light and dark.

No page asks a network for anything, none is wider than a phone, and the search finds what is there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browsers import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = (
    "index.html",
    "quick-start.html",
    "course/02-mask.html",
    "how-to/few-labels.html",
    "how-to/label.html",
    "concepts/positions.html",
    "reference/settings.html",
    "reference/errors.html",
    "architecture.html",
    "examples/index.html",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """As `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_screen_and_ask_no_network(site, browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    asked: list[str] = []
    failures: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: failures.append(request.url))
    page.on("pageerror", lambda error: failures.append(str(error)))
    for name in PAGES:
        page.goto((site / name).as_uri())
        assert page.locator("article h1").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert page.locator("body").get_attribute("data-md-color-scheme") == (
            "slate" if scheme == "dark" else "default"
        )
        broken = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
        assert page.evaluate(broken) == []
    context.close()
    assert failures == []
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}


def test_search_works_from_the_disk(site, browser):
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto((site / "index.html").as_uri())
    box = page.get_by_label("Search").first
    box.fill("square mask")
    result = page.locator(".md-search-result__link").first
    # What is typed before the page has loaded its search is not heard: type on, as a person would.
    for _ in range(60):
        if result.is_visible():
            break
        box.press("End")
        page.wait_for_timeout(1_000)
    result.wait_for()
    assert "mask" in result.get_attribute("href")
    page.close()
