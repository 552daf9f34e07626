"""Hypothesis as these tests want it: no deadline of its own, for `bounded` measures, and nothing kept between runs."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "hostile",
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="session", autouse=True)
def hostile_profile() -> Iterator[None]:

    settings.load_profile("hostile")
    yield
    settings.load_profile("mlxr")
