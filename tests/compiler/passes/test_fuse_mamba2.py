"""fuse_mamba2: the projections of a Mamba-2 layer, its convolutions and its scan."""

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_mamba2 import FuseMamba2
from mlxr_tests.graphs import check_same_numbers, check_silent, edited, fires, kinds, only, returning, source_graph
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.recurrent"
DECODE, PREFILL = FuseMamba2("decode"), FuseMamba2("prefill")
WIDTHS = {"z": 24, "x": 24, "b": 24, "c": 24, "step": 6}


def ssm_spec(**changes):
    ssm = {"kind": "ssm", "num_heads": 6, "head_dim": 4, "num_groups": 3, "state_dim": 8, "taps": 3, **changes}
    types = {"ssm": {"blocks": ["recurrent"]}, "full": {}}
    named = {"model__layer_types": types, "model__layer_pattern": ["ssm", "full"]}
    return small_spec(model__recurrent=ssm, model__tensor_names="canonical", **named)


def ssm_graph(**changes) -> OpGraph:
    return source_graph(ssm_spec(**changes))


@pytest.mark.parametrize("biases", [False, True])
def test_rule_1_joins_all_of_it(biases: bool) -> None:
    spec = ssm_spec(bias=biases, conv_bias=biases)
    source = source_graph(spec)
    fused = fires(DECODE, source)
    scan = only(fused, "conv_ssd")
    assert len(kinds(fused)) == len(kinds(source)) - 4 and ("bias" in scan.inputs) == biases
    assert (scan.attrs.gate_first, scan.attrs.x_first, scan.attrs.dt_first) == (0, 24, 96)
    projected = fused.producer(scan.inputs["x"])
    assert projected is not None and projected.inputs["x"] == f"{PREFIX}.normed"
    weight = fused.value(projected.inputs["weight"])
    assert weight.parts == tuple(f"{PREFIX}.{part}" for part in WIDTHS) and weight.shape == (sum(WIDTHS.values()), 48)
    filters = fused.value(scan.inputs["weight"])
    assert filters.parts == tuple(f"{PREFIX}.{part}_conv" for part in "xbc") and filters.shape == (72 * 3,)
    check_same_numbers(source, fused, spec, decode_only=True)


@pytest.mark.parametrize("biases", [False, True])
def test_rule_2_leaves_convolution_and_scan_apart(biases: bool) -> None:
    spec = ssm_spec(bias=biases, conv_bias=biases, num_groups=1, norm=False, least_step=0.01, most_step=0.5)
    source = source_graph(spec)
    fused = fires(PREFILL, source)
    scan, conv = only(fused, "ssd"), only(fused, "causal_conv")
    assert scan.inputs["x"] == scan.inputs["b"] == scan.inputs["c"] == conv.out
    assert (scan.attrs.x_first, scan.attrs.b_first, scan.attrs.c_first, conv.attrs.first) == (0, 24, 32, 24)
    check_same_numbers(source, fused, spec)


def test_a_gate_of_the_norm_keeps_its_projection() -> None:
    """Its norm reads z, whose projection stays alone."""
    spec = ssm_spec(norm_before_gate=True)
    source = source_graph(spec)
    fused = fires(DECODE, source)
    assert "gate" not in only(fused, "conv_ssd").inputs
    assert only(fused, "gated_norm").inputs["gate"] == f"{PREFIX}.z_projected"
    check_same_numbers(source, fused, spec, decode_only=True)


@pytest.mark.parametrize("part", WIDTHS)
def test_it_must_not_fire_where_something_else_reads_a_part(part: str) -> None:
    check_silent(DECODE, returning(ssm_graph(), f"{PREFIX}.{part}_projected"))


def test_it_must_not_fire_for_different_inputs() -> None:
    check_silent(DECODE, edited(ssm_graph(), f"{PREFIX}.c_projected", inputs={"x": "embedded"}))


def test_it_must_not_fire_for_some_biases() -> None:
    check_silent(DECODE, edited(ssm_graph(bias=True), f"{PREFIX}.b_projected", inputs={"bias": None}))
