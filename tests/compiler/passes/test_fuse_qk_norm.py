"""fuse_qk_norm: the norms of queries and keys become one op over the merged projection."""

from typing import Any

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.shared_norm import QkMeanSquares
from mlxr.compiler.ir.verify import verify
from mlxr.compiler.parallel.divide_model import divide_model
from mlxr.compiler.passes.fuse_qk_norm import FuseQkNorm
from mlxr.compiler.passes.merge_qkv import MergeQkv
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr_tests.few import few_of
from mlxr_tests.graphs import check_same_numbers, check_silent, edited, fires, kinds, only, returning, source_graph
from mlxr_tests.specs import small_spec

PREFIX = "layers.0.attention"
VARIANTS: dict[str, dict[str, Any]] = {
    "rotated": {},
    "not rotated": {"model__rope": None},
    "tempered": {"model__attention__temperature": {"beta": 0.3, "original_context": 4}},
    "multi-head": {"model__attention__num_kv_heads": 6},
    "multi-query": {"model__attention__num_kv_heads": 1},
    "biased projections": {"model__attention__qkv_bias": True},
}


def merged(scope: str, **changes: Any) -> OpGraph:
    norm = {"scope": scope, "kind": "layer", "bias": True}
    return fires(MergeQkv(), source_graph(small_spec(model__num_layers=1, model__attention__qk_norm=norm, **changes)))


@pytest.mark.parametrize(
    ("variant", "kind", "scope"), few_of(VARIANTS, ["rms", "layer", "layer with bias"], ["head", "heads", "all"])
)
def test_rule_1(variant: str, kind: str, scope: str) -> None:
    norm = {"scope": scope, "kind": kind.partition(" ")[0], "bias": kind == "layer with bias", "eps": 0.25}
    spec = small_spec(**VARIANTS[variant], model__attention__qk_norm=norm)
    source = source_graph(spec)
    fused = fires(FuseQkNorm(), fires(MergeQkv(), source))
    assert [op.name for op in fused.ops if op.kind == "norm" and "_normed" in op.name] == []
    for layer in range(2):
        op = fused.op(f"layers.{layer}.attention.qkv_normed")
        assert (op.kind, op.inputs["qkv"]) == ("qk_norm", f"layers.{layer}.attention.qkv_projected")
        assert (op.attrs.scope, op.attrs.kind, op.attrs.eps) == (scope, norm["kind"], 0.25)
        assert ("q_norm_bias" in op.inputs) == norm["bias"]
    check_same_numbers(source, fused, spec)


def test_one_head_is_a_head_and_all_heads() -> None:
    for scope in ("head", "all"):
        spec = small_spec(
            model__attention={"num_heads": 1, "num_kv_heads": 1, "head_dim": 40, "qk_norm": {"scope": scope}}
        )
        source = source_graph(spec)
        fused = fires(FuseQkNorm(), fires(MergeQkv(), source))
        assert kinds(fused).count("qk_norm") == 2
        check_same_numbers(source, fused, spec)


@pytest.mark.parametrize("scope", ["head", "heads"])
def test_rule_3(scope: str) -> None:
    changes = {"model__attention__temperature": {"beta": 0.3, "original_context": 4}} if scope == "head" else {}
    spec = small_spec(
        model__attention__qk_norm={"scope": scope, "after_rope": True}, model__rope__fraction=0.4, **changes
    )
    source = source_graph(spec)
    fused = fires(FuseQkNorm(), fires(MergeQkv(), source))
    assert kinds(fused).count("rope") == 0
    assert fused.op(f"{PREFIX}.qkv_normed").attrs.rotary_dim == 16
    check_same_numbers(source, fused, spec)


@pytest.mark.parametrize("change", [{"rope_scale": 0.5}, {"rope_layout": "interleaved"}])
def test_must_not_fire_when_the_ropes_before_norms_differ(change: dict[str, Any]) -> None:
    spec = small_spec(model__num_layers=1, model__attention__qk_norm={"scope": "head", "after_rope": True})
    graph = edited(fires(MergeQkv(), source_graph(spec)), f"{PREFIX}.k_rotated", attrs=change)
    check_silent(FuseQkNorm(), graph)


def test_must_not_fire_before_merge_qkv() -> None:
    spec = small_spec(model__num_layers=1, model__attention__qk_norm={"scope": "head"})
    check_silent(FuseQkNorm(), source_graph(spec))


@pytest.mark.parametrize("read", ["qkv_projected", "q_projected", "k_projected", "q_normed", "k_normed", "q_rotated"])
def test_must_not_fire_when_a_part_is_read_elsewhere(read: str) -> None:
    check_silent(FuseQkNorm(), returning(merged("head"), f"{PREFIX}.{read}"))


@pytest.mark.parametrize("change", [{"eps": 0.5}, {"kind": "rms"}, {"groups": 1}])
def test_must_not_fire_when_the_norms_differ(change: dict[str, Any]) -> None:
    check_silent(FuseQkNorm(), edited(merged("heads"), f"{PREFIX}.k_normed", attrs=change))


def test_must_not_fire_when_only_one_has_a_bias() -> None:
    check_silent(FuseQkNorm(), edited(merged("head"), f"{PREFIX}.q_normed", inputs={"bias": None}))


def test_must_not_fire_when_only_queries_are_normalised() -> None:
    graph = edited(merged("head"), f"{PREFIX}.k_rotated", inputs={"x": f"{PREFIX}.k_projected"})
    check_silent(FuseQkNorm(), graph.rewrite({f"{PREFIX}.k_normed": []}))


def test_rule_2() -> None:
    """On a rank: the squares before the sum over ranks, the norm after it, and only that reads the projection."""
    spec = small_spec(parallel={"tensor": 2}, model__attention__qk_norm={"scope": "all"})
    (_, part) = divide_model(spec, source_graph(spec), arena_geometry(spec, GeometryTable()))
    verify(part.graph, "source")
    fused = fires(FuseQkNorm(), fires(MergeQkv(), part.graph))
    norm, squares = fused.op(f"{PREFIX}.qkv_normed"), fused.op(f"{PREFIX}.mean_squares")
    assert {op.name for op in fused.consumers(f"{PREFIX}.qkv_projected")} == {norm.name, squares.name}
    assert norm.inputs["mean_squares"] == f"{PREFIX}.mean_squares.all"
    assert (norm.attrs.scope, norm.attrs.num_heads, norm.attrs.num_kv_heads) == ("all", 3, 1)
    assert squares.attrs == QkMeanSquares(3, 1, 40, q_width=240, k_width=80, counts_keys=True)
    assert kinds(fused).count("norm_of_part") == kinds(fused).count("mean_squares") == 0


def test_the_values_are_not_normalised() -> None:
    fused = fires(FuseQkNorm(), merged("head"))
    split = only(fused, "split")
    assert split.outputs == {"q": f"{PREFIX}.q_normed", "k": f"{PREFIX}.k_normed", "v": f"{PREFIX}.v_projected"}
