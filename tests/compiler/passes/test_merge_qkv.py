"""merge_qkv: three projections of one normed row become one."""

import pytest

from mlxr.compiler.ir.ops.attention import Split
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr_tests.graphs import (
    check_same_numbers,
    check_silent,
    edited,
    fires,
    kinds,
    only,
    returning,
    retyped,
    small_graph,
    source_graph,
)
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.attention"


@pytest.mark.parametrize("bias", [False, True])
def test_rule_1_merges_every_layer(bias: bool) -> None:
    spec = small_spec(model__attention__qkv_bias=bias)
    source = source_graph(spec)
    merged = fires(MergeQkv(), source)
    assert kinds(merged).count("split") == 2
    assert kinds(merged).count("linear") == kinds(source).count("linear") - 4
    for layer in range(2):
        op = merged.op(f"layers.{layer}.attention.qkv_projected")
        weight = merged.value(op.inputs["weight"])
        assert weight.parts == tuple(f"layers.{layer}.attention.{part}" for part in "qkv")
        assert weight.shape == ((6 + 2 + 2) * 40, 48)
        assert merged.value(op.out).shape == ("tokens", 400)
        split = merged.producer(f"layers.{layer}.attention.v_projected")
        assert split is not None and split.attrs == Split(240, 80, 80)
        if bias:
            assert merged.value(op.inputs["bias"]).parts == tuple(f"layers.{layer}.attention.{p}_bias" for p in "qkv")
            assert merged.value(op.inputs["bias"]).shape == (400,)
        else:
            assert "bias" not in op.inputs
    check_same_numbers(source, merged, spec)


def test_rule_1_does_not_need_rope() -> None:
    source = small_graph()
    bare = edited(source, f"{PREFIX}.cache_write", inputs={"k": f"{PREFIX}.k_projected"})
    bare = bare.rewrite({f"{PREFIX}.k_rotated": []})
    merged = fires(MergeQkv(), bare)
    assert only(merged, "cache_write").inputs["k"] == only(merged, "split").outputs["k"]
    check_same_numbers(bare, merged)


def test_must_not_fire_for_different_inputs() -> None:
    check_silent(MergeQkv(), edited(small_graph(), f"{PREFIX}.v_projected", inputs={"x": "embedded"}))


@pytest.mark.parametrize("part", "qkv")
def test_weights_of_different_types_merge_as_f32(part: str) -> None:
    """f32 holds the numbers of every other type; what is stored is each part's own business."""
    graph = small_graph(weights={"default": "bf16"})
    assert fires(MergeQkv(), graph).value(f"{PREFIX}.qkv").dtype == "bf16"
    mixed = retyped(graph, f"{PREFIX}.{part}", "f16")
    assert fires(MergeQkv(), mixed).value(f"{PREFIX}.qkv").dtype == "f32"


@pytest.mark.parametrize("part", "qkv")
def test_biases_of_different_types_merge_as_f32(part: str) -> None:
    graph = small_graph(model__attention__qkv_bias=True, weights={"default": "bf16"})
    assert fires(MergeQkv(), graph).value(f"{PREFIX}.qkv_bias").dtype == "bf16"
    mixed = retyped(graph, f"{PREFIX}.{part}_bias", "f16")
    assert fires(MergeQkv(), mixed).value(f"{PREFIX}.qkv_bias").dtype == "f32"


def test_must_not_fire_when_only_some_have_a_bias() -> None:
    graph = small_graph(model__attention__qkv_bias=True)
    check_silent(MergeQkv(), edited(graph, f"{PREFIX}.k_projected", inputs={"bias": None}))


@pytest.mark.parametrize("read", ["q_projected", "k_rotated", "v_projected"])
def test_must_not_fire_when_a_projection_is_read_elsewhere(read: str) -> None:
    check_silent(MergeQkv(), returning(small_graph(), f"{PREFIX}.{read}"))


def test_must_not_fire_without_a_cache_write() -> None:
    check_silent(MergeQkv(), small_graph().rewrite({f"{PREFIX}.cache_write": []}))


def test_must_not_fire_twice() -> None:
    check_silent(MergeQkv(), fires(MergeQkv(), small_graph()))
