"""order_arena: one chain of tokens through all arena accesses, and a verifier that insists on it."""

import itertools
from dataclasses import replace

import pytest

from mlxr.compiler.artifact.program import PHASES, PhaseName
from mlxr.compiler.errors import GraphError
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.tensor import ARENA_TOKEN
from mlxr.compiler.ir.verify import verify
from mlxr.compiler.passes.order_arena import OrderArena
from mlxr.compiler.passes.pipeline import passes_of, run_passes
from mlxr_tests.graphs import Sketch, check_same_numbers, check_silent, fires, source_graph
from mlxr_tests.specs import small_spec

SPEC = small_spec()
ACCESSES = {"decode": 2, "prefill": 4}


def before_order(phase: PhaseName) -> OpGraph:
    graph = source_graph(SPEC)
    for one_pass in passes_of(phase)[:-1]:
        graph = one_pass.run(graph).graph
    return graph


def ordered(phase: PhaseName) -> OpGraph:
    return run_passes(source_graph(SPEC), passes_of(phase))[0]


def accesses(graph: OpGraph) -> list[Op]:
    return [op for op in graph.ops if op.attrs.accesses]


@pytest.mark.parametrize("phase", PHASES)
def test_rule_1_chains_every_access(phase: PhaseName) -> None:
    unordered = before_order(phase)
    graph = fires(OrderArena(), unordered)
    chain = accesses(graph)
    assert len(chain) == ACCESSES[phase]
    assert chain[0].inputs["token"] == ARENA_TOKEN
    for earlier, later in itertools.pairwise(chain):
        assert later.inputs["token"] == earlier.outputs["token"]
    assert graph.outputs == (*unordered.outputs, chain[-1].outputs["token"])
    assert {graph.value(op.outputs["token"]).role for op in chain} == {"token"}
    check_same_numbers(source_graph(SPEC), graph, SPEC, decode_only=phase == "decode")


def test_must_not_fire_without_arena_accesses() -> None:
    sketch = Sketch()
    check_silent(OrderArena(), sketch.graph(sketch.x))


@pytest.mark.parametrize("phase", PHASES)
def test_verifier_accepts_the_chain_and_rejects_a_graph_without_it(phase: PhaseName) -> None:
    verify(ordered(phase), "ordered")
    with pytest.raises(GraphError, match=r"accesses the arena with token None.*made 'arena_token'.*\[stage ordered\]"):
        verify(before_order(phase), "ordered")


@pytest.mark.parametrize("phase", PHASES)
def test_verifier_rejects_each_removed_edge(phase: PhaseName) -> None:
    graph = ordered(phase)
    for op in accesses(graph):
        inputs = {port: name for port, name in op.inputs.items() if port != "token"}
        with pytest.raises(GraphError, match=f"{op.name}.*accesses the arena with token None"):
            verify(graph.rewrite({op.name: [replace(op, inputs=inputs)]}), "ordered")


@pytest.mark.parametrize("phase", PHASES)
def test_verifier_rejects_each_rewired_edge(phase: PhaseName) -> None:
    graph = ordered(phase)
    chain = accesses(graph)
    for number, op in enumerate(chain):
        for stale in [ARENA_TOKEN, *(earlier.outputs["token"] for earlier in chain[: max(0, number - 1)])]:
            if op.inputs["token"] == stale:
                continue
            rewired = replace(op, inputs={**op.inputs, "token": stale})
            with pytest.raises(GraphError, match=f"{op.name}.*with token '{stale}'.*may reorder them"):
                verify(graph.rewrite({op.name: [rewired]}), "ordered")


@pytest.mark.parametrize("phase", PHASES)
def test_verifier_rejects_an_access_that_makes_no_token(phase: PhaseName) -> None:
    graph = ordered(phase)
    last = accesses(graph)[-1]
    silent = replace(last, outputs={port: name for port, name in last.outputs.items() if port != "token"})
    with pytest.raises(GraphError, match=f"{last.name}.*makes no token for the next access"):
        verify(graph.rewrite({last.name: [silent]}, outputs=["logits"]), "ordered")


@pytest.mark.parametrize("phase", PHASES)
def test_verifier_rejects_a_last_token_that_is_not_returned(phase: PhaseName) -> None:
    with pytest.raises(GraphError, match="does not return its last arena token"):
        verify(ordered(phase).rewrite({}, outputs=["logits"]), "ordered")


@pytest.mark.parametrize("phase", PHASES)
def test_verifier_rejects_accesses_in_another_order(phase: PhaseName) -> None:
    graph = ordered(phase)
    last, *_, first = reversed(accesses(graph))
    moved = graph.rewrite({first.name: [last], last.name: [first]})
    with pytest.raises(GraphError, match="before any op makes it"):
        verify(moved, "ordered")
