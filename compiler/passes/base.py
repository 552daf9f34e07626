"""What a pass is: a frozen dataclass whose fields are its options and whose docstring is its numbered rewrite rules."""

from dataclasses import dataclass, replace
from typing import Protocol

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, OpGraph, Value
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.linear import Linear, Projection


@dataclass(frozen=True)
class PassResult:
    """A pass's graph, and whether it differs from the one given."""

    graph: OpGraph
    modified: bool


class Pass(Protocol):
    """A pure function from graph to graph."""

    @property
    def name(self) -> str:
        """The name shown in dumps, timings and errors."""
        ...

    def run(self, graph: OpGraph) -> PassResult:
        """Rewrites the graph; never changes the one given."""
        ...


class Edits:
    """Replacements and new values collected while a pass looks for its patterns."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.replacements: dict[str, list[Op]] = {}
        self.values: list[Value] = []
        self.outputs = list(graph.outputs)

    def replace(self, op: Op, *new: Op) -> None:
        """Puts ops (none: removes) in the place of `op`."""
        self.replacements[op.name] = list(new)

    def declare(self, value: Value) -> str:
        """Adds a value and returns its name."""
        self.values.append(value)
        return value.name

    def untouched(self, *ops: Op) -> bool:
        """Whether no edit collected so far concerns these ops."""
        return not any(op.name in self.replacements for op in ops)

    def concat(self, name: str, weights: list[str]) -> str:
        """Declares the concatenation of weights along axis 0; f32, which holds the others, where types differ."""
        values = [self.graph.value(w) for w in weights]
        dtype = values[0].dtype if len({v.dtype for v in values}) == 1 else DType.F32
        rows = sum(v.shape[0] for v in values if isinstance(v.shape[0], int))
        parts = tuple(part for v in values for part in v.parts)
        return self.declare(replace(values[0], name=name, shape=(rows, *values[0].shape[1:]), dtype=dtype, parts=parts))

    def result(self) -> PassResult:
        """The rewritten graph."""
        if not self.replacements:
            return PassResult(self.graph, False)
        return PassResult(self.graph.rewrite(self.replacements, self.values, self.outputs), True)


def as_projection(op: Op) -> Op:
    """A linear op as the projection that it is a special case of."""
    if isinstance(op.attrs, Projection):
        return op
    return replace(op, attrs=Projection(op.attrs_as(Linear).dtype))


def sibling(name: str, last: str) -> str:
    """The name beside another: `up` beside `layers.0.mlp.gate` is `layers.0.mlp.up`."""
    return f"{name.rpartition('.')[0]}.{last}"


def sole_producer(graph: OpGraph, name: str, kind: type[OpKind]) -> Op | None:
    """The op of that kind that makes a value, if the value has one consumer and is not returned."""
    op = graph.producer(name)
    return op if op and isinstance(op.attrs, kind) and graph.sole_consumer(name) else None
