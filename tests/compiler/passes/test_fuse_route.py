"""fuse_route: the experts' first projections make the choice of experts themselves."""

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_mlp import FuseMlp
from mlxr.compiler.passes.fuse_norm import FuseNorm
from mlxr.compiler.passes.fuse_route import FuseRoute
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, fires, kinds, returning, source_graph

PROJECTED = "layers.0.mlp.experts.gated"


def before(name: str) -> OpGraph:
    return fires(FuseNorm(), fires(FuseMlp(), source_graph(family_spec(name))))


@pytest.mark.parametrize(
    "name",
    ["experts-normalised", "experts-sigmoid", "experts-groups", "experts-weighed-inputs", "experts-own-norms"],
)
def test_rules(name: str) -> None:
    graph = before(name)
    fused = fires(FuseRoute(), graph)
    assert "route" not in kinds(fused) and "expert_projection" not in kinds(fused)
    op, route = fused.op(PROJECTED), graph.op("layers.0.mlp.routed")
    assert op.kind == "routed_projection" and op.inputs["logits"] == route.inputs["x"]
    assert op.inputs.get("selection_bias") == route.inputs.get("bias")
    assert op.inputs.get("expert_scales") == route.inputs.get("scales")
    weighs = name == "experts-weighed-inputs"
    made = {port: value for port, value in route.outputs.items() if port == "experts" or not weighs}
    assert op.outputs == {"out": PROJECTED} | made
    attributes = graph.op(PROJECTED).attrs.attributes | route.attrs.attributes
    assert op.attrs.attributes == attributes | {"weighs": weighs, "shared_limit": None}
    check_same_numbers(source_graph(family_spec(name)), fused, family_spec(name))


def test_a_choice_that_is_read_elsewhere_is_still_made() -> None:
    graph = returning(before("experts-normalised"), "layers.0.mlp.routed.experts")
    assert fires(FuseRoute(), graph).op(PROJECTED).outputs["experts"] == "layers.0.mlp.routed.experts"


def test_must_not_fire_when_weights_of_inputs_are_read_elsewhere() -> None:
    graph = before("experts-weighed-inputs")
    check_silent(FuseRoute(), returning(graph, *(f"layers.{layer}.mlp.routed.weights" for layer in range(2))))


def test_must_not_fire_before_the_first_products_are_one() -> None:
    check_silent(FuseRoute(), source_graph(family_spec("experts-normalised")))
