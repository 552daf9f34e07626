"""OpGraph: ops and the values between them, with a networkx multigraph for whoever walks along paths.

Invariants: ops are in program order, which is a topological order; a graph never changes (a pass builds a new graph
with `rewrite`); names of ops and values are unique. Op nodes and value nodes of the multigraph alternate; an edge's key
is its port.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mlxr.compiler.errors import GraphError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.division import Axes
from mlxr.compiler.ir.op_kind import AttrValue, OpKind
from mlxr.compiler.ir.tensor import Shape, Tensor, Tensors
from mlxr.compiler.ir.work import Use

if TYPE_CHECKING:
    import networkx

Kind = TypeVar("Kind", bound=OpKind)
Role = Literal["input", "constant", "weight", "store", "token", "activation"]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    Attributes:
        role: `input` comes with each batch; `constant` is part of the program (`data`); `weight` is loaded;
            `store` is memory of the runtime, see `Store`; `token` orders its accesses; `activation` is made by an op.
        parts: the canonical tensors that are concatenated along axis 0, for a weight.
        data: the elements, for a constant.
        axes: what ranks divide along each axis of a weight. Files of graphs do not have it: a model is divided before.
    """

    name: str
    role: Role
    shape: Shape
    dtype: DType
    parts: tuple[str, ...] = ()
    data: tuple[float, ...] = ()
    axes: Axes = field(default=(), compare=False)

    @property
    def tensor(self) -> Tensor:
        """Shape and type alone."""
        return Tensor(self.shape, self.dtype)


@dataclass(frozen=True)
class Op:
    """An op of the graph.

    Attributes:
        name: its name.
        attrs: its kind, with its attributes.
        inputs, outputs: names of values by port.
        layer: its layer of the model, whose rows of stores it accesses; None for an op outside the layers.
    """

    name: str
    attrs: OpKind
    inputs: dict[str, str]
    outputs: dict[str, str]
    layer: int | None = None

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self.attrs.name

    def attrs_as(self, kind: type[Kind]) -> Kind:
        """The attributes of an op that must be of this kind, or of a kind with this base."""
        assert isinstance(self.attrs, kind), f"op {self.name!r} is of kind {self.kind}, not {kind.__name__}"
        return self.attrs

    @property
    def out(self) -> str:
        """The value of the port `out`."""
        return self.outputs["out"]


class OpGraph:
    """A graph: values, ops in program order, and the values that it returns."""

    def __init__(self, values: Iterable[Value], ops: Iterable[Op], outputs: Sequence[str]) -> None:
        """Builds a graph; raises GraphError for a name used twice or a value that is not declared."""
        self.outputs = tuple(outputs)
        self._values: dict[str, Value] = {}
        self._ops: dict[str, Op] = {}
        self._index: dict[str, int] = {}
        self._producers: dict[str, list[Op]] = {}
        self._consumers: dict[str, list[Op]] = {}
        for value in values:
            if value.name in self._values:
                raise GraphError(f"value {value.name!r} is declared twice")
            self._values[value.name] = value
        for op in ops:
            if op.name in self._ops:
                raise GraphError(f"op {op.name!r} is declared twice")
            self._index[op.name] = len(self._ops)
            self._ops[op.name] = op
            for port, name in [*op.inputs.items(), *op.outputs.items()]:
                if name not in self._values:
                    raise GraphError(f"op {op.name!r} port {port!r} binds {name!r}, which is not declared")
            for name in dict.fromkeys(op.inputs.values()):
                self._consumers.setdefault(name, []).append(op)
            for name in dict.fromkeys(op.outputs.values()):
                self._producers.setdefault(name, []).append(op)

    @cached_property
    def nx(self) -> "networkx.MultiDiGraph[str]":
        """The same as a networkx graph, made when it is first asked for: a value's node is `%` and its name."""
        # Imported here: neither hosts nor passes need it, and the import takes 70 ms.
        import networkx  # noqa: PLC0415

        graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
        graph.add_nodes_from("%" + name for name in self._values)
        for op in self._ops.values():
            for port, name in op.inputs.items():
                graph.add_edge("%" + name, op.name, key=port)
            for port, name in op.outputs.items():
                graph.add_edge(op.name, "%" + name, key=port)
        return graph

    @property
    def ops(self) -> Iterator[Op]:
        """Ops in program order."""
        return iter(self._ops.values())

    def ops_of(self, kind: type[Kind]) -> list[tuple[Op, Kind]]:
        """The ops of a kind with their attributes, in program order."""
        return [(op, op.attrs) for op in self._ops.values() if isinstance(op.attrs, kind)]

    @property
    def values(self) -> Iterator[Value]:
        """Values in the order of their declaration."""
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._ops)

    def value(self, name: str) -> Value:
        """The value of that name."""
        return self._values[name]

    def op(self, name: str) -> Op:
        """The op of that name."""
        return self._ops[name]

    def index(self, name: str) -> int:
        """The position of an op in program order."""
        return self._index[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def producers(self, name: str) -> list[Op]:
        """The ops that write a value: one for an activation or a token, none for other values."""
        return [*self._producers.get(name, ())]

    def producer(self, name: str) -> Op | None:
        """The op that writes a value, or None for inputs, weights, constants and stores."""
        producers = self._producers.get(name)
        return producers[0] if producers else None

    def consumers(self, name: str) -> list[Op]:
        """The ops that read a value, each once."""
        return [*self._consumers.get(name, ())]

    def sole_consumer(self, name: str) -> Op | None:
        """The only op that reads a value; None if there are several or none, or if the graph returns the value."""
        consumers = self.consumers(name)
        return consumers[0] if len(consumers) == 1 and name not in self.outputs else None

    def use(self, op: Op) -> Use:
        """The place of an op, as the rules of its kind see it."""
        behind = {port: producer for port, name in op.inputs.items() if (producer := self.producer(name))}
        return Use(self._inputs(op), {port: self._inputs(producer) for port, producer in behind.items()})

    def _inputs(self, op: Op) -> Tensors:
        return {port: self.value(name).tensor for port, name in op.inputs.items()}

    def rewrite(
        self,
        replacements: Mapping[str, Sequence[Op]],
        new_values: Iterable[Value] = (),
        outputs: Sequence[str] | None = None,
    ) -> "OpGraph":
        """A new graph in which each named op is replaced, in its place, by the listed ops; an empty list removes it.

        Values that nothing binds any more are dropped, except inputs.
        """
        ops = [new for op in self.ops for new in replacements.get(op.name, (op,))]
        outputs = self.outputs if outputs is None else tuple(outputs)
        bound = {name for op in ops for name in (*op.inputs.values(), *op.outputs.values())} | set(outputs)
        values = [*self.values, *new_values]
        return OpGraph((v for v in values if v.name in bound or v.role == "input"), ops, outputs)

    def to_json(self) -> dict[str, Any]:
        """The graph as plain data for JSON, which `from_json` reads back."""
        return {
            "values": [
                {"name": v.name, "role": v.role, "shape": list(v.shape), "dtype": str(v.dtype)}
                | ({"parts": list(v.parts)} if v.parts else {})
                | ({"data": list(v.data)} if v.data else {})
                for v in self.values
            ],
            "ops": [
                {
                    "name": o.name,
                    "kind": o.kind,
                    "inputs": dict(o.inputs),
                    "outputs": dict(o.outputs),
                }
                | ({} if o.layer is None else {"layer": o.layer})
                | {"attrs": o.attrs.attributes}
                for o in self.ops
            ],
            "outputs": list(self.outputs),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "OpGraph":
        """Reads what `to_json` wrote.

        Raises:
            GraphError: a name is used twice or not declared, or an op has an invalid kind, attribute or layer; the
                message names the op.
        """
        # Imported here: a host that reads no graph does not need the many classes of op kinds.
        from mlxr.compiler.ir.op_registry import read_op_kind  # noqa: PLC0415

        return OpGraph(
            (
                Value(
                    v["name"],
                    v["role"],
                    tuple(v["shape"]),
                    DType(v["dtype"]),
                    tuple(v.get("parts", ())),
                    tuple(v.get("data", ())),
                )
                for v in data["values"]
            ),
            (_read_op(op, read_op_kind) for op in data["ops"]),
            data["outputs"],
        )

    def dump(self) -> str:
        """The graph as text, one op per line: `%out: [tokens, 512] f32 = kind(port=%value) {attr=1}`."""
        return "".join(self._line(op) for op in self.ops) + f"return {', '.join('%' + o for o in self.outputs)}\n"

    def _line(self, op: Op) -> str:
        outputs = ", ".join(
            f"%{name}: [{', '.join(map(str, self.value(name).shape))}] {self.value(name).dtype}"
            for name in op.outputs.values()
        )
        inputs = ", ".join(f"{port}=%{name}" for port, name in op.inputs.items())
        shown: dict[str, AttrValue] = {} if not op.attrs.accesses else {"layer": op.layer}
        attrs = " ".join(f"{k}={json.dumps(v)}" for k, v in (shown | op.attrs.attributes).items() if v is not None)
        return f"{outputs + ' = ' if outputs else ''}{op.kind}({inputs})" + (f" {{{attrs}}}\n" if attrs else "\n")


def _read_op(data: Mapping[str, Any], read_op_kind: Callable[[str, Mapping[str, Any]], OpKind]) -> Op:
    name, layer = data["name"], data.get("layer")
    if layer is not None and type(layer) is not int:
        raise GraphError(f"op {name!r}: layer is {layer!r}; expected a whole number")
    try:
        attrs = read_op_kind(data["kind"], data["attrs"])
    except RuleError as error:
        raise GraphError(f"op {name!r} ({data['kind']}): {error}") from None
    return Op(name, attrs, data["inputs"], data["outputs"], layer)
