"""fuse_gated_mlp: gate, up, activation and product become one projection."""

import pytest

from mlxr.compiler.passes.fuse_gated_mlp import FuseGatedMlp
from mlxr_tests.graphs import (
    Sketch,
    check_same_numbers,
    check_silent,
    edited,
    fires,
    kinds,
    one,
    returning,
    retyped,
    small_graph,
    source_graph,
)
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.mlp"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_rule_1_fuses_every_layer(activation: str, bias: bool) -> None:
    spec = small_spec(model__mlp__activation=activation, model__mlp__bias=bias)
    source = source_graph(spec)
    fused = fires(FuseGatedMlp(), source)
    assert not {"activation", "multiply"} & set(kinds(fused))
    for layer in range(2):
        op = fused.op(f"layers.{layer}.mlp.gated")
        assert op.attrs == {"dtype": "f32", "eps": None, "activation": activation}
        weight = fused.value(op.inputs["weight"])
        assert (weight.parts, weight.shape) == ((f"layers.{layer}.mlp.gate", f"layers.{layer}.mlp.up"), (176, 48))
        assert fused.value(op.out).shape == ("tokens", 88)
        assert ("bias" in op.inputs) == bias
    check_same_numbers(source, fused, spec)


def test_rule_1_fuses_with_the_gate_on_the_other_side() -> None:
    source = edited(
        small_graph(), f"{PREFIX}.gated", inputs={"a": f"{PREFIX}.up_projected", "b": f"{PREFIX}.activated"}
    )
    fused = fires(FuseGatedMlp(), source)
    op = one(fused, "projection")
    assert fused.value(op.inputs["weight"]).parts == (f"{PREFIX}.gate", f"{PREFIX}.up")
    check_same_numbers(source, fused)


def test_must_not_fire_for_different_inputs() -> None:
    check_silent(FuseGatedMlp(), edited(small_graph(), f"{PREFIX}.up_projected", inputs={"x": "embedded"}))


def test_weights_and_biases_of_different_types_merge_as_f32() -> None:
    """f32 holds the numbers of every other type; what is stored is each part's own business."""
    graph = small_graph(model__mlp__bias=True, weights={"default": "bf16"})
    alike = fires(FuseGatedMlp(), graph)
    assert {str(alike.value(f"{PREFIX}.{name}").dtype) for name in ("gate_up", "gate_up_bias")} == {"bf16"}
    mixed = fires(FuseGatedMlp(), retyped(retyped(graph, f"{PREFIX}.up", "f16"), f"{PREFIX}.gate_bias", "f32"))
    assert {str(mixed.value(f"{PREFIX}.{name}").dtype) for name in ("gate_up", "gate_up_bias")} == {"f32"}


@pytest.mark.parametrize("part", ["gate", "up"])
def test_must_not_fire_when_only_one_has_a_bias(part: str) -> None:
    graph = small_graph(model__mlp__bias=True)
    check_silent(FuseGatedMlp(), edited(graph, f"{PREFIX}.{part}_projected", inputs={"bias": None}))


@pytest.mark.parametrize("read", ["gate_projected", "activated", "up_projected"])
def test_must_not_fire_when_an_intermediate_is_read_elsewhere(read: str) -> None:
    check_silent(FuseGatedMlp(), returning(small_graph(), f"{PREFIX}.{read}"))


def test_must_not_fire_without_an_activation() -> None:
    sketch = Sketch()
    gate, up = (sketch.linear(name, sketch.x, 48, 88) for name in ("gate", "up"))
    check_silent(FuseGatedMlp(), sketch.graph(sketch.op("multiply", "product", a=gate, b=up)))


def test_must_not_fire_for_one_projection_on_both_sides() -> None:
    sketch = Sketch()
    gate = sketch.linear("gate", sketch.x, 48, 88)
    activated = sketch.op("activation", "activated", attrs={"kind": "silu"}, x=gate)
    check_silent(FuseGatedMlp(), sketch.graph(sketch.op("multiply", "product", a=activated, b=gate)))
