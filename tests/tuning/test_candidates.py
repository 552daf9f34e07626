"""What the tuner tries is what the fields of the geometry say, and a size that there is not cannot be named."""

from dataclasses import dataclass

import pytest

from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.size_record import SizeRecord, Variants, size
from mlxr.tuning.candidates import CANDIDATES, is_possible
from mlxr.tuning.scenario import kinds_of, scenarios
from mlxr_tests.variants import variant


def test_candidates_are_sizes_within_their_limits() -> None:
    sizes = Geometry.sizes()
    assert set(CANDIDATES.values) | set(CANDIDATES.variants) | set(CANDIDATES.thresholds) <= set(sizes)
    for name, values in CANDIDATES.values.items():
        for value in values:
            sizes[name].check(value)
    for changes in CANDIDATES.variants.values():
        assert all(is_possible(dict(change)) for change in changes)


def test_a_variant_that_names_another_records_size_is_refused() -> None:
    @dataclass(frozen=True)
    class Wrong(SizeRecord):
        mma: int = size("wrong_mma", 0, tuning=Variants(({"mma": 0}, {"mma": 1, "unroll": 4})), least=0)

    with pytest.raises(KeyError, match="unroll"):
        Wrong.variants()


def test_changes_have_flat_names() -> None:
    assert CANDIDATES.changes_of("matmul_tile") == ({"matmul_tile": 2}, *({"matmul_tile": n} for n in (4, 8, 16)))
    assert CANDIDATES.changes_of("prefill_mma")[1] == {"prefill_mma": 1, "prefill_rows": 64}
    assert CANDIDATES.changes_of("mma_outputs") == () == CANDIDATES.changes_of("matmul_split")


def test_scenarios_share_no_size() -> None:
    """Each size is chosen by the times of one batch."""
    names = [name for scenario in scenarios(4, 512, 512) for name in scenario.sizes]
    assert len(names) == len(set(names)) and set(names) <= set(Geometry.names())
    assert {"attend_many_heads", "partition", "matvec_mma", "mma_simdgroups", "prefill_keys"} <= set(names)
    assert not {"mlx_min_tokens", "gemm_min_rows", "step_threads"} & set(names), "chosen in other ways"


def test_impossible_sizes_are_left_out() -> None:
    assert not is_possible({"matmul_tile": 16, "matmul_outputs": 8})
    with pytest.raises(PlanError, match="matmul_tile 16 x matmul_outputs 8"):
        Geometry.of(matmul_tile=16, matmul_outputs=8)


def test_products_that_share_a_norm_have_sites_of_their_own() -> None:
    artifact = variant("rows-mma")
    _, several, _ = scenarios(4, 64, 16)
    kinds = kinds_of(artifact, several.batch(artifact), several.sizes)
    assert [site.split()[0] for site in kinds] == ["qkv", "o", "gate_up", "down", "logits"]
    assert all(len(kind.ops) == 1 for kind in kinds.values())
