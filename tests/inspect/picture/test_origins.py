"""Which source ops each fused op replaced: every one exactly once, and the right ones."""

from collections import Counter

import pytest

from mlxr.compiler.artifact import DType
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.spec.catalog import bundled_specs, find_spec
from mlxr.compiler.spec.load import load_spec
from mlxr.inspect.picture.folded import fold, layer_groups
from mlxr.inspect.picture.origins import origins
from mlxr_tests.few import few
from mlxr_tests.specs import compiled, small_spec

PROJECTIONS = {
    "embedded": {"embed": 1},
    "layers.0.attention.qkv_projected": {"norm": 1, "linear": 3},
    "layers.0.attention.out": {"linear": 1, "add": 1},
    "layers.0.mlp.gated": {"norm": 1, "linear": 2, "activation": 1, "multiply": 1},
    "layers.0.mlp.out": {"linear": 1, "add": 1},
}
EXPECTED = {
    "decode": PROJECTIONS | {"layers.0.attention.attended": {"rope": 2, "cache_write": 1, "attention": 1}},
    "prefill": PROJECTIONS
    | {
        "layers.0.attention.cache_write": {"rope": 1, "cache_write": 1},
        "layers.0.attention.attended": {"rope": 1, "attention": 1},
    },
}


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_fused_ops_know_what_they_replaced(step: str) -> None:
    artifact = compiled(small_spec())
    graphs = [artifact.graph("source"), artifact.graph(step)]
    source, fused = (fold(graph, layer_groups(graphs), DType.F32) for graph in graphs)
    found = {name: dict(Counter(op.kind for op in ops)) for name, ops in origins(source, fused).items()}
    logits = fused.ops[-1].name
    assert found.pop(logits) == {"norm": 1, "linear": 1, "gather_rows": 1}
    assert found == EXPECTED[step]


@pytest.mark.parametrize("name", few(sorted(bundled_specs()), ["storyteller"]))
def test_every_source_op_is_replaced_once(name: str) -> None:
    artifact = compile_spec(load_spec(find_spec(name))).artifact
    graphs = [artifact.graph(step) for step in ("source", "decode", "prefill")]
    source, *steps = (fold(graph, layer_groups(graphs), DType.F32) for graph in graphs)
    for fused in steps:
        replaced = Counter(op.name for ops in origins(source, fused).values() for op in ops)
        assert replaced == Counter(op.name for op in source.ops)
