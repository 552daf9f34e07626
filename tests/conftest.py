"""Options and fixtures of all tests."""

import os
from collections.abc import Iterator

import pytest

# The oracle of f32 kernels is f32 arithmetic; where MLX computes on a GPU with TF32, it would not be.
os.environ["MLX_ENABLE_TF32"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --update-golden."""
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of kernels run on sim and on an NVIDIA GPU; those that plant faults only where faults are caught."""
    if "kernel_host" in metafunc.fixturenames:
        only_sim = metafunc.definition.get_closest_marker("sim_only")
        hosts = ["sim"] if only_sim else ["sim", "cuda"]
        metafunc.parametrize("kernel_host", hosts, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kernel_host(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test's kernels on the host of that name; skips where there is no card for `cuda`."""
    from mlxr.runtime.hosts.cuda.device import has_cuda
    from mlxr_tests.kernel_host import kernel_host

    if request.param == "cuda" and not has_cuda():
        pytest.skip("no NVIDIA GPU")
    with kernel_host(request.param):
        yield request.param
