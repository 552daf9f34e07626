"""fuse_norm: RMSNorm moves into the projections that follow it."""

from mlxr.compiler.passes.fuse_norm import FuseNorm
from mlxr.compiler.passes.merge_qkv import MergeQkv
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
from mlxr_tests.specs import small_spec


def norm(sketch: Sketch, name: str, x: str, eps: float = 0.25) -> str:
    return sketch.op("rms_norm", name, attrs={"eps": eps}, x=x, weight=sketch.weight(f"{name}.weight", 48))


def test_rule_1_fuses_into_every_consumer() -> None:
    spec = small_spec(model__norm={"eps": 0.25})
    source = source_graph(spec)
    fused = fires(FuseNorm(), source)
    assert "rms_norm" not in kinds(fused)
    assert kinds(fused).count("projection") == 2 * (3 + 2) + 1
    for role in ("q", "k", "v"):
        op = fused.op(f"layers.1.attention.{role}_projected")
        assert op.inputs["norm"] == "layers.1.attention.norm"
        assert op.inputs["x"] == "layers.0.mlp.out"
        assert op.attrs["eps"] == 0.25
    assert fused.op("logits_of_all_tokens").inputs["norm"] == "final_norm"
    assert fused.op("layers.0.attention.o_projected").kind == "linear"
    check_same_numbers(source, fused, spec)


def test_rule_1_fuses_into_a_merged_projection() -> None:
    source = small_graph(model__attention__qkv_bias=True)
    fused = fires(FuseNorm(), fires(MergeQkv(), source))
    op = fused.op("layers.0.attention.qkv_projected")
    assert (op.kind, op.inputs["norm"]) == ("projection", "layers.0.attention.norm")
    check_same_numbers(source, fused)


def test_must_not_fire_when_a_consumer_is_no_projection() -> None:
    sketch = Sketch()
    normed = norm(sketch, "normed", sketch.x)
    projected = sketch.linear("projected", normed, 48, 48)
    check_silent(FuseNorm(), sketch.graph(sketch.op("add", "sum", a=projected, b=normed)))


def test_must_not_fire_when_a_consumer_reads_it_as_a_residual_too() -> None:
    sketch = Sketch()
    normed = norm(sketch, "normed", sketch.x)
    weight = sketch.weight("weight", 48, 48)
    attrs = {"dtype": "f32", "eps": None, "activation": None}
    check_silent(
        FuseNorm(), sketch.graph(sketch.op("projection", "out", attrs=attrs, x=normed, weight=weight, residual=normed))
    )


def test_must_not_fire_when_a_consumer_has_a_norm_already() -> None:
    sketch = Sketch()
    sketch.linear("projected", norm(sketch, "second", norm(sketch, "first", sketch.x)), 48, 24)
    source = sketch.graph("projected")
    fused = fires(FuseNorm(), source)
    assert kinds(fused) == ["embed", "rms_norm", "projection"]
    assert fused.op("projected").inputs["norm"] == "second.weight"
    check_same_numbers(source, fused)
    check_silent(FuseNorm(), fused)


def test_must_not_fire_when_the_norm_is_returned() -> None:
    graph = returning(small_graph(), "normed")
    fused = fires(FuseNorm(), graph)
    assert kinds(fused).count("rms_norm") == 1
    assert fused.op("logits_of_all_tokens").kind == "linear"


def test_must_not_fire_when_nothing_reads_the_norm() -> None:
    graph = edited(small_graph(), "logits_of_all_tokens", inputs={"x": "layers.0.mlp.out"})
    assert "normed" in [op.out for op in fires(FuseNorm(), graph).ops if op.kind == "rms_norm"]
