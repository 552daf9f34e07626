"""fuse_mlp: the first projections of an MLP and their activation become one projection."""

from dataclasses import replace

import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.elementwise import Activation
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.passes.fuse_mlp import FuseMlp
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import (
    Sketch,
    check_same_numbers,
    check_silent,
    edited,
    fires,
    kinds,
    only,
    returning,
    retyped,
    small_graph,
    source_graph,
)
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.mlp"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
def test_rule_1_fuses_every_layer(activation: str, bias: bool) -> None:
    spec = small_spec(model__mlp__activation=activation, model__mlp__bias=bias)
    source = source_graph(spec)
    fused = fires(FuseMlp(), source)
    assert not {"activation", "multiply"} & set(kinds(fused))
    for layer in range(2):
        op = fused.op(f"layers.{layer}.mlp.gated")
        assert op.attrs == Projection(DType.F32, activation=activation, gated=True)
        weight = fused.value(op.inputs["weight"])
        assert (weight.parts, weight.shape) == ((f"layers.{layer}.mlp.gate", f"layers.{layer}.mlp.up"), (176, 48))
        assert fused.value(op.out).shape == ("tokens", 88)
        assert ("bias" in op.inputs) == bias
    check_same_numbers(source, fused, spec)


def test_rule_1_fuses_with_the_gate_on_the_other_side() -> None:
    source = edited(
        small_graph(), f"{PREFIX}.gated", inputs={"a": f"{PREFIX}.up_projected", "b": f"{PREFIX}.activated"}
    )
    fused = fires(FuseMlp(), source)
    op = only(fused, "projection")
    assert fused.value(op.inputs["weight"]).parts == (f"{PREFIX}.gate", f"{PREFIX}.up")
    check_same_numbers(source, fused)


def test_rule_2_fuses_swiglu_oai_with_its_limit() -> None:
    spec = small_spec(model__mlp={"intermediate_size": 88, "activation": "swiglu_oai", "limit": 0.5, "bias": True})
    source = source_graph(spec)
    fused = fires(FuseMlp(), source)
    attrs = fused.op(f"{PREFIX}.gated").attrs
    assert (attrs.activation, attrs.gated, attrs.limit) == ("swiglu_oai", True, 0.5)
    check_same_numbers(source, fused, spec)


@pytest.mark.parametrize("activation", ["relu2", "gelu_tanh"])
def test_rule_3_fuses_an_activation_without_a_gate(activation: str) -> None:
    spec = small_spec(model__mlp={"intermediate_size": 88, "activation": activation, "gated": False, "bias": True})
    source = source_graph(spec)
    fused = fires(FuseMlp(), source)
    op = fused.op(f"{PREFIX}.activated")
    assert (op.kind, op.attrs.activation, op.attrs.gated) == ("projection", activation, False)
    assert (op.inputs["weight"], fused.value(op.out).shape) == (f"{PREFIX}.up", ("tokens", 88))
    check_same_numbers(source, fused, spec)


@pytest.mark.parametrize("name", ["experts-normalised", "experts-topk-softmax-bias", "experts-not-gated"])
def test_rule_4_fuses_experts(name: str) -> None:
    spec = family_spec(name)
    source = source_graph(spec)
    fused = fires(FuseMlp(), source)
    assert not {"activation", "multiply", "swiglu_oai"} & set(kinds(fused))
    (op,) = [op for op in fused.ops if op.kind == "expert_projection" and op.name.startswith(PREFIX)]
    experts, roles = spec.model.mlp.experts, ("gate", "up") if op.attrs.gated else ("up",)
    assert experts and op.attrs.num_experts == experts.count and op.attrs.top_k == experts.per_token
    weight = fused.value(op.inputs["weight"])
    assert weight.parts == tuple(f"{PREFIX}.experts.{role}" for role in roles)
    assert weight.shape == (len(roles) * experts.count * 56, 48)
    assert fused.value(op.out).shape == ("tokens", experts.per_token * 56)
    check_same_numbers(source, fused, spec)


def test_must_not_fire_for_experts_of_different_choices() -> None:
    graph = source_graph(family_spec("experts-normalised", model__num_layers=2))
    check_silent_for = edited(graph, f"{PREFIX}.experts.up_projected", inputs={"x": "embedded"})
    fused = fires(FuseMlp(), check_silent_for)  # the other layer's
    assert fused.op(f"{PREFIX}.experts.up_projected").kind == "expert_linear"


def test_must_not_fire_on_the_results_of_experts() -> None:
    """Those are different columns for each expert, which an expert_projection has no way to read."""
    graph = source_graph(family_spec("experts-normalised", model__num_layers=1))
    summed = graph.op(f"{PREFIX}.experts.summed")
    down = graph.value(summed.inputs["x"])
    late = replace(down, name="late")
    silu = Op("late", Activation("silu"), {"x": down.name}, {"out": "late"})
    graph = graph.rewrite({summed.name: [silu, replace(summed, inputs=summed.inputs | {"x": "late"})]}, [late])
    assert fires(FuseMlp(), graph).op("late").kind == "activation"


def test_must_not_fire_for_different_inputs() -> None:
    check_silent(FuseMlp(), edited(small_graph(), f"{PREFIX}.up_projected", inputs={"x": "embedded"}))


def test_weights_and_biases_of_different_types_merge_as_f32() -> None:
    """f32 holds the numbers of every other type; what is stored is each part's own business."""
    graph = small_graph(model__mlp__bias=True, weights={"default": "bf16"})
    alike = fires(FuseMlp(), graph)
    assert {str(alike.value(f"{PREFIX}.{name}").dtype) for name in ("gate_up", "gate_up_bias")} == {"bf16"}
    mixed = fires(FuseMlp(), retyped(retyped(graph, f"{PREFIX}.up", "f16"), f"{PREFIX}.gate_bias", "f32"))
    assert {str(mixed.value(f"{PREFIX}.{name}").dtype) for name in ("gate_up", "gate_up_bias")} == {"f32"}


@pytest.mark.parametrize("part", ["gate", "up"])
def test_must_not_fire_when_only_one_has_a_bias(part: str) -> None:
    graph = small_graph(model__mlp__bias=True)
    check_silent(FuseMlp(), edited(graph, f"{PREFIX}.{part}_projected", inputs={"bias": None}))


@pytest.mark.parametrize("read", ["gate_projected", "activated", "up_projected"])
def test_must_not_fire_when_an_intermediate_is_read_elsewhere(read: str) -> None:
    check_silent(FuseMlp(), returning(small_graph(), f"{PREFIX}.{read}"))


def test_must_not_fire_without_an_activation() -> None:
    sketch = Sketch()
    gate, up = (sketch.linear(name, sketch.x, 48, 88) for name in ("gate", "up"))
    check_silent(FuseMlp(), sketch.graph(sketch.op("multiply", "product", a=gate, b=up)))


def test_must_not_fire_for_one_projection_on_both_sides() -> None:
    sketch = Sketch()
    gate = sketch.linear("gate", sketch.x, 48, 88)
    activated = sketch.op("activation", "activated", attrs={"kind": "silu"}, x=gate)
    check_silent(FuseMlp(), sketch.graph(sketch.op("multiply", "product", a=activated, b=gate)))
