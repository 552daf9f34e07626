"""Experts shared by ranks: what the ranks compute adds up to the mixture, by NumPy, of all experts."""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest

from mlxr.bench.traffic import weight_bytes
from mlxr.compiler import driver
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import layout_of
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.experts import ExpertLinear, Route
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.targets import source_graph
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import OutputSegment
from mlxr.compiler.targets.cpu.kernels.experts import CpuExperts
from mlxr.compiler.targets.cpu.kernels.route import CpuRoute
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows
from mlxr.compiler.targets.metal.kernels.expert_combine import ExpertCombineKernel
from mlxr.compiler.targets.metal.kernels.expert_order import ExpertOrderKernel
from mlxr.compiler.targets.metal.kernels.expert_projection import ExpertProjectionKernel
from mlxr.compiler.targets.metal.kernels.expert_sum import ExpertSumKernel
from mlxr.compiler.targets.metal.kernels.gemm import GEMM_ROWS, GEMM_SIMDGROUPS, GEMM_TILE, GemmKernel
from mlxr.compiler.targets.metal.kernels.route import RouteKernel
from mlxr_tests.cpu_kernels import CpuKernels
from mlxr_tests.family_specs import family_spec
from mlxr_tests.kernel_bench import run_kernel
from mlxr_tests.reference_ops import evaluate
from mlxr_tests.specs import compiled, floats, small_spec

EXPERTS, TOP_K, HIDDEN, WIDTH = 8, 4, 64, 32
RANKS = [(0, 3), (3, 1), (4, 4)]
"""First expert and number of experts of each rank: two have fewer than a token chooses."""
UNCHOSEN = 1
ROUTED = {"top_k": TOP_K, "router": "softmax_topk", "normalise": True, "scale": 2.0}
ALL_GROUPS = {"groups": 1, "top_groups": 1, "judged_by": 1}
UP = {"activation": "silu", "gated": True}
F32 = DType.F32


@dataclass(frozen=True)
class Weights:
    """Of all experts, or of a rank's: gates and ups [2, experts, WIDTH, HIDDEN], downs, and their biases."""

    gate_up: np.ndarray
    down: np.ndarray
    bias: np.ndarray

    def of(self, first, owned):
        own = slice(first, first + owned)
        return Weights(self.gate_up[:, own].copy(), self.down[own].copy(), self.bias[own].copy())


def mixture(weights, logits, x):
    """What all experts make of x, in f64: [tokens, HIDDEN]."""
    out = np.zeros_like(x, dtype=np.float64)
    for token, scores in enumerate(np.exp(logits.astype(np.float64))):
        best = np.argsort(-scores)[:TOP_K]
        for expert in best:
            gate, up = weights.gate_up[:, expert].astype(np.float64) @ x[token]
            y = weights.down[expert] @ (gate / (1 + np.exp(-gate)) * up) + weights.bias[expert]
            out[token] += 2.0 * scores[expert] / scores[best].sum() * y
    return out


def by_reference(first, owned, weights, logits, x):
    attrs = {"num_experts": owned, "top_k": TOP_K, "dtype": "f32"}
    routed = evaluate("route", {"x": mx.array(logits)}, ROUTED | ALL_GROUPS | {"first_expert": first, "owned": owned})
    matrix = mx.array(weights.gate_up.reshape(-1, HIDDEN))
    inputs = {"x": mx.array(x), "weight": matrix, "experts": routed["experts"]}
    plain = {"eps": None, "norm_kind": None, "limit": None}
    y = evaluate("expert_projection", inputs, attrs | plain | UP)["out"]
    inputs = {"x": y, "weight": mx.array(weights.down.reshape(-1, WIDTH)), "bias": mx.array(weights.bias.reshape(-1))}
    return floats(
        evaluate("expert_combine", inputs | routed, attrs | {"residual_scale": 1.0, "shared_apart": False})["out"]
    )


def by_metal(first, owned, weights, logits, x):
    tokens = len(x)
    route = RouteKernel("route", EXPERTS, bias=None, first_expert=first, owned=owned, **ROUTED)
    shape = (tokens, TOP_K)
    routed = run_kernel(route, {"x": mx.array(logits)}, {"experts": shape, "weights": shape}, (tokens, 1, 1))
    gate_up, down = weights.gate_up.reshape(-1, HIDDEN), weights.down.reshape(-1, WIDTH)
    sizes = {"activation": F32, "norm": None, "simdgroups": 2, "num_experts": owned, "top_k": TOP_K, "skips": True}
    project = ExpertProjectionKernel(
        "experts",
        HIDDEN,
        WIDTH,
        layout_of([(WeightFormat.F32, len(gate_up))], HIDDEN),
        epilogue=Epilogue(out=F32, **UP),
        outs=2,
        **sizes,
    )
    combine = ExpertCombineKernel(
        "experts_down",
        WIDTH,
        HIDDEN,
        layout_of([(WeightFormat.F32, len(down))], WIDTH),
        epilogue=Epilogue(out=F32, bias=F32),
        outs=4,
        weighs=True,
        **sizes,
    )
    inputs = {"x": mx.array(x), "weight": mx.array(gate_up), "experts": routed["experts"]}
    grid = (project.threadgroups, tokens * TOP_K, 1)
    y = run_kernel(project, inputs, {"out": (tokens, TOP_K * WIDTH)}, grid)["out"]
    inputs = {"x": y, "weight": mx.array(down), "bias": mx.array(weights.bias.reshape(-1))}
    shapes, grid = {"out": (tokens, HIDDEN)}, (combine.threadgroups, tokens, 1)
    return floats(run_kernel(combine, inputs | routed, shapes, grid)["out"])


def by_metal_tiles(first, owned, weights, logits, x):
    """As for prompts: choices ordered by expert, tiles, and the sum of the results."""
    tokens = len(x)
    route = RouteKernel("route", EXPERTS, bias=None, first_expert=first, owned=owned, **ROUTED)
    shape = (tokens, TOP_K)
    routed = run_kernel(route, {"x": mx.array(logits)}, {"experts": shape, "weights": shape}, (tokens, 1, 1))
    gate_up, down = weights.gate_up.reshape(-1, HIDDEN), weights.down.reshape(-1, WIDTH)
    sort = ExpertOrderKernel("order", owned, TOP_K, GEMM_TILE, skips=True)
    tiles = sort.grid_of_tiles.value({"tokens": tokens})
    dims = mx.array(np.array([tokens] + [0] * 7, dtype=np.uint32))
    shapes = {"order": (tokens * TOP_K,), "tiles": (tiles, 3)}
    ordered = run_kernel(sort, {"experts": routed["experts"], "dims": dims}, shapes, (owned, 1, 1))

    def multiply(y, matrix, outputs, epilogue, *, of_tokens, **more):
        kernel = GemmKernel(
            "experts",
            matrix.shape[1],
            outputs,
            layout_of([(WeightFormat.F32, len(matrix))], matrix.shape[1]),
            activation=F32,
            norm=None,
            epilogue=epilogue,
            outs=GEMM_ROWS // epilogue.halves,
            simdgroups=GEMM_SIMDGROUPS,
            gather=False,
            tile=GEMM_TILE,
            experts=ExpertRows(owned, TOP_K, of_tokens, weighs=not of_tokens),
        )
        inputs = {"x": y, "weight": mx.array(matrix)} | ordered | more
        shapes = {"out": (tokens, TOP_K * outputs)}
        return run_kernel(kernel, inputs, shapes, (kernel.threadgroups, tiles, 1))["out"]

    y = multiply(mx.array(x), gate_up, WIDTH, Epilogue(out=F32, **UP), of_tokens=True)
    more = {"weights": routed["weights"], "bias": mx.array(weights.bias.reshape(-1))}
    y = multiply(y, down, HIDDEN, Epilogue(out=F32, bias=F32), of_tokens=False, **more)
    total = ExpertSumKernel("sum", HIDDEN, TOP_K, skips=True, activation=F32, epilogue=Epilogue(out=F32))
    inputs, grid = {"x": y, "experts": routed["experts"]}, (total.threadgroups, tokens, 1)
    return floats(run_kernel(total, inputs, {"out": (tokens, HIDDEN)}, grid)["out"])


def c_kernels(first, owned):
    shared = {"compute": "exact", "max_rows": 40, "num_experts": owned, "top_k": TOP_K}
    up, down = (OutputSegment(WeightFormat.F32, rows) for rows in (WIDTH, HIDDEN))
    return [
        CpuRoute("route", EXPERTS, bias=False, first_expert=first, owned=owned, **ROUTED),
        CpuExperts("up", HIDDEN, (up, up), epilogue=Epilogue(out=F32, **UP), **shared),
        CpuExperts(
            "down",
            WIDTH,
            (down,),
            epilogue=Epilogue(out=F32, bias=F32),
            inputs_of_pairs=True,
            combine=True,
            weighs=True,
            **shared,
        ),
    ]


@pytest.fixture(scope="module")
def by_cpu():
    of_ranks = {rank: c_kernels(*rank) for rank in RANKS}
    with CpuKernels([kernel for kernels in of_ranks.values() for kernel in kernels], 2) as library:

        def compute(first, owned, weights, logits, x):
            tokens = len(x)
            given = {"experts": np.zeros((tokens, TOP_K), np.int32), "bias": weights.bias, "x": logits}
            given["weights"] = np.zeros((tokens, TOP_K), np.float32)
            for kernel, inputs, width in zip(
                of_ranks[first, owned],
                ({}, {"x": x, "w0": weights.gate_up[0], "w1": weights.gate_up[1]}, {"w0": weights.down}),
                (1, TOP_K * WIDTH, HIDDEN),
                strict=True,
            ):
                given |= inputs
                out = np.full((tokens, width), np.nan, np.float32)
                library.run(kernel, [given.get(p.name, out) for p in kernel.params], tokens)
                given["x"] = out
            return given["x"]

        yield compute


@pytest.mark.parametrize("kind", ["any", "one rank is not chosen"])
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("target", ["reference", "metal", "metal, in tiles", "cpu"])
def test_ranks_add_up(target, tokens, kind, by_cpu):
    rng = np.random.default_rng(tokens + 3)  # a single token chooses the expert of the second rank
    logits, x = (rng.normal(size=(tokens, n)).astype(np.float32) for n in (EXPERTS, HIDDEN))
    sizes = (2, EXPERTS, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH), (EXPERTS, HIDDEN)
    weights = Weights(*(rng.normal(size=size).astype(np.float32) for size in sizes))
    if kind != "any":
        logits[:, RANKS[UNCHOSEN][0]] = -30.0
    ways = {"reference": by_reference, "metal": by_metal, "metal, in tiles": by_metal_tiles, "cpu": by_cpu}
    compute = ways[target]
    parts = [compute(*rank, weights.of(*rank), logits, x) for rank in RANKS]
    want = mixture(weights, logits, x)
    assert np.abs(sum(parts) - want).max() < 1e-5 * np.abs(want).max()
    assert (parts[UNCHOSEN] == 0).all() == (kind != "any")


def of_rank(graph, first, owned, count):
    """The graph of a rank: routers that know its experts, products and weights of these alone."""
    products = [op for op, _ in graph.ops_of(ExpertLinear)]
    weights = {op.inputs[port] for op in products for port in ("weight", "bias") if port in op.inputs}
    values = [
        replace(v, shape=(v.shape[0] * owned // count, *v.shape[1:])) if v.name in weights else v for v in graph.values
    ]
    changes = {Route: {"first_expert": first, "owned": owned}, ExpertLinear: {"num_experts": owned}}
    ops = [replace(op, attrs=replace(op.attrs, **changes.get(type(op.attrs), {}))) for op in graph.ops]
    return OpGraph(values, ops, graph.outputs)


def test_ranks_are_compiled(monkeypatch):
    spec = family_spec("experts-normalised")
    whole, build, count = driver.compile_spec(spec).artifact, source_graph.build_graph, spec.model.mlp.experts.count
    monkeypatch.setattr(source_graph, "build_graph", lambda *given: of_rank(build(*given), 1, 1, count))
    artifact = driver.compile_spec(spec).artifact
    texts = [(kernel.label, artifact.kernel_text(kernel.name)) for kernel in artifact.plan.program("metal").kernels]
    choosing = [text for label, text in texts if label in ("route", "routed_experts")]
    assert len(choosing) == 2 and all("winner - 1u" in text and "own < 1u" in text for text in choosing)
    skips = ("if (experts[chosen] < 0)", "if (expert_of_slot < 0)")
    assert all(any(skip in text for skip in skips) for label, text in texts if "experts" in label)
    (file,) = artifact.plan.program("cpu").files
    assert artifact.files[file].count("2, 1, 1);") == 2, "of two experts of each token, it has one, from expert 1 on"
    expert = 3 * spec.model.hidden_size * spec.model.mlp.intermediate_size * 4
    less = spec.model.num_layers * spec.model.mlp.experts.per_token * expert * (count - 1) // count
    assert weight_bytes(whole, "metal") - weight_bytes(artifact, "metal") == pytest.approx(less, rel=1e-3)


def test_a_rank_adds_no_results_that_it_has_not_computed() -> None:
    mlp = {"intermediate_size": 64, "experts": {"count": 5, "per_token": 2, "router": "softmax_topk"}}
    spec = small_spec(parallel={"tensor": 2}, model__hidden_size=64, model__tensor_names="canonical", model__mlp=mlp)
    files = compiled(spec, Geometry.of(experts_min_rows=1)).files
    texts = [text for name, text in files.items() if "/expert_sum_" in name]
    assert len(texts) == 2 and all("if (experts[choice] < 0)" in text for text in texts)
