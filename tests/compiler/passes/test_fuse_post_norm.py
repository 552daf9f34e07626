"""fuse_post_norm: the product that reads the residual stream next adds the norm of a block's result to it."""

import pytest

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.ops.product import AddedBlock
from mlxr.compiler.passes.fuse_post_norm import FusePostNorm
from mlxr.compiler.passes.pipeline import passes_of
from mlxr.compiler.spec.model import ModelSpec
from mlxr_tests.family_specs import family_spec
from mlxr_tests.graphs import check_same_numbers, check_silent, fires, kinds, returning, source_graph


def before_pass(spec: ModelSpec) -> OpGraph:
    """The graph of a decode step, as the pass finds it."""
    graph = source_graph(spec)
    for step in passes_of("decode"):
        if isinstance(step, FusePostNorm):
            return graph
        graph = step.run(graph).graph
    raise AssertionError("the pipeline has the pass")


@pytest.mark.parametrize("family", ["sandwich-norm", "post-norm", "scales-post-norm", "layer-scale", "layer-vectors"])
def test_rule_1_leaves_no_norm_between_blocks(family: str) -> None:
    spec = family_spec(family)
    graph = before_pass(spec)
    fused = fires(FusePostNorm(), graph)
    assert kinds(fused).count("norm") == (1 if family == "layer-vectors" else 0)
    check_same_numbers(source_graph(spec), fused, spec)


def test_rule_1_gives_the_sum_to_those_that_read_it_later() -> None:
    fused = fires(FusePostNorm(), before_pass(family_spec("layer-scale")))
    first, down = fused.op("layers.0.mlp.gated"), fused.op("layers.0.mlp.down_projected")
    assert (first.inputs["x"], first.inputs["added"]) == ("embedded", "layers.0.attention.o_projected")
    assert first.outputs["stream"] == "layers.0.attention.out" and first.attrs_as(Projection).added == AddedBlock(
        1e-5, 1.0
    )
    following = next(op for op in fused.ops if op.inputs.get("added") == down.out)
    assert following.inputs["x"] == "layers.0.attention.out"
    assert following.inputs["added_scale"] == "layers.0.scale"


def test_rule_2_takes_two_results_with_norms_of_their_own() -> None:
    spec = family_spec("experts-own-norms")
    fused = fires(FusePostNorm(), before_pass(spec))
    assert "norm" not in [kind for kind, op in zip(kinds(fused), fused.ops, strict=True) if "residual" in op.inputs]
    taken = [op for op in fused.ops if "second" in op.inputs]
    assert [op.inputs["added_norm"] for op in taken] == [f"layers.{i}.mlp.post_norm" for i in range(2)]
    assert taken[0].inputs["own_norm"] == "layers.0.mlp.experts.post_norm"
    assert taken[0].inputs["second_norm"] == "layers.0.mlp.shared.post_norm"
    check_same_numbers(source_graph(spec), fused, spec)


def test_must_not_fire_on_a_layer_norm() -> None:
    check_silent(FusePostNorm(), before_pass(family_spec("post-norm-layer-bias")))


def test_must_not_fire_where_no_norm_follows_a_block() -> None:
    check_silent(FusePostNorm(), before_pass(family_spec("plain")))


def test_must_not_fire_when_the_sum_is_returned() -> None:
    graph = before_pass(family_spec("sandwich-norm"))
    sums = [op.out for op in graph.ops if op.kind == "norm"]
    check_silent(FusePostNorm(), returning(graph, *sums))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_only_steps_of_few_tokens_have_the_pass(phase: PhaseName) -> None:
    names = [step.name for step in passes_of(phase)]
    assert ("fuse_post_norm" in names) == (phase == "decode")
    assert "fuse_post_norm" not in [step.name for step in passes_of(phase, deterministic=True)]
