"""fuse_experts: the experts' last projections and the sum over them become one op."""

import pytest

from mlxr.compiler.passes.fuse_experts import FuseExperts
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, returning, source_graph

CHOSEN = {"num_experts": 4, "top_k": 2, "dtype": "f32"}


@pytest.mark.parametrize("name", ["experts-normalised", "experts-topk-softmax-bias", "experts-one"])
def test_rule_1(name: str) -> None:
    spec = family_spec(name)
    source = source_graph(spec)
    fused = fires(FuseExperts(), source)
    assert "expert_sum" not in kinds(fused)
    op = fused.op("layers.1.mlp.experts.summed")
    assert op.kind == "expert_combine" and op.inputs["weight"] == "layers.1.mlp.experts.down"
    assert (op.inputs["experts"], op.inputs["weights"]) == (
        "layers.1.mlp.routed.experts",
        "layers.1.mlp.routed.weights",
    )
    assert ("bias" in op.inputs) == spec.model.mlp.bias
    check_same_numbers(source, fused, spec)


def test_must_not_fire_when_the_results_are_read_elsewhere() -> None:
    graph = source_graph(family_spec("experts-normalised", model__num_layers=1))
    check_silent(FuseExperts(), returning(graph, "layers.0.mlp.experts.down_projected"))


def test_must_not_fire_when_all_experts_read_the_same_columns() -> None:
    sketch = Sketch()
    routed = {"top_k": 2, "router": "sigmoid", "normalise": False, "scale": 1.0, "first_expert": None, "owned": None}
    routed |= {"groups": 1, "top_groups": 1, "judged_by": 1}
    sketch.op("route", "routed", attrs=routed, x=sketch.linear("router", sketch.x, 48, 4))
    weight = sketch.weight("weight", 4 * 24, 48)
    x = sketch.op("expert_linear", "down", attrs=CHOSEN, x=sketch.x, weight=weight, experts="routed.experts")
    total = sketch.op("expert_sum", "summed", attrs={"top_k": 2}, x=x, weights="routed.weights")
    check_silent(FuseExperts(), sketch.graph(total))
