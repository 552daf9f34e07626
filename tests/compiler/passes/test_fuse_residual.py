"""fuse_residual: the op that makes an addend adds the residual itself."""

import pytest

from mlxr.compiler.passes.fuse_experts import FuseExperts
from mlxr.compiler.passes.fuse_residual import FuseResidual
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, returning, source_graph
from mlxr_tests.reference_ops import PLAIN_PROJECTION
from mlxr_tests.specs import small_spec

PLAIN_SUM = {"alpha": 1.0}


def test_rule_1_fuses_every_residual_of_the_model() -> None:
    spec = small_spec(model__attention__output_bias=True)
    source = source_graph(spec)
    fused = fires(FuseResidual(), source)
    assert "add" not in kinds(fused)
    for layer in range(2):
        o, down = (fused.op(f"layers.{layer}.{block}.out") for block in ("attention", "mlp"))
        assert o.inputs["residual"] == (f"layers.{layer - 1}.mlp.out" if layer else "embedded")
        assert o.inputs["bias"] == f"layers.{layer}.attention.o_bias"
        assert down.inputs["residual"] == o.out
    check_same_numbers(source, fused, spec)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_rule_1_takes_either_order_and_keeps_the_place_of_the_add(swapped: bool, norm: bool) -> None:
    sketch = Sketch()
    more = {"norm": sketch.weight("norm", 48)} if norm else {}
    attrs = {"dtype": "f32", **PLAIN_PROJECTION} | ({"eps": 0.5, "norm_kind": "rms"} if norm else {})
    weight = sketch.weight("weight", 24, 48)
    projected = sketch.op("projection", "projected", attrs=attrs, x=sketch.x, weight=weight, **more)
    # Made after the projection, so the fused op must not stand in the projection's place.
    other = sketch.op("activation", "other", attrs={"kind": "silu"}, x=sketch.linear("late", sketch.x, 48, 24))
    a, b = (projected, other) if swapped else (other, projected)
    source = sketch.graph(sketch.op("add", "sum", attrs=PLAIN_SUM, a=a, b=b))
    fused = fires(FuseResidual(), source)
    assert kinds(fused) == ["embed", "linear", "activation", "projection"]
    assert fused.op("sum").inputs == {"x": sketch.x, "weight": "weight", "residual": other, **more}
    check_same_numbers(source, fused)


def test_rule_1_keeps_the_factor_of_what_is_added() -> None:
    sketch = Sketch()
    source = sketch.graph(
        sketch.op("add", "sum", attrs={"alpha": 0.25}, a=sketch.x, b=sketch.linear("projected", sketch.x, 48, 48))
    )
    fused = fires(FuseResidual(), source)
    assert fused.op("sum").attrs.residual_scale == 0.25
    check_same_numbers(source, fused)


def test_rule_1_must_not_fire_when_the_factor_is_the_other_addends() -> None:
    sketch = Sketch()
    projected = sketch.linear("projected", sketch.x, 48, 48)
    check_silent(FuseResidual(), sketch.graph(sketch.op("add", "sum", attrs={"alpha": 0.25}, a=projected, b=sketch.x)))


def test_rule_2_fuses_into_norms_after_blocks() -> None:
    spec = small_spec(model__norm={"placement": "post"}, model__residual_scale=0.5)
    source = source_graph(spec)
    fused = fires(FuseResidual(), source)
    assert "add" not in kinds(fused)
    op = fused.op("layers.1.mlp.out")
    assert (op.kind, op.inputs["residual"], op.attrs.residual_scale) == ("norm", "layers.1.attention.out", 0.5)
    check_same_numbers(source, fused, spec)


def test_rule_2_fuses_into_the_sum_of_experts() -> None:
    spec = family_spec("experts-scaled-residual")
    source = source_graph(spec)
    fused = fires(FuseResidual(), fires(FuseExperts(), source))
    experts = fused.op("layers.0.mlp.out_1")
    assert (experts.kind, experts.inputs["residual"]) == ("expert_combine", "layers.0.attention.out")
    assert experts.attrs.residual_scale == 0.3
    shared = fused.op("layers.0.mlp.out")
    assert (shared.kind, shared.inputs["residual"]) == ("projection", experts.out)
    check_same_numbers(source, fused, spec)


def test_must_not_fire_when_the_result_is_read_elsewhere() -> None:
    sketch = Sketch()
    sketch.op("add", "sum", attrs=PLAIN_SUM, a=sketch.x, b=sketch.linear("projected", sketch.x, 48, 48))
    check_silent(FuseResidual(), returning(sketch.graph("sum"), "projected"))


def test_must_not_fire_when_the_result_is_added_to_itself() -> None:
    sketch = Sketch()
    projected = sketch.linear("projected", sketch.x, 48, 24)
    check_silent(FuseResidual(), sketch.graph(sketch.op("add", "sum", attrs=PLAIN_SUM, a=projected, b=projected)))


def test_must_not_fire_for_a_second_residual() -> None:
    sketch = Sketch()
    first = sketch.op("add", "first", attrs=PLAIN_SUM, a=sketch.x, b=sketch.linear("projected", sketch.x, 48, 48))
    source = sketch.graph(sketch.op("add", "second", attrs=PLAIN_SUM, a=first, b=sketch.x))
    fused = fires(FuseResidual(), source)
    assert kinds(fused) == ["embed", "projection", "add"]
    check_silent(FuseResidual(), fused)
    check_same_numbers(source, fused)


def test_must_not_fire_for_a_gated_projection() -> None:
    sketch = Sketch()
    attrs = {"dtype": "f32", **PLAIN_PROJECTION, "activation": "silu", "gated": True}
    gated = sketch.op("projection", "gated", attrs=attrs, x=sketch.x, weight=sketch.weight("weight", 96, 48))
    check_silent(FuseResidual(), sketch.graph(sketch.op("add", "sum", attrs=PLAIN_SUM, a=sketch.x, b=gated)))


def test_must_not_fire_when_neither_side_is_a_projection() -> None:
    sketch = Sketch()
    other = sketch.op("activation", "other", attrs={"kind": "silu"}, x=sketch.x)
    check_silent(FuseResidual(), sketch.graph(sketch.op("add", "sum", attrs=PLAIN_SUM, a=sketch.x, b=other)))


def test_one_of_two_projections_takes_the_other_as_its_residual() -> None:
    sketch = Sketch()
    a, b = (sketch.linear(name, sketch.x, 48, 24) for name in "ab")
    source = sketch.graph(sketch.op("add", "sum", attrs=PLAIN_SUM, a=a, b=b))
    fused = fires(FuseResidual(), source)
    assert kinds(fused) == ["embed", "linear", "projection"]
    check_same_numbers(source, fused)
