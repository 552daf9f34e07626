"""fuse_shared_expert: the ops of the chosen experts do the shared expert's work as well."""

from dataclasses import replace
from typing import Any

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_shared_expert import FuseSharedExpert
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, fires, returning, source_graph

PREFIX = "layers.0.mlp"
FIRST, LAST, GATE = f"{PREFIX}.shared.gated", f"{PREFIX}.out", f"{PREFIX}.shared.router_projected"


def before(name: str) -> OpGraph:
    """The graph that the pass gets."""
    passes = [one for one in passes_of("decode") if one.name not in ("remove_dead_ops", "order_arena")]
    graph = source_graph(family_spec(name))
    for one in passes[: [p.name for p in passes].index("fuse_shared_expert")]:
        graph = one.run(graph).graph
    return graph


@pytest.mark.parametrize(
    "name", ["experts-shared", "experts-shared-gate", "experts-scaled-residual", "experts-sandwich-shared"]
)
def test_rules(name: str) -> None:
    spec, graph = family_spec(name), before(name)
    fused = fires(FuseSharedExpert(), graph)
    ops = {op.kind: op for op in fused.ops if op.name.startswith(PREFIX)}
    assert not any("shared" in op.name for op in fused.ops)
    first, last = ops["routed_projection"], ops["expert_combine"]
    assert first.inputs["shared"] == f"{PREFIX}.shared.gate_up" and first.outputs["shared_out"] == FIRST
    assert (last.inputs["shared_x"], last.inputs["shared"]) == (FIRST, f"{PREFIX}.shared.down")
    gated = name == "experts-shared-gate"
    assert ("gate_weight" in first.inputs, "shared_gate" in last.inputs) == (gated, gated)
    check_same_numbers(source_graph(spec), fused, spec)


def test_rule_3_keeps_the_results_apart_and_the_norms_too() -> None:
    spec, graph = family_spec("experts-own-norms"), before("experts-own-norms")
    fused = fires(FuseSharedExpert(), graph)
    first, last = fused.op(f"{PREFIX}.experts.gated"), fused.op(f"{PREFIX}.experts.summed")
    assert (first.inputs["norm"], first.inputs["shared_norm"]) == (f"{PREFIX}.experts.norm", f"{PREFIX}.norm")
    assert last.outputs["shared_out"] == f"{PREFIX}.shared.down_projected" and last.attrs.attributes["shared_apart"]
    assert not any(op.name.startswith(f"{PREFIX}.shared.") for op in fused.ops)
    check_same_numbers(source_graph(spec), fused, spec)


@pytest.mark.parametrize("value", [FIRST, f"{PREFIX}.experts.gated"])
def test_rule_3_must_not_fire_when_a_value_is_read_elsewhere(value: str) -> None:
    graph = before("experts-own-norms")
    check_silent(FuseSharedExpert(), returning(graph, value, value.replace("layers.0", "layers.1")))


def changed(graph: OpGraph, name: str, **attrs: Any) -> OpGraph:
    """The graph with other attributes of one op."""
    op = graph.op(name)
    return graph.rewrite({name: [replace(op, attrs=replace(op.attrs, **attrs))]})


@pytest.mark.parametrize("value", [FIRST, GATE, f"{PREFIX}.out_1"])
def test_must_not_fire_when_a_value_is_read_elsewhere(value: str) -> None:
    graph = before("experts-shared-gate")
    graph = returning(graph, *(name for name in (value, value.replace("layers.0", "layers.1"))))
    check_silent(FuseSharedExpert(), graph)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        (FIRST, {"activation": "relu"}),
        (FIRST, {"eps": 0.5}),
        (GATE, {"eps": 0.5}),
        (LAST, {"residual_scale": 0.5}),
        (LAST, {"out_scale": 0.5}),
    ],
)
def test_must_not_fire_when_a_product_does_something_else(name: str, attrs: dict[str, Any]) -> None:
    graph = before("experts-shared-gate")
    for layer in ("layers.0", "layers.1"):
        graph = changed(graph, name.replace("layers.0", layer), **attrs)
    check_silent(FuseSharedExpert(), graph)


def test_prompts_and_deterministic_steps_do_without() -> None:
    source = source_graph(family_spec("experts-shared"))
    for passes in (passes_of("prefill"), passes_of("decode", deterministic=True)):
        kinds = {op.kind for op in run_passes(source, passes)[0].ops}
        assert {"route", "expert_projection", "expert_combine"} <= kinds and "routed_projection" not in kinds
