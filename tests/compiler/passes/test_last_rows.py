"""last_rows: what follows the last attention is computed for the rows whose logits are wanted."""

from typing import Any

import pytest

from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.last_rows import LastRows
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.family_specs import FAMILY_SPECS
from mlxr_tests.graphs import check_same_numbers, check_silent, kinds, source_graph
from mlxr_tests.specs import small_spec

OF_A_BLOCK = ["projection", "rope_cache_write", "rope_attention", *3 * ["projection"]]


def before(**changes: Any) -> OpGraph:
    return run_passes(source_graph(small_spec(**changes)), passes_of("prefill"))[0]


def after(**changes: Any) -> OpGraph:
    return run_passes(source_graph(small_spec(**changes)), passes_of("prefill", last_rows=True))[0]


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_rule_1_moves_the_last_block_of_prompts_alone(phase: Any) -> None:
    source = source_graph(small_spec())
    moved, _ = run_passes(source, passes_of(phase, last_rows=True))
    check_same_numbers(source, moved, small_spec(), decode_only=phase == "decode")
    if phase == "decode":
        assert kinds(moved) == kinds(run_passes(source, passes_of(phase))[0])
        return
    last = [*OF_A_BLOCK[:3], "gather_rows", "gather_rows", *OF_A_BLOCK[3:]]
    assert kinds(moved) == ["embed", *OF_A_BLOCK, *last, "projection"]
    projections = [op for op in moved.ops if op.kind == "projection"]
    rows = [op.name for op in projections if moved.value(op.out).shape[0] == "rows"]
    assert rows == ["layers.1.attention.out", "layers.1.mlp.gated", "layers.1.mlp.out", "logits_of_all_tokens"]
    assert all("rows" not in op.inputs for op in projections)


def test_norms_after_blocks_move_too() -> None:
    """They are ops of their own in prompts."""
    changes = {"model__norm": {"placement": "sandwich"}}
    source = source_graph(small_spec(**changes))
    moved = after(**changes)
    check_same_numbers(source, moved, small_spec(**changes))
    norms = [op for op in moved.ops if op.kind == "norm"]
    assert [moved.value(op.out).shape[0] for op in norms] == ["tokens", "tokens", "rows", "rows"]


def test_must_not_fire_before_experts() -> None:
    check_silent(LastRows(), before(**FAMILY_SPECS["experts-sigmoid"] | {"model__tensor_names": "canonical"}))


def test_must_not_fire_where_others_read_what_it_would_move() -> None:
    """The model's own head reads the rows of all tokens."""
    graph = before(model__mtp={})
    assert [op.kind for op in graph.ops][-2:] == ["hidden_write", "projection"]
    check_silent(LastRows(), graph)


def test_must_not_fire_without_logits() -> None:
    check_silent(LastRows(), before(output="hidden"))


def test_ops_with_columns_of_a_layer_stay() -> None:
    changes = FAMILY_SPECS["layer-vectors"] | {"model__tensor_names": "canonical"}
    moved = after(**changes)
    check_same_numbers(source_graph(small_spec(**changes)), moved, small_spec(**changes))
    names = ("layers.1.vector.gated", "layers.1.vector.project_projected", "layers.1.scaled")
    ops = {op.name: op for op in moved.ops}
    assert [moved.value(ops[name].out).shape[0] for name in names] == ["tokens", "rows", "rows"]
