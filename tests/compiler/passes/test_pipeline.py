"""The pipeline: order, verification between passes, records, and the same numbers from end to end."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.errors import GraphError
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.passes.base import PassResult
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.graphs import check_same_numbers, kinds, source_graph
from mlxr_tests.specs import small_spec

_IDLE = {"fuse_clamp", "fuse_output", "fuse_experts", "fuse_route", "fuse_shared_expert", "fuse_qk_norm"}
_IDLE |= {"remove_dead_ops", "fuse_post_norm", "fuse_latent_decode", "fuse_head_norms", "join_mixers", "fuse_sum"}
_IDLE |= {"split_adapters", "fuse_text_attention", "fuse_mixers"}
_IDLE |= {f"{name}[{phase}]" for name in ("fuse_latent", "fuse_conv", "fuse_mamba2", "fuse_delta") for phase in PHASES}
"""Passes with nothing to do on a plain model."""

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"model__tie_embeddings": True},
    "biases": {
        "model__attention__qkv_bias": True,
        "model__attention__output_bias": True,
        "model__mlp": {"intermediate_size": 88, "bias": True, "activation": "gelu"},
    },
    "window, llama3 scaling": {
        "model__attention__sliding_window": 6,
        "model__rope__scaling": {"kind": "llama3", "factor": 4.0, "original_context": 16},
    },
    "partial interleaved, layer-major": {
        "model__rope": {"fraction": 0.4, "layout": "interleaved"},
        "cache__layout": "layer",
    },
    "16-bit cache": {"cache__dtype": "bf16"},
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_passes_keep_the_numbers(variant: str, phase: PhaseName) -> None:
    spec = small_spec(**VARIANTS[variant])
    source = source_graph(spec)
    before = source.dump()
    graph, records = run_passes(source, passes_of(phase))
    assert source.dump() == before
    assert [r.name for r in records] == [p.name for p in passes_of(phase)]
    assert all(r.modified for r in records if r.name not in _IDLE)
    assert records[-1].num_ops == len(graph)
    check_same_numbers(source, graph, spec, decode_only=phase == "decode")


def test_what_is_left() -> None:
    source = source_graph(small_spec())
    graphs = {phase: kinds(run_passes(source, passes_of(phase))[0]) for phase in PHASES}
    project, attend = "projection", "rope_write_attention"
    assert graphs["decode"] == ["embed", *2 * [project, attend, project, project, project], project]
    layer = [project, "rope_cache_write", "rope_attention", project, project, project]
    assert graphs["prefill"] == ["embed", *2 * layer, project]


@dataclass(frozen=True)
class _Sabotage:
    name: str = "sabotage"

    def run(self, graph: OpGraph) -> PassResult:
        op = next(op for op in graph.ops if op.kind == "projection")
        broken = replace(op, inputs=op.inputs | {"no_such_port": op.inputs["x"]})
        return PassResult(graph.rewrite({op.name: [broken]}), True)


@pytest.mark.parametrize("phase", PHASES)
def test_a_broken_pass_is_named_with_those_before_it(phase: PhaseName) -> None:
    passes = passes_of(phase)
    ran = [*(p.name for p in passes[:5]), "sabotage"]
    with pytest.raises(GraphError) as caught:
        run_passes(source_graph(small_spec()), [*passes[:5], _Sabotage(), *passes[5:]])
    assert "has wrong ports: missing [], unknown ['no_such_port']" in str(caught.value)
    assert str(caught.value).endswith(f"[stage fused, after {', '.join(ran)}]")


@dataclass(frozen=True)
class _OtherShape:
    """Leaves every op as it is."""

    name: str = "other_shape"

    def run(self, graph: OpGraph) -> PassResult:
        made = next(op for op in graph.ops if op.kind == "projection").out
        values = [replace(v, shape=(*v.shape[:-1], 7)) if v.name == made else v for v in graph.values]
        return PassResult(OpGraph(values, graph.ops, graph.outputs), True)


def test_a_value_that_changes_under_an_op_that_stays_is_noticed() -> None:
    passes = passes_of("decode")
    with pytest.raises(GraphError, match=r"makes Tensor.*, 7\).* other_shape\]$"):
        run_passes(source_graph(small_spec()), [*passes[:5], _OtherShape(), *passes[5:]])


@pytest.mark.parametrize("phase", PHASES)
def test_every_pass_of_a_plain_model_is_needed(phase: PhaseName) -> None:
    whole, _ = run_passes(source_graph(small_spec()), passes_of(phase))
    for left_out in passes_of(phase):
        if left_out.name in _IDLE:
            continue
        passes = [p for p in passes_of(phase) if p.name != left_out.name]
        try:
            graph, _ = run_passes(source_graph(small_spec()), passes)
        except GraphError:
            continue
        assert len(graph) > len(whole), f"without {left_out.name} the graph is as small"


def test_debug_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source = source_graph(small_spec())
    shown = []
    for level in ("0", "1", "2"):
        monkeypatch.setenv("MLXR_DEBUG", level)
        run_passes(source, passes_of("decode"))
        out, err = capsys.readouterr()
        assert out == ""
        shown.append(err)
    assert shown[0] == ""
    assert shown[1].count("pass ") == len(passes_of("decode")) and "return %logits" not in shown[1]
    assert shown[2].count("return %logits") == len(passes_of("decode"))
