"""A browser for the tests of the page, and a server with the tiny model."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from mlxr_tests.browser_tab import Tab, new_tab
from mlxr_tests.running_server import RunningServer

# No sandbox: containers have none, and the page is the tests' own. The others: Chromium calls nobody.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium: $MLXR_CHROMIUM, else the first on the path, else the one that Playwright has installed.

    Playwright runs an event loop in this thread until it ends: other modules' tests may want one of their own.
    """
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("MLXR_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with api.sync_playwright() as playwright:
        try:
            running = playwright.chromium.launch(executable_path=path, args=[*FLAGS])
        except api.Error as error:
            pytest.skip(f"no browser: install chromium, or name one in MLXR_CHROMIUM ({str(error).splitlines()[0]})")
        yield running
        running.close()


@pytest.fixture
def tab(browser: Any, server: RunningServer) -> Iterator[Tab]:
    """A tab of usual size."""
    with new_tab(browser, server) as opened:
        yield opened
