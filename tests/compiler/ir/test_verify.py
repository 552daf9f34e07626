"""The verifier rejects each broken rule, and says which op broke it."""

import re
from dataclasses import replace
from typing import Any

import pytest

from mlxr.compiler.errors import GraphError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.verify import verify
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.graphs import Sketch, small_graph
from mlxr_tests.reference_ops import PLAIN_PROJECTION

PREFIX = "layers.0.attention"


def changed(graph: OpGraph, name: str, **fields: Any) -> OpGraph:
    return graph.rewrite({name: [replace(graph.op(name), **fields)]})


def rejects(graph: OpGraph, message: str, stage: str = "source") -> None:
    with pytest.raises(GraphError, match=re.escape(message)) as caught:
        verify(graph, stage)
    assert str(caught.value).endswith(f"[stage {stage}]")


def test_accepts_what_the_compiler_makes() -> None:
    graph = small_graph()
    verify(graph, "source")
    verify(graph, "fused")
    verify(run_passes(graph, passes_of("decode"))[0], "ordered")


def test_names_what_ran_before() -> None:
    graph = changed(small_graph(), "normed", inputs={})
    with pytest.raises(GraphError, match=r"\[stage fused, after merge_qkv, fuse_norm\]$"):
        verify(graph, "fused", "merge_qkv, fuse_norm")


def test_op_before_its_stage() -> None:
    sketch = Sketch()
    attrs = {"dtype": "f32", **PLAIN_PROJECTION}
    sketch.op("projection", "p", attrs=attrs, x=sketch.x, weight=sketch.weight("w", 24, 48))
    rejects(sketch.graph("p"), "op 'p' of kind 'projection' must not be left at this stage")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{PREFIX}.q_rotated", "rope"),
        (f"{PREFIX}.cache_write", "cache_write"),
        (f"{PREFIX}.attended", "attention"),
        ("layers.0.mlp.activated", "activation"),
        ("layers.0.mlp.gated", "multiply"),
        ("layers.0.mlp.out", "add"),
    ],
)
def test_op_left_at_the_last_stage(name: str, kind: str) -> None:
    graph = small_graph()
    alone = OpGraph(graph.values, [graph.op(name)], [])
    rejects(alone, f"op '{name}' of kind '{kind}' must not be left at this stage", "ordered")


def test_missing_port() -> None:
    graph = changed(small_graph(), "normed", inputs={"weight": "final_norm"})
    rejects(graph, "op 'normed' (norm) has wrong ports: missing ['x'], unknown []")


def test_unknown_port() -> None:
    graph = small_graph()
    graph = changed(graph, "normed", inputs={**graph.op("normed").inputs, "gate": "final_norm"})
    rejects(graph, "op 'normed' (norm) has wrong ports: missing [], unknown ['gate']")


def test_missing_and_unknown_output() -> None:
    graph = changed(small_graph(), "logits", outputs={"result": "logits"})
    rejects(graph, "op 'logits' (gather_rows) has wrong ports: missing ['out'], unknown ['result']")


def test_access_of_the_arena_outside_of_layers() -> None:
    graph = changed(small_graph(), f"{PREFIX}.cache_write", layer=None)
    rejects(graph, f"op '{PREFIX}.cache_write' (cache_write) accesses a store but is in no layer")


def test_read_before_made() -> None:
    graph = small_graph()
    first, second = graph.op("layers.0.mlp.gate_projected"), graph.op("layers.0.mlp.activated")
    swapped = graph.rewrite({first.name: [second], second.name: [first]})
    rejects(
        swapped, "op 'layers.0.mlp.activated' reads 'layers.0.mlp.gate_projected' on port 'x' before any op makes it"
    )


def test_op_that_reads_its_own_result() -> None:
    graph = small_graph()
    loop = changed(graph, "layers.0.mlp.activated", inputs={"x": "layers.0.mlp.activated"})
    rejects(loop, "reads 'layers.0.mlp.activated' on port 'x' before any op makes it")


def test_value_made_twice() -> None:
    graph = small_graph()
    op = graph.op("normed")
    rejects(
        graph.rewrite({"normed": [op, replace(op, name="again")]}), "op 'again' makes 'normed', which exists already"
    )


@pytest.mark.parametrize("name", ["final_norm", "positions", "k_arena", "rope_frequencies"])
def test_result_in_place_of_a_given_value(name: str) -> None:
    graph = changed(small_graph(), "normed", outputs={"out": name})
    rejects(graph, f"op 'normed' makes '{name}', which exists already")


def test_returned_value_that_nothing_makes() -> None:
    graph = small_graph()
    rejects(graph.rewrite({"logits": []}), "the graph returns 'logits', which no op makes")


def test_shape_rule() -> None:
    graph = small_graph()
    op = graph.op("layers.0.mlp.down_projected")
    graph = changed(graph, op.name, inputs={**op.inputs, "x": "layers.0.mlp.normed"})
    rejects(graph, f"op '{op.name}' (linear): weight has 88 columns, x has 48")


@pytest.mark.parametrize("change", [{"shape": ("tokens", 47)}, {"shape": ("rows", 48)}, {"dtype": DType.F16}])
def test_declared_result_that_is_not_the_rules(change: dict[str, Any]) -> None:
    graph = small_graph()
    values = [replace(v, **change) if v.name == "normed" else v for v in graph.values]
    rejects(OpGraph(values, graph.ops, graph.outputs), "op 'normed' (norm) makes Tensor(")


def test_token_that_no_access_made() -> None:
    graph = run_passes(small_graph(), passes_of("decode"))[0]
    op = next(op for op in graph.ops if op.kind == "rope_write_attention")
    token = op.outputs["token"]
    own = changed(graph, op.name, inputs={**op.inputs, "token": token})
    rejects(own, f"op '{op.name}' reads '{token}' on port 'token' before any op makes it", "ordered")
