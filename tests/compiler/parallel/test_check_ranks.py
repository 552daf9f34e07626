"""The verifiers of a split model notice planted mistakes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.collectives import AllSum
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.shared_norm import MeanSquares
from mlxr.compiler.parallel.check_ranks import Exchange, Rank, check_order, check_ranks
from mlxr.compiler.parallel.divide_model import divide_model
from mlxr.compiler.parallel.tensor_slice import TensorSlice
from mlxr.compiler.schedule.geometry import Geometry
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.compiler.spec.parallel import Parallel
from mlxr_tests.graphs import source_graph
from mlxr_tests.specs import small_spec

Slices = dict[str, TensorSlice]
SPEC = small_spec(
    parallel={"tensor": 2, "pipeline": 2},
    model__attention={"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "output_bias": True},
    model__num_layers=4,
)
ARENA = arena_geometry(SPEC, GeometryTable(Geometry(), ()))
K_NORM = "layers.1.attention.k_norm"
SOURCE = build_graph(SPEC, ARENA)


def ranks() -> list[Rank]:
    return [Rank(part.graph, dict(part.slices)) for part in divide_model(SPEC, SOURCE, ARENA)]


def with_slice(rank: int, name: str, cut: TensorSlice | None) -> Callable[[list[Rank]], None]:
    def plant(parts: list[Rank]) -> None:
        slices = {key: value for key, value in parts[rank].slices.items() if key != name}
        if cut is not None:
            slices[name] = cut
        graph = parts[rank].graph
        value = graph.value(name) if name in graph else None
        if cut is not None and value is not None:  # the graph follows, so that only the other ranks can tell
            whole = SOURCE.value(name).shape
            cuts = zip((cut.rows, cut.columns), whole, strict=False)
            shape = tuple(part[1] - part[0] if part else size for part, size in cuts)
            values = [replace(v, shape=shape) if v.name == name else v for v in graph.values]
            graph = OpGraph(values, graph.ops, graph.outputs)
        parts[rank] = Rank(graph, slices)

    return plant


def without_sum(parts: list[Rank]) -> None:
    graph = parts[1].graph
    (first, *_) = [op for op in graph.ops if isinstance(op.attrs, AllSum)]
    ops = [
        replace(op, inputs={p: first.inputs["x"] if n == first.out else n for p, n in op.inputs.items()})
        for op in graph.ops
        if op is not first
    ]
    parts[1] = Rank(OpGraph(graph.values, ops, graph.outputs), parts[1].slices)


def bias_of_every_rank(parts: list[Rank]) -> None:
    """Both ranks of a stage add the bias of the output projection to their parts of one sum."""
    graph = parts[1].graph
    name = "layers.0.attention.o_bias"
    ops = [
        replace(op, inputs=op.inputs | {"bias": name}) if op.name == "layers.0.attention.o_projected" else op
        for op in graph.ops
    ]
    values = [*graph.values, SOURCE.value(name)]
    parts[1] = Rank(OpGraph(values, ops, graph.outputs), {**parts[1].slices, name: TensorSlice()})


def columns(first: int, last: int) -> TensorSlice:
    return TensorSlice(columns=(first, last))


def rows(first: int, last: int) -> TensorSlice:
    return TensorSlice((first, last))


MISTAKES: dict[str, tuple[Callable[[list[Rank]], None], str]] = {
    "a head owned twice": (with_slice(1, "layers.0.attention.q", rows(80, 200)), "two ranks have row 80"),
    "a head owned by nobody": (with_slice(1, "layers.1.attention.q", rows(160, 240)), "nobody has row 120"),
    "a KV head of other queries": (with_slice(1, "layers.0.attention.k", rows(0, 40)), "nobody has row 40"),
    "a column left out": (with_slice(0, "layers.0.mlp.down", columns(0, 40)), "nobody has column 40"),
    "rows of the vocabulary twice": (with_slice(2, "output", rows(0, 40)), "two ranks have row"),
    "a layer in two stages": (with_slice(2, "layers.0.mlp.norm", TensorSlice()), "layers.0.mlp.norm is in 2 stages"),
    "a layer in no stage": (with_slice(0, "layers.1.mlp.norm", None), "rank 0: layers.1.mlp.norm is in the graph"),
    "a norm that one rank lacks": (with_slice(3, "final_norm", None), "rank 3: final_norm is in the graph"),
    "a sum left out": (without_sum, "rank 1: layers.0.attention.q_projected|rank 1: .* reads the partial sum embedded"),
    "a bias added by every rank": (bias_of_every_rank, "adds a bias that the first rank adds, too"),
}


def test_what_the_compiler_divides_is_right() -> None:
    check_ranks(SPEC, SOURCE, ranks())


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    plant, message = MISTAKES[mistake]
    parts = ranks()
    plant(parts)
    with pytest.raises(PlanError, match=message):
        check_ranks(SPEC, SOURCE, parts)


ALL_HEADS = small_spec(
    parallel={"tensor": 3},
    model__attention={"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "qk_norm": {"scope": "all"}},
)
MEANS, NORMED = "layers.1.attention.mean_squares", "layers.1.attention.k_normed"
OF_NORMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "keys of a copy": (MEANS, {"attrs": MeanSquares(256, 64, True)}, r"has the keys of KV heads \[0, 0, 1\]"),
    "a part as if it were all": (
        NORMED,
        {"attrs": Norm(1, 1.0, "rms", 1e-5), "inputs": {"x": "layers.1.attention.k_projected", "weight": K_NORM}},
        r"rank 1: .*k_normed normalises columns \[0, 32\] as if they were all",
    ),
    "the rank's own mean squares": (
        NORMED,
        {"inputs": {"x": "layers.1.attention.k_projected", "weight": K_NORM, "mean_squares": MEANS}},
        "rank 1: .*k_normed .norm_of_part. reads the partial sum",
    ),
}


@pytest.mark.parametrize("mistake", ["", *OF_NORMS])
def test_norms_over_all_heads(mistake: str) -> None:
    source = source_graph(ALL_HEADS)
    divided = divide_model(ALL_HEADS, source, arena_geometry(ALL_HEADS, GeometryTable()))
    parts = [Rank(part.graph, dict(part.slices)) for part in divided]
    if not mistake:
        return check_ranks(ALL_HEADS, source, parts)
    name, changes, message = OF_NORMS[mistake]
    graph = parts[1].graph
    ops = [replace(op, **changes) if op.name == name else op for op in graph.ops]
    parts[1] = Rank(OpGraph(graph.values, ops, graph.outputs), parts[1].slices)
    with pytest.raises(PlanError, match=message):
        check_ranks(ALL_HEADS, source, parts)
    return None


@pytest.mark.parametrize("scope", ["head", "heads", "all"])
def test_the_only_kv_head_may_be_one_group(scope: str) -> None:
    spec = small_spec(
        parallel={"tensor": 2},
        model__attention={"num_heads": 6, "num_kv_heads": 1, "head_dim": 32, "qk_norm": {"scope": scope}},
    )
    source = source_graph(spec)
    divided = divide_model(spec, source, arena_geometry(spec, GeometryTable()))
    check_ranks(spec, source, [Rank(part.graph, part.slices) for part in divided])


SUM, OTHER = Exchange("all_sum", "a", 8), Exchange("all_sum", "b", 8)
SEND, RECEIVE, GATHER = Exchange("send", "s", 8), Exchange("receive", "r", 8), Exchange("gather_result", "g", 9)
ORDERS: dict[str, tuple[dict[str, int], list[list[Exchange]], str]] = {
    "another order": ({"tensor": 2}, [[SUM, OTHER], [OTHER, SUM]], "rank 0 is at a of 8 columns, and rank 1 at b"),
    "one sum less": ({"tensor": 2}, [[SUM, OTHER], [SUM]], "rank 1 at its end"),
    "other columns": ({"tensor": 2}, [[SUM], [replace(SUM, columns=9)]], "rank 1 at a of 9 columns"),
    "nothing is sent": ({"pipeline": 2}, [[GATHER], [RECEIVE, GATHER]], "rank 0 would wait for ever at g"),
    "nothing is received": ({"pipeline": 2}, [[SEND, GATHER], [GATHER]], "a stage sends what no stage receives"),
    "no gather": ({"pipeline": 2}, [[SEND, GATHER], [RECEIVE]], "rank 0 would wait for ever at g"),
}


@pytest.mark.parametrize("case", ORDERS)
def test_orders_that_end_in_a_deadlock(case: str) -> None:
    split, events, message = ORDERS[case]
    with pytest.raises(PlanError, match=message):
        check_order(events, Parallel(**split))


def test_an_order_that_ends() -> None:
    first, last = [SUM, SEND, GATHER], [RECEIVE, SUM, GATHER]
    check_order([first, first, last, last], Parallel(tensor=2, pipeline=2))
