"""What a projection's op says of its norm and its epilogue, for the contexts of kernels."""

from typing import Literal

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.draft import Drafting
from mlxr.compiler.targets.metal.kernels.projection_kernels import Epilogue, Norm


def norm_of(drafting: Drafting, op: Op) -> Norm | None:
    """The norm of a projection's x; None where it has none."""
    weight = drafting.optional_dtype(op, "norm")
    if weight is None:
        return None
    kind: Literal["rms", "layer"] = "layer" if op.attrs.get("norm_kind") == "layer" else "rms"
    return Norm(kind, _number(op, "eps", 0.0), weight, drafting.optional_dtype(op, "norm_bias"))


def epilogue_of(drafting: Drafting, op: Op) -> Epilogue:
    """What a projection does with its finished sums."""
    activation = op.attrs.get("activation")
    return Epilogue(
        out=drafting.graph.value(op.out).dtype,
        bias=drafting.optional_dtype(op, "bias"),
        residual="residual" in op.inputs,
        gate=drafting.optional_dtype(op, "gate"),
        activation_kind=str(activation) if activation else None,
        gated=bool(op.attrs.get("gated")),
        limit=_optional(op, "limit"),
        residual_scale=_number(op, "residual_scale", 1.0),
        out_scale=_number(op, "out_scale", 1.0),
        out_cap=_optional(op, "out_cap"),
    )


def _optional(op: Op, name: str) -> float | None:
    value = op.attrs.get(name)
    return float(value) if isinstance(value, int | float) else None


def _number(op: Op, name: str, default: float) -> float:
    value = _optional(op, name)
    return default if value is None else value
