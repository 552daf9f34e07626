"""fuse_mixers: attention of a decode step and the scan of the Mamba-2 block beside it."""

from dataclasses import replace

import pytest

from mlxr.compiler.artifact.program import PhaseName
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.mixer_decode import MixerDecode, parts_of
from mlxr.compiler.passes.fuse_mixers import FuseMixers
from mlxr.compiler.passes.pipeline import passes_of
from mlxr_tests.graphs import check_same_numbers, check_silent, fires, kinds, only, source_graph
from mlxr_tests.specs import small_spec

MIX = FuseMixers()
SSM = {"kind": "ssm", "num_heads": 8, "head_dim": 4, "num_groups": 2, "state_dim": 8, "taps": 3}
BOTH = ["attention", "recurrent", "mlp"]


def both_spec(norm: bool = False, qk_norm: bool = False, layers: int = 1, bias: bool = False, **changes):
    attention = {"model__attention__qk_norm": {"scope": "head"}} if qk_norm else {}
    named = {"model__blocks": BOTH, "model__tensor_names": "canonical", "model__num_layers": layers}
    return small_spec(model__recurrent=SSM | {"norm": norm, "bias": bias}, **{**named, **attention, **changes})


def before_pass(**changes) -> OpGraph:
    """The graph of a decode step, as the pass finds it."""
    graph = source_graph(both_spec(**changes))
    for step in passes_of("decode"):
        if isinstance(step, FuseMixers):
            return graph
        graph = step.run(graph).graph
    raise AssertionError("the pipeline has the pass")


@pytest.mark.parametrize(
    "changes",
    [
        {},  # the last products are one op, behind both
        {"norm": True},  # the result of attention has its own product before the scan
        {"qk_norm": True},  # the projections are two
        {"bias": True},  # likewise
    ],
    ids=str,
)
def test_it_fuses_both(changes) -> None:
    before = before_pass(**changes)
    fused = fires(MIX, before)
    op, parts = only(fused, "mixer_decode"), [only(before, kind) for kind in ("rope_write_attention", "conv_ssd")]
    assert [part.attrs for part in parts_of(op)] == [part.attrs for part in parts]
    assert [part.inputs for part in parts_of(op)] == [part.inputs for part in parts]
    assert len(kinds(fused)) == len(kinds(before)) - 1
    spec = both_spec(**changes)
    check_same_numbers(source_graph(spec), fused, spec, decode_only=True)


def test_it_must_not_fire_where_a_layer_has_different_places_in_its_stores() -> None:
    spec = {"model__layer_types": {"both": {}, "one": {"blocks": ["attention", "mlp"]}}}
    spec |= {"model__layer_pattern": ["one", "both"]}
    check_silent(MIX, before_pass(layers=2, **spec))


def test_it_must_not_fire_where_one_reads_the_others_result() -> None:
    graph = before_pass()
    scan, attention = only(graph, "conv_ssd"), only(graph, "rope_write_attention")
    first, second = sorted((scan, attention), key=lambda op: graph.index(op.name))
    port = "gate" if second is scan else "qkv"
    value = replace(graph.value(first.out), name="wide", shape=graph.value(second.inputs[port]).shape)
    first_out = replace(first, outputs={**first.outputs, "out": "wide"})
    reading = replace(second, inputs={**second.inputs, port: "wide"})
    ops = [first_out if op is first else reading if op is second else op for op in graph.ops]
    ops = [op for op in ops if first.out not in op.inputs.values()]
    chained = OpGraph([*graph.values, value], ops, [second.out])
    assert not MIX.run(chained).modified


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_only_steps_of_few_tokens_have_the_pass(phase: PhaseName) -> None:
    assert ("fuse_mixers" in [step.name for step in passes_of(phase)]) == (phase == "decode")
    assert "fuse_mixers" not in [step.name for step in passes_of(phase, deterministic=True)]


def test_its_accesses_are_those_of_both() -> None:
    assert dict.fromkeys(MixerDecode.accesses, "readwrite") == MixerDecode.accesses
    assert set(MixerDecode.accesses) == {"k_arena", "v_arena", "conv_states", "states"}
