"""Shows what is fetched from the hub."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mlxr.cli.terminal import ProgressLine
from mlxr.compiler.text import size
from mlxr.hub.reference import hub_reference

if TYPE_CHECKING:
    from mlxr.hub.choose_files import HubFile
    from mlxr.loading.pull_model import PullProgress


@contextmanager
def pull_progress() -> "Iterator[PullProgress]":
    """Reports a fetch on standard error: a line that says what is fetched, then a progress line."""
    from mlxr.loading.pull_model import PullProgress  # noqa: PLC0415 (slow to import: only when needed)

    with ProgressLine() as line:

        def announce(text: str) -> None:
            print(text, file=sys.stderr, flush=True)

        def fetching(what: str, file: "HubFile", done: int) -> None:
            line.show(f"{what} {file.path} {100 * done // max(1, file.size_bytes)} % of {size(file.size_bytes)}")

        def hashing(path: Path, done: int, total: int) -> None:
            line.show(f"hashing {path.name} {100 * done // max(1, total)} %")

        yield PullProgress(announce, fetching, hashing)


def pull_absent(model: str) -> None:
    """Fetches MODEL if it is on the hub and not here; see `pull_if_absent`."""
    if hub_reference(model) is None:
        return
    from mlxr.loading.pull_model import pull_if_absent  # noqa: PLC0415 (slow to import: only when needed)

    with pull_progress() as progress:
        pull_if_absent(model, progress)
