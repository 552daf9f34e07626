"""fuse_attention: RoPE, cache write and attention become one op (decode) or two (prefill)."""

from typing import Any

import pytest

from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import OpGraph, Value
from mlxr.compiler.ir.ops.attention import RopeWriteAttention
from mlxr.compiler.passes.fuse_attention import FuseAttention
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr_tests.graphs import (
    check_same_numbers,
    check_silent,
    edited,
    fires,
    kinds,
    only,
    returning,
    small_graph,
    source_graph,
)
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.attention"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"model__attention__sliding_window": 5},
    "interleaved": {"model__rope__layout": "interleaved", "model__rope__theta": 100.0},
    "partial": {"model__rope__fraction": 0.4},
    "partial interleaved": {"model__rope": {"fraction": 0.4, "layout": "interleaved"}},
    "multi-head": {"model__attention__num_kv_heads": 6},
    "multi-query": {"model__attention__num_kv_heads": 1},
    "layer-major": {"cache__layout": "layer"},
}


def merged(**changes: Any) -> OpGraph:
    return fires(MergeQkv(), small_graph(**changes))


@pytest.mark.parametrize("variant", VARIANTS)
def test_rule_1_decode(variant: str) -> None:
    spec = small_spec(**VARIANTS[variant])
    source = source_graph(spec)
    fused = fires(FuseAttention("decode"), fires(MergeQkv(), source))
    assert not {"rope", "cache_write", "attention", "split"} & set(kinds(fused))
    ops = [op for op in fused.ops if op.kind == "rope_write_attention"]
    assert [op.layer for op in ops] == [0, 1]
    assert [op.inputs["qkv"] for op in ops] == [f"layers.{i}.attention.qkv_projected" for i in range(2)]
    check_same_numbers(source, fused, spec, decode_only=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rule_2_prefill(variant: str) -> None:
    spec = small_spec(**VARIANTS[variant])
    source = source_graph(spec)
    fused = fires(FuseAttention("prefill"), fires(MergeQkv(), source))
    assert not {"rope", "cache_write", "attention", "split"} & set(kinds(fused))
    arena_ops = [(op.kind, op.layer) for op in fused.ops if "k_arena" in op.inputs]
    assert arena_ops == [(kind, layer) for layer in range(2) for kind in ("rope_cache_write", "rope_attention")]
    assert fused.value("query_tiles").shape == ("tiles", 2)
    check_same_numbers(source, fused, spec)


def test_attributes_are_kept() -> None:
    graph = merged(model__attention__sliding_window=5, model__rope={"fraction": 0.4, "layout": "interleaved"})
    op = only(fires(FuseAttention("decode"), graph), "rope_write_attention")
    assert op.layer == 0
    assert op.attrs == RopeWriteAttention(
        num_heads=6,
        num_kv_heads=2,
        head_dim=40,
        rotary_dim=16,
        rope_layout="interleaved",
        rope_scale=1.0,
        scale=40**-0.5,
        window=5,
        softcap=None,
        temperature_beta=None,
        temperature_context=None,
    )


@pytest.mark.parametrize("phase", PHASES)
def test_layers_without_rotation_have_no_frequencies(phase: PhaseName) -> None:
    spec = small_spec(model__rope=None)
    source = source_graph(spec)
    fused = fires(FuseAttention(phase), fires(MergeQkv(), source))
    for op in fused.ops:
        if "k_arena" in op.inputs:
            assert (op.attrs.rotary_dim, op.attrs.rope_scale) == (0, 1.0)
            assert "frequencies" not in op.inputs and "positions" in op.inputs
    check_same_numbers(source, fused, spec, decode_only=phase == "decode")


@pytest.mark.parametrize("phase", PHASES)
def test_temperature_sinks_soft_cap_and_rope_scale_are_kept(phase: PhaseName) -> None:
    scaling = {"kind": "yarn", "factor": 4.0, "original_context": 16, "attention_factor": 1.5}
    spec = small_spec(
        model__rope__scaling=scaling,
        model__attention__sinks=True,
        model__attention__softcap=2.0,
        model__attention__temperature={"beta": 0.3, "original_context": 4},
    )
    source = source_graph(spec)
    fused = fires(FuseAttention(phase), fires(MergeQkv(), source))
    kind = "rope_write_attention" if phase == "decode" else "rope_attention"
    for layer, op in enumerate(op for op in fused.ops if op.kind == kind):
        assert op.inputs["sinks"] == f"layers.{layer}.attention.sinks"
        names = ("rope_scale", "softcap", "temperature_beta", "temperature_context")
        assert [getattr(op.attrs, name) for name in names] == [1.5, 2.0, 0.3, 4]
    check_same_numbers(source, fused, spec, decode_only=phase == "decode")


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_when_the_temperature_reads_other_positions(phase: PhaseName) -> None:
    graph = merged(model__attention__temperature={"beta": 0.3, "original_context": 4})
    other = Value("other", "input", ("tokens",), DType.I32)
    check_silent(
        FuseAttention(phase), edited(graph, f"{PREFIX}.q_tempered", inputs={"positions": "other"}, values=[other])
    )


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_over_a_norm_of_the_queries(phase: PhaseName) -> None:
    check_silent(FuseAttention(phase), merged(model__attention__qk_norm={"scope": "head"}))


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_before_merge_qkv(phase: PhaseName) -> None:
    check_silent(FuseAttention(phase), small_graph())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("read", ["q_projected", "k_projected", "v_projected", "q_rotated", "k_rotated"])
def test_must_not_fire_when_a_part_is_read_elsewhere(phase: PhaseName, read: str) -> None:
    check_silent(FuseAttention(phase), returning(merged(), f"{PREFIX}.{read}"))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("port", "shape", "dtype"), [("positions", ("tokens",), "i32"), ("frequencies", (20,), "f32")])
def test_must_not_fire_when_the_ropes_read_different_values(
    phase: PhaseName, port: str, shape: tuple[Any, ...], dtype: str
) -> None:
    other = Value("other", "input", shape, DType(dtype))
    graph = edited(merged(), f"{PREFIX}.k_rotated", inputs={port: "other"}, values=[other])
    check_silent(FuseAttention(phase), graph)


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_when_the_ropes_have_different_layouts(phase: PhaseName) -> None:
    graph = edited(merged(), f"{PREFIX}.k_rotated", attrs={"rope_layout": "interleaved"})
    check_silent(FuseAttention(phase), graph)


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_when_only_queries_are_rotated(phase: PhaseName) -> None:
    graph = edited(merged(), f"{PREFIX}.cache_write", inputs={"k": f"{PREFIX}.k_projected"})
    check_silent(FuseAttention(phase), graph.rewrite({f"{PREFIX}.k_rotated": []}))


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_when_k_and_v_are_swapped(phase: PhaseName) -> None:
    graph = edited(merged(), f"{PREFIX}.k_rotated", inputs={"x": f"{PREFIX}.v_projected"})
    graph = edited(graph, f"{PREFIX}.cache_write", inputs={"v": f"{PREFIX}.k_projected"})
    check_silent(FuseAttention(phase), graph)


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_when_the_attention_comes_before_the_write(phase: PhaseName) -> None:
    graph = merged()
    write, attention = only(graph, "cache_write"), only(graph, "attention")
    check_silent(FuseAttention(phase), graph.rewrite({write.name: [], attention.name: [attention, write]}))


@pytest.mark.parametrize("phase", PHASES)
def test_must_not_fire_without_a_write(phase: PhaseName) -> None:
    check_silent(FuseAttention(phase), merged().rewrite({f"{PREFIX}.cache_write": []}))
