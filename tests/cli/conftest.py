"""What the commands' tests share."""

from collections.abc import Iterator

import pytest

from mlxr_tests.kept_processes import kept_processes


@pytest.fixture(scope="module", autouse=True)
def _processes_of_templates_stay() -> Iterator[None]:
    with kept_processes():
        yield
