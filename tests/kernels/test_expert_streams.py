"""Products by experts with MMA, whose weights come through threadgroup memory: of one token and of several."""

import itertools
from typing import Any

import mlx.core as mx
import pytest

from mlxr.compiler.artifact import Artifact
from mlxr.compiler.ir.graph import Value
from mlxr.compiler.schedule.geometry import Geometry
from mlxr_tests.early_reads import reads_of_steps
from mlxr_tests.few import few, few_of
from mlxr_tests.op_bench import OpBench
from mlxr_tests.specs import compiled, small_spec

pytestmark = pytest.mark.usefixtures("kernel_host")

EXPERTS = {"count": 10, "per_token": 2, "normalise": True, "scale": 2.5, "router": "softmax_topk"}
SIZES = {"matvec_mma": 1, "matvec_outputs": 16}
ONE_TOKEN = {
    "shared-columns": SIZES | {"matvec_simdgroups": 2, "matvec_split": 2, "matvec_stages": 1, "matvec_threadgroups": 8},
    "ahead": SIZES | {"matvec_simdgroups": 1, "matvec_stages": 2},
    "own-rows": SIZES | {"matvec_simdgroups": 2, "matvec_stages": 1, "matvec_threadgroups": 16},
}
MLPS = {
    "swiglu": {"experts": EXPERTS},
    "not-gated": {"experts": EXPERTS | {"weigh": "inputs", "router": "sigmoid"}, "activation": "relu2", "gated": False},
    "bias": {"experts": EXPERTS, "activation": "swiglu_oai", "limit": 7.0, "bias": True},
}
FORMATS = ("q4_k", "q5_k", "q6_k")


def artifact_of(mlp: dict[str, object], hidden: int, intermediate: int, sizes: dict[str, int], **changes) -> Artifact:
    spec = small_spec(
        model__tensor_names="canonical",
        model__num_layers=1,
        model__hidden_size=hidden,
        model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 32},
        model__mlp={"intermediate_size": intermediate} | mlp,
        **changes,
    )
    return compiled(spec, Geometry.of(**sizes))


def run_decode(artifact: Artifact, sequences: int, sum_error: float) -> set[str]:
    bench = OpBench(artifact, sum_error=sum_error)
    ops = [op.name for op in artifact.graph("decode").ops if op.layer == 0 and "experts" in {*op.inputs, *op.outputs}]
    bench.run("decode", ops, bench.batch([(each, 1) for each in bench.sequences(*[0] * sequences)]))
    return set(bench.launches)


def streamed(sizes, mlp, format, activation, tokens, columns):
    """The kernels with a stream, which have run. A unit of the last products may have blocks of two experts."""
    weights = {"activation_dtype": activation, "weights": {"default": format}}
    artifact = artifact_of(MLPS[mlp], *columns, ONE_TOKEN[sizes], **weights)
    assert "MLXR_COPY_AHEAD(to" in "".join(artifact.kernel_text(k.name) for k in artifact.plan.first.kernels)
    run_decode(artifact, tokens, 1e-5 if activation == "f32" else 8e-3)
    return {k.label for k in artifact.plan.first.kernels if "MLXR_COPY_AHEAD(to" in artifact.kernel_text(k.name)}


def test_one_token():
    assert {"routed_experts", "experts_down"} <= streamed("ahead", "swiglu", "q4_k", "bf16", 1, (512, 256))


@pytest.mark.long
@pytest.mark.parametrize(("sizes", "mlp", "format", "activation"), few_of(ONE_TOKEN, MLPS, FORMATS, ["f32", "bf16"]))
def test_all_of_one_token(sizes, mlp, format, activation):
    """Rows of three blocks, and two tokens."""
    assert {"routed_experts", "experts_down"} <= streamed(sizes, mlp, format, activation, 2, (1024, 768))


@pytest.mark.parametrize(
    ("sizes", "router"),
    few(itertools.product(("matvec", "ahead"), ("softmax_topk", "topk_softmax")), [("ahead", "softmax_topk")]),
)
def test_threads_share_the_choice(sizes, router, monkeypatch):
    """64 threads for 32 experts, of which many are equal, in the kernels with a stream and in the one without."""
    mlp = {"experts": EXPERTS | {"count": 32, "per_token": 4, "router": router}}
    one_row = {"matvec_simdgroups": 2} | (ONE_TOKEN["ahead"] | {"matvec_simdgroups": 2} if sizes == "ahead" else {})
    artifact = artifact_of(mlp, 512, 256, one_row, activation_dtype="bf16", weights={"default": "q4_k"})
    kernel = next(k for k in artifact.plan.first.kernels if k.label == "routed_experts")
    assert "chosen[before] = own_expert" in artifact.kernel_text(kernel.name)
    chooses = {k.label for k in artifact.plan.first.kernels if any(port.name == "logits" for port in k.inputs)}
    assert ("experts_down" in chooses) == (sizes == "ahead")
    early = {("experts_down", "logits", 2, True)} if sizes == "ahead" else set()
    assert set(reads_of_steps(artifact)) == early, (
        "made by the launch before the one before, past the first-level cache"
    )
    logits = {op.inputs["logits"] for op in artifact.graph("decode").ops if "logits" in op.inputs}
    own = OpBench._input

    def coarse(bench: OpBench, value: Value, *rest: Any) -> mx.array:
        numbers = own(bench, value, *rest)
        return mx.round(2 * numbers) / 2 if value.name in logits else numbers

    monkeypatch.setattr(OpBench, "_input", coarse)
    for tokens in (1, 3):
        run_decode(artifact, tokens, 8e-3)


CODES = {
    "two-tiles": {"mma_simdgroups": 2, "mma_outputs": 32, "mma_stages": 2},
    "one-tile": {"mma_simdgroups": 1, "mma_outputs": 16, "mma_stages": 3},
}
WEIGHTS = {
    "both": {"default": "q4_k", "tensors": {"*.down": "q6_k"}},
    "q4_k": {"default": "q4_k"},
    "q6_k": {"default": "q6_k"},
}
CASES = [
    (sizes, mlp, weights, activation, sequences)
    for sizes in CODES
    for mlp in MLPS
    for weights in WEIGHTS
    for activation in ("bf16", "f16")
    for sequences in (4, 9, 30)
    if not MLPS[mlp]["experts"].get("weigh")  # each of their tokens is multiplied by itself
]


@pytest.mark.parametrize(
    ("sizes", "mlp", "weights", "activation", "sequences"), few(CASES, [("two-tiles", "swiglu", "both", "bf16", 9)])
)
def test_choices_of_an_expert(sizes, mlp, weights, activation, sequences):
    """Tiles that are full, cut and empty, and several of an expert."""
    artifact = artifact_of(
        MLPS[mlp],
        512,
        256,
        {"experts_mma_tokens": 4} | CODES[sizes],
        activation_dtype=activation,
        weights=WEIGHTS[weights],
        cache={"mode": "paged", "max_sequences": 32},
    )
    assert {"experts_codes8", "experts_down_codes8"} <= run_decode(artifact, sequences, 8e-3)


@pytest.mark.long  # chips have the products of four simdgroups
@pytest.mark.parametrize(("format", "tokens"), list(itertools.product(["q4_k", "q6_k"], [17, 60])))
def test_prompts(format, tokens):
    """x comes unit by unit, of which there are two and one; tiles of 10 rows are cut, and an expert has several."""
    sizes = {"mma_stages": 2, "mma_max_rows": 10, "mma_simdgroups": 1 if format == "q6_k" else 2, "mma_outputs": 16}
    artifact = artifact_of(
        MLPS["swiglu"],
        512,
        256,
        {"experts_min_rows": 1, "gemm_mma": 1} | sizes,
        activation_dtype="bf16",
        weights={"default": format},
        model__context=128,
        prefill_chunk=64,
    )
    bench, graph = OpBench(artifact, sum_error=8e-3), artifact.graph("prefill")
    ops = [op.name for op in graph.ops if op.layer == 0 and "experts" in op.inputs]
    bench.run("prefill", ops, bench.batch([(bench.sequences(0)[0], tokens)]))
    assert {"experts_codes10", "experts_down_codes10"} <= set(bench.launches)


WIDE = {
    "one-set": {"mma_simdgroups": 4, "mma_wide_stages": 2},
    "three-stages": {"mma_simdgroups": 8, "mma_wide_stages": 3},
    "passes": {"mma_simdgroups": 4, "mma_wide_stages": 2, "mma_threadgroups": 2},
}
PROMPTS = list(itertools.product(WIDE, MLPS, [16, 40], ["q4_k", "q6_k"], ["bf16", "f16"], [17, 60]))


@pytest.mark.parametrize(
    ("sizes", "mlp", "tile", "format", "activation", "tokens"),
    few(PROMPTS, [("passes", "swiglu", 40, "q4_k", "bf16", 60)]),
)
def test_prompts_by_four_simdgroups(sizes, mlp, tile, format, activation, tokens):
    """Tiles are full, cut and empty, and instructions have 16 or 40 columns; x comes in two blocks and in one."""
    artifact = artifact_of(
        MLPS[mlp] | {"experts": MLPS[mlp]["experts"] | ({"count": 3} if tile == 40 else {})},
        512,
        256,
        {"experts_min_rows": 1, "gemm_mma": 1, "mma_max_rows": tile} | WIDE[sizes],
        activation_dtype=activation,
        weights={"default": format},
        model__context=128,
        prefill_chunk=64,
    )
    bench, graph = OpBench(artifact, sum_error=8e-3), artifact.graph("prefill")
    ops = [op.name for op in graph.ops if op.layer == 0 and "experts" in op.inputs]
    bench.run("prefill", ops, bench.batch([(bench.sequences(0)[0], tokens)]))
    assert {f"experts_wide{tile}", f"experts_down_wide{tile}"} <= set(bench.launches)


def test_tiles_have_no_more_choices_than_the_largest_instruction_takes():
    sizes = {"experts_min_rows": 1, "gemm_mma": 1, "mma_simdgroups": 4, "mma_wide_stages": 2, "mma_max_rows": 72}
    artifact = artifact_of(MLPS["swiglu"], 256, 256, sizes, activation_dtype="bf16", weights={"default": "q4_k"})
    assert not [k.label for k in artifact.plan.first.kernels if "wide" in k.label or "numbers" in k.label]


ROUTERS = {
    "softmax": {"router": "softmax_topk"},
    "sigmoid": {"router": "sigmoid", "selection_bias": True},
    "groups": {"router": "sigmoid", "selection_bias": True, "groups": {"count": 5, "chosen": 2}},
}


@pytest.mark.parametrize(("router", "sequences"), few(itertools.product(ROUTERS, [4, 30]), [("groups", 4)]))
def test_choice_order_and_norm_in_one_launch(router, sequences):
    """Rows of 1,024 columns are normalised by the launch that chooses, and others by one of their own."""
    artifact = artifact_of(
        {"experts": EXPERTS | ROUTERS[router]},
        1024,
        128,
        {"experts_mma_tokens": 4, "mma_simdgroups": 2},
        activation_dtype="bf16",
        weights={"default": "q8_0"},
        cache={"mode": "paged", "max_sequences": 32},
    )
    launches = run_decode(artifact, sequences, 8e-3)
    assert "route_order" in launches and not {"route", "expert_order", "normalise"} & launches


@pytest.mark.parametrize(("sequences", "joined"), [(512, True), (513, False)])
def test_each_threadgroup_chooses_for_few_tokens_only(sequences, joined):
    sizes = {"experts_mma_tokens": 4, "mma_simdgroups": 2}
    cache = {"mode": "paged", "max_sequences": sequences}
    weights = {"default": "q8_0"}
    artifact = artifact_of({"experts": EXPERTS}, 256, 128, sizes, activation_dtype="bf16", weights=weights, cache=cache)
    labels = {artifact.kernel_entry(launch.kernel).label for launch in artifact.plan.first.phase("decode").launches}
    assert ("route_order" in labels, "expert_order" in labels) == (joined, not joined)


@pytest.mark.parametrize(
    ("rows", "simdgroups", "dtype"), few(itertools.product([2, 5, 9], [1, 2], ["bf16", "f32"]), [(5, 2, "f32")])
)
def test_simdgroups_share_the_columns_of_a_router(rows, simdgroups, dtype):
    """Tiles that are full and cut, of rows and of the 10 outputs."""
    weights = {"default": "q4_k", "tensors": {"*.router": dtype}}
    changes = {"activation_dtype": "bf16", "weights": weights, "cache": {"mode": "paged", "max_sequences": 9}}
    artifact = artifact_of(MLPS["swiglu"], 512, 256, {"matmul_shared": simdgroups}, **changes)
    bench, graph = OpBench(artifact, sum_error=1e-5), artifact.graph("decode")
    logits = next(op.inputs["logits"] for op in graph.ops if "logits" in op.inputs)
    bench.run("decode", [graph.producer(logits).name], bench.batch([(s, 1) for s in bench.sequences(*[0] * rows)]))
    assert bench.launches == {"router_shared": 1}


@pytest.mark.parametrize(("columns", "shared"), [(1024, True), (1280, False)])
def test_a_routers_columns_are_shared_while_registers_hold_them(columns, shared):
    weights = {"default": "q4_k", "tensors": {"*.router": "f32"}}
    artifact = artifact_of(MLPS["swiglu"], columns, 256, {"matmul_shared": 1}, activation_dtype="bf16", weights=weights)
    assert ("router_shared" in {kernel.label for kernel in artifact.plan.first.kernels}) == shared
