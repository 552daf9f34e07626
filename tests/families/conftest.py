"""The logits that llama.cpp gave for the GGUF files of the families, and how they are recorded."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from mlxr_tests.quick_c import quickest_c


@pytest.fixture(autouse=True)
def clear_cache() -> Iterator[None]:
    """Tiny models leave large caches behind; what mlx-lm has MLX merge (`mx.compile`) takes a C++ compiler a second."""
    mx.disable_compile()
    yield
    mx.enable_compile()
    mx.clear_cache()


@pytest.fixture(scope="module", autouse=True)
def _compiled_soonest() -> Iterator[None]:
    """Each program here runs for a moment."""
    with quickest_c():
        yield
