"""Good and bad ops of recurrent layers, for the tests of all kinds."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import TOKEN, Shape, Tensor
from mlxr_tests.expert_ops import matrix, tokens

BF16 = DType.BF16
_NORM: dict[str, Any] = {"groups": 6, "eps": 0.1, "activation": "silu", "gate_first": False, "first": 0}

_CONV: dict[str, Tensor] = {
    "x": tokens(48),
    "weight": matrix(48 * 3),
    "query_start": Tensor(("seqs+1",), DType.I32),
    "state_table": Tensor(("seqs", 18), DType.I32),
    "conv_states": Tensor((16, 2, 48, 2), DType.F32),
}
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
    "causal_conv": (
        "causal_conv",
        _CONV,
        {"taps": 3, "activation": "silu", "first": 0},
        {"out": tokens(48), "token": TOKEN},
    ),
    "causal_conv, of a part of the columns, with a bias": (
        "causal_conv",
        _CONV | {"x": tokens(96, BF16), "bias": matrix(48)},
        {"taps": 3, "activation": None, "first": 40},
        {"out": tokens(48, BF16), "token": TOKEN},
    ),
    "gated_conv": ("gated_conv", _CONV | {"x": tokens(144)}, {"taps": 3}, {"out": tokens(48), "token": TOKEN}),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("gated_norm", {}, {"groups": 7}, "x has 240 columns; expected 7 groups"),
    ("gated_norm", {}, {"activation": "relu"}, "attribute activation is 'relu'; expected one of silu, sigmoid"),
    ("gated_norm", {}, {"first": 8}, "gate has 240 columns; expected 240 from 8 on"),
    ("gated_norm", {}, {"eps": None}, "a weight is bound, but there is no norm"),
    ("gated_norm", {"gate": ("rows", 240)}, {}, "gate has rows rows, and x tokens"),
    ("gated_norm", {"weight": (48,)}, {}, r"weight is \[48\]; expected \[40\] or \[240\]"),
    ("causal_conv", {}, {"taps": 1}, "attribute taps is 1; expected 2 or more"),
    ("causal_conv", {}, {"taps": 5}, "expected a vector of 5 taps of each channel"),
    ("causal_conv", {}, {"activation": "relu"}, "attribute activation is 'relu'; expected one of silu"),
    ("causal_conv", {}, {"first": 8}, "x has 48 columns; expected 48 from 8 on"),
    ("causal_conv", {}, {"first": -1}, "attribute first is -1"),
    ("causal_conv", {"bias": matrix(40)}, {}, r"bias is \[40\]; expected \[48\]"),
    ("causal_conv", {"conv_states": (16, 2, 48, 3)}, {}, r"expected rows of \[48, 2\]"),
    ("causal_conv", {"weight": Tensor((144,), BF16)}, {}, "states and weight are f32"),
    ("gated_conv", {"x": ("tokens", 96)}, {}, "x has 96 columns; expected 3 times 48"),
]
