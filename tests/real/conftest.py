"""What the tests of real files share: each model is loaded once."""

from collections.abc import Iterator

import pytest

import mlxr
from mlxr_tests.real_files import GEMMA3, SMOLLM2, RealFiles, real_file


@pytest.fixture(scope="module", params=[SMOLLM2, GEMMA3], ids=lambda files: files.name)
def files(request: pytest.FixtureRequest) -> RealFiles:
    """The files of a language model."""
    found: RealFiles = request.param
    return found


@pytest.fixture(scope="module", params=["fast", "exact"])
def model(request: pytest.FixtureRequest, files: RealFiles) -> Iterator[mlxr.Model]:
    """A language model, as users load it, and in f32."""
    changes = mlxr.Changes() if request.param == "fast" else mlxr.Changes(compute="exact", cache_dtype="f32")
    with mlxr.load(real_file(files, ".gguf"), host="cpu", changes=changes) as loaded:
        yield loaded
