"""Projections of many rows by quantised weights, with MMA: numbers, products, plans, and mistakes."""

from contextlib import suppress

import numpy as np
import pytest

from mlxr.compiler.artifact import KernelCall
from mlxr.compiler.errors import KernelFault, PlanError
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import few, few_of
from mlxr_tests.matrix_bench import MatrixBench, plant, rounded
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

STYLE = "many_mma"
AFFINE = ("affine2_g32_f16", "affine3_g64_bf16", "affine4_g128_f32", "affine5_g32_bf16", "affine6_g64_f32")
FORMATS = [str(one) for one in WeightFormat if one.is_quantised and not one.affine] + [*AFFINE, "affine8_g128_f16"]
MIXED = {
    "k-quants": [("q4_k", 64), ("q4_k", 24), ("q6_k", 20)],
    "floats": [("bf16", 20), ("f16", 12), ("f32", 9)],
    "planes": [("affine4_g64_f16", 18), ("affine4_g64_f16", 70), ("affine8_g64_bf16", 10)],
    "odd-bytes": [("mxfp4", 5), ("q5_0", 3), ("mxfp4_mlx", 70)],
}


def exact_in_8_bits(rows, columns):
    x = np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)
    return np.clip(np.round(x * 64), -255, 255) / 64


def error(bench, rows, unroll=1):
    """Relative, of products with numbers that are exact in 8 bits, by weights rounded as the kernel rounds them."""
    x = exact_in_8_bits(rows, bench.layout.columns)
    want = x.astype(np.float64) @ rounded(bench.numbers, str(bench.activation)).T.astype(np.float64)
    return np.linalg.norm(bench.project(x, STYLE, unroll) - want) / np.linalg.norm(want)


NUMBERS = [(format, activation) for format in FORMATS for activation in ("f16", "bf16")]


@pytest.mark.parametrize(("format", "activation"), few(NUMBERS, NUMBERS[::9]))
def test_numbers_are_those_of_the_definition_rounded(format, activation):
    """A row of x that is 1 in one column gives that column; 77 rows of the weight do not fill its threadgroups."""
    columns = 3 * max(WeightFormat(format).block_elements, 256)
    bench = MatrixBench([(format, 77)], columns, activation=activation)
    chosen = np.unique(np.r_[0:64, 250:262, columns - 40 : columns])
    x = np.zeros((len(chosen), columns), dtype=np.float32)
    x[np.arange(len(chosen)), chosen] = 1.0
    for unroll in (4,) if format.endswith("_k") else (1, 4):  # the runs of a piece stay within a step
        assert (bench.project(x, STYLE, unroll) == rounded(bench.numbers, activation)[:, chosen].T).all()


TOGETHER = [("k-quants", 4), ("floats", 1), ("planes", 2), ("odd-bytes", 2)]


@pytest.mark.parametrize(("name", "unroll"), few(TOGETHER, TOGETHER[::2]))
def test_mixed_formats(name, unroll):
    """Rows that do not fill a threadgroup, that do, and more."""
    bench = MatrixBench(MIXED[name], 768, seed=1, activation="bf16")
    assert len(bench.layout.segments) > 1
    for rows in (31, 64, 65):
        assert error(bench, rows, unroll) <= 1e-5


@pytest.mark.parametrize("parts", [[("q4_k", 37), ("q6_k", 37)], [("affine4_g64_f16", 64)] * 2])
def test_gates_and_ups(parts):
    bench = MatrixBench(parts, 512, seed=2, activation="f16", gated=True)
    for rows in (5, 70):
        x = exact_in_8_bits(rows, 512)
        gate, up = np.split(x.astype(np.float64) @ rounded(bench.numbers, "f16").T.astype(np.float64), 2, axis=-1)
        want = gate / (1 + np.exp(-gate)) * up
        got = bench.project(x, STYLE, 4, activation="silu")
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-5


SIZES = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "qkv_bias": True, "output_bias": True},
    "model__mlp": {"intermediate_size": 480},
    "model__context": 128,
    "prefill_chunk": 128,
}
CASES = {
    "bf16": {"activation_dtype": "bf16", "weights": {"default": "q4_0"}},
    "f16": {"activation_dtype": "f16", "weights": {"default": "affine4_g32_f16"}, "model__mlp__activation": "gelu"},
    "layer-norm": {"activation_dtype": "bf16", "weights": {"default": "q8_0"}, "model__norm": {"kind": "layer"}},
    "soft-cap": {"activation_dtype": "f16", "weights": {"default": "mxfp4"}, "model__logit_softcap": 5.0},
}


OPS = ("attention.qkv_projected", "attention.out", "mlp.gated", "mlp.out", "logits")


@pytest.mark.parametrize(("op", "case", "rows"), few_of(OPS, CASES, [2, 64, 90]))
def test_ops(op, case, rows):
    """Weights, and x after a norm, are rounded to 16 bits; 480 columns are three times five times 32."""
    changes = {**SIZES, **CASES[case]}
    if "model__mlp__activation" in changes:
        changes["model__mlp"] = SIZES["model__mlp"] | {"activation": changes.pop("model__mlp__activation")}
    artifact = compiled(small_spec(**changes), Geometry.of(gemm_mma=1, gemm_min_rows=2))
    bench = OpBench(artifact, sum_error=8e-3)
    if op == "logits":
        launches = artifact.plan.first.phase("prefill").launches
        logits = next(one.op for one in launches if artifact.plan.first.kernel(one.kernel).label == "logits")
        bench.run("prefill", [logits], bench.batch([(bench.sequences(0)[0], rows)], "all"))
        assert "logits_gemm_mma" in bench.launches
    else:
        bench.run("prefill", [f"layers.0.{op}"], bench.batch([(bench.sequences(0)[0], rows)]))
        labels = set(bench.launches)
        assert len(labels) == 1 + ("normalise" in labels) and any(label.endswith("_gemm_mma") for label in labels)
    texts = [artifact.kernel_text(k.name) for k in artifact.plan.first.kernels if k.label.endswith("_gemm_mma")]
    assert len(texts) == 5 and all("mma_" in text for text in texts)


def test_mlx_takes_what_it_takes_without_a_norm_before():
    """Rows from its threshold on have the kernel without matrix instructions, where there is no MLX."""
    spec = small_spec(**SIZES, activation_dtype="bf16", weights={"default": "q4_0"})
    plan = compiled(spec, Geometry.of(gemm_mma=1, mlx_quantised_min_rows=48)).plan
    of_qkv = [one for one in plan.first.phase("prefill").launches if one.op == "layers.0.attention.qkv_projected"]

    def running(tokens, has_mlx):
        dims = {"tokens": tokens, "rows": 1, "seqs": 1, "tiles": 9, "context": tokens}
        running = [one for one in of_qkv if one.runs(dims, library=has_mlx)]
        bodies = [one.body for one in running]
        return [plan.first.kernel(b.kernel).label if isinstance(b, KernelCall) else b.label for b in bodies]

    for has_mlx in (False, True):
        assert running(16, has_mlx) == ["qkv_rows"]
        assert running(17, has_mlx) == running(47, has_mlx) == ["normalise", "qkv_gemm_mma"]
    assert running(48, False) == ["qkv_gemm"] and running(48, True) == ["unpack", "mlx.projection"]


def test_numbers_of_32_bits_have_no_such_kernel():
    with_them, without = (
        compiled(small_spec(**SIZES, weights={"default": "q4_0"}), Geometry.of(gemm_mma=mma)).plan for mma in (1, 0)
    )
    assert {kernel.name for kernel in with_them.first.kernels} == {kernel.name for kernel in without.first.kernels}
    with pytest.raises(PlanError, match="gemm_mma is 2; expected 0 or 1"):
        Geometry.of(gemm_mma=2)


MISTAKES = [
    ("+ 8u * i, count - 1)", "+ 8u * i, count)"),
    ("+ thread_id % 16u;\n  }", "+ thread_id % 8u;\n  }"),
    ("tile_x[x_place + 32u * i]", "tile_x[x_place]"),
    ("const threadgroup uint4* of_w = tile_w + s * 256u", "const threadgroup uint4* of_w = tile_w"),
    ("min(first + w_row, end - 1)", "first + w_row"),
    ("simdgroup_index_in_threadgroup % 2 * 16", "simdgroup_index_in_threadgroup / 2 * 16"),
    ("odd[m] = of_w[m * 128 + 32]", "odd[m] = of_w[m * 128 + 16]"),
    ("even[m].y, odd[m].y), b.xy", "even[m].y, odd[m].y), b.zw"),
    ("if (row < count && o < end)", "if (o < end)"),
    ("if (row < count && o < end)", "if (row < count)"),
    ("first_row + x_first < count", "first_row + x_first + 8 < count"),
    ("    threadgroup_barrier(mem_flags::mem_threadgroup);\n    if (step", "    if (step"),
    ("    threadgroup_barrier(mem_flags::mem_threadgroup);\n  }", "  }"),
]


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(monkeypatch, kernel_host, old, new):
    plant(monkeypatch, kernel_host, old, new)
    bench = MatrixBench([("q4_k", 70), ("affine4_g64_f16", 9)], 768, activation="bf16")
    with suppress(KernelFault):
        assert not all(error(bench, rows, 4) <= 1e-5 for rows in (5, 66))


def test_as_many_columns_at_once_as_divide_the_rows():
    spec = small_spec(**SIZES, activation_dtype="bf16", weights={"default": "q4_0"})
    artifact = compiled(spec, Geometry.of(gemm_mma=1))
    sizes = {
        k.label: k.threadgroup_bytes
        for k in artifact.plan.first.kernels
        if k.label in ("qkv_gemm_mma", "down_gemm_mma")
    }
    assert sizes == {"qkv_gemm_mma": 4 * 128 * 64, "down_gemm_mma": 128 * 64}, "480 columns are 15 times 32"
