"""last_token_logits: row gathers sink below norms and projections."""

from mlxr.compiler.passes.last_token_logits import LastTokenLogits
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, kinds, only, returning, small_graph
from mlxr_tests.specs import small_spec


def gather(sketch: Sketch, name: str, x: str) -> str:
    return sketch.op("gather_rows", name, x=x, rows="logit_rows")


def test_rule_1_sinks_below_the_output_projection_and_the_norm() -> None:
    source = small_graph()
    sunk = fires(LastTokenLogits(), source)
    assert kinds(sunk)[-3:] == ["gather_rows", "norm", "linear"]
    assert only(sunk, "gather_rows").inputs["x"] == "layers.0.mlp.out"
    assert sunk.value("normed.rows").shape == ("rows", 48)
    assert sunk.value("logits").shape == ("rows", 61)
    assert "logits_of_all_tokens" not in sunk
    check_same_numbers(source, sunk)


def test_rule_1_sinks_below_scale_and_soft_cap() -> None:
    source = small_graph(model__logit_scale=0.5, model__logit_softcap=1.5)
    sunk = fires(LastTokenLogits(), source)
    assert kinds(sunk)[-5:] == ["gather_rows", "norm", "linear", "scale", "soft_cap"]
    check_same_numbers(source, sunk, small_spec(model__num_layers=1, model__logit_scale=0.5, model__logit_softcap=1.5))


def test_must_not_fire_below_a_norm_that_adds_a_residual() -> None:
    sketch = Sketch()
    attrs = {"kind": "rms", "eps": 0.1, "groups": 1, "residual_scale": 1.0}
    normed = sketch.op("norm", "n", attrs=attrs, x=sketch.x, weight=sketch.weight("w", 48), residual=sketch.x)
    check_silent(LastTokenLogits(), sketch.graph(gather(sketch, "last", normed)))


def test_rule_1_repeats() -> None:
    sketch = Sketch()
    x = sketch.x
    for number in range(3):
        x = sketch.linear(f"projected{number}", x, 48, 48)
    source = sketch.graph(gather(sketch, "last", x))
    sunk = fires(LastTokenLogits(), source)
    assert kinds(sunk) == ["embed", "gather_rows", "linear", "linear", "linear"]
    assert [sunk.value(op.out).shape[0] for op in sunk.ops] == ["tokens", "rows", "rows", "rows", "rows"]
    check_same_numbers(source, sunk)


def test_two_gathers_may_sink_to_the_same_value() -> None:
    sketch = Sketch()
    source = sketch.graph(*(gather(sketch, f"last_{n}", sketch.linear(n, sketch.x, 48, 24)) for n in "ab"))
    sunk = fires(LastTokenLogits(), source)
    assert kinds(sunk) == ["embed", "gather_rows", "linear", "gather_rows", "linear"]
    check_same_numbers(source, sunk)


def test_must_not_fire_when_the_projection_has_another_consumer() -> None:
    sketch = Sketch()
    projected = sketch.linear("projected", sketch.x, 48, 24)
    other = sketch.op("activation", "other", attrs={"kind": "silu"}, x=projected)
    check_silent(LastTokenLogits(), sketch.graph(other, gather(sketch, "last", projected)))


def test_must_not_fire_when_the_projection_is_returned() -> None:
    check_silent(LastTokenLogits(), returning(small_graph(), "logits_of_all_tokens"))


def test_stops_where_a_value_is_returned() -> None:
    graph = returning(small_graph(), "normed")
    sunk = fires(LastTokenLogits(), graph)
    assert kinds(sunk)[-3:] == ["norm", "gather_rows", "linear"]
    check_same_numbers(graph, sunk)


def test_must_not_fire_after_an_op_that_is_not_rowwise() -> None:
    sketch = Sketch()
    total = sketch.op("add", "sum", attrs={"alpha": 1.0}, a=sketch.x, b=sketch.linear("projected", sketch.x, 48, 48))
    check_silent(LastTokenLogits(), sketch.graph(gather(sketch, "last", total)))
