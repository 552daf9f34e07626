"""A tab of a browser that tests drive through Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlxr_tests.running_server import RunningServer


class Tab:
    """A page in a browser of its own, which knows nothing of other tests'.

    Attributes:
        page: Playwright's.
        problems: what the page's console told as errors, and addresses outside the server that the page asked for.
    """

    def __init__(self, context: Any, server: RunningServer) -> None:
        context.set_default_timeout(15_000)
        self.page, self.problems = context.new_page(), list[str]()
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda asked: None if self._is_own(asked.url) else self.problems.append(asked.url))
        self.server = server

    def _is_own(self, address: str) -> bool:
        return address.startswith((f"{self.server.url}/", f"blob:{self.server.url}/", "data:"))

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
        assert not tab.problems, tab.problems
    finally:
        context.close()
