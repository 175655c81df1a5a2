"""The page of `regraft serve` in a headless Chromium: it classifies, and asks this server only."""

import pytest
from browsers import careful_page, wait_told
from servers import served
from tiny_blends import blend_dir

pytestmark = pytest.mark.slow


@pytest.fixture
def page(browser):
    with careful_page(browser) as found:
        yield found


def test_page_classifies_a_text_and_asks_no_other_server(page, tmp_path_factory):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with served(blend_dir(tmp_path_factory, num_labels=3)) as server:
        origin = f"http://127.0.0.1:{server.port}/"
        page.goto(origin)
        wait_told(page, "model", "so so")
        page.fill("#text", "A fine kettle.")
        page.click("button")
        page.wait_for_selector("#labels tr")
        assert page.locator("#labels tr").count() == 3
        assert page.text_content("#answer").startswith("Label: ")
        assert page.text_content("#problem") == ""
    assert all(url.startswith(origin) for url in asked)


def test_page_asks_for_the_key_of_a_guarded_server(page, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REGRAFT_API_KEY", "secret")
    with served(blend_dir(tmp_path_factory, num_labels=3)) as server:
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.fill("#text", "A fine kettle.")
        page.click("button")
        wait_told(page, "problem", "The key is missing.")
        page.fill("#key", "secret")
        page.click("button")
        page.wait_for_selector("#labels tr")
        assert page.text_content("#problem") == ""
