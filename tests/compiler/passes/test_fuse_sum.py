"""fuse_sum: the last products of two blocks that add to the residual stream beside each other."""

import pytest

from mlxr.compiler.passes.fuse_residual import FuseResidual
from mlxr.compiler.passes.fuse_sum import FuseSum
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, only, returning, source_graph
from mlxr_tests.reference_ops import PLAIN_PROJECTION
from mlxr_tests.specs import small_spec

SUM = FuseSum()
PLAIN = {"dtype": "f32", **PLAIN_PROJECTION}


def parallel_spec(**changes):
    return small_spec(model__parallel_blocks=True, model__num_layers=1, **changes)


@pytest.mark.parametrize("biases", [False, True])
def test_it_fuses_both_products_of_parallel_blocks(biases: bool) -> None:
    spec = parallel_spec(model__attention__output_bias=biases, model__residual_scale=0.25)
    source = source_graph(spec)
    before = fires(FuseResidual(), source)
    fused = fires(SUM, before)
    op = only(fused, "projection_sum")
    assert len(list(fused.ops)) == len(list(before.ops)) - 1 and op.out == "layers.0.mlp.out"
    assert op.inputs["residual"] == "embedded" and op.attrs.residual_scale == 0.25
    parts = "attention.o", "mlp.down"
    assert tuple(op.inputs[port] for port in ("weight", "second_weight")) == tuple(f"layers.0.{part}" for part in parts)
    assert ("bias" in op.inputs, "second_bias" in op.inputs) == (biases, False)
    check_same_numbers(source, fused, spec)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_it_fuses_a_product_without_a_residual(scale: float) -> None:
    sketch = Sketch()
    weights = [sketch.weight(name, 48, 48) for name in ("first_weight", "second_weight")]
    first = sketch.op("linear", "first", attrs={"dtype": "f32"}, x=sketch.x, weight=weights[0])
    attrs = PLAIN | {"residual_scale": scale}
    graph = sketch.graph(sketch.op("projection", "second", attrs=attrs, x=sketch.x, weight=weights[1], residual=first))
    if scale != 1.0:
        check_silent(SUM, graph)
        return
    op = only(fires(SUM, graph), "projection_sum")
    assert op.inputs == {"x": sketch.x, "weight": weights[0], "second_x": sketch.x, "second_weight": weights[1]}


def test_it_must_not_fire_where_the_first_result_is_read_elsewhere() -> None:
    """As in a layer whose MLP reads what attention has added to."""
    check_silent(SUM, fires(FuseResidual(), source_graph(small_spec())))
    graph = fires(FuseResidual(), source_graph(parallel_spec()))
    check_silent(SUM, returning(graph, "layers.0.attention.out"))


@pytest.mark.parametrize("of", ["first", "second", "both"])
@pytest.mark.parametrize(
    "changes", [{"residual_scale": 0.5}, {"eps": 0.5, "norm_kind": "rms"}, {"out_cap": 2.0}], ids=str
)
def test_it_must_not_fire_for_products_that_do_more(of: str, changes) -> None:
    if of == "both" and "residual_scale" in changes:
        return
    sketch, result = Sketch(), ""
    for name in ("first", "second"):
        attrs = PLAIN | (changes if of in (name, "both") else {})
        ports = {"norm": sketch.weight(f"{name}_norm", 48)} if attrs.get("eps") else {}
        ports |= {"residual": result or sketch.x}
        weight = sketch.weight(f"{name}_weight", 48, 48)
        result = sketch.op("projection", name, attrs=attrs, x=sketch.x, weight=weight, **ports)
    check_silent(SUM, sketch.graph(result))
