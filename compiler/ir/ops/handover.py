"""Ops at the border between two hosts of one model: a card, and the CPU that has some layers' experts.

The card gives each token's row and its chosen experts, and takes their weighted sum back; the CPU's graph has the other
end of both. See `mlxr.compiler.build.cut_experts`.
"""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import RuleError, matrix, require, require_integers, require_positive, require_residual
from mlxr.compiler.ir.division import Holdings
from mlxr.compiler.ir.op_kind import Division, OpKind
from mlxr.compiler.ir.tensor import Tensor, Tensors
from mlxr.compiler.ir.work import NOT_COUNTED, Dims, OpWork, Use
from mlxr.compiler.spec.share import Share


class Handover(OpKind):
    """An op of which the other host has the other end."""

    family = "collective"

    def work(self, use: Use, dims: Dims) -> OpWork:
        """Its time is that of what the other host does."""
        return OpWork(flops=NOT_COUNTED)

    def divide(self, t: Tensors, has: Holdings, share: Share) -> Division:
        """Refuses: a model that is split over ranks keeps its experts."""
        raise RuleError("a model with experts on the CPU is not split over ranks")


class GiveRouted(Handover):
    """What the experts read, on the card."""

    name = "give_routed"
    summary = "rows, chosen experts and their weights, to the CPU"
    inputs = ("x", "experts")
    optional = ("weights",)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, K], experts and weights [tokens, top_k] -> out [tokens, 1], which orders what is taken."""
        tokens, _ = matrix(t, "x")
        require_integers(t, "experts")
        for port in ("experts", "weights"):
            if port in t:
                rows, _ = matrix(t, port)
                require(rows == tokens, f"{port} has {rows} rows; expected {tokens}")
        return {"out": Tensor((tokens, 1), DType.I32)}


@dataclass(frozen=True)
class TakeSum(Handover):
    """The sum over a token's experts, on the card.

    Attributes:
        width: its columns.
        dtype: its type.
        residual_scale: its factor where it is added to a residual.
    """

    name = "take_sum"
    summary = "residual + residual_scale * (the experts' sum, of the CPU)"
    inputs = ("after",)
    optional = ("residual",)

    width: int
    dtype: DType
    residual_scale: float = 1.0

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From after [tokens, 1], residual [tokens, width] -> out [tokens, width]."""
        require_positive("width", self.width)
        out = Tensor((matrix(t, "after")[0], self.width), self.dtype)
        require_residual(t, out)
        return {"out": out}


@dataclass(frozen=True)
class TakeRouted(Handover):
    """What the experts read, on the CPU.

    Attributes:
        width: columns of the rows.
        top_k: experts of a token.
        dtype: type of the rows.
    """

    name = "take_routed"
    summary = "rows, chosen experts and their weights, of the card; after: what is given before"
    inputs = ("token_ids",)
    optional = ("after",)
    outputs = ("x", "experts")
    optional_outputs = ("weights",)

    width: int
    top_k: int
    dtype: DType

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From token_ids [tokens], for their number -> x [tokens, width], experts and weights [tokens, top_k]."""
        require_positive("width", self.width)
        tokens = t["token_ids"].shape[0]
        return {
            "x": Tensor((tokens, self.width), self.dtype),
            "experts": Tensor((tokens, self.top_k), DType.I32),
            "weights": Tensor((tokens, self.top_k), DType.F32),
        }


class GiveSum(Handover):
    """The sum over a token's experts, on the CPU."""

    name = "give_sum"
    summary = "the experts' sum, to the card"
    inputs = ("x",)

    def infer(self, t: Tensors) -> dict[str, Tensor]:
        """From x [tokens, width] -> out [tokens, 1], which orders what is taken next."""
        return {"out": Tensor((matrix(t, "x")[0], 1), t["x"].dtype)}
