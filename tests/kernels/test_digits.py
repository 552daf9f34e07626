"""Projections of one row whose x is integers of four digits (matvec_digits), each op alone."""

import pytest

from mlxr.compiler.errors import PlanError
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import few_of
from mlxr_tests.op_bench import mma_bench
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

DOWN = "layers.0.mlp.out"
OPS = ("layers.0.attention.qkv_projected", "layers.0.attention.out", "layers.0.mlp.gated", DOWN, "logits_of_all_tokens")
LABELS = {"qkv", "o", "gate_up", "down", "logits"}
FORMATS = ("q4_k", "q6_k")
SIZES = {
    "model__tensor_names": "canonical",
    "model__hidden_size": 512,
    "model__mlp__intermediate_size": 768,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "qkv_bias": True},
    "model__vocab_size": 128,
}
GEOMETRIES = {
    "one-tile": Geometry.of(matvec_mma=2, matvec_outputs=16, matvec_simdgroups=4, matvec_split=4),
    # Two tiles a threadgroup, of which some have one; and registers for more scales than are decoded first.
    "tiles": Geometry.of(matvec_mma=2, matvec_outputs=16, matvec_simdgroups=4, matvec_split=4, matvec_threadgroups=33),
    # Three tiles a threadgroup and fewer, of which two are asked for.
    "stream": Geometry.of(
        matvec_mma=2,
        matvec_outputs=16,
        matvec_simdgroups=4,
        matvec_split=4,
        matvec_threadgroups=17,
        matvec_stages=2,
    ),
    "several-units": Geometry.of(matvec_mma=2, matvec_outputs=16, matvec_simdgroups=2, matvec_split=2),
}


def bench(kernel_host, geometry, format, activation):
    """Some rows of q, k and v are of the other format, and some simdgroups have a unit of down less than others."""
    other = FORMATS[format == FORMATS[0]]
    spec = small_spec(
        **SIZES,
        weights={"default": format, "norm": "f32", "tensors": {"*.v": other}},
        activation_dtype=activation,
    )
    artifact = compiled(spec, GEOMETRIES[geometry])
    made = {k.label for k in artifact.plan.first.kernels if "mma_u8(" in artifact.kernel_text(k.name)}
    assert made == LABELS
    return mma_bench(artifact, kernel_host)


def run(bench, ops):
    for op in ops:
        seq_ids = bench.sequences(0)
        bench.run("decode", [op], bench.batch([(seq_ids[0], 1)], "last"))
        bench.clear(seq_ids)


def test_a_row_in_digits(kernel_host):
    run(bench(kernel_host, "tiles", "q4_k", "bf16"), OPS[:1])


@pytest.mark.parametrize(("geometry", "format", "activation"), few_of(GEOMETRIES, FORMATS, ["f32", "bf16"]))
@pytest.mark.long
def test_rows_in_digits(kernel_host, geometry, format, activation):
    run(bench(kernel_host, geometry, format, activation), OPS)


def test_others_keep_f16_numbers(kernel_host):
    """A format that has no digits."""
    spec = small_spec(**SIZES, weights={"default": "q4_k", "tensors": {"*.down": "q4_0"}})
    artifact = compiled(spec, GEOMETRIES["one-tile"])
    assert "mma_f16(" in artifact.kernel_text(next(k.name for k in artifact.plan.first.kernels if k.label == "down"))


def test_all_simdgroups_share_columns():
    with pytest.raises(PlanError, match="matvec_split 2; expected 16 outputs, and all simdgroups to share"):
        Geometry.of(matvec_mma=2, matvec_outputs=16, matvec_simdgroups=4, matvec_split=2)
