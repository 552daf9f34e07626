"""fuse_conv: a short convolution, its gates and their projections."""

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_conv import FuseConv
from mlxr_tests.graphs import check_same_numbers, check_silent, edited, fires, kinds, only, returning, source_graph
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.recurrent"
DECODE = FuseConv("decode")


def conv_spec(**changes):
    conv = {"kind": "conv", "channels": 40, "taps": 3, **changes}
    types = {"conv": {"blocks": ["recurrent", "mlp"]}, "full": {}}
    named = {"model__layer_types": types, "model__layer_pattern": ["conv", "full"]}
    return small_spec(model__recurrent=conv, model__tensor_names="canonical", **named)


def conv_graph(**changes) -> OpGraph:
    return source_graph(conv_spec(**changes))


@pytest.mark.parametrize("biases", [False, True])
def test_rule_1_joins_projections_and_gates(biases: bool) -> None:
    spec = conv_spec(bias=biases, conv_bias=biases)
    source = source_graph(spec)
    fused = fires(DECODE, source)
    conv = only(fused, "gated_conv")
    assert len(kinds(fused)) == len(kinds(source)) - 4 and ("bias" in conv.inputs) == biases
    projected = fused.producer(conv.inputs["x"])
    assert projected is not None and projected.inputs["x"] == f"{PREFIX}.normed"
    weight = fused.value(projected.inputs["weight"])
    assert weight.parts == tuple(f"{PREFIX}.{part}" for part in "bcx") and weight.shape == (120, 48)
    if biases:
        bias = fused.value(projected.inputs["bias"])
        assert bias.parts == tuple(f"{PREFIX}.{part}_bias" for part in "bcx")
    check_same_numbers(source, fused, spec)


def test_rule_2_gives_convolutions_of_prompts_tiles() -> None:
    source = conv_graph()
    assert only(fires(FuseConv("prefill"), source), "gated_conv").inputs["query_tiles"] == "query_tiles"
    read = returning(source, f"{PREFIX}.conv_input")
    assert only(fires(FuseConv("prefill"), read), "causal_conv").inputs["query_tiles"] == "query_tiles"


def test_rule_1_must_not_fire_where_something_else_reads_what_lies_between() -> None:
    for name in ("b_projected", "c_projected", "conv_input", "conv_result"):
        check_silent(DECODE, returning(conv_graph(), f"{PREFIX}.{name}"))


def test_rule_1_must_not_fire_for_different_inputs() -> None:
    check_silent(DECODE, edited(conv_graph(), f"{PREFIX}.c_projected", inputs={"x": "embedded"}))


def test_rule_1_must_not_fire_for_some_biases() -> None:
    check_silent(DECODE, edited(conv_graph(bias=True), f"{PREFIX}.b_projected", inputs={"bias": None}))


def test_rule_1_must_not_fire_for_an_activation() -> None:
    check_silent(DECODE, edited(conv_graph(), f"{PREFIX}.conv_result", attrs={"activation": "silu"}))
