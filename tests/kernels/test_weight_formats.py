"""Every weight format as Metal kernels read it: exact numbers, and products of them, in every kind of kernel.

A row of x that is 1 in one column and 0 elsewhere gives that column's numbers: they must be those of the format's
definition (gguf.quants.dequantize, mx.dequantize) to the last bit.
"""

from itertools import pairwise, product

import numpy as np
import pytest

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import few, few_of
from mlxr_tests.host_pair import HostPair
from mlxr_tests.matrix_bench import STYLES, MatrixBench, rounded
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

GGUF = [str(format) for format in WeightFormat if format.is_quantised and not format.affine]
AFFINE = [
    *("affine2_g32_f16", "affine3_g64_bf16", "affine4_g128_f32", "affine5_g32_bf16", "affine6_g64_f32"),
    *("affine8_g128_f16", "affine4_g32_bf16", "affine4_g64_f16", "affine8_g32_f32", "affine3_g128_f16"),
]
FORMATS = [*GGUF, *AFFINE]
SHORT = [*GGUF, *AFFINE[:6]]
"""Of the affine ones each number of bits, group and type of scales."""
ROWS = (1, 2, 3, 8, 9, 17, 70)


def columns_of(format):
    """Three blocks, or what takes more than one turn of a simdgroup's lanes."""
    return 3 * max(WeightFormat(format).block_elements, 256)


@pytest.mark.parametrize("format", few(FORMATS, SHORT))
def test_numbers_are_those_of_the_definition(format):
    columns = columns_of(format)
    bench = MatrixBench([(format, 11)], columns)
    chosen = np.unique(np.r_[0:64, 250:262, columns - 40 : columns])
    x = np.zeros((len(chosen), columns), dtype=np.float32)
    x[np.arange(len(chosen)), chosen] = 1.0
    for style in ("several", "many"):
        assert (bench.project(x, style) == bench.numbers[:, chosen].T).all(), style
    for row in (0, 17, 33, len(chosen) - 1):
        assert (bench.project(x[row : row + 1], "one") == bench.numbers[:, chosen[row]]).all()


@pytest.mark.parametrize("format", few([*FORMATS, "f32", "f16", "bf16"], [*FORMATS[::6], "f16", "bf16"]))
def test_embedding_rows(format):
    bench = MatrixBench([(format, 9)], columns_of(format), seed=1)
    ids = [8, 0, 3, 3]
    assert (bench.rows(ids) == bench.numbers[ids]).all()
    assert (bench.rows(ids, 0.37) == bench.numbers[ids] * np.float32(0.37)).all()


@pytest.mark.parametrize("format", few(["f32", "bf16", "q4_0", "affine4_g64_f16"], ["bf16", "q4_0"]))
def test_embedding_rows_of_ranks_add_up(format):
    ranks = [MatrixBench([(format, rows)], columns_of(format), seed=rows) for rows in (3, 9, 1)]
    ids = [12, 0, 3, 2, 11, 3]
    rows = [bench.rows(ids, 0.37, first) for bench, first in zip(ranks, (0, 3, 12), strict=True)]
    assert (sum(rows) == np.concatenate([bench.numbers for bench in ranks])[ids] * np.float32(0.37)).all()


@pytest.mark.parametrize(
    ("format", "activation"),
    few([(f, a) for f in FORMATS for a in ("f16", "bf16")], [(f, "bf16") for f in SHORT[::2]] + [("q4_k", "f16")]),
)
def test_unpacked_numbers_are_those_of_the_definition_rounded(format, activation):
    """77 rows do not fill the last threadgroup."""
    bench = MatrixBench([(format, 77)], columns_of(format), seed=6, activation=activation)
    assert (bench.unpacked(2) == rounded(bench.numbers, activation)).all()


def check_products(bench, rows, activation="f32"):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, bench.layout.columns), dtype=np.float32)
    if activation != "f32":
        x = np.round(x * 64) / 64  # exact in 8 bits
    want = x.astype(np.float64) @ bench.numbers.T.astype(np.float64)
    for style in STYLES if rows == 1 else STYLES[1:]:
        error = np.linalg.norm(bench.project(x, style) - want) / np.linalg.norm(want)
        if not error <= 1e-5:
            raise Mismatch(f"{style} of {rows} rows: relative error {error:.3g}")


@pytest.mark.parametrize("format", few(FORMATS, FORMATS[16::16]))
def test_products(format):
    """Rows left over, in a matrix that does not fill its threadgroups."""
    bench = MatrixBench([(format, 77)], columns_of(format), seed=2)
    for rows in ROWS:
        check_products(bench, rows)


OF_16_BITS = list(product(["q8_0", "q6_k", "q4_k", "affine4_g64_f16"], ["f16", "bf16"]))


@pytest.mark.parametrize(("format", "activation"), few(OF_16_BITS, OF_16_BITS[::5]))
def test_activations_of_16_bits(format, activation):
    bench = MatrixBench([(format, 13)], columns_of(format), seed=3, activation=activation)
    for rows in (1, 3, 20):
        check_products(bench, rows, activation)


MIXED = {
    "k-quants": [("q4_k", 64), ("q4_k", 24), ("q6_k", 20)],
    "floats": [("bf16", 20), ("f16", 12), ("f32", 9)],
    "float-and-blocks": [("f16", 9), ("q8_0", 30), ("q5_0", 7)],
    "planes": [("affine4_g64_f16", 18), ("affine4_g64_f16", 6), ("affine8_g64_bf16", 10)],
    "odd-bytes": [("mxfp4", 5), ("q3_k", 3), ("mxfp4_mlx", 70)],
}


@pytest.mark.parametrize("name", few(MIXED, ["odd-bytes"]))
def test_mixed_formats_in_one_launch(name):
    parts = MIXED[name]
    bench = MatrixBench(parts, 768, seed=4)
    assert len(bench.layout.segments) > 1
    offsets = [offset for segment in bench.layout.segments for offset in segment.offsets]
    assert all(offset % 16 == 0 for offset in offsets) and all(a < b for a, b in pairwise(offsets))
    for rows in ROWS:
        check_products(bench, rows)


@pytest.mark.parametrize(("name", "unroll"), few_of(MIXED, [1, 4]))
def test_mixed_formats_unpacked(name, unroll):
    """Each format in threadgroups of its own, full ones (48 rows of 256 pieces of 16, or two of 128) and others."""
    for parts in (MIXED[name], [(format, 48) for format, _ in MIXED[name]]):
        bench = MatrixBench(parts, 768 if parts is MIXED[name] else 4096, seed=7, activation="bf16")
        assert (bench.unpacked(unroll) == rounded(bench.numbers, "bf16")).all()


GATED = [[("q4_k", 37), ("q6_k", 37)], [("affine4_g64_f16", 37)] * 2, [("f16", 37), ("bf16", 37)]]


@pytest.mark.parametrize("parts", few(GATED, GATED[:1]))
def test_gates_and_ups_of_different_formats(parts):
    bench = MatrixBench(parts, 512, seed=5, gated=True)
    rng = np.random.default_rng(0)
    for rows in (1, 5, 40):
        x = rng.standard_normal((rows, 512), dtype=np.float32)
        gate, up = np.split(x.astype(np.float64) @ bench.numbers.T.astype(np.float64), 2, axis=-1)
        want = gate / (1 + np.exp(-gate)) * up
        for style in STYLES if rows == 1 else STYLES[1:]:
            got = bench.project(x, style, activation="silu")
            assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-5


def test_neighbours_that_lie_as_one_matrix_are_one_segment():
    assert len(MatrixBench([("q8_0", 16), ("q8_0", 8)], 32).layout.segments) == 1
    assert len(MatrixBench([("q8_0", 7), ("q8_0", 8)], 32).layout.segments) == 2, "7 rows end at no multiple of 16"


WHOLE = {
    "q4_k_m": {
        "default": "q4_k",
        "embedding": "q6_k",
        "tensors": {"layers.1.attention.v": "q6_k", "layers.1.mlp.up": "q5_k"},
    },
    "mlx": {
        "default": "affine4_g64_bf16",
        "embedding": "affine6_g32_f16",
        "tensors": {"layers.0.mlp.down": "mxfp4_mlx"},
    },
    "some-floats": {"default": "q8_0", "output": "bf16", "tensors": {"layers.0.attention.k": "f16"}},
}
LARGE = {
    "model__hidden_size": 256,
    "model__mlp__intermediate_size": 512,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__context": 64,
    "prefill_chunk": 48,
}


@pytest.mark.long
@pytest.mark.parametrize("name", few(WHOLE, ["mlx"]))
def test_whole_steps(name):
    """Every kind of kernel runs, by the plan's conditions, and gives the reference's logits."""
    pair = HostPair(compiled(small_spec(weights=WHOLE[name], **LARGE)))
    a = pair.add()
    pair.step([(a, list(range(1, 41)))], "all")
    pair.step([(a, [3])])
    b = pair.add()
    pair.step([(b, [5, 6, 7]), (a, [8])])
    pair.step([(a, [9]), (b, [4])])
    labels = {pair.plan.first.kernel(kernel).label for kernel in pair.host.launches}
    for label in ("qkv", "o", "gate_up", "down"):
        assert {label, f"{label}_rows", f"{label}_gemm"} <= labels
    assert sum(weight.size_bytes for weight in pair.plan.weights) == pair.plan.first.memory.weights_bytes


def test_weights_take_the_bytes_of_their_blocks():
    plan = compiled(small_spec(weights={"default": "q4_0"}, **LARGE)).plan
    sizes = {weight.name: weight.size_bytes for weight in plan.weights}
    assert sizes["layers.0.mlp.gate_up"] == 2 * 512 * 256 // 32 * 18
    assert sizes["embedding"] == -(-61 * 256 // 32 * 18 // 16) * 16
    assert sizes["layers.0.mlp.norm"] == 256 * 4


def test_many_rows_need_whole_tiles_of_columns():
    """Mixed floats may have rows of 72 columns: they take the kernel of several rows, whatever their number."""
    spec = small_spec(
        model__hidden_size=72,
        weights={"default": "bf16", "tensors": {"layers.0.attention.k": "f16", "layers.1.attention.k": "f16"}},
    )
    bench = OpBench(compiled(spec))
    for num_tokens in (1, 5, 30):
        bench.run("prefill", ["layers.1.attention.qkv_projected"], bench.batch([(bench.sequences(0)[0], num_tokens)]))
        bench = OpBench(compiled(spec))
    assert not any(kernel.label == "qkv_gemm" for kernel in bench.plan.first.kernels)


@pytest.mark.parametrize("gemm_min_rows", few([1, 2, 100], [1]))
def test_tiles_may_take_fewer_rows_or_never_run(gemm_min_rows):
    spec = small_spec(weights={"default": "q4_0"}, **LARGE)
    pair = HostPair(compiled(spec, Geometry.of(gemm_min_rows=gemm_min_rows)))
    a, b = pair.add(), pair.add()
    pair.step([(a, [1, 2, 3])])
    pair.step([(a, [4]), (b, [5])])
    labels = {pair.plan.first.kernel(kernel).label for kernel in pair.host.launches}
    assert ("qkv_gemm" in labels) == (gemm_min_rows < 100) and ("qkv_rows" in labels) == (gemm_min_rows == 100)
