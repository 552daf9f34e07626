"""What `model_diff` says of two small specs, compared with what follows from the change between them."""

import random

import pytest

from mlxr.compiler.artifact import Artifact, Op, OpGraph
from mlxr.compiler.chips.catalog import find_chip
from mlxr.compiler.driver import compile_spec
from mlxr.diff.graph_diff import graph_diff
from mlxr.diff.model_diff import ModelDiff, model_diff
from mlxr_tests.specs import compiled, small_spec

QK_NORM = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "qk_norm": {"scope": "head"}}
CANONICAL = {"model__tensor_names": "canonical"}


def diff_of(a: Artifact, b: Artifact) -> ModelDiff:
    return model_diff(a, b, find_chip("m4-max"), lines=True)


def renamed(graph: OpGraph) -> OpGraph:
    """The same graph, with other names for all ops and for the values that they make."""
    made = {name: f"v{i}" for i, name in enumerate(name for op in graph.ops for name in op.outputs.values())}
    values = [
        value if value.name not in made else type(value)(made[value.name], value.role, value.shape, value.dtype)
        for value in graph.values
    ]
    ops = [
        Op(
            f"op{i}",
            op.attrs,
            {port: made.get(name, name) for port, name in op.inputs.items()},
            {port: made[name] for port, name in op.outputs.items()},
            op.layer,
        )
        for i, op in enumerate(graph.ops)
    ]
    return OpGraph(values, ops, [made.get(name, name) for name in graph.outputs])


def shuffled(graph: OpGraph, seed: int) -> OpGraph:
    """The same graph in another program order of the same layers."""
    rng, ready, ops = random.Random(seed), list(graph.ops), []
    known = {value.name for value in graph.values if graph.producer(value.name) is None}
    while ready:
        layers = [-1 if op.layer is None else op.layer for op in ready]
        possible = [op for op, layer in zip(ready, layers, strict=True) if known.issuperset(op.inputs.values())]
        op = rng.choice([op for op in possible if op.layer == possible[0].layer])
        ready.remove(op)
        ops.append(op)
        known |= set(op.outputs.values())
    return OpGraph(graph.values, ops, graph.outputs)


def test_nothing_differs() -> None:
    diff = diff_of(compiled(small_spec()), compiled(small_spec()))
    assert diff.same
    assert not (diff.spec or diff.chip or diff.plan or diff.weights or diff.files or diff.time.differs)
    assert not any(graph.changes for graph in diff.graphs) and not any(target.changes for target in diff.targets)
    assert not any(memory.differs for memory in diff.memory)


@pytest.mark.parametrize("name", ["source", "decode", "prefill"])
def test_names_and_order_of_ops_are_no_difference(name: str) -> None:
    graph = compiled(small_spec()).graph(name)
    for other in (renamed(graph), shuffled(graph, 1), renamed(shuffled(graph, 2))):
        assert [op.name for op in other.ops] != [op.name for op in graph.ops] or len(graph) < 20
        assert graph_diff(name, graph, other).changes == ()


def test_one_attribute() -> None:
    diff = diff_of(compiled(small_spec()), compiled(small_spec(model__attention__sliding_window=16)))
    assert [str(change) for change in diff.spec] == ["model.attention.sliding_window: null -> 16"]
    kinds = {"source": "attention", "decode": "rope_write_attention", "prefill": "rope_attention"}
    for graph in diff.graphs:
        (change,) = graph.changes
        assert (change.change, change.kind, change.layers) == ("changed", kinds[graph.graph], (0, 1))
        assert [str(field) for field in change.fields] == ["window: null -> 16"]
    (metal,) = diff.targets
    changed = {change.label for change in metal.changes}
    assert "attend_prefill" in changed and changed.isdisjoint({"qkv", "o", "embed", "logits"})
    assert not diff.weights and not diff.memory[0].differs


def test_another_layer() -> None:
    a, b = compiled(small_spec()), compiled(small_spec(model__num_layers=3))
    diff = diff_of(a, b)
    hidden, width, inner = 48, (6 + 2 * 2) * 40, 88
    elements = hidden * (width + 6 * 40 + 3 * inner) + 2 * hidden  # qkv, o, three of the MLP, two norms
    assert sum(change.bytes_b or 0 for change in diff.weights) == 4 * elements
    assert {(change.change, change.layers) for change in diff.weights} == {("added", (2,))}
    sizes = {size.name: size.b - size.a for size in diff.memory[0].sizes}
    assert sizes["weights"] == 4 * elements
    assert sizes["total"] == b.plan.first.memory.total_bytes - a.plan.first.memory.total_bytes
    for graph in diff.graphs:
        per_layer = sum(op.layer == 0 for op in a.graph(graph.graph).ops)
        assert graph.ops_b - graph.ops_a == per_layer
        added = [change for change in graph.changes if change.change == "added"]
        assert len(added) == per_layer and {change.layers for change in added} == {(2,)}
        assert all(change.change != "removed" for change in graph.changes)
    launches = {change.label: [str(field) for field in change.fields] for change in diff.targets[0].changes}
    assert "launches in decode: 2 -> 3" in launches["o"]
    back = diff_of(b, a)
    assert [change.change for change in back.weights] == ["removed"] * len(diff.weights)


def test_ops_between_others_change_where_these_read() -> None:
    a, b = (compiled(small_spec(**CANONICAL, **more)) for more in ({}, {"model__attention": QK_NORM}))
    source = next(graph for graph in diff_of(a, b).graphs if graph.graph == "source")
    assert [(c.kind, c.layers) for c in source.changes if c.change == "added"] == [("norm", (0, 1))] * 2
    ropes = [change for change in source.changes if change.kind == "rope"]
    assert [field.path for change in ropes for field in change.fields] == ["input x from"] * 2
    for change in ropes:
        assert str(change.fields[0].a).startswith("linear ") and str(change.fields[0].b).startswith("norm ")
    assert len(source.changes) == 4


def test_lines_are_those_of_the_sources() -> None:
    a, b = compiled(small_spec()), compiled(small_spec(model__attention__softcap=20.0))
    for change in diff_of(a, b).targets[0].changes:
        if change.lines is None:
            continue
        assert change.a and change.b
        for sign, artifact, name in (("-", a, change.a), ("+", b, change.b)):
            source = artifact.kernel_text(name).replace(name, change.label).splitlines()
            lines = [line[1:] for line in change.lines.splitlines()[2:] if line.startswith(sign)]
            assert lines and set(lines) <= set(source)
            assert len(lines) == (change.lines_removed if sign == "-" else change.lines_added)


def test_both_targets_and_formats() -> None:
    wider = {"model__hidden_size": 64, "model__mlp__intermediate_size": 96, "model__attention__head_dim": 32}
    a, b = (
        compile_spec(small_spec(**wider, weights={"default": "q8_0", "tensors": tensors})).artifact
        for tensors in ({}, {"layers.1.mlp.down": "q4_0"})
    )
    diff = diff_of(a, b)
    (change,) = diff.weights
    assert (change.tensor, change.layers, change.bytes_a, change.bytes_b) == (
        *("mlp.down", (1,)),
        *(64 * 96 // 32 * 34, 64 * 96 // 32 * 18),
    )
    assert [target.target for target in diff.targets] == ["metal", "cpu"]
    for target in diff.targets:
        assert [change.label for change in target.changes if change.change == "added"] != []
    assert not any(graph.changes for graph in diff.graphs), "graphs have no formats"


def test_time_is_predicted_for_a_chip_with_figures() -> None:
    a, b = compiled(small_spec()), compiled(small_spec(model__num_layers=4))
    decode = diff_of(a, b).time.steps[0]
    assert decode.b.launches - decode.a.launches == 2 * (decode.a.launches - 2) // 2
    assert decode.b.predicted_us > decode.a.predicted_us > 0
    none = model_diff(a, b).time
    assert none.steps == () and "--chip" in none.because
