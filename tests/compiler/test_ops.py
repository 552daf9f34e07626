"""The op table: shape and type rules, and which mistakes they refuse."""

from typing import Any

import pytest

from mlxr.compiler.dtypes import DType
from mlxr.compiler.ops import OPS, RuleError, Shape, Tensor

F32, BF16, I32 = DType.F32, DType.BF16, DType.I32
ARENA = Tensor((9, 2, 4, 2, 40), BF16)
IDS, ROWS = Tensor(("tokens",), I32), Tensor(("rows",), I32)
ROTARY: dict[str, Any] = {"rotary_dim": 16, "rope_layout": "half"}
HEADS: dict[str, Any] = {"layer": 1, "num_heads": 6, "num_kv_heads": 2, "head_dim": 40}
ATTEND = HEADS | {"scale": 0.1, "window": None}
PLAIN: dict[str, Any] = {"dtype": "bf16", "eps": None, "activation": None}


def tokens(width: int, dtype: DType = F32) -> Tensor:
    return Tensor(("tokens", width), dtype)


def matrix(*shape: int, dtype: DType = F32) -> Tensor:
    return Tensor(shape, dtype)


ARENAS = {"k_arena": ARENA, "v_arena": ARENA}
PACKED = {"qkv": tokens(400, BF16), "frequencies": matrix(8)} | ARENAS
TOKEN = Tensor((8,), DType.U32)

GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "embed": (
        "embed",
        {"ids": IDS, "table": matrix(61, 48)},
        {"dtype": "bf16"},
        {"out": tokens(48, BF16)},
    ),
    "rms_norm": ("rms_norm", {"x": tokens(48, BF16), "weight": matrix(48)}, {"eps": 0.1}, {"out": tokens(48, BF16)}),
    "linear": (
        "linear",
        {"x": tokens(48, BF16), "weight": matrix(24, 48), "bias": matrix(24)},
        {"dtype": "f32"},
        {"out": tokens(24)},
    ),
    "activation": ("activation", {"x": tokens(48)}, {"kind": "silu"}, {"out": tokens(48)}),
    "multiply": ("multiply", {"a": tokens(48), "b": tokens(48)}, {}, {"out": tokens(48)}),
    "add": ("add", {"a": tokens(48), "b": tokens(48)}, {}, {"out": tokens(48)}),
    "gather_rows": ("gather_rows", {"x": tokens(48), "rows": ROWS}, {}, {"out": Tensor(("rows", 48), F32)}),
    "rope": (
        "rope",
        {"x": tokens(240, BF16), "positions": IDS, "frequencies": matrix(8)},
        {"num_heads": 6, "head_dim": 40} | ROTARY,
        {"out": tokens(240, BF16)},
    ),
    "split": (
        "split",
        {"x": tokens(400)},
        {"q": 240, "k": 80, "v": 80},
        {"q": tokens(240), "k": tokens(80), "v": tokens(80)},
    ),
    "cache_write": (
        "cache_write",
        {"k": tokens(80), "v": tokens(80), "slots": IDS} | ARENAS,
        {"layer": 1, "num_kv_heads": 2, "head_dim": 40},
        {"token": TOKEN},
    ),
    "attention": ("attention", {"q": tokens(240)} | ARENAS, ATTEND, {"out": tokens(240), "token": TOKEN}),
    "projection": ("projection", {"x": tokens(48), "weight": matrix(24, 48)}, PLAIN, {"out": tokens(24, BF16)}),
    "projection, all of it": (
        "projection",
        {
            "x": tokens(48, BF16),
            "weight": matrix(26, 48),
            "norm": matrix(48),
            "bias": matrix(26),
            "rows": ROWS,
            "residual": Tensor(("rows", 13), BF16),
        },
        {"dtype": "bf16", "eps": 0.1, "activation": "silu"},
        {"out": Tensor(("rows", 13), BF16)},
    ),
    "rope_write_attention": (
        "rope_write_attention",
        PACKED,
        ATTEND | ROTARY,
        {"out": tokens(240, BF16), "token": TOKEN},
    ),
    "rope_cache_write": ("rope_cache_write", PACKED, HEADS | ROTARY, {"token": TOKEN}),
    "rope_attention": ("rope_attention", PACKED, ATTEND | ROTARY, {"out": tokens(240, BF16), "token": TOKEN}),
}


@pytest.mark.parametrize("case", GOOD)
def test_rule(case: str) -> None:
    kind, inputs, attrs, outputs = GOOD[case]
    assert OPS[kind].infer(inputs, attrs) == outputs
    assert tuple(outputs) == OPS[kind].outputs
    assert set(inputs) <= {*OPS[kind].inputs, *OPS[kind].optional}


def test_every_kind_has_a_case() -> None:
    assert {kind for kind, *_ in GOOD.values()} == set(OPS)


ALL = "projection, all of it"
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("embed", {"ids": Tensor(("tokens",), F32)}, {}, "ids are f32; expected i32"),
    ("embed", {}, {"dtype": "f8"}, "attribute dtype is 'f8'; expected one of f32"),
    ("embed", {"table": (61,)}, {}, r"table is \[61\]; expected \[rows, columns\]"),
    ("rms_norm", {"weight": (47,)}, {}, r"weight is \[47\]; expected \[48\]"),
    ("linear", {"weight": (24, 47)}, {}, "weight has 47 columns, x has 48"),
    ("linear", {"weight": (48, 24)}, {}, "weight has 24 columns, x has 48"),
    ("linear", {"bias": (23,)}, {}, r"bias is \[23\]; expected \[24\]"),
    ("linear", {"x": ("tokens", "rows")}, {}, r"x is \['tokens', 'rows'\]"),
    ("multiply", {"b": ("rows", 48)}, {}, "expected the same"),
    ("add", {"b": tokens(48, BF16)}, {}, "expected the same"),
    ("gather_rows", {"x": ("tokens",)}, {}, r"x is \['tokens'\]"),
    ("rope", {}, {"num_heads": 5}, "x has 240 columns; expected 5 x 40"),
    ("rope", {"frequencies": (16,)}, {}, r"frequencies are \[16\]; expected \[8\]"),
    ("rope", {}, {"num_heads": "6"}, "attribute num_heads is '6'; expected a whole number"),
    ("split", {}, {"v": 40}, "x has 400 columns, its parts 360"),
    ("cache_write", {"v": ("tokens", 40)}, {}, "v has 40 columns; expected 2 x 40"),
    ("cache_write", {"k": ("tokens", 240)}, {}, "k has 240 columns; expected 2 x 40"),
    ("cache_write", {"v_arena": (9, 2, 4, 6, 40)}, {}, "v_arena is"),
    ("attention", {"q": ("tokens", 80)}, {}, "q has 80 columns; expected 6 x 40"),
    ("attention", {"k_arena": (9, 2, 4, 40, 2)}, {}, "k_arena is"),
    ("attention", {"k_arena": (9, 4, 2, 40)}, {}, "k_arena is"),
    ("projection", {"weight": (24, 40)}, {}, "weight has 40 columns, x has 48"),
    (ALL, {"norm": (26,)}, {}, r"norm is \[26\]; expected \[48\]"),
    (ALL, {}, {"eps": None}, "norm is bound but eps is none"),
    (ALL, {"weight": (25, 48), "bias": (25,)}, {}, "gate and up rows are 25; expected an even number"),
    (ALL, {"residual": Tensor(("tokens", 13), BF16)}, {}, r"residual is \['tokens', 13\]"),
    (ALL, {"residual": Tensor(("rows", 26), BF16)}, {}, r"residual is \['rows', 26\]"),
    (ALL, {"residual": Tensor(("rows", 13), F32)}, {}, "residual is f32, out is bf16"),
    ("rope_write_attention", {"qkv": ("tokens", 240)}, {}, "qkv has 240 columns; expected 10 x 40"),
    ("rope_write_attention", {"frequencies": (20,)}, {}, r"frequencies are \[20\]; expected \[8\]"),
    ("rope_cache_write", {"v_arena": (9, 2, 4, 2, 32)}, {}, "v_arena is"),
    ("rope_attention", {}, {"num_kv_heads": 3}, "qkv has 400 columns; expected 12 x 40"),
]


@pytest.mark.parametrize(("case", "inputs", "attrs", "message"), BAD)
def test_rule_refuses(case: str, inputs: dict[str, Shape | Tensor], attrs: dict[str, Any], message: str) -> None:
    kind, good_inputs, good_attrs, _ = GOOD[case]
    tensors = {p: t if isinstance(t, Tensor) else Tensor(t, good_inputs[p].dtype) for p, t in inputs.items()}
    with pytest.raises(RuleError, match=message):
        OPS[kind].infer(good_inputs | tensors, good_attrs | attrs)


def test_arena_accesses_have_tokens_and_layers() -> None:
    accesses = {kind.name for kind in OPS.values() if kind.arena != "none"}
    assert accesses == {name for name, kind in OPS.items() if "k_arena" in kind.inputs and "v_arena" in kind.inputs}
    assert accesses == {name for name, kind in OPS.items() if "token" in kind.outputs and "token" in kind.optional}
    assert accesses == {name for name, kind in OPS.items() if "layer" in kind.attrs}


def test_stages() -> None:
    left = {name for name, kind in OPS.items() if "ordered" in kind.stages}
    assert left == {"embed", "linear", "projection", "rope_write_attention", "rope_cache_write", "rope_attention"}
