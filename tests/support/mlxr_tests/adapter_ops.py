"""Good and bad ops of adapters, for the tests of all kinds."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Shape, Tensor
from mlxr_tests.expert_ops import tokens

_BF16 = DType.BF16
_IDS, _SCALES = Tensor(("tokens",), DType.I32), Tensor(("tokens",), DType.F32)
_LIFT: dict[str, Any] = {"dtype": "bf16", "rank": 8, "slots": 5, "widths": "24,24", "activation": "silu"}
_LIFT |= {"gated": True, "limit": None, "residual_scale": 1.0, "out_scale": 1.0, "out_cap": None, "out_limit": None}

GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "adapter_down": (
        "adapter_down",
        {
            "x": tokens(40),
            "down": Tensor((5 * 8 * 2 * 40,), DType.F16),
            "adapter_ids": _IDS,
            "adapter_scales": _SCALES,
        },
        {"rank": 8, "slots": 5, "widths": "24,16"},
        {"out": tokens(16)},
    ),
    "adapter_up": (
        "adapter_up",
        {
            "x": tokens(48),
            "low": tokens(16),
            "lift": Tensor((5 * 8 * 48,), DType.F16),
            "adapter_ids": _IDS,
            "residual": tokens(24, _BF16),
        },
        _LIFT,
        {"out": tokens(24, _BF16)},
    ),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("adapter_down", {"down": (40,)}, {}, "down is .40.; expected .3200."),
    ("adapter_down", {"adapter_scales": (8,)}, {}, "adapter_scales is .8.; expected"),
    ("adapter_up", {"low": ("tokens", 8)}, {}, "low is"),
    ("adapter_up", {"lift": (8,)}, {}, "lift is"),
    ("adapter_up", {}, {"widths": "24,x"}, "expected numbers and commas"),
]
