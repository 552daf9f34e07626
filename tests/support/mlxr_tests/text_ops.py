"""Good and bad attention within texts, for the tests of all kinds: 6 query heads of 40 on 2 KV heads."""

from typing import Any

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import Shape, Tensor


def _tokens(width: int) -> Tensor:
    return Tensor(("tokens", width), DType.BF16)


_SIZES: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "scale": 0.1, "window": None}
_PLAIN = {"softcap": None, "chunked": False, "v_dim": None, "alibi": None, "alibi_heads": 0, "alibi_first": 0}
_PACKED = _SIZES | {"rotary_dim": 16, "rope_layout": "half", "rope_scale": 1.0, "v_dim": None}
_STARTS = {"query_start": Tensor(("seqs+1",), DType.I32)}
_PLACES = _STARTS | {"query_tiles": Tensor(("tiles", 2), DType.I32), "positions": Tensor(("tokens",), DType.I32)}
GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "text_attention": (
        "text_attention",
        {"q": _tokens(240), "k": _tokens(80), "v": _tokens(80)} | _STARTS,
        _SIZES | _PLAIN,
        {"out": _tokens(240)},
    ),
    "packed_text_attention": (
        "packed_text_attention",
        {"qkv": _tokens(400), "frequencies": Tensor((8,), DType.F32)} | _PLACES,
        _PACKED | {"window": 5},
        {"out": _tokens(240)},
    ),
}
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("text_attention", {"k": ("tokens", 240)}, {}, "k has 240 columns; expected 2 x 40"),
    ("text_attention", {}, {"softcap": 3.0}, "a cap, chunks, values of another size or biases"),
    ("text_attention", {}, {"window": 0}, "attribute window is 0; expected a number greater than 0"),
    ("packed_text_attention", {"qkv": ("tokens", 408)}, {}, "qkv has 408 columns; expected 400"),
    ("packed_text_attention", {}, {"rotary_dim": 0}, "rotary_dim is 0, and frequencies are bound"),
    ("packed_text_attention", {}, {"scale": 0.0}, "attribute scale is 0.0; expected a number greater than 0"),
]
