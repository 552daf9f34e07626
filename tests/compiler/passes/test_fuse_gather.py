"""fuse_gather: a projection reads the rows it needs by itself."""

from mlxr.compiler.passes.fuse_gather import FuseGather
from mlxr.compiler.passes.fuse_norm import FuseNorm
from mlxr.compiler.passes.last_token_logits import LastTokenLogits
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, returning, small_graph
from mlxr_tests.reference_ops import PLAIN_PROJECTION

PLAIN = {"dtype": "f32", **PLAIN_PROJECTION}


def gathered(sketch: Sketch) -> str:
    return sketch.op("gather_rows", "gathered", x=sketch.x, rows="logit_rows")


def test_rule_1_fuses_the_models_gather() -> None:
    source = small_graph()
    fused = fires(FuseGather(), fires(FuseNorm(), fires(LastTokenLogits(), source)))
    assert "gather_rows" not in kinds(fused)
    op = fused.producer("logits")
    assert op is not None
    assert op.inputs == {"x": "layers.0.mlp.out", "weight": "output", "norm": "final_norm", "rows": "logit_rows"}
    check_same_numbers(source, fused)


def test_rule_1_fuses_into_a_linear_op() -> None:
    sketch = Sketch()
    sketch.linear("projected", gathered(sketch), 48, 24)
    source = sketch.graph("projected")
    fused = fires(FuseGather(), source)
    assert kinds(fused) == ["embed", "projection"]
    assert fused.value("projected").shape == ("rows", 24)
    check_same_numbers(source, fused)


def test_must_not_fire_when_the_rows_are_read_elsewhere() -> None:
    sketch = Sketch()
    sketch.linear("projected", gathered(sketch), 48, 24)
    check_silent(FuseGather(), returning(sketch.graph("projected"), "gathered"))


def test_must_not_fire_for_several_consumers() -> None:
    sketch = Sketch()
    rows = gathered(sketch)
    check_silent(FuseGather(), sketch.graph(*(sketch.linear(name, rows, 48, 24) for name in "ab")))


def test_must_not_fire_when_the_projection_adds_a_residual() -> None:
    sketch = Sketch()
    rows = gathered(sketch)
    residual = sketch.op("gather_rows", "others", x=sketch.linear("first", sketch.x, 48, 24), rows="logit_rows")
    weight = sketch.weight("weight", 24, 48)
    sketch.op("projection", "out", attrs=PLAIN, x=rows, weight=weight, residual=residual)
    check_silent(FuseGather(), sketch.graph("out"))


def test_must_not_fire_for_a_second_gather() -> None:
    sketch = Sketch()
    rows = sketch.op("gather_rows", "again", x=gathered(sketch), rows="logit_rows")
    sketch.linear("projected", rows, 48, 24)
    fused = fires(FuseGather(), sketch.graph("projected"))
    assert kinds(fused) == ["embed", "gather_rows", "projection"]
    check_silent(FuseGather(), fused)


def test_must_not_fire_before_an_elementwise_op() -> None:
    sketch = Sketch()
    check_silent(FuseGather(), sketch.graph(sketch.op("activation", "out", attrs={"kind": "silu"}, x=gathered(sketch))))
