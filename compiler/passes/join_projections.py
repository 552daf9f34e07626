"""One projection in place of several that read the same x, for passes: a launch that reads one matrix.

Weights, and biases if there are any, are joined along their rows; the result has the columns of all, in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.adapter import AdapterDown
from mlxr.compiler.passes.base import Edits, sibling
from mlxr.compiler.spec.adapters import DOWN, UP


@dataclass(frozen=True)
class Joined:
    """The projection in place of others.

    Attributes:
        op: it; its result has its name.
        place: the op that it replaces, the first of the others: all read x alone, so that is behind x, and before
            everything that reads their results.
        firsts: the columns with which their results begin, in the order in which they were given.
    """

    op: Op
    place: Op
    firsts: tuple[int, ...]


def are_alike(ops: Sequence[Op]) -> bool:
    """Whether projections read the same x, and differ in their weights and biases at most."""
    first = ops[0]
    return all(
        (op.inputs["x"], op.attrs, op.inputs.keys()) == (first.inputs["x"], first.attrs, first.inputs.keys())
        for op in ops
    )


def columns_of(graph: OpGraph, op: Op) -> int:
    """Columns of a projection's result."""
    columns = graph.value(op.out).shape[1]
    assert isinstance(columns, int), "only rows are symbolic"
    return columns


def join_projections(edits: Edits, ops: Sequence[Op], word: str) -> Joined:
    """Replaces projections that are alike by one.

    Args:
        edits: gets the joined weights, the result and the replacements.
        ops: the projections, in the order of the columns.
        word: what joined names end with: `WORD`, `WORD_bias` and `WORD_projected`.
    """
    graph, first = edits.graph, ops[0]
    inputs = dict(first.inputs)
    for port, name in (("weight", word), ("bias", f"{word}_bias")):
        if port in inputs:
            inputs[port] = edits.concat(sibling(inputs[port], name), [op.inputs[port] for op in ops])
    place = min(ops, key=lambda op: graph.index(op.name))
    if "low" in inputs:
        inputs |= join_adapters(edits, ops, place, word)
    *firsts, width = accumulate((columns_of(graph, op) for op in ops), initial=0)
    out = graph.value(first.out)
    name = edits.declare(replace(out, name=sibling(out.name, f"{word}_projected"), shape=(out.shape[0], width)))
    for op in ops:
        edits.replace(op)
    joined = replace(first, name=name, inputs=inputs, outputs={"out": name})
    edits.replace(place, joined)
    return Joined(joined, place, tuple(firsts))


def join_adapters(edits: Edits, ops: Sequence[Op], place: Op, word: str) -> dict[str, str]:
    """One product by the adapters of several projections of the same x, in place of that of `place`.

    Returns:
        The ports of the joined projection for it.
    """
    graph = edits.graph
    downs = [down for op in ops if (down := graph.producer(op.inputs["low"])) is not None]
    kinds = [down.attrs_as(AdapterDown) for down in downs]
    lift = edits.concat(sibling(place.inputs["weight"], f"{word}{UP}"), [op.inputs["lift"] for op in ops])
    matrices = edits.concat(sibling(place.inputs["weight"], f"{word}{DOWN}"), [op.inputs["down"] for op in downs])
    low = graph.value(place.inputs["low"])
    columns = sum(kind.parts * kind.rank for kind in kinds)
    name = edits.declare(replace(low, name=sibling(low.name, f"{word}_low"), shape=(low.shape[0], columns)))
    for op in downs:
        edits.replace(op)
    first = min(downs, key=lambda op: graph.index(op.name))
    attrs = replace(kinds[0], widths=",".join(kind.widths for kind in kinds))
    edits.replace(
        first, replace(first, name=name, attrs=attrs, inputs=first.inputs | {"down": matrices}, outputs={"out": name})
    )
    return {"low": name, "lift": lift}
