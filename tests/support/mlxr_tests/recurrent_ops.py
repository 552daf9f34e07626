"""Good and bad ops of recurrent layers, for the tests of all kinds."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import TOKEN, Shape, Tensor
from mlxr_tests.expert_ops import matrix, tokens

BF16 = DType.BF16
_NORM: dict[str, Any] = {"groups": 6, "eps": 0.1, "activation": "silu", "gate_first": False, "first": 0}
_DELTA: dict[str, Any] = {
    "num_heads": 6,
    "num_key_heads": 2,
    "key_dim": 24,
    "value_dim": 40,
    "tiled": False,
    "per_channel": False,
    "q_first": 0,
    "k_first": 48,
    "v_first": 96,
    "decay_first": 0,
    "beta_first": 8,
}
_HEADS = {"q": tokens(336, BF16), "k": tokens(336, BF16), "v": tokens(336, BF16)}
_NUMBERS = {"a": tokens(16, BF16), "b": tokens(16, BF16), "rate": matrix(6), "dt_bias": matrix(6)}
_TABLES = {"query_start": Tensor(("seqs+1",), DType.I32), "state_table": Tensor(("seqs", "columns"), DType.I32)}
_STATES = {"states": Tensor((9, 2, 6, 24, 40), DType.F32)}
_TOKEN = Tensor((8,), DType.U32)

_CONV: dict[str, Tensor] = {
    "x": tokens(48),
    "weight": matrix(48 * 3),
    "query_start": Tensor(("seqs+1",), DType.I32),
    "state_table": Tensor(("seqs", 18), DType.I32),
    "conv_states": Tensor((16, 2, 48, 2), DType.F32),
}
_NET = _DELTA | {"taps": 3, "k_first": 0, "v_first": 0, "beta_first": 0}
_NET_INPUTS = {"q": tokens(48), "k": tokens(48), "v": tokens(240), "a": tokens(6), "b": tokens(6)}
_NET_INPUTS |= {"q_conv": matrix(144), "k_conv": matrix(144), "v_conv": matrix(720), "rate": matrix(6)}
_NET_INPUTS |= {"dt_bias": matrix(6), "conv_states": Tensor((9, 2, 336, 2), DType.F32)} | _TABLES | _STATES
_FUSED = {"taps": 3, "eps": 0.1, "activation": "silu", "gate_column": 336, "decay_first": 576, "beta_first": 582}
_FUSED |= {"rank": 0}
_RANK = {"per_channel": True, "gate_column": 336, "decay_first": 352, "beta_first": 368, "rank": 16}
_DECODED = dict.fromkeys(("x", "a", "b", "gate"), tokens(588, BF16)) | _TABLES | _STATES
_DECODED |= {"weight": matrix(1008), "rate": matrix(6), "dt_bias": matrix(6), "norm": matrix(40)}
_DECODED |= {"conv_states": Tensor((9, 2, 336, 2), DType.F32)}
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
    "gated_delta": (
        "gated_delta",
        _HEADS | _NUMBERS | _TABLES | _STATES,
        _DELTA,
        {"out": tokens(240, BF16), "token": _TOKEN},
    ),
    "delta_net": ("delta_net", _NET_INPUTS, _NET, {"out": tokens(240), "token": _TOKEN}),
    "delta_decode": ("delta_decode", _DECODED, _DELTA | _FUSED, {"out": tokens(240, BF16), "token": _TOKEN}),
    "delta_decode, with products": (
        "delta_decode",
        _DECODED
        | dict.fromkeys(("x", "a", "b", "gate"), tokens(376, BF16))
        | {"dt_bias": matrix(144), "decay_b": matrix(144, 16), "gate_b": matrix(240, 16)},
        _DELTA | _FUSED | _RANK,
        {"out": tokens(240, BF16), "token": _TOKEN},
    ),
    "gated_delta, by channels": (
        "gated_delta",
        {"q": tokens(144), "k": tokens(144), "v": tokens(240), "a": tokens(144), "b": tokens(6)}
        | {"rate": matrix(6), "dt_bias": matrix(144)}
        | _TABLES
        | _STATES,
        _DELTA | {"num_key_heads": 6, "per_channel": True, "k_first": 0, "v_first": 0, "beta_first": 0},
        {"out": tokens(240), "token": _TOKEN},
    ),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("gated_norm", {}, {"groups": 7}, "x has 240 columns; expected 7 groups"),
    ("gated_norm", {}, {"activation": "relu"}, "attribute activation is 'relu'; expected one of silu, sigmoid"),
    ("gated_norm", {}, {"first": 8}, "gate has 240 columns; expected 240 from 8 on"),
    ("gated_norm", {}, {"eps": None}, "a weight is bound, but there is no norm"),
    ("gated_delta", {}, {"num_key_heads": 4}, "6 heads of values do not share 4 heads of keys evenly"),
    ("gated_delta", {}, {"v_first": 97}, "v has 336 columns; expected 240 from 97 on"),
    ("gated_delta", {}, {"beta_first": -1}, "the first column of b is -1; expected 0 or more"),
    ("gated_delta", {"a": ("rows", 16)}, {}, "a has rows rows, and others tokens"),
    ("gated_delta", {"rate": (2,)}, {}, r"rate is \[2\]; expected \[6\]"),
    ("gated_delta", {}, {"per_channel": True}, "a has 16 columns; expected 144 from 0 on"),
    ("gated_delta", {"states": (9, 2, 6, 40, 24)}, {}, "expected rows of"),
    ("gated_delta", {"states": Tensor((9, 2, 6, 24, 40), DType.BF16)}, {}, "states are bf16; expected f32"),
    ("delta_net", {}, {"taps": 1}, "attribute taps is 1; expected 2 or more"),
    ("delta_net", {}, {"k_first": 1}, "parts that come apart begin with column 0"),
    ("delta_net", {"v_conv": (240,)}, {}, r"v_conv is \[240\]; expected \[720\]"),
    ("delta_net", {"conv_states": (9, 2, 336, 3)}, {}, r"expected rows of \[336, 2\]"),
    ("delta_decode", {}, {"k_first": 56}, "queries, keys and values are not neighbours"),
    ("delta_decode", {}, {"gate_column": 400}, "gate has 588 columns; expected 240 from 400 on"),
    ("delta_decode", {"norm": (24,)}, {}, r"norm is \[24\]; expected \[40\]"),
    ("delta_decode", {"weight": Tensor((1008,), BF16)}, {}, "weight is bf16; expected f32"),
    ("delta_decode", {}, {"activation": "relu"}, "attribute activation is 'relu'"),
    ("delta_decode, with products", {}, {"rank": 24}, r"decay_b is \[144, 16\]; expected \[144, 24\]"),
    ("delta_decode, with products", {"gate_b": (144, 16)}, {}, r"gate_b is \[144, 16\]; expected \[240, 16\]"),
    ("delta_decode, with products", {}, {"gate_column": 368}, "gate has 376 columns; expected 16 from 368 on"),
    ("delta_decode, with products", {}, {"rank": -1}, "attribute rank is -1; expected 0 or more"),
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
