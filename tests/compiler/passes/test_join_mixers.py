"""join_mixers: the projections of attention and of a Mamba-2 block that read the same norm."""

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_mamba2 import FuseMamba2
from mlxr.compiler.passes.join_mixers import JoinMixers
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr_tests.graphs import check_same_numbers, check_silent, edited, fires, kinds, only, returning, source_graph
from mlxr_tests.specs import small_spec

LAYER = "layers.0."
JOIN = JoinMixers()


def both_spec(norm=None, bias=False, qkv_bias=False, **changes):
    ssm = {"kind": "ssm", "num_heads": 8, "head_dim": 4, "num_groups": 2, "state_dim": 8, "taps": 3, "bias": bias}
    blocks = ["attention", "recurrent", "mlp"]
    named = {"model__blocks": blocks, "model__tensor_names": "canonical", "model__num_layers": 1}
    attention = {"model__attention__qk_norm": norm, "model__attention__qkv_bias": qkv_bias}
    return small_spec(model__recurrent=ssm | changes, **named, **attention)


def merged(phase: str = "decode", **changes) -> OpGraph:
    return fires(FuseMamba2(phase), fires(MergeQkv(), source_graph(both_spec(**changes))))  # type: ignore[arg-type]


@pytest.mark.parametrize("biases", [False, True])
def test_it_joins_them_in_decode(biases: bool) -> None:
    spec = both_spec(bias=biases, qkv_bias=biases)
    source = merged(bias=biases, qkv_bias=biases)
    fused = fires(JOIN, source)
    scan, split = only(fused, "conv_ssd"), only(fused, "split")
    assert scan.inputs["x"] == scan.inputs["dt"] == scan.inputs["gate"] == split.inputs["x"]
    first = split.attrs.q + split.attrs.k + split.attrs.v
    assert (scan.attrs.gate_first, scan.attrs.x_first, scan.attrs.dt_first) == (first, first + 32, first + 96)
    projected = fused.producer(split.inputs["x"])
    assert projected is not None and len(kinds(fused)) == len(kinds(source)) - 1
    weight = fused.value(projected.inputs["weight"])
    names = [f"attention.{part}" for part in "qkv"] + [f"recurrent.{part}" for part in ("z", "x", "b", "c", "step")]
    assert weight.parts == tuple(f"{LAYER}{name}" for name in names) and weight.shape == (first + 104, 48)
    check_same_numbers(source_graph(spec), fused, spec, decode_only=True)


def test_it_joins_them_in_prompts() -> None:
    fused = fires(JOIN, merged("prefill"))
    scan, conv, split = only(fused, "ssd"), only(fused, "causal_conv"), only(fused, "split")
    assert conv.inputs["x"] == scan.inputs["dt"] == scan.inputs["gate"] == split.inputs["x"]
    first = split.attrs.q + split.attrs.k + split.attrs.v
    assert (scan.attrs.gate_first, conv.attrs.first, scan.attrs.dt_first) == (first, first + 32, first + 96)
    assert scan.inputs["x"] == conv.out and scan.attrs.x_first == 0
    check_same_numbers(source_graph(both_spec()), fused, both_spec())


def test_it_must_not_fire_where_rows_would_not_be_multiples_of_16_bytes() -> None:
    check_silent(JOIN, merged(num_heads=6, head_dim=8))


def test_it_must_not_fire_where_heads_are_normalised() -> None:
    check_silent(JOIN, merged(norm={"scope": "head"}))


@pytest.mark.parametrize("biases", [{"bias": True}, {"qkv_bias": True}])
def test_it_must_not_fire_for_biases_of_one(biases: dict[str, bool]) -> None:
    check_silent(JOIN, merged(**biases))


def test_it_must_not_fire_for_different_inputs() -> None:
    graph = source_graph(both_spec())
    for part in "qkv":
        graph = edited(graph, f"{LAYER}attention.{part}_projected", inputs={"x": "embedded"})
    check_silent(JOIN, fires(FuseMamba2("decode"), fires(MergeQkv(), graph)))


@pytest.mark.parametrize("read", ["attention.qkv_projected", "recurrent.in_projected"])
def test_it_must_not_fire_where_something_else_reads_one(read: str) -> None:
    check_silent(JOIN, returning(merged(), f"{LAYER}{read}"))


def test_it_fires_once() -> None:
    check_silent(JOIN, fires(JOIN, merged()))
