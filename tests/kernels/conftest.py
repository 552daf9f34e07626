"""Kernels' programs are many, and each runs for a moment."""

from collections.abc import Iterator

import pytest

from mlxr_tests.quick_c import quickest_c


@pytest.fixture(scope="module", autouse=True)
def _compiled_soonest() -> Iterator[None]:
    with quickest_c():
        yield
