"""Collects the values and ops of a source graph, one op at a time, and infers what each makes."""

from mlxr.compiler.build.rope import rope_frequencies
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op, Role, Value
from mlxr.compiler.ir.ops import OPS, AttrValue, Shape
from mlxr.compiler.spec.model import ModelSpec, Rope


class Builder:
    """Values and ops so far, in order; each method adds to them and returns the name of what it made."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.activation = DType(spec.activation_dtype)
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self._tensors: dict[str, Value] = {}
        self._frequencies: dict[tuple[float, ...], str] = {}

    def declare(self, name: str, role: Role, shape: Shape, dtype: DType, data: tuple[float, ...] = ()) -> str:
        """Adds a value."""
        value = Value(name, role, shape, dtype, (name,) if role == "weight" else (), data)
        self.values.append(value)
        self._tensors[name] = value
        return name

    def matrix(self, name: str, shape: Shape) -> str:
        """Adds a weight matrix [rows, columns]."""
        return self.declare(name, "weight", shape, self.spec.weights.of_tensor(name).dtype)

    def vector(self, name: str, width: int) -> str:
        """Adds a weight vector."""
        return self.declare(name, "weight", (width,), self.spec.weights.of_vector(name))

    def frequencies(self, rope: Rope, rotary_dim: int) -> str:
        """The constant of a rope's frequencies; ropes of the same frequencies share it."""
        data = rope_frequencies(rope, rotary_dim, self.spec.model.context)
        if data not in self._frequencies:
            name = f"rope_frequencies_{len(self._frequencies)}" if self._frequencies else "rope_frequencies"
            self._frequencies[data] = self.declare(name, "constant", (len(data),), DType.F32, data)
        return self._frequencies[data]

    def op(self, kind: str, name: str, inputs: dict[str, str], /, **attrs: AttrValue) -> str:
        """Adds an op of that name, which is also the name of its result."""
        self.op_with_outputs(kind, name, inputs, ("out",), **attrs)
        return name

    def op_with_outputs(
        self, kind: str, name: str, inputs: dict[str, str], ports: tuple[str, ...], /, **attrs: AttrValue
    ) -> list[str]:
        """Adds an op and returns its results by port: `NAME` for the port `out`, `NAME.PORT` for others."""
        outputs = {}
        tensors = {port: self._tensors[value].tensor for port, value in inputs.items()}
        for port, tensor in OPS[kind].infer(tensors, attrs).items():
            if port != "token":
                made = name if port == "out" else f"{name}.{port}"
                outputs[port] = self.declare(made, "activation", tensor.shape, tensor.dtype)
        self.ops.append(Op(name, kind, inputs, outputs, attrs))
        return [outputs[port] for port in ports if port in outputs]

    def linear(
        self, name: str, x: str, shape: tuple[int, int], bias: str | None = None, dtype: DType | None = None
    ) -> str:
        """Adds a linear op, its weight `name` of `shape` [rows, columns], and its bias vector of that name."""
        inputs = {"x": x, "weight": self.matrix(name, shape)}
        if bias is not None:
            inputs["bias"] = self.vector(bias, shape[0])
        return self.op("linear", f"{name}_projected", inputs, dtype=str(dtype or self.activation))

    def norm(self, name: str, out: str, x: str, width: int, groups: int = 1, **changes: AttrValue) -> str:
        """Adds a norm op as the spec describes norms, its weight `name` [width] and, with `bias`, `name_bias`.

        Args:
            name: of the weight.
            out: of the op.
            x: what is normalised.
            width: elements of the weight.
            groups: equal pieces of a row that are normalised by themselves.
            changes: kind, eps and bias where they differ from the spec's.
        """
        model_norm = self.spec.model.norm
        options: dict[str, AttrValue] = {"kind": model_norm.kind, "eps": model_norm.eps, "bias": model_norm.bias}
        options |= changes
        inputs = {"x": x, "weight": self.vector(name, width)}
        if options.pop("bias"):
            inputs["bias"] = self.vector(f"{name}_bias", width)
        return self.op("norm", out, inputs, groups=groups, residual_scale=1.0, **options)

    def residual(self, name: str, x: str, addend: str) -> str:
        """Adds what a block made to the residual stream."""
        return self.op("add", name, {"a": x, "b": addend}, alpha=self.spec.model.residual_scale)
