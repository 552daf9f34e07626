"""What tests of the engine share."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from mlxr_tests.kept_processes import kept_processes
from mlxr_tests.quick_c import quickest_c

ABOUT_PROCESSES = {"test_constraint_compiler.py"}
RUN_A_MOMENT = {"test_ranking.py", "test_recurrent_models.py", "test_tiers_of_states.py"}
"""Files whose programs on host cpu take longer to compile than they run."""


@pytest.fixture(scope="module", autouse=True)
def _processes_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if request.path.name in ABOUT_PROCESSES else kept_processes():
        yield


@pytest.fixture(scope="module", autouse=True)
def _compiled_soonest(request: pytest.FixtureRequest) -> Iterator[None]:
    with quickest_c() if request.path.name in RUN_A_MOMENT else nullcontext():
        yield
