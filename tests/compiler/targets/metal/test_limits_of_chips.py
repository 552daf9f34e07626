"""Shapes of published models compile for each kind of chip: no kernel asks for more than a threadgroup has."""

import pytest

from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr_tests.family_specs import family_spec


@pytest.mark.parametrize("chip", ["generic", "m1", "m5-max", "h100"])
@pytest.mark.parametrize("spec", ["heads-by-layer", "latent"])
def test_wide_heads(spec: str, chip: str) -> None:
    """Heads of 512 elements, as Gemma 4 has them, and rows of latent attention; whole contexts and partitions."""
    wide = family_spec(spec, model__context=8192, cache__max_sequences=64, activation_dtype="bf16", cache__dtype="bf16")
    program = compile_spec(wide, targets=("metal",), chip=find_chip(chip)).artifact.plan.program("metal")
    assert program.kernels
