"""fuse_head_norms: attention of a decode step normalises heads itself."""

import pytest

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.fuse_head_norms import FuseHeadNorms
from mlxr.compiler.passes.pipeline import passes_of
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, fires, kinds, returning, source_graph


def before_pass(family: str) -> OpGraph:
    """The graph of a decode step, as the pass finds it."""
    graph = source_graph(family_spec(family))
    for step in passes_of("decode"):
        if isinstance(step, FuseHeadNorms):
            return graph
        graph = step.run(graph).graph
    raise AssertionError("the pipeline has the pass")


@pytest.mark.parametrize("family", ["qk-norm-head", "qk-norm-no-weight", "normed-values", "element-gate-qk-norm"])
def test_rule_1_takes_the_norms_of_queries_and_keys(family: str) -> None:
    fused = fires(FuseHeadNorms(), before_pass(family))
    assert "qk_norm" not in kinds(fused)
    attends = [op for op in fused.ops if op.kind == "rope_write_attention"]
    weights = [op.inputs.get("k_norm") for op in attends]
    named = [f"layers.{i}.attention.k_norm" for i in range(2)]
    assert weights == ([None, None] if family == "qk-norm-no-weight" else named)
    spec = family_spec(family)
    check_same_numbers(source_graph(spec), fused, spec, decode_only=True)


def test_both_rules_where_layers_read_the_keys_of_others() -> None:
    spec = family_spec("shared-keys")
    fused = fires(FuseHeadNorms(), before_pass("shared-keys"))
    assert not {"norm", "qk_norm"} & set(kinds(fused))
    made = [op.attrs.attributes["values_from_keys"] for op in fused.ops if op.kind == "rope_write_attention"]
    assert made == [False, True, False]
    read = next(op for op in fused.ops if op.kind == "rope_read_attention")
    assert read.inputs["q_norm"] == "layers.3.attention.q_norm"
    check_same_numbers(source_graph(spec), fused, spec, decode_only=True)


@pytest.mark.parametrize(
    "family", ["qk-norm-all", "qk-norm-heads-layer-bias", "qk-norm-after-rope", "values-from-keys", "plain"]
)
def test_must_not_fire_on_other_norms(family: str) -> None:
    check_silent(FuseHeadNorms(), before_pass(family))


def test_must_not_fire_when_the_norm_is_returned() -> None:
    graph = before_pass("qk-norm-head")
    check_silent(FuseHeadNorms(), returning(graph, *(op.out for op in graph.ops if op.kind == "qk_norm")))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_only_steps_of_few_tokens_have_the_pass(phase: PhaseName) -> None:
    assert ("fuse_head_norms" in [step.name for step in passes_of(phase)]) == (phase == "decode")
    assert "fuse_head_norms" not in [step.name for step in passes_of(phase, deterministic=True)]
