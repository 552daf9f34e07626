"""Attention of a decode step and the scan of Mamba-2 beside it: whole steps of both targets against the reference."""

import re
from typing import Any

import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_runs import generate, planted
from mlxr_tests.family_specs import family_spec
from mlxr_tests.host_pair import HostPair
from mlxr_tests.rounding_pair import RoundingPair
from mlxr_tests.specs import compiled

pytestmark = pytest.mark.usefixtures("kernel_host")

NAME = "ssm-beside-attention"
ONE = Geometry.of(attend_simdgroups=1, attend_heads=1)
LARGE = Geometry.of(partition=16, attend_simdgroups=16, attend_heads=1)
"""Rows of a state have 16 lanes; partitions begin after 16 tokens."""
HEADS: dict[str, Any] = {"model__attention": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 64}}
CASES: dict[str, tuple[Geometry, dict[str, Any], set[str]]] = {
    "a simdgroup": (ONE, {}, {"attend_scan"}),
    "16 simdgroups, by partitions": (LARGE, {}, {"attend_scan", "attend_partition_scan", "attend_reduce"}),
    "several sequences by another kernel": (
        Geometry.of(attend_many=2, attend_many_simdgroups=12),
        {},
        {"attend_scan", "attend_many_scan"},
    ),
    "norms of heads, and a gate": (
        Geometry.of(),
        {"model__attention__qk_norm": {"scope": "head"}, "model__attention__output_gate": {"scope": "element"}},
        {"attend_scan"},
    ),
}


def test_the_first_steps_of_two_sequences() -> None:
    pair = HostPair(compiled(family_spec(NAME, model__num_layers=1), LARGE))
    first, second = pair.add(), pair.add()
    pair.step([(first, [3, 1, 4]), (second, list(range(17)))])
    pair.step([(first, [5]), (second, [8])])
    assert {"attend_partition_scan", "attend_reduce"} <= launched(pair)


def test_two_simdgroups_that_do_not_fit_become_one() -> None:
    heads = {"model__attention": {"num_heads": 32, "num_kv_heads": 1, "head_dim": 128}, "model__num_layers": 1}
    plan = compiled(family_spec(NAME, **heads), Geometry.of(attend_simdgroups=2)).plan
    assert "attend_scan" in {kernel.label for kernel in plan.first.kernels}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_steps(case: str) -> None:
    geometry, changes, labels = CASES[case]
    pair = HostPair(compiled(family_spec(NAME, **changes), geometry))
    generate(pair)
    assert {label for label in launched(pair) if label.startswith("attend")} == labels | {"attend_prefill"}
    assert "conv_ssd" not in launched(pair)


def launched(pair: HostPair) -> set[str]:
    """Labels of the kernels that have been launched."""
    return {kernel.label for kernel in pair.plan.first.kernels if pair.host.launches[kernel.name]}


def test_the_first_steps_in_c() -> None:
    pair = HostPair(compiled(family_spec(NAME, model__num_layers=1), target="cpu"))
    assert "attend_decode_scan" in {kernel.label for kernel in pair.plan.first.kernels}
    first, second = pair.add(), pair.add()
    pair.step([(first, [3, 1, 4]), (second, list(range(17)))])
    pair.step([(first, [5]), (second, [8])])


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, {"model__attention__qk_norm": {"scope": "head"}}], ids=["joined", "apart"])
@pytest.mark.parametrize("compute", ["fast", "exact"])
def test_steps_in_c(compute: str, changes: dict[str, Any]) -> None:
    pair = HostPair(compiled(family_spec(NAME, compute=compute, **changes), target="cpu"))
    labels = {kernel.label for kernel in pair.plan.first.kernels}
    assert ("attend_decode_scan" in labels, "conv_ssd" in labels) == (compute == "fast", compute == "exact")
    generate(pair)


@pytest.mark.long
@pytest.mark.parametrize("mma", [0, 1])
def test_steps_in_16_bits(mma: int) -> None:
    rounded, exact = (
        compiled(
            family_spec(
                NAME,
                activation_dtype=dtype,
                cache={"dtype": dtype, "max_sequences": 3},
                weights={"default": "bf16"},
                **HEADS,
            ),
            Geometry.of(attend_mma=mma, attend_together=2),
        )
        for dtype in ("bf16", "f32")
    )
    pair = RoundingPair(rounded, exact)
    generate(pair)
    pair.check()
    assert ("attend_mma_scan" if mma else "attend_scan") in launched(pair)


@pytest.mark.long
@pytest.mark.sim_only
def test_a_threadgroup_needs_the_memory_that_its_kernel_says() -> None:
    artifact = compiled(family_spec(NAME), ONE)
    (text,) = [artifact.kernel_text(k.name) for k in artifact.plan.first.kernels if k.label == "attend_scan"]
    (declared,) = re.findall(r"MLXR_THREADGROUP\(uint4, mlxr_memory, (\d+)\);", text)
    with pytest.raises(KernelFault):
        generate(HostPair(planted(artifact, "attend_scan", f"mlxr_memory, {declared})", "mlxr_memory, 4)")))
