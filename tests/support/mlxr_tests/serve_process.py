"""`mlxr serve` in a process of its own, with the tiny model."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from mlxr_tests.storyteller import ROOT, TINY


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits until a condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "that did not happen"
        time.sleep(0.01)


class ServeProcess:
    """A server that serves the tiny model as `tiny`, or another one.

    Attributes:
        url: where it listens.
        http: a client.
        first_line: that it printed.
    """

    def __init__(self, folder: Path, *options: str, model: str = f"tiny={TINY}") -> None:
        """Starts it and waits until it listens.

        Args:
            folder: for its data, its cached blocks and what it prints.
            options: of `mlxr serve`.
            model: NAME=PATH of what it serves.
        """
        self._printed = folder / "stderr.txt"
        begin = self._printed.stat().st_size if self._printed.exists() else 0
        environment = {"MLXR_DATA_DIR": str(folder / "data"), "PYTHONPATH": str(ROOT / "src")}
        with self._printed.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlxr.cli", "serve", "--model", model, "--port", "0", *options],
                stderr=output,
                env=os.environ | environment,
            )
        wait_for(lambda: "serving" in self._said(begin) or self._process.poll() is not None)
        assert self._process.poll() is None, self._said(begin)
        self.first_line = next(line for line in self._said(begin).splitlines() if line.startswith("serving"))
        self.url = self.first_line.split(" at ")[1].split()[0]
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def _said(self, begin: int = 0) -> str:
        return self._printed.read_bytes()[begin:].decode()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Waits until it has ended."""
        return self._process.wait(60)

    def close(self) -> None:
        """Kills it, if it runs."""
        self.http.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def serve_process(folder: Path, *options: str, model: str = f"tiny={TINY}") -> Iterator[ServeProcess]:
    """A server for the time of a `with` block."""
    process = ServeProcess(folder, *options, model=model)
    try:
        yield process
    finally:
        process.close()
