"""Attention within texts becomes one op that reads the packed projection."""

from typing import Any

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.norm import QkNorm
from mlxr.compiler.ir.ops.text_attention import PackedTextAttention, TextAttention
from mlxr.compiler.passes.fuse_text_attention import FuseTextAttention
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.graphs import source_graph
from mlxr_tests.specs import small_spec


def encoder(**changes: Any) -> OpGraph:
    return source_graph(small_spec(model__attention__causal=False, output="hidden", prefill_chunk=64, **changes))


@pytest.mark.parametrize("rope", [None, {"fraction": 0.5}])
def test_rule(rope: dict[str, Any] | None) -> None:
    graph = MergeQkv().run(encoder(model__rope=rope, model__attention__sliding_window=5)).graph
    layers = len(list(graph.ops_of(TextAttention)))
    fused = FuseTextAttention().run(graph).graph
    ops = list(fused.ops_of(PackedTextAttention))
    assert len(ops) == layers and not list(fused.ops_of(TextAttention))
    for op, attrs in ops:
        assert attrs.window == 5 and bool(attrs.rotary_dim) == (rope is not None) == ("frequencies" in op.inputs)
        assert fused.value(op.inputs["qkv"]).shape[1] == attrs.qkv_columns


def test_must_not_fire_without_a_packed_projection_or_before_norms() -> None:
    assert not FuseTextAttention().run(encoder()).modified
    norms = encoder(model__attention__qk_norm={"scope": "head"})
    assert not FuseTextAttention().run(MergeQkv().run(norms).graph).modified
    for phase in ("decode", "prefill"):
        graph, _ = run_passes(norms, passes_of(phase))  # once the norms are one op, it fires
        assert list(graph.ops_of(QkNorm)) and list(graph.ops_of(PackedTextAttention))


def test_nothing_is_ordered() -> None:
    """There is no arena to order."""
    graph, _ = run_passes(encoder(), passes_of("prefill"))
    assert len(graph.outputs) == 1 and not any(op.attrs.accesses for op in graph.ops)
