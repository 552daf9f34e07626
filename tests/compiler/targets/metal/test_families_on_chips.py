"""Families compile with the launch sizes of every chip, for one sequence and for more than MLX's matmul needs."""

import pytest

from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr_tests.family_specs import ALL_SPECS, family_spec
from mlxr_tests.few import few

CHIPS = ("generic", "m1", "m4", "h100", "h200")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", few(ALL_SPECS, ["experts-shared-gate"]))
def test_family(name: str, chip: str) -> None:
    for weights, sequences in (("f32", 1), ("bf16", 64)):
        cache = {"dtype": weights, "max_sequences": sequences}
        changes = {"cache": cache, "weights": {"default": weights}, "activation_dtype": weights}
        compile_spec(family_spec(name, **changes), targets=["metal"], chip=find_chip(chip))
