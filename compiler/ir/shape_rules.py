"""Shape and type rules of the ops: (inputs by port, attributes) -> outputs by port.

Shapes mix numbers with the symbolic dims `tokens`, `seqs` and `rows`. A rule raises RuleError with what it got and what
it expected; the verifier turns that into a GraphError which names the op.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mlxr.compiler.formats.arena import cache_row_bytes
from mlxr.compiler.formats.dtypes import DType

Dim = int | str
Shape = tuple[Dim, ...]
AttrValue = int | float | str | bool | None

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
"""Activations of one argument; `swiglu_oai` has two, and only gated projections have it."""
ROUTERS = ("softmax_topk", "topk_softmax", "sigmoid")
NORMS = ("rms", "layer")


@dataclass(frozen=True)
class Tensor:
    """Shape and type of a value, as shape rules see it."""

    shape: Shape
    dtype: DType


class RuleError(Exception):
    """A shape rule does not hold; the verifier turns it into a GraphError that names the op."""


Tensors = Mapping[str, Tensor]
Attrs = Mapping[str, AttrValue]

_TOKEN = Tensor((8,), DType.U32)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuleError(message)


def _int(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    _require(type(value) is int, f"attribute {name} is {value!r}; expected a whole number")
    assert isinstance(value, int), "checked above"
    return value


def _positive(attrs: Attrs, name: str) -> None:
    value = attrs[name]
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    _require(good, f"attribute {name} is {value!r}; expected a number greater than 0")


def _choice(attrs: Attrs, name: str, choices: tuple[str, ...]) -> None:
    _require(attrs[name] in choices, f"attribute {name} is {attrs[name]!r}; expected one of {', '.join(choices)}")


def _dtype(attrs: Attrs) -> DType:
    value = attrs["dtype"]
    _require(value in tuple(DType), f"attribute dtype is {value!r}; expected one of {', '.join(DType)}")
    return DType(str(value))


def _matrix(tensors: Tensors, port: str) -> tuple[Dim, int]:
    shape = tensors[port].shape
    _require(len(shape) == 2 and isinstance(shape[1], int), f"{port} is {list(shape)}; expected [rows, columns]")
    assert isinstance(shape[1], int), "checked above"
    return shape[0], shape[1]


def _vector(t: Tensors, port: str, width: int) -> None:
    """Checks an optional vector's width."""
    if port in t:
        _require(t[port].shape == (width,), f"{port} is {list(t[port].shape)}; expected [{width}]")


def _integers(t: Tensors, port: str) -> None:
    _require(t[port].dtype is DType.I32, f"{port} are {t[port].dtype}; expected i32")


def embed(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From ids [tokens] i32, table [vocab, hidden] -> out [tokens, hidden]."""
    _integers(t, "ids")
    _, hidden = _matrix(t, "table")
    _positive(a, "scale")
    return {"out": Tensor((t["ids"].shape[0], hidden), _dtype(a))}


def norm(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, width], weight and bias [width] or [width / groups], residual like x -> out like x."""
    _, width = _matrix(t, "x")
    groups = _int(a, "groups")
    _choice(a, "kind", NORMS)
    _positive(a, "eps")
    _require(groups >= 1 and width % groups == 0, f"x has {width} columns; expected {groups} equal groups of them")
    widths = ((width,), (width // groups,))
    for port in ("weight", "bias"):
        if port in t:
            shape = t[port].shape
            expected = " or ".join(dict.fromkeys(str(list(each)) for each in widths))
            _require(shape in widths, f"{port} is {list(shape)}; expected {expected}")
            _require(shape == t["weight"].shape, f"bias is {list(shape)}, weight {list(t['weight'].shape)}")
    _residual(t, t["x"])
    return {"out": t["x"]}


def linear(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, width], weight [features, width], bias [features] -> out [tokens, features]."""
    rows, width = _matrix(t, "x")
    features, columns = _matrix(t, "weight")
    _require(columns == width, f"weight has {columns} columns, x has {width}")
    assert isinstance(features, int), "weights have no symbolic dims"
    _vector(t, "bias", features)
    return {"out": Tensor((rows, features), _dtype(a))}


def projection(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """As `linear`, with a norm before, and activation, scale, soft cap, gate and residual after it."""
    out = linear(t, a)["out"]
    rows, features = out.shape
    assert isinstance(features, int), "weights have no symbolic dims"
    if "rows" in t:
        rows = t["rows"].shape[0]
    _fused_norm(t, a)
    features = _activated(features, a)
    _positive(a, "out_scale")
    if a["out_cap"] is not None:
        _positive(a, "out_cap")
    if "gate" in t:
        _require(t["gate"].shape == (rows, 1), f"gate is {list(t['gate'].shape)}; expected {[rows, 1]}")
    made = Tensor((rows, features), out.dtype)
    _residual(t, made)
    return {"out": made}


def _fused_norm(t: Tensors, a: Attrs) -> None:
    if "norm" not in t:
        _require("norm_bias" not in t, "norm_bias is bound but norm is not")
        _require(a["eps"] is None and a["norm_kind"] is None, "eps or norm_kind is given but norm is not bound")
        return
    width = _matrix(t, "x")[1]
    _vector(t, "norm", width)
    _vector(t, "norm_bias", width)
    _require(a["eps"] is not None, "norm is bound but eps is none")
    _choice(a, "norm_kind", NORMS)


def _activated(features: int, a: Attrs) -> int:
    """Columns that are left of `features` after the activation."""
    kind, gated, limit = a["activation"], a["gated"], a["limit"]
    _require(isinstance(gated, bool), f"attribute gated is {gated!r}; expected true or false")
    _require(limit is None or kind == "swiglu_oai", f"limit is {limit} but the activation is {kind}")
    if kind is None:
        _require(not gated, "gated is true but there is no activation")
        return features
    _choice(a, "activation", (*ACTIVATIONS, "swiglu_oai") if gated else ACTIVATIONS)
    if not gated:
        return features
    _require(features % 2 == 0, f"gate and up rows are {features}; expected an even number")
    return features // 2


def _residual(t: Tensors, out: Tensor) -> None:
    if "residual" in t:
        got = t["residual"]
        _require(got.shape == out.shape, f"residual is {list(got.shape)}; expected {list(out.shape)}")
        _require(got.dtype == out.dtype, f"residual is {got.dtype}, out is {out.dtype}")


def same(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x -> out like x."""
    return {"out": t["x"]}


def activation(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x -> out like x."""
    _choice(a, "kind", ACTIVATIONS)
    return same(t, a)


def scale(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x -> out like x."""
    _positive(a, "factor")
    return same(t, a)


def soft_cap(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x -> out like x."""
    _positive(a, "cap")
    return same(t, a)


def elementwise(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From a and b alike -> out like them."""
    _require(t["a"] == t["b"], f"a is {t['a']}, b is {t['b']}; expected the same")
    return {"out": t["a"]}


def add(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From a and b alike -> out like them."""
    _positive(a, "alpha")
    return elementwise(t, a)


def swiglu_oai(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From a (gate) and b (up) alike -> out like them."""
    if a["limit"] is not None:
        _positive(a, "limit")
    return elementwise(t, a)


def gather_rows(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, width], rows [rows] -> out [rows, width]."""
    _, width = _matrix(t, "x")
    return {"out": Tensor((t["rows"].shape[0], width), t["x"].dtype)}


def gate_rows(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, width], gate [tokens, 1] -> out like x."""
    rows, _ = _matrix(t, "x")
    _require(t["gate"].shape == (rows, 1), f"gate is {list(t['gate'].shape)}; expected {[rows, 1]}")
    return same(t, a)


def _heads(t: Tensors, port: str, num_heads: int, head_dim: int) -> None:
    _, width = _matrix(t, port)
    _require(width == num_heads * head_dim, f"{port} has {width} columns; expected {num_heads} x {head_dim}")


def rope(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, heads * head_dim], positions [tokens], frequencies [rotary_dim / 2] -> out like x."""
    _heads(t, "x", _int(a, "num_heads"), _int(a, "head_dim"))
    _rotation(t, a)
    _require(_int(a, "rotary_dim") > 0, "rotary_dim is 0; expected a rotation, or no rope op")
    return {"out": t["x"]}


def _rotation(t: Tensors, a: Attrs) -> None:
    pairs, bound = _int(a, "rotary_dim") // 2, "frequencies" in t
    _require(bound == (pairs > 0), f"rotary_dim is {2 * pairs}, and frequencies are {'' if bound else 'not '}bound")
    _positive(a, "rope_scale")
    if bound:
        shape = t["frequencies"].shape
        _require(shape == (pairs,), f"frequencies are {list(shape)}; expected [{pairs}]")


def temperature(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, heads * head_dim], positions [tokens] -> out like x."""
    _positive(a, "beta")
    _positive(a, "original_context")
    return same(t, a)


def split(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, q + k + v] -> q, k and v, columns of it."""
    rows, width = _matrix(t, "x")
    sizes = {port: _int(a, port) for port in ("q", "k", "v")}
    _require(sum(sizes.values()) == width, f"x has {width} columns, its parts {sum(sizes.values())}")
    return {port: Tensor((rows, size), t["x"].dtype) for port, size in sizes.items()}


def _arena(t: Tensors, a: Attrs) -> None:
    for port in ("k_arena", "v_arena"):
        shape, row_bytes = t[port].shape, cache_row_bytes(t[port].dtype, _int(a, "head_dim"))
        expected = (_int(a, "num_kv_heads"), row_bytes // t[port].dtype.size_bytes)
        _require(len(shape) == 5 and shape[3:] == expected, f"{port} is {list(shape)}; expected [..., {expected}]")


def cache_write(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From k and v [tokens, kv_heads * head_dim], slots [tokens], arenas -> token."""
    for port in ("k", "v"):
        _heads(t, port, _int(a, "num_kv_heads"), _int(a, "head_dim"))
    _arena(t, a)
    return {"token": _TOKEN}


def attention(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From q [tokens, heads * head_dim], batch tables, arenas, sinks [heads] -> out like q, token."""
    _heads(t, "q", _int(a, "num_heads"), _int(a, "head_dim"))
    _scores(t, a)
    _arena(t, a)
    return {"out": t["q"], "token": _TOKEN}


def _scores(t: Tensors, a: Attrs) -> None:
    _positive(a, "scale")
    if a["softcap"] is not None:
        _positive(a, "softcap")
    _vector(t, "sinks", _int(a, "num_heads"))


def qk_norm(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From qkv [tokens, (heads + 2 kv_heads) * head_dim]; weights and biases as the scope says -> out like qkv."""
    heads, kv_heads, head_dim = (_int(a, name) for name in ("num_heads", "num_kv_heads", "head_dim"))
    _heads(t, "qkv", heads + 2 * kv_heads, head_dim)
    _choice(a, "scope", ("head", "heads", "all"))
    _choice(a, "kind", NORMS)
    _positive(a, "eps")
    for port, count in (("q_norm", heads), ("k_norm", kv_heads)):
        width = head_dim if a["scope"] == "head" else count * head_dim
        _vector(t, port, width)
        _vector(t, f"{port}_bias", width)
    return {"out": t["qkv"]}


def _packed(t: Tensors, a: Attrs) -> Tensor:
    heads, kv_heads, head_dim = (_int(a, name) for name in ("num_heads", "num_kv_heads", "head_dim"))
    _heads(t, "qkv", heads + 2 * kv_heads, head_dim)
    _rotation(t, a)
    _arena(t, a)
    return Tensor((t["qkv"].shape[0], heads * head_dim), t["qkv"].dtype)


def rope_cache_write(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From qkv [tokens, (heads + 2 kv_heads) * head_dim], frequencies, positions, slots, arenas -> token."""
    _packed(t, a)
    return {"token": _TOKEN}


def packed_attention(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From those, batch tables and sinks [heads] -> out [tokens, heads * head_dim], token."""
    _scores(t, a)
    both = (a["temperature_beta"] is None) == (a["temperature_context"] is None)
    _require(both, "temperature_beta and temperature_context are given together or not at all")
    for name in ("temperature_beta", "temperature_context"):
        if a[name] is not None:
            _positive(a, name)
    return {"out": _packed(t, a), "token": _TOKEN}


def route(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, experts], bias [experts] -> experts [tokens, top_k] i32, weights [tokens, top_k] f32."""
    rows, count = _matrix(t, "x")
    top_k = _int(a, "top_k")
    _require(1 <= top_k <= count, f"top_k is {top_k} of {count} experts")
    _choice(a, "router", ROUTERS)
    _require(isinstance(a["normalise"], bool), f"attribute normalise is {a['normalise']!r}; expected true or false")
    _positive(a, "scale")
    _vector(t, "bias", count)
    return {"experts": Tensor((rows, top_k), DType.I32), "weights": Tensor((rows, top_k), DType.F32)}


def _chosen(t: Tensors, a: Attrs) -> tuple[Dim, int, int]:
    """Tokens, experts per token, and rows of one expert, of an op that multiplies by chosen experts' matrices."""
    rows, _ = _matrix(t, "x")
    features, _ = _matrix(t, "weight")
    count, top_k = _int(a, "num_experts"), _int(a, "top_k")
    assert isinstance(features, int), "weights have no symbolic dims"
    _require(features % count == 0, f"weight has {features} rows; expected {count} experts of equal size")
    _integers(t, "experts")
    shape = t["experts"].shape
    _require(shape == (rows, top_k), f"experts are {list(shape)}; expected {[rows, top_k]}")
    _vector(t, "bias", features)
    return rows, top_k, features // count


def expert_linear(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, K] or [tokens, top_k * K], weight [E * F, K], experts, bias -> out [tokens, top_k * F]."""
    rows, top_k, features = _chosen(t, a)
    width, columns = _matrix(t, "x")[1], _matrix(t, "weight")[1]
    _require(width in (columns, top_k * columns), f"x has {width} columns; expected {columns} or {top_k} x {columns}")
    return {"out": Tensor((rows, top_k * features), _dtype(a))}


def expert_sum(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, top_k * F], weights [tokens, top_k] -> out [tokens, F]."""
    rows, width = _matrix(t, "x")
    of, top_k = _matrix(t, "weights")
    _require(of == rows, f"weights have {of} rows, x has {rows}")
    _require(width % top_k == 0, f"x has {width} columns; expected {top_k} experts of equal size")
    return {"out": Tensor((rows, width // top_k), t["x"].dtype)}


def expert_projection(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, K], weight [E * F, K] ([gates; ups] where gated), experts -> out [tokens, top_k * F']."""
    rows, top_k, features = _chosen(t, a)
    width, columns = _matrix(t, "x")[1], _matrix(t, "weight")[1]
    _require(width == columns, f"weight has {columns} columns, x has {width}")
    _fused_norm(t, a)
    return {"out": Tensor((rows, top_k * _activated(features, a)), _dtype(a))}


def expert_combine(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    """From x [tokens, top_k * F], weight [E * H, F], experts, weights, bias [E * H], residual -> out [tokens, H]."""
    rows, top_k, features = _chosen(t, a)
    width, columns = _matrix(t, "x")[1], _matrix(t, "weight")[1]
    _require(width == top_k * columns, f"x has {width} columns; expected {top_k} x {columns}")
    shape = t["weights"].shape
    _require(shape == (rows, top_k), f"weights are {list(shape)}; expected {[rows, top_k]}")
    out = Tensor((rows, features), _dtype(a))
    _residual(t, out)
    return {"out": out}
