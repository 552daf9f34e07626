"""fuse_norm: norms move into the projections that follow it."""

from typing import Any

from mlxr.compiler.passes.fuse_mlp import FuseMlp
from mlxr.compiler.passes.fuse_norm import FuseNorm
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import (
    Sketch,
    check_same_numbers,
    check_silent,
    edited,
    fires,
    kinds,
    returning,
    small_graph,
    source_graph,
)
from mlxr_tests.reference_ops import PLAIN_PROJECTION
from mlxr_tests.specs import small_spec

_RMS: dict[str, Any] = {"kind": "rms", "groups": 1, "residual_scale": 1.0}


def norm(sketch: Sketch, name: str, x: str, eps: float = 0.25) -> str:
    return sketch.op("norm", name, attrs=_RMS | {"eps": eps}, x=x, weight=sketch.weight(f"{name}.weight", 48))


def test_rule_1_fuses_into_every_consumer() -> None:
    spec = small_spec(model__norm={"eps": 0.25})
    source = source_graph(spec)
    fused = fires(FuseNorm(), source)
    assert "norm" not in kinds(fused)
    assert kinds(fused).count("projection") == 2 * (3 + 2) + 1
    for role in ("q", "k", "v"):
        op = fused.op(f"layers.1.attention.{role}_projected")
        assert op.inputs["norm"] == "layers.1.attention.norm"
        assert op.inputs["x"] == "layers.0.mlp.out"
        assert op.attrs.eps == 0.25
    assert fused.op("logits_of_all_tokens").inputs["norm"] == "final_norm"
    assert fused.op("layers.0.attention.o_projected").kind == "linear"
    check_same_numbers(source, fused, spec)


def test_rule_1_fuses_into_a_merged_projection() -> None:
    source = small_graph(model__attention__qkv_bias=True)
    fused = fires(FuseNorm(), fires(MergeQkv(), source))
    op = fused.op("layers.0.attention.qkv_projected")
    assert (op.kind, op.inputs["norm"]) == ("projection", "layers.0.attention.norm")
    check_same_numbers(source, fused)


def test_rule_1_fuses_layer_norms_with_their_bias() -> None:
    spec = small_spec(model__norm={"kind": "layer", "bias": True, "eps": 0.25})
    source = source_graph(spec)
    fused = fires(FuseNorm(), source)
    op = fused.op("layers.0.mlp.up_projected")
    assert (op.inputs["norm_bias"], op.attrs.norm_kind) == ("layers.0.mlp.norm_bias", "layer")
    check_same_numbers(source, fused, spec)


def test_rule_1_fuses_one_norm_into_both_parallel_blocks() -> None:
    spec = small_spec(model__parallel_blocks=True)
    source = source_graph(spec)
    fused = fires(FuseNorm(), source)
    assert "norm" not in kinds(fused)
    readers = [op for op in fused.ops if op.inputs.get("norm") == "layers.1.attention.norm"]
    assert [op.name.rpartition(".")[2] for op in readers] == [f"{r}_projected" for r in ("q", "k", "v", "gate", "up")]
    check_same_numbers(source, fused, spec)


def test_rule_1_fuses_into_router_experts_and_shared_expert() -> None:
    spec = family_spec("experts-shared-gate")
    source = source_graph(spec)
    fused = fires(FuseNorm(), fires(FuseMlp(), source))
    assert "norm" not in kinds(fused)
    readers = {op.name for op in fused.ops if op.inputs.get("norm") == "layers.0.mlp.norm"}
    names = ("router_projected", "experts.gated", "shared.gated", "shared.router_projected")
    assert readers == {f"layers.0.mlp.{name}" for name in names}
    check_same_numbers(source, fused, spec)


def test_must_not_fire_before_the_experts_are_fused() -> None:
    spec = family_spec("experts-normalised", model__num_layers=1)
    fused = fires(FuseNorm(), source_graph(spec))
    assert [op.name for op in fused.ops if op.kind == "norm"] == ["layers.0.mlp.normed"]


def test_must_not_fire_for_norms_of_groups_or_with_a_residual() -> None:
    for attrs, more in (({"groups": 4}, {}), ({}, {"residual": "embedded"})):
        sketch = Sketch()
        weight = sketch.weight("weight", 48)
        sketch.op("norm", "normed", attrs=_RMS | {"eps": 0.25} | attrs, x=sketch.x, weight=weight, **more)
        check_silent(FuseNorm(), sketch.graph(sketch.linear("projected", "normed", 48, 24)))


def test_must_not_fire_when_a_consumer_is_no_projection() -> None:
    sketch = Sketch()
    normed = norm(sketch, "normed", sketch.x)
    projected = sketch.linear("projected", normed, 48, 48)
    check_silent(FuseNorm(), sketch.graph(sketch.op("add", "sum", attrs={"alpha": 1.0}, a=projected, b=normed)))


def test_must_not_fire_when_a_consumer_reads_it_as_a_residual_too() -> None:
    sketch = Sketch()
    normed = norm(sketch, "normed", sketch.x)
    weight = sketch.weight("weight", 48, 48)
    attrs = {"dtype": "f32", **PLAIN_PROJECTION}
    check_silent(
        FuseNorm(), sketch.graph(sketch.op("projection", "out", attrs=attrs, x=normed, weight=weight, residual=normed))
    )


def test_must_not_fire_when_a_consumer_has_a_norm_already() -> None:
    sketch = Sketch()
    sketch.linear("projected", norm(sketch, "second", norm(sketch, "first", sketch.x)), 48, 24)
    source = sketch.graph("projected")
    fused = fires(FuseNorm(), source)
    assert kinds(fused) == ["embed", "norm", "projection"]
    assert fused.op("projected").inputs["norm"] == "second.weight"
    check_same_numbers(source, fused)
    check_silent(FuseNorm(), fused)


def test_must_not_fire_when_the_norm_is_returned() -> None:
    graph = returning(small_graph(), "normed")
    fused = fires(FuseNorm(), graph)
    assert kinds(fused).count("norm") == 1
    assert fused.op("logits_of_all_tokens").kind == "linear"


def test_must_not_fire_when_nothing_reads_the_norm() -> None:
    graph = edited(small_graph(), "logits_of_all_tokens", inputs={"x": "layers.0.mlp.out"})
    assert "normed" in [op.out for op in fires(FuseNorm(), graph).ops if op.kind == "norm"]
