"""A browser for the tests of the page, and a server with the tiny model."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mlxr_tests.running_server import RunningServer

# No sandbox: containers have none, and the page is the tests' own. The others: Chromium calls nobody.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: $MLXR_CHROMIUM, else the first on the path, else the one that Playwright has installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("MLXR_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with api.sync_playwright() as playwright:
        try:
            running = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        except api.Error as error:
            pytest.skip(f"no browser: install chromium, or name one in MLXR_CHROMIUM ({str(error).splitlines()[0]})")
        yield running
        running.close()


class Tab:
    """A page in a browser of its own, which knows nothing of other tests'.

    Attributes:
        page: Playwright's.
        problems: what the page's console told as errors.
    """

    def __init__(self, context: Any, server: RunningServer) -> None:
        context.set_default_timeout(15_000)
        self.page, self.problems = context.new_page(), list[str]()
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.server = server

    def open(self, path: str = "/") -> Any:
        """Opens the page; returns Playwright's."""
        self.page.goto(self.server.url + path)
        return self.page


@contextmanager
def new_tab(browser: Any, server: RunningServer, **options: Any) -> Iterator[Tab]:
    """A tab; at its end, the page must have told no errors."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
    try:
        tab = Tab(context, server)
        yield tab
        assert not tab.problems
    finally:
        context.close()


@pytest.fixture
def tab(browser: Any, server: RunningServer) -> Iterator[Tab]:
    """A tab of usual size."""
    with new_tab(browser, server) as opened:
        yield opened
