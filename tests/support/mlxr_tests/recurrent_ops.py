"""Good and bad ops of recurrent layers, for the tests of all kinds."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Shape, Tensor
from mlxr_tests.expert_ops import matrix, tokens

BF16 = DType.BF16
_NORM: dict[str, Any] = {"groups": 6, "eps": 0.1, "activation": "silu", "gate_first": False, "first": 0}

GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "gated_norm": (
        "gated_norm",
        {"x": tokens(240, BF16), "gate": tokens(240, BF16), "weight": matrix(40)},
        _NORM,
        {"out": tokens(240, BF16)},
    ),
    "gated_norm, of a part of the gate": (
        "gated_norm",
        {"x": tokens(240), "gate": tokens(300), "weight": matrix(240)},
        _NORM | {"gate_first": True, "first": 60},
        {"out": tokens(240)},
    ),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("gated_norm", {}, {"groups": 7}, "x has 240 columns; expected 7 groups"),
    ("gated_norm", {}, {"activation": "relu"}, "attribute activation is 'relu'; expected one of silu, sigmoid"),
    ("gated_norm", {}, {"first": 8}, "gate has 240 columns; expected 240 from 8 on"),
    ("gated_norm", {}, {"eps": None}, "a weight is bound, but there is no norm"),
    ("gated_norm", {"gate": ("rows", 240)}, {}, "gate has rows rows, and x tokens"),
    ("gated_norm", {"weight": (48,)}, {}, r"weight is \[48\]; expected \[40\] or \[240\]"),
]
