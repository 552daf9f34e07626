"""The logits that llama.cpp gave for the GGUF files of the families, and how they are recorded."""

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True)
def clear_cache() -> Iterator[None]:
    """Tiny models leave large caches behind; what mlx-lm has MLX merge (`mx.compile`) takes a C++ compiler a second."""
    mx.disable_compile()
    yield
    mx.enable_compile()
    mx.clear_cache()
