"""Good and bad ops of latent attention, for the tests of all kinds: 6 heads, rows of 48 + 16 elements."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Shape, Tensor

_ROTATED: dict[str, Any] = {"rope_dim": 16, "rope_layout": "interleaved", "rope_scale": 1.0}
_WRITE: dict[str, Any] = {"kv_rank": 48, "first": 24, "eps": 0.1} | _ROTATED
_PRODUCT: dict[str, Any] = {"num_heads": 6, "head_dim": 40, "dtype": "bf16"}


def _tokens(width: int, dtype: DType = DType.F32) -> Tensor:
    return Tensor(("tokens", width), dtype)


def _matrix(*shape: int) -> Tensor:
    return Tensor(shape, DType.F32)


_IDS, _TOKEN = Tensor(("tokens",), DType.I32), Tensor((8,), DType.U32)
_LATENTS = {"latent_arena": Tensor((9, 2, 4, 1, 64), DType.BF16)}
_WRITTEN = {"x": _tokens(88, DType.BF16), "kv_norm": _matrix(48), "frequencies": _matrix(8)} | _LATENTS
_ROWS = {"num_heads": 6, "kv_rank": 48, "rope_dim": 16, "scale": 0.1}
_NO_TEMPERATURE = {"temperature_beta": None, "temperature_context": None}
_DECODED = {"q": _tokens(240, DType.BF16), "kv": _tokens(88, DType.BF16), "kv_norm": _matrix(48)} | {
    "k_b": _matrix(6 * 48, 24),
    "v_b": _matrix(6 * 56, 48),
    "frequencies": _matrix(8),
}
GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "latent_write": ("latent_write", _WRITTEN, _WRITE, {"token": _TOKEN}),
    "latent_norm_write": (
        "latent_norm_write",
        _WRITTEN | {"q_norm": _matrix(24)},
        _WRITE | {"q_rank": 24},
        {"out": _tokens(24, DType.BF16), "token": _TOKEN},
    ),
    "head_product": (
        "head_product",
        {"x": _tokens(240, DType.BF16), "weight": _matrix(6 * 56, 40)},
        _PRODUCT | {"first": 0},
        {"out": _tokens(6 * 56, DType.BF16)},
    ),
    "head_product, of the last columns": (
        "head_product",
        {"x": _tokens(300, DType.BF16), "weight": _matrix(6 * 56, 40)},
        _PRODUCT | {"first": 60},
        {"out": _tokens(6 * 56, DType.BF16)},
    ),
    "latent_queries": (
        "latent_queries",
        {"x": _tokens(240, DType.BF16), "weight": _matrix(6 * 48, 24), "positions": _IDS, "frequencies": _matrix(8)},
        _PRODUCT | _ROTATED,
        {"out": _tokens(6 * 64, DType.BF16)},
    ),
    "latent_attention": (
        "latent_attention",
        {"q": _tokens(6 * 64, DType.BF16)} | _LATENTS,
        _ROWS | _NO_TEMPERATURE,
        {"out": _tokens(6 * 48, DType.BF16), "token": _TOKEN},
    ),
    "latent_decode": (
        "latent_decode",
        _DECODED | _LATENTS,
        _ROWS | _NO_TEMPERATURE | _ROTATED | {"head_dim": 40, "first": 24, "eps": 0.1},
        {"out": _tokens(6 * 56, DType.BF16), "token": _TOKEN},
    ),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("latent_write", {"x": _tokens(80)}, {}, "x has 80 columns; the latent and its key end at 88"),
    ("latent_write", {"kv_norm": (40,)}, {}, r"kv_norm is \[40\]; expected \[48\]"),
    ("latent_write", {}, {"first": -1}, "attribute first is -1; expected 0 or more"),
    ("latent_write", {"frequencies": (4,)}, {}, r"frequencies are \[4\]; expected \[8\]"),
    ("latent_norm_write", {"q_norm": (32,)}, {}, r"q_norm is \[32\]; expected \[24\]"),
    ("latent_norm_write", {"q_norm": (32,)}, {"q_rank": 32}, "the latent begins at 24, within the queries' 32"),
    ("head_product", {"weight": (335, 40)}, {}, "weight has 335 rows; expected 6 equal parts"),
    ("head_product", {"weight": (336, 48)}, {}, "weight has 48 columns, a head 40"),
    ("head_product", {"x": _tokens(232)}, {}, "x has 232 columns; expected 6 heads"),
    ("head_product", {}, {"first": 8}, "x has 232 columns; expected 6 heads"),
    ("head_product", {}, {"first": -8}, "attribute first is -8; expected 0 or more"),
    ("latent_queries", {"weight": (288, 32)}, {}, r"32 \+ 16 is not 40"),
    ("latent_attention", {"q": _tokens(6 * 48)}, {}, "q has 288 columns; expected 6 x 64"),
    ("latent_attention", {}, {"scale": 0.0}, "attribute scale is 0.0; expected a number greater than 0"),
    ("latent_attention", {}, {"temperature_beta": 0.1}, "are given together or not at all"),
    ("latent_decode", {"q": _tokens(232)}, {}, "q has 232 columns; expected at least 6 x 40"),
    ("latent_decode", {"kv": _tokens(80)}, {}, "kv has 80 columns; the latent and its key end at 88"),
    ("latent_decode", {"kv_norm": (40,)}, {}, r"kv_norm is \[40\]; expected \[48\]"),
    ("latent_decode", {"k_b": (288, 32)}, {}, r"k_b is \[288, 32\]; expected \[288, 24\]"),
    ("latent_decode", {"v_b": (336, 40)}, {}, "v_b has 40 columns; expected 48"),
    ("latent_decode", {"v_b": (335, 48)}, {}, "v_b has 335 rows; expected 6 equal parts"),
    ("latent_decode", {"frequencies": (4,)}, {}, r"frequencies are \[4\]; expected \[8\]"),
    ("latent_decode", {}, {"temperature_beta": 0.1}, "are given together or not at all"),
]
