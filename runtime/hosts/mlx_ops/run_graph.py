"""Runs a whole graph as MLX ops, one per op, in program order."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from mlxr.compiler.artifact import ARENA_TOKEN, Op, OpGraph
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.mlx_ops.table import evaluate
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer

Observer = Callable[[Op, Mapping[str, mx.array]], None]
"""Called before an op runs, with what its ports read."""
_BATCH_NAMES = {"token_ids": "tokens"}
"""Graph inputs that a batch calls otherwise."""


def run_graph(
    graph: OpGraph,
    weights: Mapping[str, mx.array],
    batch: Batch,
    arena: Arena,
    launches: Counter[str] | None = None,
    observe: Observer | None = None,
) -> dict[str, mx.array]:
    """Runs a graph of any stage on one batch.

    K and V are written into the arena in place, at once; the rest is lazy. A value is let go after its last use.

    Args:
        graph: the graph.
        weights: every weight that the graph binds, by name.
        batch: the batch; one token a sequence for a graph with decode attention.
        arena: the arena; its token is replaced when the graph makes a new one.
        launches: counts the kinds of ops that ran.
        observe: called before each op.

    Returns:
        The graph's outputs by name.
    """
    values = {v.name: mx.array(v.data) for v in graph.values if v.role == "constant"}
    inputs = [v.name for v in graph.values if v.role == "input"]
    given: dict[str, Any] = {**batch.blocks, **batch.of_adapters}
    for name in inputs:
        values[name] = mx.array(given[name] if name in given else getattr(batch, _BATCH_NAMES.get(name, name)))
    values |= {v.name: weights[v.name] for v in graph.values if v.role == "weight"}
    values |= {v.name: arena.stores[v.name] for v in graph.values if v.role == "store"} | {ARENA_TOKEN: arena.token}
    last_use = {name: op.name for op in graph.ops for name in op.inputs.values()}
    for op in graph.ops:
        ports = {port: values[name] for port, name in op.inputs.items()}
        if observe is not None:
            observe(op, ports)
        results = evaluate(op.attrs, ports, arena_layer(op, arena))
        values |= {name: results[port] for port, name in op.outputs.items()}
        if launches is not None:
            launches[op.kind] += 1
        for name in op.inputs.values():
            if last_use[name] == op.name and name not in graph.outputs:
                values.pop(name, None)
    for name in graph.outputs:
        if graph.value(name).role == "token":
            arena.token = values[name]
    return {name: values[name] for name in graph.outputs}


def arena_layer(op: Op, arena: Arena) -> ArenaLayer | None:
    """The layer whose rows of stores an op accesses; None for one that accesses none."""
    return None if op.layer is None or not op.attrs.accesses else ArenaLayer(arena, op.layer)
