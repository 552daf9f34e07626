"""Layers that differ in their weights alone run the same kernels: a host compiles each once."""

import pytest

from mlxr_tests.family_specs import family_spec
from mlxr_tests.specs import compiled


@pytest.mark.parametrize("name", ["plain", "layer-vectors", "latent", "experts-shared"])
def test_more_layers_have_no_more_kernels(name: str) -> None:
    few, many = (len(compiled(family_spec(name, model__num_layers=layers)).plan.first.kernels) for layers in (2, 5))
    assert many == few
