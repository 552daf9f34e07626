"""One worker of pytest-xdist reads the tests before the others, which find the bytecode that it has made.

Making bytecode of tests and packages takes longer than all else that workers do before their first test, and each of
them would do it. mypy, which `make test` runs beside the tests, has the other core meanwhile.
"""

import time
from pathlib import Path

import pytest

MOST_S = 120.0
"""How long others wait at most: the first one may have died."""


class FirstWorker:
    """A plugin of a worker.

    Args:
        is_first: whether others wait for it.
        mark: the file that says that the first one has read all tests.
    """

    def __init__(self, mark: Path, *, is_first: bool) -> None:
        self._mark, self._is_first = mark, is_first

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Waits for the first one."""
        until = time.monotonic() + MOST_S
        while not (self._is_first or self._mark.exists()) and time.monotonic() < until:
            time.sleep(0.05)

    def pytest_collection_finish(self) -> None:
        """Has the others begin."""
        if self._is_first:
            self._mark.touch()

    def pytest_sessionfinish(self) -> None:
        """Leaves no file; all have begun long before."""
        if self._is_first:
            self._mark.unlink(missing_ok=True)
