"""Kernels' programs are many, and each runs for a moment."""

from collections.abc import Iterator

import pytest

from mlxr_tests.quick_c import quickest_c

RUN_LONG = {"test_batch_invariance.py"}
"""Files whose programs run for longer than they take to compile."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_soonest(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.name in RUN_LONG:
        yield
        return
    with quickest_c():
        yield
