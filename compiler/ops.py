"""The op table: ports, attributes, arena access and shape rules of every op kind.

Ops are the vocabulary shared by the builder, the passes, the reference host and the plan. Shapes mix numbers with the
symbolic dims `tokens`, `seqs` and `rows`. An op's `token` ports order arena accesses; they are optional in the table
because the `order_arena` pass adds them, and the verifier of the `ordered` stage demands them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mlxr.compiler.arena import cache_row_bytes
from mlxr.compiler.dtypes import DType

Dim = int | str
Shape = tuple[Dim, ...]
AttrValue = int | float | str | bool | None


@dataclass(frozen=True)
class Tensor:
    """Shape and type of a value, as shape rules see it."""

    shape: Shape
    dtype: DType


class RuleError(Exception):
    """A shape rule does not hold; the verifier turns it into a GraphError that names the op."""


Tensors = Mapping[str, Tensor]
Attrs = Mapping[str, AttrValue]


@dataclass(frozen=True)
class OpKind:
    """One kind of op.

    Attributes:
        infer: (inputs by port, attrs) -> outputs by port; raises RuleError.
        arena: how it touches the KV arena; anything but `none` is an effect that dead-op removal keeps.
        stages: the stages of the pipeline whose graphs may hold it.
    """

    name: str
    summary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    infer: Callable[[Tensors, Attrs], dict[str, Tensor]]
    optional: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    arena: Literal["none", "read", "write", "readwrite"] = "none"
    stages: frozenset[str] = field(default=frozenset({"source", "fused", "ordered"}))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuleError(message)


def _int(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    _require(isinstance(value, int), f"attribute {name} is {value!r}; expected a whole number")
    assert isinstance(value, int), "checked above"
    return value


def _dtype(attrs: Attrs) -> DType:
    value = attrs["dtype"]
    _require(value in tuple(DType), f"attribute dtype is {value!r}; expected one of {', '.join(DType)}")
    return DType(str(value))


def _matrix(tensors: Tensors, port: str) -> tuple[Dim, int]:
    shape = tensors[port].shape
    _require(len(shape) == 2 and isinstance(shape[1], int), f"{port} is {list(shape)}; expected [rows, columns]")
    assert isinstance(shape[1], int), "checked above"
    return shape[0], shape[1]


def _embed(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _require(t["ids"].dtype is DType.I32, f"ids are {t['ids'].dtype}; expected i32")
    _, hidden = _matrix(t, "table")
    return {"out": Tensor((t["ids"].shape[0], hidden), _dtype(a))}


def _rms_norm(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _, width = _matrix(t, "x")
    _require(t["weight"].shape == (width,), f"weight is {list(t['weight'].shape)}; expected [{width}]")
    return {"out": t["x"]}


def _linear(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    rows, width = _matrix(t, "x")
    features, columns = _matrix(t, "weight")
    _require(columns == width, f"weight has {columns} columns, x has {width}")
    assert isinstance(features, int), "weights have no symbolic dims"
    if "bias" in t:
        _require(t["bias"].shape == (features,), f"bias is {list(t['bias'].shape)}; expected [{features}]")
    return {"out": Tensor((rows, features), _dtype(a))}


def _projection(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    out = _linear(t, a)["out"]
    rows, features = out.shape
    assert isinstance(features, int), "weights have no symbolic dims"
    if "rows" in t:
        rows = t["rows"].shape[0]
    if "norm" in t:
        width = t["x"].shape[1]
        _require(t["norm"].shape == (width,), f"norm is {list(t['norm'].shape)}; expected [{width}]")
        _require(a["eps"] is not None, "norm is bound but eps is none")
    if a["activation"] is not None:
        _require(features % 2 == 0, f"gate and up rows are {features}; expected an even number")
        features //= 2
    if "residual" in t:
        _require(t["residual"].shape == (rows, features), f"residual is {list(t['residual'].shape)}")
        _require(t["residual"].dtype == out.dtype, f"residual is {t['residual'].dtype}, out is {out.dtype}")
    return {"out": Tensor((rows, features), out.dtype)}


def _same(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    return {"out": t["x"]}


def _elementwise(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _require(t["a"] == t["b"], f"a is {t['a']}, b is {t['b']}; expected the same")
    return {"out": t["a"]}


def _gather_rows(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _, width = _matrix(t, "x")
    return {"out": Tensor((t["rows"].shape[0], width), t["x"].dtype)}


def _heads(t: Tensors, port: str, num_heads: int, head_dim: int) -> None:
    _, width = _matrix(t, port)
    _require(width == num_heads * head_dim, f"{port} has {width} columns; expected {num_heads} x {head_dim}")


def _rope(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _heads(t, "x", _int(a, "num_heads"), _int(a, "head_dim"))
    _frequencies(t, a)
    return {"out": t["x"]}


def _frequencies(t: Tensors, a: Attrs) -> None:
    pairs = _int(a, "rotary_dim") // 2
    _require(t["frequencies"].shape == (pairs,), f"frequencies are {list(t['frequencies'].shape)}; expected [{pairs}]")


def _split(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    rows, width = _matrix(t, "x")
    sizes = {port: _int(a, port) for port in ("q", "k", "v")}
    _require(sum(sizes.values()) == width, f"x has {width} columns, its parts {sum(sizes.values())}")
    return {port: Tensor((rows, size), t["x"].dtype) for port, size in sizes.items()}


def _arena(t: Tensors, a: Attrs) -> None:
    for port in ("k_arena", "v_arena"):
        shape, row_bytes = t[port].shape, cache_row_bytes(t[port].dtype, _int(a, "head_dim"))
        expected = (_int(a, "num_kv_heads"), row_bytes // t[port].dtype.size_bytes)
        _require(len(shape) == 5 and shape[3:] == expected, f"{port} is {list(shape)}; expected [..., {expected}]")


_TOKEN = Tensor((8,), DType.U32)


def _cache_write(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    for port in ("k", "v"):
        _heads(t, port, _int(a, "num_kv_heads"), _int(a, "head_dim"))
    _arena(t, a)
    return {"token": _TOKEN}


def _attention(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _heads(t, "q", _int(a, "num_heads"), _int(a, "head_dim"))
    _arena(t, a)
    return {"out": t["q"], "token": _TOKEN}


def _packed(t: Tensors, a: Attrs) -> Tensor:
    heads, kv_heads, head_dim = (_int(a, name) for name in ("num_heads", "num_kv_heads", "head_dim"))
    _heads(t, "qkv", heads + 2 * kv_heads, head_dim)
    _frequencies(t, a)
    _arena(t, a)
    return Tensor((t["qkv"].shape[0], heads * head_dim), t["qkv"].dtype)


def _rope_cache_write(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    _packed(t, a)
    return {"token": _TOKEN}


def _packed_attention(t: Tensors, a: Attrs) -> dict[str, Tensor]:
    return {"out": _packed(t, a), "token": _TOKEN}


_FUSED = frozenset({"fused", "ordered"})
_SOURCE = frozenset({"source", "fused"})
_HEADS = ("layer", "num_heads", "num_kv_heads", "head_dim")
_ROTARY = ("rotary_dim", "rope_layout")
_TABLES = ("positions", "query_start", "context_lens", "block_tables")
_ARENA = ("k_arena", "v_arena")

OPS: dict[str, OpKind] = {
    kind.name: kind
    for kind in (
        OpKind("embed", "rows of the embedding table", ("ids", "table"), ("out",), _embed, attrs=("dtype",)),
        OpKind("rms_norm", "x / rms(x) * weight", ("x", "weight"), ("out",), _rms_norm, attrs=("eps",), stages=_SOURCE),
        OpKind("linear", "x @ weight.T + bias", ("x", "weight"), ("out",), _linear, ("bias",), ("dtype",)),
        OpKind("activation", "silu or gelu", ("x",), ("out",), _same, attrs=("kind",), stages=_SOURCE),
        OpKind("multiply", "a * b", ("a", "b"), ("out",), _elementwise, stages=_SOURCE),
        OpKind("add", "a + b", ("a", "b"), ("out",), _elementwise, stages=_SOURCE),
        OpKind("gather_rows", "x[rows]", ("x", "rows"), ("out",), _gather_rows, stages=_SOURCE),
        OpKind(
            "rope",
            "rotary position embedding of every head",
            ("x", "positions", "frequencies"),
            ("out",),
            _rope,
            attrs=("num_heads", "head_dim", *_ROTARY),
            stages=_SOURCE,
        ),
        OpKind("split", "columns of qkv", ("x",), ("q", "k", "v"), _split, attrs=("q", "k", "v"), stages=_SOURCE),
        OpKind(
            "cache_write",
            "k and v into their slots of the arena",
            ("k", "v", "slots", *_ARENA),
            ("token",),
            _cache_write,
            ("token",),
            ("layer", "num_kv_heads", "head_dim"),
            "write",
            _SOURCE,
        ),
        OpKind(
            "attention",
            "softmax(scale q k^T) v over the arena, causal, with an optional window",
            ("q", *_TABLES, *_ARENA),
            ("out", "token"),
            _attention,
            ("token",),
            (*_HEADS, "scale", "window"),
            "read",
            _SOURCE,
        ),
        OpKind(
            "projection",
            "act(norm(x[rows]) @ weight.T + bias) + residual",
            ("x", "weight"),
            ("out",),
            _projection,
            ("norm", "bias", "residual", "rows"),
            ("dtype", "eps", "activation"),
            stages=_FUSED,
        ),
        OpKind(
            "rope_write_attention",
            "decode: RoPE, cache write and attention of one new token a sequence",
            ("qkv", "frequencies", "positions", "slots", "context_lens", "block_tables", *_ARENA),
            ("out", "token"),
            _packed_attention,
            ("token",),
            (*_HEADS, *_ROTARY, "scale", "window"),
            "readwrite",
            _FUSED,
        ),
        OpKind(
            "rope_cache_write",
            "prefill: RoPE of k, then k and v into the arena",
            ("qkv", "frequencies", "positions", "slots", *_ARENA),
            ("token",),
            _rope_cache_write,
            ("token",),
            (*_HEADS, *_ROTARY),
            "write",
            _FUSED,
        ),
        OpKind(
            "rope_attention",
            "prefill: RoPE of q and attention over the arena",
            ("qkv", "frequencies", "query_tiles", *_TABLES, *_ARENA),
            ("out", "token"),
            _packed_attention,
            ("token",),
            (*_HEADS, *_ROTARY, "scale", "window"),
            "read",
            _FUSED,
        ),
    )
}
