"""What tests of the engine share."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from mlxr_tests.kept_processes import kept_processes

ABOUT_PROCESSES = {"test_constraint_compiler.py"}


@pytest.fixture(scope="module", autouse=True)
def _processes_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if request.path.name in ABOUT_PROCESSES else kept_processes():
        yield
