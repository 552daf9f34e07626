"""Latent attention of decode steps on sim: sizes of threadgroups, long contexts, caches and types; and mistakes."""

import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.family_runs import SPLIT, check_q8_cache, check_types, generate, planted
from mlxr_tests.family_specs import family_spec
from mlxr_tests.few import few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.rounding_pair import RoundingPair
from mlxr_tests.specs import compiled
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

SEVERAL_HEADS = Geometry.of(attend_heads=2)
MANY = Geometry.of(attend_many=2, attend_many_simdgroups=4)
SIZES = {
    "heads": SEVERAL_HEADS,
    "many sequences": MANY,
    "one simdgroup": Geometry.of(attend_simdgroups=1),
    "odd simdgroups": Geometry.of(attend_simdgroups=5),
    "16 simdgroups": Geometry.of(attend_simdgroups=16, attend_heads=2),
    "partitions": Geometry.of(partition=8, partition_heads=1),
    "whole, then partitions": Geometry.of(attend_whole=12, partition=4, partitions=3),
}


def labels(pair):
    return {pair.plan.first.kernel(name).label for name in pair.host.launches}


@pytest.mark.long  # the next tests have several heads, others the usual sizes
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(sizes):
    generate(HostPair(compiled(family_spec("latent"), SIZES[sizes])))


def test_heads_past_the_last_one_are_not_stored():
    spec = family_spec("latent-one-projection", model__attention__num_heads=5)
    generate(HostPair(compiled(spec, SEVERAL_HEADS)))


def test_long_contexts_have_their_own_launches():
    """Of a head with many outputs, two threadgroups merge the partitions."""
    pair = HostPair(compiled(family_spec("latent-tempered", model__attention__latent__v_dim=136), SPLIT))
    generate(pair)
    assert {"latent_decode", "latent_queries", "attend_latent_part", "latent_reduce"} <= labels(pair)
    assert any("2 threadgroups of a head" in text for text in pair.artifact.files.values())


@pytest.mark.parametrize("layout", few(["block", "layer"], ["layer"]))
def test_q8_cache(layout):
    check_q8_cache("latent", layout)


@pytest.mark.long
@pytest.mark.parametrize("dtype", few(["bf16", "f16"], ["bf16"]))
def test_types(dtype):
    check_types("latent", dtype)


def test_the_norm_of_queries_before_matrix_instructions():
    """Of several sequences: a launch normalises some columns, and the projection reads its result."""
    changes = {"weights": {"default": "bf16"}, "model__attention__latent__q_rank": 64}
    exact = compiled(family_spec("latent", **changes), Geometry())
    rounded = compiled(family_spec("latent", **changes, activation_dtype="bf16"), Geometry.of(mma_min_rows=2))
    pair = RoundingPair(rounded, exact)
    generate(pair)
    pair.check()
    assert "normalise" in labels(pair)


@pytest.mark.long
def test_the_norm_of_queries_where_weights_are_unpacked_for_several_rows():
    changes = {"weights": {"tensors": {"*.q_b": "q8_0"}}, "model__attention__latent__q_rank": 64}
    pair = HostPair(compiled(family_spec("latent", **changes), Geometry.of(gemm_min_rows=2)))
    generate(pair)
    assert "q_b_gemm" in labels(pair)


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(
    "mistake",
    [
        ("latent_decode", "first_key < position;", "first_key + 1 < position;"),
        ("latent_decode", "total[h] = 1.0f;", "total[h] = 0.99f;"),
        ("latent_decode", "* of_latent", "* of_latent * 1.01f"),
        ("latent_decode", "y * factor", "y * factor * 1.01f"),
        ("latent_decode", "(uint)slots[t]", "(uint)slots[t] + 1u"),
        ("latent_reduce", "- largest) * inverse", "- largest) * inverse * 1.01f"),
        ("attend_latent_part", "owner && share == 0", "owner"),
        ("attend_latent_part", "(uint)slots[t]", "(uint)slots[t] + 1u"),
        ("q_b_rows", "x + (ulong)row * 144u", "x + (ulong)row * 56u"),
    ],
)
def test_mistake_is_noticed(mistake):
    with pytest.raises((Mismatch, KernelFault)):
        generate(HostPair(planted(compiled(family_spec("latent"), SPLIT), *mistake)))
