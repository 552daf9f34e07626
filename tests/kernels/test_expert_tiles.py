"""Products of many tokens by experts, in tiles: their order, both kernels, other ranks' experts, and mistakes."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import KernelFault
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.targets.metal.kernels.expert_order import ExpertOrderKernel
from mlxr_tests.few import covering, few, few_of
from mlxr_tests.kernel_bench import kernel_text, run_kernel
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.tolerances import Mismatch

pytestmark = pytest.mark.usefixtures("kernel_host")

EXPERTS = {"count": 10, "per_token": 3, "normalise": True, "scale": 2.5, "router": "softmax_topk"}
TILES, MMA = Geometry.of(experts_min_rows=1), Geometry.of(experts_min_rows=1, gemm_mma=1)
CASES = {
    "f32": ({}, TILES, {}),
    "bias-clamped": ({}, TILES, {"activation": "swiglu_oai", "limit": 7.0, "bias": True}),
    "layer-norm": ({"model__norm": {"kind": "layer"}}, TILES, {"activation": "gelu"}),
    "not-gated": ({}, TILES, {"activation": "relu2", "gated": False}),
    "weighed-inputs": ({}, TILES, {"experts": EXPERTS | {"weigh": "inputs", "router": "sigmoid"}}),
    "q8_0": ({"weights": {"default": "q8_0"}}, TILES, {}),
    "bf16-mma": ({"activation_dtype": "bf16", "weights": {"default": "bf16"}}, MMA, {}),
    "q4_k-mma": ({"activation_dtype": "bf16", "weights": {"default": "q4_k"}}, MMA, {"intermediate_size": 256}),
    "q8_0-mma": ({"activation_dtype": "bf16", "weights": {"default": "q8_0"}}, MMA, {"intermediate_size": 128}),
    "affine-mma": ({"activation_dtype": "f16", "weights": {"default": "affine4_g32_f16"}}, MMA, {"bias": True}),
    "weighed-inputs-mma": (
        {"activation_dtype": "bf16", "weights": {"default": "bf16"}},
        MMA,
        {"experts": EXPERTS | {"weigh": "inputs", "router": "sigmoid"}},
    ),
}


def artifact_of(name: str) -> Artifact:
    changes, geometry, mlp = CASES[name]
    spec = small_spec(
        model__tensor_names="canonical",
        model__hidden_size=256,
        model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        model__mlp={"intermediate_size": 96, "experts": EXPERTS} | mlp,
        model__context=128,
        prefill_chunk=128,
        **changes,
    )
    return compiled(spec, geometry)


def run_products(artifact: Artifact, tokens: int, sum_error: float) -> OpBench:
    """The products of a layer on choices of their own."""
    bench = OpBench(artifact, sum_error=sum_error)
    graph = artifact.graph("prefill")
    ops = [op.name for op in graph.ops if op.layer == 0 and "experts" in op.inputs]
    bench.run("prefill", ops, bench.batch([(bench.sequences(0)[0], tokens)]))
    return bench


OF_CASES = list(itertools.product(CASES, [4, 33, 80]))
COVERED = ("f32", "layer-norm", "weighed-inputs", "bf16-mma", "q8_0-mma", "not-gated")
"""Cases whose parts others have."""
SHORT = [case for case in covering(OF_CASES, lambda case: case) if case[0] not in COVERED]


@pytest.mark.parametrize(("name", "tokens"), few(OF_CASES, SHORT))
def test_products(name, tokens):
    """Tiles that are full, cut and empty. Matrix instructions take numbers of 16 bits."""
    bench = run_products(artifact_of(name), tokens, 8e-3 if name.endswith("mma") else 1e-5)
    kernel = "gemm_mma" if name.endswith("mma") else "gemm"
    assert {"expert_order", f"experts_{kernel}"} <= set(bench.launches)
    if not name.startswith("weighed"):  # those experts' results are summed by an op of their own
        assert {f"experts_down_{kernel}", "expert_sum"} <= set(bench.launches)
    assert bench.launches["expert_order"] == 1, "all products of a choice share its order"


FEW = {
    "q4_k": ({"default": "q4_k"}, {"intermediate_size": 256}),
    "q8_0, relu2": ({"default": "q8_0"}, {"intermediate_size": 128, "activation": "relu2", "gated": False}),
    "q4_0, sigmoid": ({"default": "q4_0"}, {"experts": EXPERTS | {"router": "sigmoid"}, "intermediate_size": 128}),
    "affine": ({"default": "affine4_g64_bf16"}, {"intermediate_size": 128, "bias": True}),
    "shared": (
        {"default": "q8_0"},
        {"experts": EXPERTS | {"shared": {"intermediate_size": 64}}, "intermediate_size": 128},
    ),
}


OF_FEW = list(itertools.product(FEW, [3, 9, 30]))
SHORT_FEW = [case for case in covering(OF_FEW, lambda case: case) if case[0] not in ("affine", "shared")]


@pytest.mark.parametrize(("name", "sequences"), few(OF_FEW, SHORT_FEW))
def test_products_of_a_decode_step(name, sequences):
    """Few choices of an expert are multiplied together, by matrix instructions; below the threshold each by itself."""
    weights, mlp = FEW[name]
    spec = small_spec(
        model__tensor_names="canonical",
        model__hidden_size=256,
        model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        model__mlp={"experts": EXPERTS} | mlp,
        cache={"mode": "paged", "max_sequences": 32},
        activation_dtype="bf16",
        weights=weights,
    )
    artifact = compiled(spec, Geometry.of(experts_mma_tokens=4, mma_simdgroups=2))
    bench = OpBench(artifact, sum_error=8e-3)
    ops = [op.name for op in artifact.graph("decode").ops if op.layer == 0 and "experts" in {*op.inputs, *op.outputs}]
    bench.run("decode", ops, bench.batch([(each, 1) for each in bench.sequences(*[0] * sequences)]))
    together = {"route_order", "experts_mma8", "experts_down_mma8", "expert_sum"}
    if sequences < (17 if name == "shared" else 4):  # the kernels for several tokens have a shared expert's rows, too
        assert not together & set(bench.launches)
    else:
        assert together <= set(bench.launches)


def shared_in_tiles(up: str) -> Artifact:
    """Matrix instructions take a shared expert's products, but not gates and ups of two formats."""
    spec = small_spec(
        model__tensor_names="canonical",
        model__num_layers=1,
        model__hidden_size=256,
        model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        model__mlp={"intermediate_size": 128, "experts": EXPERTS | {"shared": {"intermediate_size": 64}}},
        cache={"mode": "paged", "max_sequences": 32},
        activation_dtype="bf16",
        weights={"default": "q8_0", "tensors": {"*.shared.up": up}},
    )
    return compiled(spec, Geometry.of(experts_mma_tokens=4, mma_min_rows=2, mma_simdgroups=2))


def test_an_order_is_there_for_the_product_with_the_fewest_tokens():
    program = shared_in_tiles("q4_0").plan.first
    launches = [one for one in program.phase("decode").launches if "order" in program.kernel(one.kernel).label]
    assert [(one.when.minimum, one.when.maximum) for one in launches] == [(17, None), (4, 16)]


@pytest.mark.long
@pytest.mark.parametrize("sequences", [3, 9])
def test_only_the_last_products_are_in_tiles(sequences):
    artifact = shared_in_tiles("q4_0")
    bench = OpBench(artifact, sum_error=8e-3)
    ops = [op.name for op in artifact.graph("decode").ops if op.layer == 0 and "experts" in {*op.inputs, *op.outputs}]
    bench.run("decode", ops, bench.batch([(each, 1) for each in bench.sequences(*[0] * sequences)]))
    tiled = {name for name in bench.launches if name.endswith("_mma8") and name.startswith("experts")}
    assert tiled == ({"experts_down_mma8"} if sequences == 9 else set())


@pytest.mark.long
def test_experts_and_a_shared_expert_have_rows_of_their_own():
    """Both read x after its norm, by tiles of eight rows, in launches of other numbers of tokens."""
    artifact = shared_in_tiles("q8_0")
    bench = OpBench(artifact, sum_error=8e-3)
    mlp = [op for op in artifact.graph("decode").ops if op.name.startswith("layers.0.mlp.")]
    ops = [op.name for op in mlp if "experts" not in op.inputs]  # the router and the first products
    bench.run("decode", ops, bench.batch([(each, 1) for each in bench.sequences(*[0] * 5)]))
    assert {"route_order", "normalise", "experts_mma8", "gate_up_mma8"} <= set(bench.launches), bench.launches


def test_few_tokens_have_no_tiles():
    assert set(run_products(artifact_of("f32"), 3, 1e-5).launches) == {"experts", "experts_down"}


@pytest.mark.parametrize(("dtype", "tokens"), [("bf16", 4), ("f32", 27)])
def test_tiles_begin_where_they_pay(dtype, tokens):
    """On an H100, 10 experts, 3 of them for a token: with MMA from one token an expert on, without it from 8 on."""
    spec = small_spec(
        model__tensor_names="canonical",
        model__hidden_size=64,
        model__mlp={"intermediate_size": 96, "experts": EXPERTS},
        prefill_chunk=64,
        activation_dtype=dtype,
    )
    plan = compile_spec(spec, targets=("metal",), chip=find_chip("h100")).artifact.plan
    launches = [one for one in plan.first.phase("prefill").launches if not one.needs_library]
    orders = [one for one in launches if plan.first.kernel(one.kernel).label == "expert_order"]
    assert {one.when.minimum for one in orders} == {tokens}


ORDERS = [(1, 1, 64), (4, 2, 64), (10, 3, 32), (60, 4, 64), (7, 6, 64), (5, 5, 4), (300, 8, 32)]


def order(kernel: ExpertOrderKernel, choices, text=None):
    """The order and the tiles of the kernel."""
    tokens, tiles = len(choices), kernel.grid_of_tiles.value({"tokens": len(choices)})
    dims = np.array([tokens] + [0] * 7, dtype=np.uint32)
    inputs = {"experts": mx.array(choices.astype(np.int32)), "dims": mx.array(dims)}
    shapes = {"order": (tokens * kernel.top_k,), "tiles": (tiles, 3)}
    got = run_kernel(kernel, inputs, shapes, (kernel.num_experts, 1, 1), text=text)
    return np.array(got["order"]), np.array(got["tiles"])


def check_order(kernel: ExpertOrderKernel, choices, text=None):
    """Each choice is in one tile, of its expert, in the order of the tokens; raises Mismatch otherwise."""
    places, tiles = order(kernel, choices, text)
    if (tiles < 0).any():
        raise Mismatch(f"not written: {tiles.tolist()}")
    flat, found = choices.ravel(), []
    for expert, first, end in tiles:
        if first < end:
            if end - first > kernel.tile or (flat[places[first:end]] != expert).any():
                raise Mismatch(f"tile {expert}: {places[first:end]}")
            found += places[first:end].tolist()
    want = [i for expert in range(kernel.num_experts) for i in np.flatnonzero(flat == expert)]
    if found != want:
        raise Mismatch(f"{found}, expected {want}")


@pytest.mark.parametrize(("size", "tokens"), few_of(ORDERS, [1, 50, 700]), ids=str)
def test_order(size, tokens):
    """Even choices, and those of one expert, which fill its tiles and leave all others empty."""
    rng, (count, top_k, tile) = np.random.default_rng(tokens), size
    even = np.array([rng.permutation(count)[:top_k] for _ in range(tokens)])
    kernel = ExpertOrderKernel("expert_order", count, top_k, tile, skips=False)
    check_order(kernel, even)
    check_order(kernel, np.full((tokens, top_k), count - 1))


def test_choices_of_another_rank_are_in_no_tile():
    rng = np.random.default_rng(0)
    check_order(ExpertOrderKernel("expert_order", 6, 4, 32, skips=True), rng.integers(-1, 6, (90, 4)))


MISTAKES = [
    ("expert >= 0 && expert < own", "expert < own"),
    ("s < simdgroup ?", "s <= simdgroup ?"),
    ("place += before;", ""),
    ("before / 32u + (uint)own;", "before / 32u;"),
    ("min(from + 32u, of_expert)", "from + 32u"),
    ("own == 5 ?", "own == 4 ?"),
    ("  threadgroup_barrier(mem_flags::mem_threadgroup);\n", ""),
]


@pytest.mark.long
@pytest.mark.sim_only
@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_mistake_is_noticed(old, new):
    kernel = ExpertOrderKernel("expert_order", 6, 4, 32, skips=True)
    _, text = kernel_text(kernel)
    assert old in text
    choices = np.random.default_rng(0).integers(-1, 6, (90, 4))
    check_order(kernel, choices, text)
    with pytest.raises((Mismatch, KernelFault)):
        check_order(kernel, choices, text.replace(old, new))
