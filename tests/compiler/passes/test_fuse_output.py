"""fuse_output: scale, soft cap and gate move into the projection before them."""

from mlxr.compiler.passes.fuse_output import FuseOutput
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, only, returning, source_graph


def test_rules_1_and_2_on_the_logits() -> None:
    spec = family_spec("gemma-like", model__logit_scale=0.25)
    source = source_graph(spec)
    fused = fires(FuseOutput(), source)
    assert not {"scale", "soft_cap"} & set(kinds(fused))
    op = fused.op("logits_capped")
    assert (op.kind, op.attrs.out_scale, op.attrs.out_cap) == ("projection", 0.25, 3.0)
    check_same_numbers(source, fused, spec)


def test_rule_3_on_a_shared_expert() -> None:
    spec = family_spec("experts-shared-gate")
    source = source_graph(spec)
    fused = fires(FuseOutput(), source)
    assert "gate_rows" not in kinds(fused)
    op = fused.op("layers.0.mlp.shared.gated_out")
    assert (op.kind, op.inputs["gate"]) == ("projection", "layers.0.mlp.shared.router_projected")
    check_same_numbers(source, fused, spec)


def test_scales_multiply_and_end_at_a_soft_cap() -> None:
    sketch = Sketch()
    x = sketch.linear("projected", sketch.x, 48, 24)
    for number, factor in enumerate((0.5, 3.0)):
        x = sketch.op("scale", f"scaled{number}", attrs={"factor": factor}, x=x)
    x = sketch.op("soft_cap", "capped", attrs={"cap": 0.75}, x=x)
    source = sketch.graph(sketch.op("scale", "late", attrs={"factor": 2.0}, x=x))
    fused = fires(FuseOutput(), source)
    assert kinds(fused) == ["embed", "projection", "scale"]
    attrs = only(fused, "projection").attrs
    assert (attrs.out_scale, attrs.out_cap) == (1.5, 0.75)
    check_same_numbers(source, fused)


def test_a_gate_comes_last() -> None:
    sketch = Sketch()
    gate = sketch.linear("gate", sketch.x, 48, 1)
    x = sketch.op("gate_rows", "gated", x=sketch.linear("projected", sketch.x, 48, 24), gate=gate)
    source = sketch.graph(sketch.op("soft_cap", "capped", attrs={"cap": 0.75}, x=x))
    fused = fires(FuseOutput(), source)
    assert kinds(fused) == ["embed", "linear", "projection", "soft_cap"]
    check_same_numbers(source, fused)


def test_must_not_fire_when_the_result_is_read_elsewhere() -> None:
    sketch = Sketch()
    sketch.op("scale", "scaled", attrs={"factor": 0.5}, x=sketch.linear("projected", sketch.x, 48, 24))
    check_silent(FuseOutput(), returning(sketch.graph("scaled"), "projected"))


def test_must_not_fire_after_an_op_that_is_no_projection() -> None:
    sketch = Sketch()
    check_silent(FuseOutput(), sketch.graph(sketch.op("soft_cap", "capped", attrs={"cap": 0.5}, x=sketch.x)))
