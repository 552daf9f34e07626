"""The op kinds: shape and type rules, and which mistakes they refuse."""

from dataclasses import is_dataclass
from fractions import Fraction
from typing import Any

import pytest

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.checks import RuleError
from mlxr.compiler.ir.op_registry import op_kinds, read_op_kind
from mlxr.compiler.ir.tensor import Shape, Tensor
from mlxr.compiler.ir.work import Dims, Use
from mlxr_tests import adapter_ops, cut_ops, hidden_ops, latent_ops, recurrent_ops, ssd_ops, text_ops
from mlxr_tests.expert_ops import EXPERTS, matrix, tokens
from mlxr_tests.reference_ops import PLAIN_PROJECTION

F32, BF16, I32 = DType.F32, DType.BF16, DType.I32
OPS = op_kinds()
ARENA, TOKEN = Tensor((9, 2, 4, 2, 40), BF16), Tensor((8,), DType.U32)
IDS, ROWS = Tensor(("tokens",), I32), Tensor(("rows",), I32)
ROTARY: dict[str, Any] = {"rotary_dim": 16, "rope_layout": "half", "rope_scale": 1.0}
HEADS: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40}
ATTEND = HEADS | {"scale": 0.1, "window": None, "softcap": None, "chunked": False, "v_dim": None}
ATTEND |= {"alibi": None, "alibi_heads": 0, "alibi_first": 0}
FUSED = ATTEND | ROTARY | {"temperature_beta": None, "temperature_context": None, "temperature_first": 0}
FUSED |= {"gate": None, "gate_first": 0, "gate_size": 0, "norm_eps": None, "norm_scope": "head"}
FUSED |= {"norms_values": False, "values_from_keys": False}
PLAIN: dict[str, Any] = {"dtype": "bf16", **PLAIN_PROJECTION}
NORM: dict[str, Any] = {"kind": "rms", "eps": 0.1, "groups": 1, "residual_scale": 1.0}
QK: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 40, "scope": "heads", "kind": "layer", "eps": 0.1}
QK |= {"rotary_dim": 0, "rope_layout": "half", "rope_scale": 1.0, "v_dim": None}
QK |= {"norms_values": False, "values_from_keys": False}
PART: dict[str, Any] = {"q_width": 480, "k_width": 80, "counts_keys": True}
ARENAS = {"k_arena": ARENA, "v_arena": ARENA}
PACKED = {"qkv": tokens(400, BF16), "frequencies": matrix(8)} | ARENAS

GOOD: dict[str, tuple[str, dict[str, Tensor], dict[str, Any], dict[str, Tensor]]] = {
    "embed": (
        "embed",
        {"ids": IDS, "table": matrix(61, 48)},
        {"dtype": "bf16", "scale": 1.0, "first_row": None},
        {"out": tokens(48, BF16)},
    ),
    "embed, of positions": (
        "embed",
        {"ids": IDS, "table": matrix(64, 48), "residual": tokens(48, BF16)},
        {"dtype": "bf16", "scale": 1.0, "first_row": None},
        {"out": tokens(48, BF16)},
    ),
    **latent_ops.GOOD,
    **recurrent_ops.GOOD,
    **ssd_ops.GOOD,
    "norm": ("norm", {"x": tokens(48, BF16), "weight": matrix(48)}, NORM, {"out": tokens(48, BF16)}),
    "norm, all of it": (
        "norm",
        {"x": tokens(48, BF16), "weight": matrix(12), "bias": matrix(12), "residual": tokens(48, BF16)},
        NORM | {"kind": "layer", "groups": 4},
        {"out": tokens(48, BF16)},
    ),
    "norm_rows": (
        "norm_rows",
        {"x": tokens(48, BF16), "weight": matrix(48), "rows": ROWS, "bias": matrix(48)},
        {"kind": "layer", "eps": 0.1},
        {"out": Tensor(("rows", 48), F32)},
    ),
    "linear": (
        "linear",
        {"x": tokens(48, BF16), "weight": matrix(24, 48), "bias": matrix(24)},
        {"dtype": "f32"},
        {"out": tokens(24)},
    ),
    "activation": ("activation", {"x": tokens(48)}, {"kind": "silu"}, {"out": tokens(48)}),
    "multiply": ("multiply", {"a": tokens(48), "b": tokens(48)}, {}, {"out": tokens(48)}),
    "clamped_gate": (
        "clamped_gate",
        {"a": tokens(48), "b": tokens(48)},
        {"kind": "silu", "limit": 7.0},
        {"out": tokens(48)},
    ),
    "swiglu_oai": ("swiglu_oai", {"a": tokens(48), "b": tokens(48)}, {"limit": None}, {"out": tokens(48)}),
    "add": ("add", {"a": tokens(48), "b": tokens(48)}, {"alpha": 1.0}, {"out": tokens(48)}),
    "scale": ("scale", {"x": tokens(48)}, {"factor": 0.5}, {"out": tokens(48)}),
    "soft_cap": ("soft_cap", {"x": tokens(48)}, {"cap": 30.0}, {"out": tokens(48)}),
    "scale_by": ("scale_by", {"x": tokens(48), "weight": matrix(1)}, {}, {"out": tokens(48)}),
    "multiply_columns": (
        "multiply_columns",
        {"x": tokens(48), "times": tokens(96)},
        {"first": 48},
        {"out": tokens(48)},
    ),
    "clamp": ("clamp", {"x": tokens(48)}, {"limit": 8.0}, {"out": tokens(48)}),
    "xielu": (
        "xielu",
        {"x": tokens(48, BF16), "alpha_p": matrix(1), "alpha_n": matrix(1)},
        {},
        {"out": tokens(48, BF16)},
    ),
    "gate_rows": ("gate_rows", {"x": tokens(48, BF16), "gate": tokens(1)}, {}, {"out": tokens(48, BF16)}),
    "gate_heads": (
        "gate_heads",
        {"x": tokens(240, BF16), "gate": tokens(8 + 6)},
        {"num_heads": 6, "kind": "softplus", "first": 8, "size": 1},
        {"out": tokens(240, BF16)},
    ),
    "temperature": (
        "temperature",
        {"x": tokens(240), "positions": IDS},
        {"beta": 0.1, "original_context": 64, "first_position": 1},
        {"out": tokens(240)},
    ),
    "qk_norm": (
        "qk_norm",
        {
            "qkv": tokens(400, BF16),
            "q_norm": matrix(240),
            "k_norm": matrix(80),
            "q_norm_bias": matrix(240),
            "k_norm_bias": matrix(80),
        },
        QK,
        {"out": tokens(400, BF16)},
    ),
    "qk_norm, after the rotation": (
        "qk_norm",
        {"qkv": tokens(400), "q_norm": matrix(40), "k_norm": matrix(40), "positions": IDS, "frequencies": matrix(8)},
        QK | ROTARY | {"scope": "head"},
        {"out": tokens(400)},
    ),
    "qk_norm, of some of the heads": (
        "qk_norm",
        {"qkv": tokens(400, BF16), "q_norm": matrix(240), "k_norm": matrix(80), "mean_squares": tokens(2)},
        QK | {"scope": "all", "kind": "rms"},
        {"out": tokens(400, BF16)},
    ),
    "qk_norm, which makes the values": (
        "qk_norm",
        {"qkv": tokens(320), "q_norm": matrix(40), "k_norm": matrix(40)},
        QK | {"scope": "head", "norms_values": True, "values_from_keys": True},
        {"out": tokens(400)},
    ),
    "mean_squares": (
        "mean_squares",
        {"q": tokens(240, BF16), "k": tokens(80, BF16)},
        PART,
        {"out": tokens(2)},
    ),
    "qk_mean_squares": ("qk_mean_squares", {"qkv": tokens(400, BF16)}, HEADS | PART, {"out": tokens(2)}),
    "norm_of_part": (
        "norm_of_part",
        {"x": tokens(80, BF16), "weight": matrix(80), "mean_squares": tokens(2)},
        {"column": 1, "eps": 0.1},
        {"out": tokens(80, BF16)},
    ),
    **EXPERTS,
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
    "split_qk": (
        "split_qk",
        {"x": tokens(320)},
        {"q": 240, "k": 80, "v": 0},
        {"q": tokens(240), "k": tokens(80)},
    ),
    "cache_write": (
        "cache_write",
        {"k": tokens(80), "v": tokens(80), "slots": IDS} | ARENAS,
        {"num_kv_heads": 2, "head_dim": 40, "v_dim": None},
        {"token": TOKEN},
    ),
    "attention": (
        "attention",
        {"q": tokens(240), "sinks": matrix(6)} | ARENAS,
        ATTEND,
        {"out": tokens(240), "token": TOKEN},
    ),
    "projection": ("projection", {"x": tokens(48), "weight": matrix(24, 48)}, PLAIN, {"out": tokens(24, BF16)}),
    "projection, all of it": (
        "projection",
        {
            "x": tokens(48, BF16),
            "weight": matrix(26, 48),
            "norm": matrix(48),
            "norm_bias": matrix(48),
            "bias": matrix(26),
            "gate": Tensor(("rows", 1), F32),
            "rows": ROWS,
            "residual": Tensor(("rows", 13), BF16),
        },
        PLAIN | {"eps": 0.1, "norm_kind": "layer", "activation": "silu", "gated": True},
        {"out": Tensor(("rows", 13), BF16)},
    ),
    "projection, some columns": (
        "projection",
        {"x": tokens(64), "weight": matrix(24, 48), "norm": matrix(48)},
        PLAIN | {"eps": 0.1, "norm_kind": "rms", "columns": 48},
        {"out": tokens(24, BF16)},
    ),
    "projection_sum": (
        "projection_sum",
        {"x": tokens(48), "weight": matrix(24, 48), "second_x": tokens(40), "second_weight": matrix(24, 40)},
        {"dtype": "bf16", "residual_scale": 0.5},
        {"out": tokens(24, BF16)},
    ),
    "rope_write_attention": (
        "rope_write_attention",
        PACKED | {"sinks": matrix(6)},
        FUSED,
        {"out": tokens(240, BF16), "token": TOKEN},
    ),
    "rope_cache_write": ("rope_cache_write", PACKED, HEADS | ROTARY | {"v_dim": None}, {"token": TOKEN}),
    "all_sum": ("all_sum", {"x": tokens(48, BF16)}, {}, {"out": tokens(48, BF16)}),
    "send": ("send", {"x": tokens(48, BF16)}, {}, {"out": tokens(48, BF16)}),
    "receive": ("receive", {"token_ids": IDS}, {"width": 48, "dtype": "bf16"}, {"out": tokens(48, BF16)}),
    "gather_result": (
        "gather_result",
        {"rows": ROWS, "x": Tensor(("rows", 20), F32), "after": tokens(48)},
        {"width": 61},
        {"out": Tensor(("rows", 61), F32)},
    ),
    "rope_attention, of long values": (
        "rope_attention",
        PACKED | {"qkv": tokens(448, BF16), "v_arena": Tensor((9, 2, 4, 2, 64), BF16)},
        FUSED | {"v_dim": 64},
        {"out": tokens(384, BF16), "token": TOKEN},
    ),
    "rope_attention": ("rope_attention", PACKED, FUSED, {"out": tokens(240, BF16), "token": TOKEN}),
    "rope_attention, of others' keys": (
        "rope_attention",
        PACKED | {"qkv": tokens(240, BF16)},
        FUSED,
        {"out": tokens(240, BF16), "token": TOKEN},
    ),
    "rope_read_attention": (
        "rope_read_attention",
        PACKED | {"qkv": tokens(240, BF16)},
        FUSED,
        {"out": tokens(240, BF16), "token": TOKEN},
    ),
    **(hidden_ops.GOOD | adapter_ops.GOOD | text_ops.GOOD | cut_ops.GOOD),
}


@pytest.mark.parametrize("case", GOOD)
def test_rule(case: str) -> None:
    kind, inputs, attrs, outputs = GOOD[case]
    assert read_op_kind(kind, attrs).infer(inputs) == outputs
    made = [port for port in OPS[kind].optional_outputs if port in outputs]
    assert tuple(outputs) == (*OPS[kind].outputs, *made)
    assert set(inputs) <= {*OPS[kind].inputs, *OPS[kind].optional}


def test_every_kind_has_a_case() -> None:
    assert {kind for kind, *_ in GOOD.values()} == set(OPS)


ALL = "projection, all of it"
SUMMED = "expert_combine, with a shared expert"
ROUTED = "routed_projection, with a shared expert"
BAD: list[tuple[str, dict[str, Shape | Tensor], dict[str, Any], str]] = [
    ("gather_result", {"x": Tensor(("rows", 62), F32)}, {}, "x has 62 columns of 61"),
    ("gather_result", {"x": Tensor(("rows", 20), BF16)}, {}, "x is bf16; expected f32"),
    ("gather_result", {"x": Tensor(("tokens", 20), F32)}, {}, "x has tokens rows; expected rows"),
    ("embed", {"ids": Tensor(("tokens",), F32)}, {}, "ids are f32; expected i32"),
    ("embed", {}, {"dtype": "f8"}, "attribute dtype is 'f8'; expected one of f32"),
    ("embed", {"table": (61,)}, {}, r"table is \[61\]; expected \[rows, columns\]"),
    ("embed", {}, {"scale": 0}, "attribute scale is 0; expected a number greater than 0"),
    ("embed", {}, {"first_row": -1}, "attribute first_row is -1; expected 0 or more"),
    ("norm", {"weight": (47,)}, {}, r"weight is \[47\]; expected \[48\]"),
    ("norm", {}, {"kind": "mean"}, "attribute kind is 'mean'; expected one of rms, layer"),
    ("norm, all of it", {}, {"groups": 5}, "x has 48 columns; expected 5 equal groups"),
    ("norm, all of it", {"weight": (24,)}, {}, r"weight is \[24\]; expected \[48\] or \[12\]"),
    ("norm, all of it", {"bias": (48,)}, {}, r"bias is \[48\], weight \[12\]"),
    ("norm, all of it", {"residual": ("rows", 48)}, {}, r"residual is \['rows', 48\]; expected \['tokens', 48\]"),
    ("norm, all of it", {"residual": tokens(48)}, {}, "residual is f32, out is bf16"),
    ("linear", {"weight": (24, 47)}, {}, "weight has 47 columns, x has 48"),
    ("linear", {"weight": (48, 24)}, {}, "weight has 24 columns, x has 48"),
    ("linear", {"bias": (23,)}, {}, r"bias is \[23\]; expected \[24\]"),
    ("linear", {"x": ("tokens", "rows")}, {}, r"x is \['tokens', 'rows'\]"),
    *latent_ops.BAD,
    *recurrent_ops.BAD,
    *(*ssd_ops.BAD, *text_ops.BAD),
    ("multiply", {"b": ("rows", 48)}, {}, "expected the same"),
    ("add", {"b": tokens(48, BF16)}, {}, "expected the same"),
    ("add", {}, {"alpha": True}, "attribute alpha is True; expected a number"),
    ("clamped_gate", {}, {"limit": 0.0}, "attribute limit is 0.0; expected a number greater than 0"),
    ("clamped_gate", {}, {"kind": "xielu"}, "attribute kind is 'xielu'"),
    ("swiglu_oai", {"b": tokens(40)}, {}, "expected the same"),
    ("swiglu_oai", {}, {"limit": -1.0}, "attribute limit is -1.0; expected a number greater than 0"),
    (
        "activation",
        {},
        {"kind": "tanh"},
        "attribute kind is 'tanh'; expected one of silu, gelu, gelu_tanh, relu, relu2",
    ),
    ("scale", {}, {"factor": "2"}, "attribute factor is '2'; expected a number"),
    ("soft_cap", {}, {"cap": None}, "attribute cap is None; expected a number"),
    ("xielu", {"alpha_p": (2,)}, {}, r"alpha_p is \[2\]; expected \[1\]"),
    ("projection", {}, {"activation": "xielu"}, "alpha_p is bound where the activation is xielu"),
    ("multiply_columns", {}, {"first": 49}, "times has 96 columns; expected 48 from 49 on"),
    ("scale_by", {"weight": (2,)}, {}, r"weight is \[2\]; expected \[1\]"),
    ("clamp", {}, {"limit": 0}, "attribute limit is 0; expected a number greater than 0"),
    ("gate_rows", {"gate": ("tokens", 2)}, {}, r"gate is \['tokens', 2\]; expected \['tokens', 1\]"),
    ("gate_heads", {}, {"first": 9}, "gate has 14 columns; expected 6 from 9 on"),
    ("gate_heads", {}, {"kind": "tanh"}, "attribute kind is 'tanh'; expected one of sigmoid, softplus"),
    ("rope_attention", {}, {"gate": "sigmoid"}, "gate is sigmoid, and its value is bound otherwise"),
    ("temperature", {}, {"beta": 0}, "attribute beta is 0; expected a number"),
    ("temperature", {}, {"original_context": 0}, "attribute original_context is 0; expected a number"),
    ("qk_norm", {"qkv": ("tokens", 240)}, {}, "qkv has 240 columns; expected at least 400"),
    ("qk_norm", {}, {"scope": "head"}, r"q_norm is \[240\]; expected \[40\]"),
    ("qk_norm", {"k_norm_bias": (240,)}, {}, r"k_norm_bias is \[240\]; expected \[80\]"),
    ("qk_norm, after the rotation", {}, {"rotary_dim": 0}, "rotary_dim is 0, and frequencies are bound"),
    ("qk_norm, of some of the heads", {}, {"kind": "layer"}, "the norm is layer of scope all; expected rms of scope"),
    (
        "qk_norm, of some of the heads",
        {"mean_squares": ("tokens", 1)},
        {},
        r"mean_squares is \['tokens', 1\]; expected",
    ),
    ("mean_squares", {"q": ("rows", 240)}, {}, "q has rows rows, k tokens"),
    ("mean_squares", {}, {"k_width": 40}, "k has 80 columns; expected at most 40"),
    ("qk_mean_squares", {}, {"q_width": 200}, "attribute q_width is 200; expected at least 240"),
    ("qk_mean_squares", {}, {"num_heads": 9}, "qkv has 400 columns; expected at least 440"),
    ("norm_of_part", {}, {"column": 2}, "attribute column is 2; expected 0 or 1"),
    ("norm_of_part", {"mean_squares": tokens(2, BF16)}, {}, "mean_squares is bf16; expected f32"),
    ("norm_of_part", {"weight": (240,)}, {}, r"weight is \[240\]; expected \[80\]"),
    ("qk_norm", {}, {"scope": "each"}, "attribute scope is 'each'; expected one of head, heads, all"),
    ("route", {}, {"top_k": 5}, "top_k is 5 of 4 experts"),
    (
        "route",
        {},
        {"router": "random"},
        "attribute router is 'random'; expected one of softmax_topk, topk_softmax, sigm",
    ),
    ("route", {}, {"top_groups": 2}, "top_groups is 2 of 1 groups"),
    ("route", {}, {"groups": 3}, "4 experts are no 3 groups"),
    ("route", {}, {"groups": 4, "top_groups": 2, "judged_by": 2}, "groups of 1 experts are judged by 2"),
    ("route", {}, {"groups": 4}, "1 groups have fewer than 2 experts"),
    ("route", {}, {"owned": 2}, "first_expert and owned are given together"),
    ("route", {}, {"first_expert": 3, "owned": 2}, "first_expert is 3 and owned 2; expected a range within the 4"),
    ("route", {}, {"normalise": 1}, "attribute normalise is 1; expected true or false"),
    ("route", {"bias": (5,)}, {}, r"bias is \[5\]; expected \[4\]"),
    ("expert_linear", {}, {"num_experts": 5}, "weight has 96 rows; expected 5 experts of equal size"),
    ("expert_linear", {"experts": Tensor(("tokens", 2), F32)}, {}, "experts are f32; expected i32"),
    ("expert_linear", {"experts": ("tokens", 3)}, {}, r"experts are \['tokens', 3\]; expected \['tokens', 2\]"),
    ("expert_linear", {"x": ("tokens", 144)}, {}, "x has 144 columns; expected 48 or 2 x 48"),
    ("expert_sum", {"x": ("tokens", 47)}, {}, "x has 47 columns; expected 2 experts of equal size"),
    ("expert_sum", {"weights": ("rows", 2)}, {}, r"weights are \['rows', 2\]; expected \['tokens', 2\]"),
    ("expert_projection", {"x": ("tokens", 96)}, {}, "weight has 48 columns, x has 96"),
    ("expert_projection", {"bias": (26,)}, {}, r"bias is \[26\]; expected \[104\]"),
    ("expert_projection", {}, {"gated": False}, "attribute activation is 'swiglu_oai'; expected one of silu"),
    ("expert_combine", {"x": ("tokens", 13)}, {}, "x has 13 columns; expected 2 x 13"),
    ("expert_combine", {"weights": ("tokens", 3)}, {}, r"weights are \['tokens', 3\]"),
    ("expert_combine", {"residual": tokens(48)}, {}, "residual is f32, out is bf16"),
    (SUMMED, {"shared": (48, 20)}, {}, r"shared is \[48, 20\]; expected \[48, 21\]"),
    (SUMMED, {"shared_gate": ("tokens", 2)}, {}, r"shared_gate is \['tokens', 2\]"),
    ("expert_combine", {"shared_x": tokens(21)}, {}, "shared and shared_x are given together"),
    ("expert_combine", {"shared_gate": tokens(1)}, {}, "shared_gate is bound but shared is not"),
    ("routed_projection", {"logits": ("tokens", 1)}, {}, "top_k is 2 of 1 experts"),
    ("routed_projection", {"selection_bias": (5,)}, {}, r"bias is \[5\]; expected \[4\]"),
    ("routed_projection", {"gate_weight": matrix(1, 48)}, {}, "gate_weight is bound but shared is not"),
    (ROUTED, {"shared": (42, 40)}, {}, "shared has 40 columns, x has 48"),
    (ROUTED, {"shared": (41, 48)}, {}, "gate and up rows are 41; expected an even number"),
    (ROUTED, {"gate_weight": (2, 48)}, {}, r"gate_weight is \[2, 48\]; expected \[1, 48\]"),
    ("gather_rows", {"x": ("tokens",)}, {}, r"x is \['tokens'\]"),
    ("rope", {}, {"num_heads": 5}, "x has 240 columns; expected 5 x 40"),
    ("rope", {"frequencies": (16,)}, {}, r"frequencies are \[16\]; expected \[8\]"),
    ("rope", {}, {"num_heads": "6"}, "attribute num_heads is '6'; expected a whole number"),
    ("split", {}, {"v": 120}, "x has 400 columns, its parts 440"),
    ("cache_write", {"v": ("tokens", 40)}, {}, "v has 40 columns; expected 2 x 40"),
    ("cache_write", {"k": ("tokens", 240)}, {}, "k has 240 columns; expected 2 x 40"),
    ("cache_write", {"v_arena": (9, 2, 4, 6, 40)}, {}, "v_arena is"),
    ("attention", {"q": ("tokens", 80)}, {}, "q has 80 columns; expected 6 x 40"),
    ("attention", {"k_arena": (9, 2, 4, 40, 2)}, {}, "k_arena is"),
    ("attention", {"k_arena": (9, 4, 2, 40)}, {}, "k_arena is"),
    ("projection", {"weight": (24, 40)}, {}, "weight has 40 columns, x has 48"),
    ("projection_sum", {"second_weight": (26, 40)}, {}, "the two products have different shapes"),
    ("projection, some columns", {"x": tokens(40)}, {}, "x has 40 columns; expected 48 or more"),
    ("projection, some columns", {"norm": (64,)}, {}, r"norm is \[64\]; expected \[48\]"),
    ("projection", {}, {"columns": 24}, "columns are given, but no norm"),
    (ALL, {"norm": (26,)}, {}, r"norm is \[26\]; expected \[48\]"),
    (ALL, {}, {"eps": None}, "there is a norm but eps is none"),
    (ALL, {}, {"norm_kind": None}, "attribute norm_kind is None; expected one of rms, layer"),
    (ALL, {"norm_bias": (26,)}, {}, r"norm_bias is \[26\]; expected \[48\]"),
    (ALL, {}, {"activation": None}, "gated is true but there is no activation"),
    ("projection", {}, {"limit": 7.0}, "limit is 7.0 but there is no gate"),
    (ALL, {}, {"out_scale": 0.0}, "attribute out_scale is 0.0; expected a number greater than 0"),
    (ALL, {"gate": ("tokens", 1)}, {}, r"gate is \['tokens', 1\]; expected \['rows', 1\]"),
    ("projection", {}, {"eps": 0.1}, "attribute norm_kind is None; expected one of rms, layer"),
    (ALL, {}, {"eps": None, "norm_kind": None}, "norm or norm_bias is bound but there is no norm"),
    (ALL, {"weight": (25, 48), "bias": (25,)}, {}, "gate and up rows are 25; expected an even number"),
    ("norm_rows", {"weight": (12,)}, {}, r"weight is \[12\]; expected \[48\]"),
    ("norm_rows", {"rows": Tensor(("rows",), F32)}, {}, "rows are f32; expected i32"),
    (ALL, {"residual": Tensor(("tokens", 13), BF16)}, {}, r"residual is \['tokens', 13\]"),
    (ALL, {"residual": Tensor(("rows", 26), BF16)}, {}, r"residual is \['rows', 26\]"),
    (ALL, {"residual": Tensor(("rows", 13), F32)}, {}, "residual is f32, out is bf16"),
    ("rope_write_attention", {"qkv": ("tokens", 240)}, {}, "qkv has 240 columns; expected at least 400"),
    ("rope_write_attention", {}, {"v_dim": 64}, "qkv has 400 columns; expected at least 448"),
    ("rope_attention, of long values", {}, {"v_dim": 56}, r"v_arena is \[9, 2, 4, 2, 64\]"),
    ("qk_norm, which makes the values", {}, {"v_dim": 32}, "values that are keys have as many elements"),
    ("cache_write", {}, {"v_dim": 32}, "v has 80 columns; expected 2 x 32"),
    ("rope_write_attention", {"frequencies": (20,)}, {}, r"frequencies are \[20\]; expected \[8\]"),
    ("rope_cache_write", {"v_arena": (9, 2, 4, 2, 32)}, {}, "v_arena is"),
    ("rope_attention", {}, {"num_kv_heads": 3}, "qkv has 400 columns; expected at least 480"),
    ("rope_attention", {}, {"rotary_dim": 0}, "rotary_dim is 0, and frequencies are bound"),
    ("rope_attention", {}, {"temperature_beta": 0.1}, "temperature_beta and temperature_context are given together"),
    ("rope_attention", {}, {"chunked": True}, "chunked, but without a window"),
    ("attention", {}, {"alibi": 8.0, "alibi_heads": 8, "alibi_first": 3}, "heads 3 to 8 of 8 have slopes"),
    ("rope_attention", {}, {"alibi": 0.0, "alibi_heads": 6}, "attribute alibi is 0"),
    ("attention", {}, {"alibi": 8.0, "alibi_heads": 6, "softcap": 3.0}, "scores have a cap and biases by distance"),
    ("rope_attention", {}, {"softcap": 0}, "attribute softcap is 0; expected a number greater than 0"),
    (
        "rope_write_attention",
        {},
        {"norms_values": True},
        "norm_eps is none, but weights are bound or",
    ),
    ("rope_write_attention", {}, {"norm_eps": 0.1, "norm_scope": "all"}, "norm_scope is all; expected head or heads"),
    ("rope_write_attention", {"sinks": (2,)}, {}, r"sinks is \[2\]; expected \[6\]"),
    ("attention", {"sinks": (2,)}, {}, r"sinks is \[2\]; expected \[6\]"),
]


@pytest.mark.parametrize(("case", "inputs", "attrs", "why"), [*BAD, *hidden_ops.BAD, *adapter_ops.BAD, *cut_ops.BAD])
def test_rule_refuses(case: str, inputs: dict[str, Shape | Tensor], attrs: dict[str, Any], why: str) -> None:
    kind, good_inputs, good_attrs, _ = GOOD[case]
    tensors = {p: t if isinstance(t, Tensor) else Tensor(t, good_inputs[p].dtype) for p, t in inputs.items()}
    with pytest.raises(RuleError, match=why):
        read_op_kind(kind, good_attrs | attrs).infer(good_inputs | tensors)


def test_arena_accesses_have_tokens() -> None:
    accesses = {kind.name for kind in OPS.values() if kind.accesses}
    keeps = {name for name, kind in OPS.items() if {"k_arena", "v_arena"} <= {*kind.inputs}}
    keeps |= {name for name, kind in OPS.items() if {"latent_arena", "state_table", "hidden_arena"} & {*kind.inputs}}
    assert accesses == keeps
    assert accesses == {name for name, kind in OPS.items() if "token" in kind.outputs and "token" in kind.optional}


def test_stages() -> None:
    left = {name for name, kind in OPS.items() if "ordered" in kind.stages}
    norms = {"norm", "norm_rows", "norm_of_part", "mean_squares", "qk_mean_squares", "qk_norm"}
    attention = {"rope_write_attention", "rope_cache_write", "rope_attention", "rope_read_attention", "mixer_decode"}
    experts = {"route", "expert_projection", "routed_projection", "expert_combine"}
    latent = {"latent_write", "latent_norm_write", "latent_queries", "latent_attention", "latent_decode"}
    recurrent = {"gated_norm", "gated_delta", "delta_decode", "ssd", "conv_ssd", "gated_conv", "causal_conv"}
    sent_or_guessed = {"all_sum", "send", "receive", "gather_result", "hidden_write", "guess_write", "guess_input"}
    others = {"embed", "gather_rows", "linear", "projection", "projection_sum", "head_product", "join_columns", *norms}
    left -= {"adapter_down", "adapter_up", "packed_text_attention"} | {name for name, *_ in cut_ops.GOOD.values()}
    assert left == others | experts | attention | latent | recurrent | sent_or_guessed


def test_kinds_with_the_same_attributes_differ() -> None:
    assert read_op_kind("gather_rows", {}) == read_op_kind("gather_rows", {})
    assert read_op_kind("gather_rows", {}) != read_op_kind("gate_rows", {})
    assert read_op_kind("rope_attention", FUSED) != read_op_kind("rope_write_attention", FUSED)
    assert repr(read_op_kind("gather_rows", {})) == "GatherRows()"


def test_attributes_are_what_was_read() -> None:
    for kind, _, attrs, _ in GOOD.values():
        assert read_op_kind(kind, attrs).attributes == attrs
        assert read_op_kind(kind, attrs) == read_op_kind(kind, attrs)


def test_every_kind_says_what_it_is() -> None:
    for kind in OPS.values():
        assert kind.summary and kind.family and kind.__doc__, kind
        assert is_dataclass(kind) and kind.__dataclass_params__.frozen


DIMS: Dims = {"tokens": 3, "seqs": 1, "rows": 2, "tiles": 1, "context": 7}


@pytest.mark.parametrize("case", GOOD)
def test_kinds_of_programs_say_their_work(case: str) -> None:
    name, inputs, attrs, _ = GOOD[case]
    kind = read_op_kind(name, attrs)
    if "ordered" not in kind.stages:
        return
    work = kind.work(Use(inputs), DIMS)
    assert (work.flops > 0) == (kind.family in ("matmul", "attention")), "only products and attention count"
    assert (work.store_bytes > 0) == bool(kind.accesses)


def test_experts_of_a_rank_are_a_part_of_those_that_its_router_chooses_from() -> None:
    name, inputs, attrs, _ = GOOD["expert_linear"]
    kind = read_op_kind(name, attrs)
    whole, part = (kind.weights_per_token(Use(inputs, behind)) for behind in ({}, {"experts": {"x": tokens(8)}}))
    assert (whole, part) == (Fraction(2, 4), Fraction(2, 8))
