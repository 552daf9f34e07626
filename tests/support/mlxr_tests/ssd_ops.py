"""Good and bad scans of Mamba-2, for the tests of all kinds: 6 heads of 16, in 3 groups with states of 32.

Beside one of them 4 heads of 24 attend to 2, without a rotation.
"""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Shape, Tensor

_SIZES: dict[str, Any] = {"num_heads": 6, "head_dim": 16, "num_groups": 3, "state_dim": 32, "least": 0.0, "most": None}
_COLUMNS: dict[str, Any] = dict.fromkeys(("x_first", "dt_first", "gate_first"), 0)
_FIRST = _COLUMNS | {"b_first": 0, "c_first": 0}


def _tokens(width: int, dtype: DType = DType.BF16) -> Tensor:
    return Tensor(("tokens", width), dtype)


def _heads(count: int = 6) -> Tensor:
    return Tensor((count,), DType.F32)


_TABLES = {
    "query_start": Tensor(("seqs+1",), DType.I32),
    "state_table": Tensor(("seqs", 2), DType.I32),
    "states": Tensor((9, 2, 6, 16, 32), DType.F32),
}
_NUMBERS = {"a": _heads(), "d": _heads(), "dt_bias": _heads()}
_CONV = {"conv_states": Tensor((9, 2, 288, 3), DType.F32)}
_FILTERS = {f"{part}_conv": _heads(96 * 4) for part in "xbc"} | {f"{part}_conv_bias": _heads(96) for part in "xbc"}
_RESULT = {"out": _tokens(96), "token": Tensor((8,), DType.U32)}
_ATTEND: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 24, "v_dim": None, "scale": 0.1}
_ATTEND |= {"rotary_dim": 0, "rope_layout": "half", "rope_scale": 1.0, "norm_eps": None, "norm_scope": "head"}
_ATTEND |= {"window": None, "softcap": None, "chunked": False, "alibi": None, "alibi_heads": 0, "alibi_first": 0}
_ATTEND |= {"temperature_beta": None, "temperature_context": None, "temperature_first": 0, "gate": None}
_ATTEND |= {"gate_first": 0, "gate_size": 0, "norms_values": False, "values_from_keys": False}
_CACHE = dict.fromkeys(("k_arena", "v_arena"), Tensor((9, 2, 4, 2, 24), DType.BF16))
GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "ssd": (
        "ssd",
        {"x": _tokens(96), "b": _tokens(96), "c": _tokens(96), "dt": _tokens(6)} | _NUMBERS | _TABLES,
        _SIZES | _FIRST,
        _RESULT,
    ),
    "ssd, of joined columns, with a gate": (
        "ssd",
        dict.fromkeys(("x", "b", "c", "dt", "gate"), _tokens(390)) | _NUMBERS | _TABLES,
        _SIZES | _FIRST | {"x_first": 96, "b_first": 192, "c_first": 288, "dt_first": 384},
        _RESULT,
    ),
    "conv_ssd": (
        "conv_ssd",
        {"x": _tokens(400), "weight": _heads(288 * 4), "bias": _heads(288)}
        | {"dt": _tokens(400), "gate": _tokens(400)}
        | _NUMBERS
        | _TABLES
        | _CONV,
        _SIZES | {"x_first": 96, "dt_first": 384, "gate_first": 0, "taps": 4},
        _RESULT,
    ),
    "mixer_decode": (
        "mixer_decode",
        dict.fromkeys(("qkv", "scan_x", "scan_dt", "scan_gate"), _tokens(592))
        | {f"scan_{port}": _heads(rows) for port, rows in (("weight", 288 * 4), ("bias", 288))}
        | {f"scan_{port}": number for port, number in _NUMBERS.items()}
        | _TABLES
        | _CONV
        | _CACHE,
        _ATTEND
        | {f"scan_{name}": value for name, value in _SIZES.items()}
        | {"scan_x_first": 288, "scan_dt_first": 576, "scan_gate_first": 192, "scan_taps": 4},
        {"out": _tokens(96), "scan_out": _tokens(96), "token": _RESULT["token"]},
    ),
    "mamba2": (
        "mamba2",
        {"x": _tokens(96), "b": _tokens(96), "c": _tokens(96), "dt": _tokens(6), "gate": _tokens(96)}
        | _FILTERS
        | _NUMBERS
        | _TABLES
        | _CONV,
        _SIZES | _COLUMNS | {"taps": 4},
        _RESULT,
    ),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("ssd", {"x": _tokens(90)}, {}, "x has 90 columns; expected 96 from 0 on"),
    ("ssd", {}, {"dt_first": 1}, "dt has 6 columns; expected 6 from 1 on"),
    ("ssd", {}, {"b_first": -1}, "attribute b_first is -1; expected 0 or more"),
    ("ssd", {}, {"num_groups": 4}, "6 heads are not 4 equal groups"),
    ("ssd", {}, {"state_dim": 0}, "attribute state_dim is 0; expected a number greater than 0"),
    ("ssd", {}, {"least": -1.0}, "attribute least is -1.0; expected 0 or more"),
    ("ssd", {}, {"most": 0.0}, "attribute most is 0.0; expected a number greater than 0"),
    ("ssd", {"a": (5,)}, {}, r"a is \[5\]; expected \[6\]"),
    ("ssd", {"d": Tensor((6,), DType.BF16)}, {}, "d is bf16; expected f32"),
    ("ssd", {"c": Tensor(("rows", 96), DType.BF16)}, {}, "c has rows rows, and x tokens"),
    ("ssd", {"states": (9, 2, 6, 16, 8)}, {}, r"states are .*; expected rows of \[6, 16, 32\]"),
    ("ssd", {"states": Tensor((9, 2, 6, 16, 32), DType.BF16)}, {}, "states are bf16; expected f32"),
    ("ssd", {"query_start": Tensor(("seqs+1",), DType.F32)}, {}, "query_start are f32; expected i32"),
    ("conv_ssd", {"weight": (288,)}, {}, r"weight is \[288\]; expected \[1152\]"),
    ("conv_ssd", {"bias": (96,)}, {}, r"bias is \[96\]; expected \[288\]"),
    ("conv_ssd", {"weight": Tensor((1152,), DType.BF16)}, {}, "weight is not f32"),
    ("conv_ssd", {"x": _tokens(380)}, {}, "x has 380 columns; expected 288 from 96 on"),
    ("conv_ssd", {"conv_states": (9, 2, 288, 4)}, {}, r"conv_states are .*; expected rows of \[288, 3\]"),
    ("mixer_decode", {"qkv": _tokens(190)}, {}, "qkv has 190 columns; expected at least 192"),
    ("mixer_decode", {"scan_x": _tokens(570)}, {}, "x has 570 columns; expected 288 from 288 on"),
    ("mamba2", {"b_conv": (96,)}, {}, r"b_conv is \[96\]; expected \[384\]"),
    ("mamba2", {}, {"dt_first": 2}, "parts that come apart begin with column 0"),
    ("mamba2", {}, {"taps": 1}, "attribute taps is 1; expected 2 or more"),
]
