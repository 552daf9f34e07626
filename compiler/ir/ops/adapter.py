"""Low-rank adapters (LoRA): what they add to projections, of the adapter that each token uses."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import matrix, require, require_integers, require_positive, require_residual
from mlxr.compiler.ir.division import Holdings
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import FUSED_STAGES, Division, FinishKind, OpKind
from mlxr.compiler.ir.ops.product import Finish, Product, check_activation
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import Dims, OpWork, Use
from mlxr.compiler.spec.share import Share

FINISH_STEPS = ("activation", "gated", "limit", "residual_scale", "out_scale", "out_cap", "out_limit")
"""The attributes of a projection's steps after its sums, which it leaves to its `AdapterUp`."""


@dataclass(frozen=True)
class AdapterDown(OpKind):
    """Rows of x in the low rank of each token's adapter, for several projections that read the same x.

    Attributes:
        rank: of adapters.
        slots: how many adapters there may be.
        widths: columns of each projection, such as `64,32,32`.
    """

    name = "adapter_down"
    summary = "scale * x @ down[part, adapter].T, part by part; of tokens without an adapter, anything"
    family = "matmul"
    inputs = ("x", "down", "adapter_ids", "adapter_scales")

    rank: int
    slots: int
    widths: str

    @property
    def parts(self) -> int:
        """For how many projections."""
        return self.widths.count(",") + 1

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width], down [parts * slots * rank * width], scales [tokens] -> [tokens, parts * rank]."""
        tokens, width = matrix(t, "x")
        require_integers(t, "adapter_ids")
        require(t["down"].dtype is DType.F16, f"down is {t['down'].dtype}; expected f16")
        require(t["adapter_scales"].dtype is DType.F32, "adapter_scales are not f32")
        for port in ("adapter_ids", "adapter_scales"):
            require(t[port].shape == (tokens,), f"{port} is {list(t[port].shape)}; expected [{tokens}]")
        elements = self.parts * self.slots * self.rank * width
        require(t["down"].shape == (elements,), f"down is {list(t['down'].shape)}; expected [{elements}]")
        return {"out": Tensor((tokens, self.parts * self.rank), DType.F32)}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each token and each element of its adapter."""
        elements = self.parts * self.rank * matrix(use.inputs, "x")[1]
        return OpWork(flops=2 * elements * dims["tokens"])

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """The spec refuses ranks."""
        require(False, "ranks have no adapters")
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class AdapterUp(Product):
    """What each token's adapter adds to finished sums, and the steps after them that the projection leaves to it.

    Attributes:
        dtype: the type of the result.
        rank, slots: as of `AdapterDown`.
        widths: columns of each projection, such as `64,32,32`.
        activation, gated, limit, residual_scale, out_scale, out_cap, out_limit: see `Finish`.
    """

    name = "adapter_up"
    summary = "y = act(x + low @ lift[part, adapter]) * out_scale, soft capped, clamped; residual + residual_scale * y"
    inputs = ("x", "low", "lift", "adapter_ids")
    optional = ("residual", "alpha_p", "alpha_n", "gate")
    stages = FUSED_STAGES

    dtype: DType
    rank: int
    slots: int
    widths: str
    activation: FinishKind | None = None
    gated: bool = False
    limit: float | None = None
    residual_scale: float = 1.0
    out_scale: float = 1.0
    out_cap: float | None = None
    out_limit: float | None = None

    @property
    def part_widths(self) -> tuple[int, ...]:
        """Columns of each projection."""
        return _numbers(self.widths)

    @property
    def finish(self) -> Finish:
        """See `Product`."""
        return Finish(
            self.activation,
            self.gated,
            self.limit,
            self.residual_scale,
            self.out_scale,
            self.out_cap,
            self.out_limit,
        )

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, features], low [tokens, parts * rank] f32, lift [slots * rank * features] f16."""
        (rows, features), widths = matrix(t, "x"), self.part_widths
        require(not self.gated or len(widths) == 2, f"gated is true, and widths are {self.widths}")
        require(sum(widths) == features, f"x has {features} columns; expected {self.widths} together")
        require(matrix(t, "low") == (rows, len(widths) * self.rank), f"low is {list(t['low'].shape)}")
        elements = self.slots * self.rank * features
        require(t["lift"].shape == (elements,), f"lift is {list(t['lift'].shape)}; expected [{elements}]")
        require_integers(t, "adapter_ids")
        require(t["low"].dtype is DType.F32 and t["lift"].dtype is DType.F16, "low is f32, and lift f16")
        check_activation(t, self.activation)
        for name in ("out_scale", "out_cap", "out_limit"):
            require_positive(name, getattr(self, name))
        out = Tensor((rows, self.finish.columns_of(features)), self.dtype)
        if "gate" in t:
            require(t["gate"].shape == (rows, 1), f"gate is {list(t['gate'].shape)}; expected {[rows, 1]}")
        require_residual(t, out)
        return {"out": out}

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Two FLOPs for each token and each element of its adapter."""
        return OpWork(flops=2 * self.rank * matrix(use.inputs, "x")[1] * dims["tokens"])


def adapted(op: Op, port: str) -> str:
    """The last word of the name of the weight that matrices are for: `qkv` of `layers.0.attention.qkv.lora_a`."""
    return op.inputs[port].split(".")[-2]


def _numbers(text: str) -> tuple[int, ...]:
    words = text.split(",")
    require(all(word.isdecimal() and int(word) for word in words), f"widths are {text!r}; expected numbers and commas")
    return tuple(map(int, words))
