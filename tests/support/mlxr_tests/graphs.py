"""Graphs under test: source graphs, edits, and the numbers that the reference computes from a graph."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ModelSpec, Op, OpGraph, Value
from mlxr.compiler.build.build_graph import build_graph
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.op_registry import read_op_kind
from mlxr.compiler.ir.verify import verify
from mlxr.compiler.passes.base import Pass
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.memory import arena_geometry
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest
from mlxr.runtime.hosts.mlx_ops import run_graph
from mlxr_tests.specs import floats, small_spec

Floats = npt.NDArray[np.floating]


def source_graph(spec: ModelSpec) -> OpGraph:
    """The graph as built."""
    return build_graph(spec, arena_geometry(spec, GeometryTable()))


def small_graph(**changes: Any) -> OpGraph:
    """The source graph of a small spec of one layer."""
    return source_graph(small_spec(**{"model__num_layers": 1, **changes}))


def kinds(graph: OpGraph) -> list[str]:
    """Kinds of the ops in program order."""
    return [op.kind for op in graph.ops]


def only(graph: OpGraph, kind: str) -> Op:
    """The only op of a kind."""
    (op,) = [op for op in graph.ops if op.kind == kind]
    return op


def edited(
    graph: OpGraph,
    name: str,
    inputs: Mapping[str, str | None] | None = None,
    attrs: Mapping[str, Any] | None = None,
    values: Sequence[Value] = (),
) -> OpGraph:
    """The graph with one op's inputs (None: unbound) or attributes changed; still a valid source graph."""
    op = graph.op(name)
    bound = {**op.inputs, **(inputs or {})}
    ports = {port: value for port, value in bound.items() if value is not None}
    new = graph.rewrite({name: [replace(op, inputs=ports, attrs=replace(op.attrs, **(attrs or {})))]}, values)
    verify(new, "source")
    return new


def returning(graph: OpGraph, *names: str) -> OpGraph:
    """The graph with more values returned."""
    return graph.rewrite({}, outputs=[*graph.outputs, *names])


def retyped(graph: OpGraph, name: str, dtype: str) -> OpGraph:
    """The graph with another element type for one value."""
    values = (replace(v, dtype=DType(dtype)) if v.name == name else v for v in graph.values)
    new = OpGraph(values, graph.ops, graph.outputs)
    verify(new, "source")
    return new


def fires(graph_pass: Pass, graph: OpGraph) -> OpGraph:
    """The graph after a pass, which must rewrite it and leave its argument unchanged."""
    before = graph.to_json()
    result = graph_pass.run(graph)
    assert result.modified, f"{graph_pass.name} did not fire on\n{graph.dump()}"
    assert graph.to_json() == before, f"{graph_pass.name} changed its argument"
    verify(result.graph, "ordered" if graph_pass.name == "order_arena" else "fused")
    return result.graph


def check_silent(graph_pass: Pass, graph: OpGraph) -> None:
    """Checks that a pass leaves a graph unchanged."""
    result = graph_pass.run(graph)
    assert not result.modified and result.graph is graph, f"{graph_pass.name} fired:\n{result.graph.dump()}"


class Sketch:
    """A graph built by hand: it starts with batch inputs, arena and `x` (embedded tokens); ops are added one by one."""

    def __init__(self, spec: ModelSpec | None = None) -> None:
        source = source_graph(spec or small_spec(model__num_layers=1))
        kept = {"input", "store", "constant"}
        self.values = [v for v in source.values if v.role in kept or v.name in ("embedding", "embedded")]
        self.ops = [op for op in source.ops if op.kind == "embed"]
        self.x = "embedded"

    def weight(self, name: str, *shape: int, dtype: str = "f32") -> str:
        """Declares a weight."""
        self.values.append(Value(name, "weight", shape, DType(dtype), (name,)))
        return name

    def op(self, kind: str, name: str, /, *, attrs: dict[str, Any] | None = None, **inputs: str) -> str:
        """Adds an op and returns the name of its result, which is the op's name."""
        tensors = {v.name: v.tensor for v in self.values}
        op_kind = read_op_kind(kind, attrs or {})
        results = op_kind.infer({port: tensors[value] for port, value in inputs.items()})
        outputs = {port: name if port == "out" else f"{name}.{port}" for port in results if port != "token"}
        self.values += [Value(outputs[p], "activation", results[p].shape, results[p].dtype) for p in outputs]
        self.ops.append(Op(name, op_kind, inputs, outputs))
        return name

    def linear(self, name: str, x: str, width: int, features: int, **inputs: str) -> str:
        """Adds a linear op and its weight `name.weight`."""
        weight = self.weight(f"{name}.weight", features, width)
        return self.op("linear", name, attrs={"dtype": "f32"}, x=x, weight=weight, **inputs)

    def graph(self, *outputs: str, stage: str = "fused") -> OpGraph:
        """The graph, verified."""
        graph = OpGraph(self.values, self.ops, outputs)
        verify(graph, stage)
        return graph


def weights_of(graph: OpGraph, source: OpGraph) -> dict[str, mx.array]:
    """Weights of a graph that was rewritten from `source`: each canonical tensor is generated from its name."""
    return {
        v.name: mx.concatenate([_tensor(source.value(part)) for part in v.parts])
        for v in graph.values
        if v.role == "weight"
    }


def _tensor(value: Value) -> mx.array:
    rng = np.random.default_rng(zlib.crc32(value.name.encode()))
    shape = [d for d in value.shape if isinstance(d, int)]
    scale = shape[1] ** -0.5 if len(shape) == 2 else 0.5
    around = -1.5 if value.name.endswith(".recurrent.a") else float(len(shape) == 1)  # states decay
    return mx.array(rng.standard_normal(shape) * scale + around).astype(MLX_DTYPES[str(value.dtype)])


def trace(graph: OpGraph, source: OpGraph, spec: ModelSpec, decode_only: bool = False) -> dict[str, Floats]:
    """The results of a graph over some steps of two sequences: every step's outputs, then the arena.

    The steps are two prompts of unequal length, a mixed step (a chunk of one, a token of the other) and two decode
    steps. With `decode_only`, the source graph runs the first two steps.
    """
    arena, pager = (
        Arena(arena_geometry(spec, GeometryTable())),
        Pager.from_geometry(arena_geometry(spec, GeometryTable())),
    )
    rng = np.random.default_rng(1)
    a, b = pager.add_sequence(), pager.add_sequence()
    results: dict[str, Floats] = {}
    for number, (of_a, of_b) in enumerate([(7, 3), (6, 1), (1, 1), (1, 1)]):
        chunks = {a: rng.integers(0, spec.model.vocab_size, of_a), b: rng.integers(0, spec.model.vocab_size, of_b)}
        rows: dict[int, Literal["all", "last"]] = {a: "all" if number == 1 else "last", b: "last"}
        requests = [BatchRequest(s, c.tolist(), pager.length(s), rows[s]) for s, c in chunks.items()]
        batch = Batch.build(requests, pager, 4)
        pager.take_copies()
        runs = source if decode_only and number < 2 else graph
        outputs = run_graph(runs, weights_of(runs, source), batch, arena)
        if not decode_only or number >= 2:
            results |= {f"step {number} %{n}": floats(v) for n, v in outputs.items() if graph.value(n).role != "token"}
    return results | {name: floats(array) for name, array in arena.stores.items()}


def check_same_numbers(
    before: OpGraph, after: OpGraph, spec: ModelSpec | None = None, decode_only: bool = False
) -> None:
    """Checks that two graphs compute the same numbers in fp32; `before` is a source graph."""
    spec = spec or small_spec(model__num_layers=1)
    want, got = trace(before, before, spec, decode_only), trace(after, before, spec, decode_only)
    assert want.keys() == got.keys()
    for name, expected in want.items():
        error = float(np.linalg.norm(got[name] - expected)) / max(float(np.linalg.norm(expected)), 1e-30)
        assert got[name].shape == expected.shape and error <= 1e-5, f"{name}: relative error {error:.3g}"
    assert any(np.abs(want[name]).max() > 0.01 for name in want if name.startswith("step")), "nothing was computed"
