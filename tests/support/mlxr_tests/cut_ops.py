"""Cases of the ops between a card and the CPU that has some layers' experts, for tests of shape rules."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Tensor

_CHOSEN = {
    "experts": Tensor(("tokens", 2), DType.I32),
    "weights": Tensor(("tokens", 2), DType.F32),
}
_ROWS, _GIVEN = Tensor(("tokens", 48), DType.BF16), Tensor(("tokens", 1), DType.I32)

GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "give_routed": ("give_routed", {"x": _ROWS} | _CHOSEN, {}, {"out": _GIVEN}),
    "take_sum": (
        "take_sum",
        {"after": _GIVEN, "residual": _ROWS},
        {"width": 48, "dtype": "bf16", "residual_scale": 1.0},
        {"out": _ROWS},
    ),
    "take_routed": (
        "take_routed",
        {"token_ids": Tensor(("tokens",), DType.I32), "after": Tensor(("tokens", 1), DType.BF16)},
        {"width": 48, "top_k": 2, "dtype": "bf16"},
        {"x": _ROWS} | _CHOSEN,
    ),
    "give_sum": ("give_sum", {"x": _ROWS}, {}, {"out": Tensor(("tokens", 1), DType.BF16)}),
}
BAD = [
    ("give_routed", {"weights": ("rows", 2)}, {}, "weights has rows rows; expected tokens"),
    ("take_sum", {"residual": ("tokens", 40)}, {}, r"residual is \['tokens', 40\]; expected \['tokens', 48\]"),
    ("take_routed", {}, {"width": 0}, "attribute width is 0"),
    ("give_sum", {"x": ("tokens",)}, {}, r"x is \['tokens'\]; expected \[rows, columns\]"),
]
