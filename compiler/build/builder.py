"""Collects the values and ops of a source graph, one op at a time, and infers the shapes of their results."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mlxr.compiler.build.rope import rope_frequencies
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import of_group
from mlxr.compiler.ir.division import Axes, Axis
from mlxr.compiler.ir.graph import Op, Role, Value
from mlxr.compiler.ir.op_kind import NormKind, OpKind
from mlxr.compiler.ir.ops.adapter import AdapterDown
from mlxr.compiler.ir.ops.elementwise import Add
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.spec.adapters import DOWN, UP, adapted_matrices
from mlxr.compiler.spec.model import ModelSpec, Rope


class Builder:
    """The values and ops so far, in order. Each method adds some and returns the name of the value that it added.

    Attributes:
        spec, arena: what the graph is of.
        hidden_size: columns of the residual stream, in which a head may differ from its model.
        activation: the type of activations.
        values, ops: of the graph.
    """

    def __init__(self, spec: ModelSpec, arena: ArenaGeometry) -> None:
        self.spec, self.arena = spec, arena
        self.hidden_size = spec.model.row_width if spec.output == "guesses" else spec.model.hidden_size
        self.activation = DType(spec.activation_dtype)
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self._layer: int | None = None
        self._tensors: dict[str, Value] = {}
        self._frequencies: dict[tuple[float, ...], str] = {}
        # A head that guesses goes without: what it guesses is checked by the model.
        has_adapters = spec.adapters is not None and spec.output != "guesses"
        self._adapted = adapted_matrices(spec.model) if has_adapters else {}

    def declare(
        self, name: str, role: Role, shape: Shape, dtype: DType, data: tuple[float, ...] = (), axes: Axes = ()
    ) -> str:
        """Adds a value; a weight that several ops read is declared once."""
        if role == "weight" and name in self._tensors:
            return name
        value = Value(name, role, shape, dtype, (name,) if role == "weight" else (), data, axes)
        self.values.append(value)
        self._tensors[name] = value
        return name

    def matrix(self, name: str, shape: Shape, rows: Axis | None = None, columns: Axis | None = None) -> str:
        """Adds a weight matrix [rows, columns], and says what they count, if ranks divide that."""
        return self.declare(name, "weight", shape, self.spec.weights.of_tensor(name).dtype, axes=(rows, columns))

    def vector(self, name: str, width: int, axis: Axis | None = None) -> str:
        """Adds a weight vector, and says what its elements count, if ranks divide that."""
        return self.declare(name, "weight", (width,), self.spec.weights.of_vector(name), axes=(axis,))

    def parameter(self, name: str, width: int, axis: Axis | None = None) -> str:
        """As `vector`, of a weight that is always f32, as those of convolutions and of recurrences are."""
        return self.declare(name, "weight", (width,), DType.F32, axes=(axis,))

    def columns(self, name: str) -> int:
        """Columns of a value [rows, columns]."""
        columns = self._tensors[name].shape[-1]
        assert isinstance(columns, int), f"{name}: only rows are symbolic"
        return columns

    def stores(self, layer: int, ports: Iterable[str]) -> dict[str, str]:
        """By port, which is a store's name: the value that has the layer's rows of it."""
        return {port: self.arena.place(self.arena.store(port), layer)[0] for port in ports}

    def states(self, layer: int, *ports: str) -> dict[str, str]:
        """The inputs of an op that reads and writes a layer's rows of these stores of sequences."""
        return {"query_start": "query_start", "state_table": "state_table", **self.stores(layer, ports)}

    def of_blocks(self, layer: int, *ports: str) -> dict[str, str]:
        """By port: the batch's value for the blocks that the layer's rows of tokens are in."""
        group = self.arena.group_of(layer)
        assert group is not None, f"layer {layer} keeps nothing of tokens"
        return {port: of_group(port, group) for port in ports}

    def frequencies(self, rope: Rope | None, rotary_dim: int) -> str:
        """The constant with a rope's frequencies, or zeros without one; ropes with the same frequencies share it."""
        if rope is None:
            data = (0.0,) * (rotary_dim // 2)
        else:
            data = rope_frequencies(rope, rotary_dim, self.spec.model.context)
        if data not in self._frequencies:
            name = f"rope_frequencies_{len(self._frequencies)}" if self._frequencies else "rope_frequencies"
            self._frequencies[data] = self.declare(name, "constant", (len(data),), DType.F32, data)
        return self._frequencies[data]

    @contextmanager
    def in_layer(self, layer: int) -> Iterator[None]:
        """Assigns the ops that are added within it to that layer."""
        self._layer = layer
        yield
        self._layer = None

    def op(self, attrs: OpKind, name: str, inputs: dict[str, str]) -> str:
        """Adds an op; its name is also the name of its result."""
        self.op_with_outputs(attrs, name, inputs, ("out",))
        return name

    def op_with_outputs(self, attrs: OpKind, name: str, inputs: dict[str, str], ports: tuple[str, ...]) -> list[str]:
        """Adds an op and returns its results by port: `NAME` for the port `out`, `NAME.PORT` for others."""
        outputs = {}
        tensors = {port: self._tensors[value].tensor for port, value in inputs.items()}
        for port, tensor in attrs.infer(tensors).items():
            if port != "token":
                result = name if port == "out" else f"{name}.{port}"
                outputs[port] = self.declare(result, "activation", tensor.shape, tensor.dtype)
        self.ops.append(Op(name, attrs, inputs, outputs, self._layer))
        return [outputs[port] for port in ports if port in outputs]

    def linear(
        self,
        name: str,
        x: str,
        shape: tuple[int, int],
        bias: str | None = None,
        dtype: DType | None = None,
        *,
        rows: Axis | None = None,
        columns: Axis | None = None,
    ) -> str:
        """Adds a linear op, its weight `name` of `shape` [rows, columns] and, if named, its bias vector.

        `rows` and `columns` are what those of the weight count, if ranks divide that.
        """
        inputs = {"x": x, "weight": self.matrix(name, shape, rows, columns)}
        if bias is not None:
            inputs["bias"] = self.vector(bias, shape[0], rows)
        if name in self._adapted:
            inputs |= self._adapter(name, x, shape)
        return self.op(Linear(dtype or self.activation), f"{name}_projected", inputs)

    def _adapter(self, name: str, x: str, shape: tuple[int, int]) -> dict[str, str]:
        """Adds the product of x by the first matrices of the adapters of a weight; returns the ports of its linear op.

        Matrices of all adapters are two vectors: [slots, rank, columns], and [slots, rank, rows], in which outputs are
        neighbours.
        """
        adapters = self.spec.adapters
        assert adapters is not None, "a matrix has adapters"
        each = adapters.slots * adapters.rank
        down = self.declare(f"{name}{DOWN}", "weight", (each * shape[1],), DType.F16)
        up = self.declare(f"{name}{UP}", "weight", (each * shape[0],), DType.F16)
        kind = AdapterDown(adapters.rank, adapters.slots, str(shape[0]))
        ports = {"x": x, "down": down, "adapter_ids": "adapter_ids", "adapter_scales": "adapter_scales"}
        low = self.op(kind, f"{name}_low", ports)
        return {"low": low, "lift": up, "adapter_ids": "adapter_ids"}

    def norm(
        self,
        name: str,
        out: str,
        x: str,
        width: int,
        *,
        groups: int = 1,
        kind: NormKind | None = None,
        eps: float | None = None,
        weight: bool | None = None,
        bias: bool | None = None,
        axis: Axis | None = None,
    ) -> str:
        """Adds a norm op, with a weight its weight `name` [width] and, with `bias`, `name_bias`.

        Args:
            name: name of the weight.
            out: name of the op.
            x: the value to normalise.
            width: elements of the weight.
            groups: number of equal pieces of a row, each of which is normalised alone.
            kind: rms or layer; None for the kind of the model's norms.
            eps: added to the mean square; None for the epsilon of the model's norms.
            weight: whether the norm has a weight; None to follow the model's norms.
            bias: whether the norm adds a bias; None to follow the model's norms.
            axis: what the elements of the weight count, if ranks divide that.
        """
        norm = self.spec.model.norm
        has_weight = norm.weight if weight is None else weight
        inputs = {"x": x} | ({"weight": self.vector(name, width, axis)} if has_weight else {})
        if norm.bias if bias is None else bias:
            inputs["bias"] = self.vector(f"{name}_bias", width, axis)
        return self.op(Norm(groups, 1.0, kind or norm.kind, eps or norm.eps), out, inputs)

    def residual(self, name: str, x: str, addend: str) -> str:
        """Adds the result of a block to the residual stream."""
        return self.op(Add(self.spec.model.residual_scale), name, {"a": x, "b": addend})
