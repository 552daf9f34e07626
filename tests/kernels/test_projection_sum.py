"""The sum of two products: of one row and of few in one launch, of many in two."""

import itertools

import pytest

from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.few import covering, few
from mlxr_tests.host_pair import HostPair
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

BOTH = "layers.0.mlp.out"
GEOMETRIES = [
    Geometry.of(matvec_outputs=1, matvec_simdgroups=4, matvec_unroll=2),
    Geometry.of(matvec_outputs=2, matvec_simdgroups=4, matvec_split=4, matvec_unroll=8),
    Geometry.of(matvec_outputs=4, matvec_simdgroups=6, matvec_split=3),
    Geometry.of(matvec_outputs=2, matvec_simdgroups=4, matvec_split=2, matvec_threadgroups=3),
    Geometry.of(matvec_outputs=4, matvec_simdgroups=1, matvec_threadgroups=1),
]
BLOCKS = {
    "model__hidden_size": 256,
    "model__attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
    "model__mlp": {"intermediate_size": 512},
}
CASES = {
    "plain": {},
    "biases": {"model__attention__output_bias": True, "model__mlp__bias": True},
    "a bias": {"model__attention__output_bias": True, "model__residual_scale": 0.25},
    "16 bits": {"weights": {"default": "bf16"}, "activation_dtype": "bf16", "model__mlp__intermediate_size": 72},
    "two formats": BLOCKS | {"weights": {"default": "q8_0", "tensors": {"layers.*.mlp.down": "q4_k"}}},
    "planes": BLOCKS | {"weights": {"default": "affine4_g32_f16"}},
}


def bench_of(case: str, geometry: Geometry | None = None) -> OpBench:
    spec = small_spec(model__parallel_blocks=True, cache__max_sequences=4, **CASES[case])
    return OpBench(compiled(spec, geometry or Geometry()))


OF_ONE_ROW = list(itertools.product(CASES, GEOMETRIES))
SHORT_OF_ONE_ROW = [pair for pair in OF_ONE_ROW if pair[0] in ("biases", "two formats")]


@pytest.mark.parametrize(("case", "geometry"), few(OF_ONE_ROW, covering(SHORT_OF_ONE_ROW, lambda pair: pair)), ids=str)
def test_one_row(case: str, geometry: Geometry) -> None:
    bench = bench_of(case, geometry)
    assert bench.artifact.graph("decode").op(BOTH).kind == "projection_sum"
    bench.run("decode", [BOTH], bench.batch([(bench.sequences(0)[0], 1)]))


@pytest.mark.parametrize("sizes", few([{}, {"matmul_tile": 2, "matmul_outputs": 2}], [{}]), ids=str)
@pytest.mark.parametrize("case", few(CASES, ["a bias", "two formats"]))
def test_several_rows(case: str, sizes: dict[str, int]) -> None:
    bench = bench_of(case, Geometry.of(**sizes))
    bench.run("decode", [BOTH], bench.batch([(sequence, 1) for sequence in bench.sequences(0, 5, 3)]))
    assert set(bench.launches) == {"down_sum_rows"}


@pytest.mark.long
@pytest.mark.parametrize("sizes", [{"mma_min_rows": 2}, {"mlx_min_rows": 3}], ids=str)
def test_rows_that_other_kernels_take_are_multiplied_apart(sizes: dict[str, int]) -> None:
    """The first result is rounded, as is the sum of any two launches."""
    changes = BLOCKS | {"weights": {"default": "bf16"}, "activation_dtype": "bf16", "cache__max_sequences": 5}
    bench = OpBench(compiled(small_spec(model__parallel_blocks=True, **changes), Geometry.of(**sizes)), sum_error=4e-3)
    for lengths in ((0, 5), (0, 5, 3)):
        bench.run("decode", [BOTH], bench.batch([(sequence, 1) for sequence in bench.sequences(*lengths)]))
    assert bench.launches["down_sum_rows"] == ("mlx_min_rows" in sizes)


@pytest.mark.parametrize("case", few(CASES, ["a bias"]))
def test_steps_in_c(case: str) -> None:
    spec = small_spec(model__parallel_blocks=True, model__num_layers=1, cache__max_sequences=4, **CASES[case])
    pair = HostPair(compiled(spec, target="cpu"))
    assert pair.artifact.graph("decode").op(BOTH).kind == "projection_sum"
    first, second = pair.add(), pair.add()
    pair.step([(first, [3, 1, 4])])
    pair.step([(first, [5])])
    pair.step([(first, [9]), (second, [2, 6])])


def test_matrix_instructions_keep_the_products_apart() -> None:
    changes = BLOCKS | {"weights": {"default": "q4_k"}, "model__parallel_blocks": True}
    artifact = compiled(small_spec(**changes), Geometry.of(matvec_mma=1, matvec_outputs=16))
    assert not any(kernel.label.endswith("_sum") for kernel in artifact.plan.first.kernels)
