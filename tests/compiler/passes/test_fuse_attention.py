"""fuse_attention: RoPE, cache write and attention become one op (decode) or two (prefill)."""

from typing import Any, Literal

import pytest

from mlxr.compiler.dtypes import DType
from mlxr.compiler.graph import OpGraph, Value
from mlxr.compiler.passes.fuse_attention import FuseAttention
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr_tests.graphs import (
    check_same_numbers,
    check_silent,
    edited,
    fires,
    kinds,
    one,
    returning,
    small_graph,
    source_graph,
)
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.attention"
STEPS: tuple[Literal["decode", "prefill"], ...] = ("decode", "prefill")
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
    assert [op.attrs["layer"] for op in ops] == [0, 1]
    assert [op.inputs["qkv"] for op in ops] == [f"layers.{i}.attention.qkv_projected" for i in range(2)]
    check_same_numbers(source, fused, spec, decode_only=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rule_2_prefill(variant: str) -> None:
    spec = small_spec(**VARIANTS[variant])
    source = source_graph(spec)
    fused = fires(FuseAttention("prefill"), fires(MergeQkv(), source))
    assert not {"rope", "cache_write", "attention", "split"} & set(kinds(fused))
    arena_ops = [(op.kind, op.attrs["layer"]) for op in fused.ops if "k_arena" in op.inputs]
    assert arena_ops == [(kind, layer) for layer in range(2) for kind in ("rope_cache_write", "rope_attention")]
    assert fused.value("query_tiles").shape == ("tiles", 2)
    check_same_numbers(source, fused, spec)


def test_attributes_are_kept() -> None:
    graph = merged(model__attention__sliding_window=5, model__rope={"fraction": 0.4, "layout": "interleaved"})
    op = one(fires(FuseAttention("decode"), graph), "rope_write_attention")
    assert op.attrs == {
        "layer": 0,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 40,
        "rotary_dim": 16,
        "rope_layout": "interleaved",
        "scale": 40**-0.5,
        "window": 5,
    }


@pytest.mark.parametrize("step", STEPS)
def test_must_not_fire_before_merge_qkv(step: Literal["decode", "prefill"]) -> None:
    check_silent(FuseAttention(step), small_graph())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("read", ["q_projected", "k_projected", "v_projected", "q_rotated", "k_rotated"])
def test_must_not_fire_when_a_part_is_read_elsewhere(step: Literal["decode", "prefill"], read: str) -> None:
    check_silent(FuseAttention(step), returning(merged(), f"{PREFIX}.{read}"))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("port", "shape", "dtype"), [("positions", ("tokens",), "i32"), ("frequencies", (20,), "f32")])
def test_must_not_fire_when_the_ropes_read_different_values(
    step: Literal["decode", "prefill"], port: str, shape: tuple[Any, ...], dtype: str
) -> None:
    other = Value("other", "input", shape, DType(dtype))
    graph = edited(merged(), f"{PREFIX}.k_rotated", inputs={port: "other"}, values=[other])
    check_silent(FuseAttention(step), graph)


@pytest.mark.parametrize("step", STEPS)
def test_must_not_fire_when_the_ropes_have_different_layouts(step: Literal["decode", "prefill"]) -> None:
    graph = edited(merged(), f"{PREFIX}.k_rotated", attrs={"rope_layout": "interleaved"})
    check_silent(FuseAttention(step), graph)


@pytest.mark.parametrize("step", STEPS)
def test_must_not_fire_when_only_queries_are_rotated(step: Literal["decode", "prefill"]) -> None:
    graph = edited(merged(), f"{PREFIX}.cache_write", inputs={"k": f"{PREFIX}.k_projected"})
    check_silent(FuseAttention(step), graph.rewrite({f"{PREFIX}.k_rotated": []}))


@pytest.mark.parametrize("step", STEPS)
def test_must_not_fire_when_k_and_v_are_swapped(step: Literal["decode", "prefill"]) -> None:
    graph = edited(merged(), f"{PREFIX}.k_rotated", inputs={"x": f"{PREFIX}.v_projected"})
    graph = edited(graph, f"{PREFIX}.cache_write", inputs={"v": f"{PREFIX}.k_projected"})
    check_silent(FuseAttention(step), graph)


@pytest.mark.parametrize("step", STEPS)
def test_must_not_fire_when_the_attention_comes_before_the_write(step: Literal["decode", "prefill"]) -> None:
    graph = merged()
    write, attention = one(graph, "cache_write"), one(graph, "attention")
    check_silent(FuseAttention(step), graph.rewrite({write.name: [], attention.name: [attention, write]}))


@pytest.mark.parametrize("step", STEPS)
def test_must_not_fire_without_a_write(step: Literal["decode", "prefill"]) -> None:
    check_silent(FuseAttention(step), merged().rewrite({f"{PREFIX}.cache_write": []}))
