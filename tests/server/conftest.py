"""One running server for all tests of its APIs, and the processes that their templates and grammars share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.kept_processes import kept_processes
from mlxr_tests.running_server import CHATML, HERMES, RunningServer, running_server, tiny_source


@pytest.fixture(scope="module", autouse=True)
def _processes_stay() -> Iterator[None]:
    with kept_processes():
        yield


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It has the tiny model as `tiny`, with a template, as `plain` without one, and as `tools` with one for tools."""
    folder: Path = tmp_path_factory.mktemp("server")
    (folder / "chatml.jinja").write_text(CHATML)
    (folder / "hermes.jinja").write_text(HERMES)
    sources = [
        tiny_source(template=folder / "chatml.jinja"),
        tiny_source("plain"),
        tiny_source("tools", template=folder / "hermes.jinja"),
    ]
    with running_server(lambda: ModelPool(sources)) as running:
        yield running
