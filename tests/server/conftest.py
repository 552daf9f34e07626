"""One running server for all tests of its APIs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.running_server import CHATML, RunningServer, running_server, tiny_source


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """It has the tiny model as `tiny`, with a template, and as `plain` without one."""
    template: Path = tmp_path_factory.mktemp("server") / "chatml.jinja"
    template.write_text(CHATML)
    with running_server(lambda: ModelPool([tiny_source(template=template), tiny_source("plain")])) as running:
        yield running
