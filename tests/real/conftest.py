"""What the tests of real files share: each model is loaded once."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

import mlxr
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr_tests.real_files import GEMMA3, HOSTS, SMOLLM2, RealFiles, real_file


@pytest.fixture(scope="module", params=[SMOLLM2, GEMMA3], ids=lambda files: files.name)
def files(request: pytest.FixtureRequest) -> RealFiles:
    """The files of a language model."""
    found: RealFiles = request.param
    return found


@pytest.fixture(
    scope="module", params=[(host, compute) for host in HOSTS for compute in ("fast", "exact")], ids="-".join
)
def model(request: pytest.FixtureRequest, files: RealFiles) -> Iterator[mlxr.Model]:
    """A language model, as users load it, and in f32, on each host that is there."""
    host, compute = request.param
    if host != "cpu" and not (has_cuda() or mx.metal.is_available()):
        pytest.skip("no GPU")
    exact = mlxr.Changes(compute="exact", cache_dtype="f32", activation_dtype=None if host == "cpu" else "f32")
    changes = exact if compute == "exact" else mlxr.Changes()
    with mlxr.load(real_file(files, ".gguf"), host=host, changes=changes) as loaded:
        yield loaded
