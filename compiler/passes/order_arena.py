"""Chains all accesses of the KV arena by tokens."""

from dataclasses import dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import OpGraph, Value
from mlxr.compiler.ir.tensor import ARENA_TOKEN
from mlxr.compiler.passes.base import Edits, PassResult


@dataclass(frozen=True)
class OrderArena:
    """Adds the token edges that order arena accesses under MLX's lazy evaluation.

    1. Every op that reads or writes the arena binds the token of the previous access in program order and makes a new
       token. The first access binds the input `arena_token`, which is the last token of the previous step; the graph
       returns the last token.
    """

    name: str = "order_arena"

    def run(self, graph: OpGraph) -> PassResult:
        """Applies the rule to the whole program."""
        edits = Edits(graph)
        last = ARENA_TOKEN
        for op in graph.ops:
            if not op.attrs.accesses:
                continue
            if last == ARENA_TOKEN:
                edits.declare(Value(ARENA_TOKEN, "token", (8,), DType.U32))
            token = edits.declare(Value(f"{op.name}.token", "token", (8,), DType.U32))
            edits.replace(op, replace(op, inputs={**op.inputs, "token": last}, outputs={**op.outputs, "token": token}))
            last = token
        if last != ARENA_TOKEN:
            edits.outputs.append(last)
        return edits.result()
