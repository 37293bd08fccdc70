"""A real browser, for pages that a module's ``page_file`` names."""

import os
import shutil
from importlib.util import find_spec

import pytest

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def find_chromium():
    """Its path; without it, or playwright, a skip, which .ci/run turns into a failure."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or find_spec("playwright") is None:
        give_up = pytest.fail if os.environ.get("FLASHPOINT_REQUIRE_BROWSER") else pytest.skip
        give_up("playwright is not installed, or no chromium is on the PATH")
    return chromium


@pytest.fixture(scope="session")
def browser():
    chromium = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, page_file):
    """Open the module's page; at the end nothing may have been logged, raised or fetched."""
    complaints, contexts = [], []

    def open_with(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # cores are shared with other tests
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                complaints.append(request.url)
                if request.url.startswith(("http", "ws", "ftp"))
                else None
            ),
        )
        page.goto(page_file.as_uri())
        page.wait_for_selector("body[aria-busy=false]")
        return page

    yield open_with
    for context in contexts:
        context.close()
    assert complaints == []
