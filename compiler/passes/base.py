"""The interface of passes, and helpers that they share.

A pass is a frozen dataclass. Its fields are its options, and its docstring lists its rewrite rules by number.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.linear import Linear, Projection


@dataclass(frozen=True)
class PassResult:
    """The graph after a pass, and whether the pass changed it."""

    graph: OpGraph
    modified: bool


class Pass(Protocol):
    """A pure function from graph to graph."""

    @property
    def name(self) -> str:
        """The name shown in dumps, timings and errors."""
        ...

    def run(self, graph: OpGraph) -> PassResult:
        """Returns the rewritten graph; never changes its argument."""
        ...


class Edits:
    """The replacements and new values that a pass collects while it looks for its patterns."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.replacements: dict[str, list[Op]] = {}
        self.values: list[Value] = []
        self.outputs = list(graph.outputs)

    def replace(self, op: Op, *new: Op) -> None:
        """Replaces `op` by other ops; with no other ops, removes it."""
        self.replacements[op.name] = list(new)

    def declare(self, value: Value) -> str:
        """Adds a value and returns its name."""
        self.values.append(value)
        return value.name

    def untouched(self, *ops: Op) -> bool:
        """Whether no edit so far replaces any of these ops."""
        return not any(op.name in self.replacements for op in ops)

    def concat(self, name: str, weights: list[str]) -> str:
        """Declares the concatenation of weights along axis 0. If their types differ, it is f32, which can hold all."""
        values = [self.graph.value(w) for w in weights]
        dtype = values[0].dtype if len({v.dtype for v in values}) == 1 else DType.F32
        rows = sum(v.shape[0] for v in values if isinstance(v.shape[0], int))
        parts = tuple(part for v in values for part in v.parts)
        return self.declare(replace(values[0], name=name, shape=(rows, *values[0].shape[1:]), dtype=dtype, parts=parts))

    def query_tiles(self) -> str:
        """The name of the batch's tiles of queries, which the graph gets if it does not have them yet."""
        name = "query_tiles"
        if name not in self.graph and not any(value.name == name for value in self.values):
            self.declare(replace(self.graph.value("query_start"), name=name, shape=("tiles", 2)))
        return name

    def result(self) -> PassResult:
        """The rewritten graph."""
        if not self.replacements:
            return PassResult(self.graph, False)
        return PassResult(self.graph.rewrite(self.replacements, self.values, self.outputs), True)


def as_projection(op: Op) -> Op:
    """A linear op as a projection; a linear op is a special case of one."""
    if isinstance(op.attrs, Projection):
        return op
    return replace(op, attrs=Projection(op.attrs_as(Linear).dtype))


def sibling(name: str, last: str) -> str:
    """A name with another last word: `layers.0.mlp.gate` and `up` give `layers.0.mlp.up`."""
    return f"{name.rpartition('.')[0]}.{last}"


def sole_producer(graph: OpGraph, name: str, *kinds: type[OpKind]) -> Op | None:
    """The op that writes a value, if it is of these kinds and the value has one consumer and is not returned."""
    op = graph.producer(name)
    return op if op and isinstance(op.attrs, kinds) and graph.sole_consumer(name) else None
