"""The kernel that unpacks a weight for MLX's matmul: spans that end within a tile, and mistakes that are noticed.

That each format's numbers are right, `test_weight_formats.py` says.
"""

import itertools
from contextlib import suppress

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.errors import KernelFault
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr_tests.few import few
from mlxr_tests.matrix_bench import MatrixBench, plant, unpacked_together
from mlxr_tests.specs import floats

pytestmark = pytest.mark.usefixtures("kernel_host")

MIXED = [("q6_k", 43), ("affine4_g64_f16", 77)]


SEVERAL = [(MIXED, 768), ([("affine4_g64_f16", 16)] * 2, 256), ([("q8_0", 77)], 32), ([("q4_k", 33)], 512)]


def are_right(matrices, unroll, activation="bf16"):
    """Whether one launch unpacks all of these: parts and columns of each."""
    benches = [MatrixBench(parts, columns, seed=8, activation=activation) for parts, columns in matrices]
    wanted = [floats(mx.array(bench.numbers).astype(MLX_DTYPES[activation])) for bench in benches]
    return all(map(np.array_equal, unpacked_together(benches, unroll), wanted))


def is_right(parts, columns, unroll, activation="bf16"):
    return are_right([(parts, columns)], unroll, activation)


TYPES = list(itertools.product([1, 2, 3], ["f16", "bf16"]))


@pytest.mark.parametrize(("unroll", "activation"), few(TYPES, [TYPES[0], TYPES[5]]))
def test_spans_that_end_within_a_tile(unroll, activation):
    """By their chunks: after a whole tile, in its middle, after its first; and threadgroups with no piece left."""
    assert is_right(MIXED, 768, unroll, activation)
    assert is_right([("f32", 5), ("bf16", 29), ("f32", 3), ("f16", 57)], 72, unroll, activation)
    assert is_right([("affine8_g32_f32", 257), ("q8_0", 1), ("mxfp4", 16)], 32, unroll, activation)


@pytest.mark.parametrize(("unroll", "activation"), few(TYPES, [TYPES[0], TYPES[5]]))
def test_several_weights(unroll, activation):
    """Of other formats, rows and columns each; each begins with threadgroups of its own and at its own first number."""
    assert are_right(SEVERAL, unroll, activation)
    assert are_right(SEVERAL[::-1], unroll, activation)
    assert are_right([([("q8_0", 3)], 32)] * 12, unroll, activation), "more than ten, in their order"


MISTAKES = [
    ("tile + (bank ^ bank_of(run * 4u))", "tile + bank_of(run * 4u)"),
    ("tile[bank ^ bank_of(run * 2u + 1)]", "tile[bank ^ bank_of(run * 2u)]"),
    ("tile[bank_of(lane) + 32u]", "tile[lane + 32u]"),
    ("tiles + simdgroup_index_in_threadgroup * 64u", "tiles"),
    ("min(place, ", "max(place, "),
    ("own + i * 512u < 7392u", "own + i * 512u < 7391u"),
    ("own + i * 512u + 32u < 7392u", "own + i * 512u + 32u < 7393u"),
    ("+ 4128ul + own", "+ 4129ul + own"),
    (
        "      // All loads have been issued, and no lane reads the last tile any more.\n      simdgroup_barrier",
        "      (void)",
    ),
    ("      }\n      simdgroup_barrier", "      }\n      (void)"),
]


MISTAKES_OF_SEVERAL = [
    ("{weight_1 + ", "{weight_0 + "),
    ("(device uint4*)out_3 + own", "(device uint4*)out_2 + own"),
    ("if (group < 16u)", "if (group < 15u)"),
    ("(group - 15u) * 2u", "group * 2u"),
]


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(monkeypatch, kernel_host, old, new):
    plant(monkeypatch, kernel_host, old, new)
    with suppress(KernelFault):
        assert not is_right(MIXED, 768, 2)


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), MISTAKES_OF_SEVERAL)
def test_mistake_with_several_weights_is_noticed(monkeypatch, kernel_host, old, new):
    plant(monkeypatch, kernel_host, old, new)
    with suppress(KernelFault):
        assert not are_right(SEVERAL, 2)
