"""Builds the source graph: one op per mathematical step, nothing fused, nothing merged.

This graph is what the reference host runs, and so what every pass is held against.
"""

import math

from mlxr.compiler.arena import ArenaGeometry
from mlxr.compiler.dtypes import DType
from mlxr.compiler.graph import Op, OpGraph, Role, Value
from mlxr.compiler.ops import OPS, AttrValue, Shape
from mlxr.compiler.rope import rope_frequencies
from mlxr.compiler.spec.model import ModelSpec


class _Builder:
    """Collects values and ops; each method adds one op and returns the name of what it makes."""

    def __init__(self, activation: DType) -> None:
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.activation = activation
        self._tensors: dict[str, Value] = {}

    def declare(self, name: str, role: Role, shape: Shape, dtype: DType, data: tuple[float, ...] = ()) -> str:
        value = Value(name, role, shape, dtype, (name,) if role == "weight" else (), data)
        self.values.append(value)
        self._tensors[name] = value
        return name

    def op(self, kind: str, name: str, inputs: dict[str, str], /, **attrs: AttrValue) -> str:
        outputs = {}
        tensors = {port: self._tensors[value].tensor for port, value in inputs.items()}
        for port, tensor in OPS[kind].infer(tensors, attrs).items():
            if port != "token":
                outputs[port] = self.declare(name, "activation", tensor.shape, tensor.dtype)
        self.ops.append(Op(name, kind, inputs, outputs, attrs))
        return name


def build_graph(spec: ModelSpec, arena: ArenaGeometry) -> OpGraph:
    """The source graph of a spec: token ids and batch metadata in, logits [rows, vocab] f32 out."""
    model, attention = spec.model, spec.model.attention
    b = _Builder(DType(spec.activation_dtype))
    _declare_inputs(b, arena)
    pairs = model.rotary_dim // 2
    b.declare("rope_frequencies", "constant", (pairs,), DType.F32, rope_frequencies(model.rope, model.rotary_dim))
    table = _matrix(b, spec, "embedding", (model.vocab_size, model.hidden_size))
    x = b.op("embed", "embedded", {"ids": "token_ids", "table": table}, dtype=str(b.activation))
    for layer in range(model.num_layers):
        x = _attention_block(b, spec, layer, x)
        x = _mlp_block(b, spec, layer, x)
    assert attention.num_heads % attention.num_kv_heads == 0, "the spec checks it"
    norm = _vector(b, spec, "final_norm", model.hidden_size)
    normed = b.op("rms_norm", "normed", {"x": x, "weight": norm}, eps=model.norm.eps)
    if not model.tie_embeddings:
        table = _matrix(b, spec, "output", (model.vocab_size, model.hidden_size))
    logits = b.op("linear", "logits_of_all_tokens", {"x": normed, "weight": table}, dtype="f32")
    logits = b.op("gather_rows", "logits", {"x": logits, "rows": "logit_rows"})
    return OpGraph(b.values, b.ops, [logits])


def _matrix(b: _Builder, spec: ModelSpec, name: str, shape: Shape) -> str:
    return b.declare(name, "weight", shape, spec.weights.of_tensor(name).dtype)


def _vector(b: _Builder, spec: ModelSpec, name: str, width: int) -> str:
    return b.declare(name, "weight", (width,), spec.weights.of_vector(name))


def _declare_inputs(b: _Builder, arena: ArenaGeometry) -> None:
    inputs: list[tuple[str, Shape]] = [
        ("token_ids", ("tokens",)),
        ("positions", ("tokens",)),
        ("slots", ("tokens",)),
        ("query_start", ("seqs+1",)),
        ("context_lens", ("seqs",)),
        ("block_tables", ("seqs", arena.max_blocks_per_sequence)),
        ("logit_rows", ("rows",)),
    ]
    for name, shape in inputs:
        b.declare(name, "input", shape, DType.I32)
    for name in ("k_arena", "v_arena"):
        b.declare(name, "arena", arena.shape, arena.dtype)


def _linear(b: _Builder, spec: ModelSpec, prefix: str, role: str, x: str, width: int, features: int, bias: bool) -> str:
    name = f"{prefix}.{role}"
    inputs = {"x": x, "weight": _matrix(b, spec, name, (features, width))}
    if bias:
        inputs["bias"] = _vector(b, spec, f"{name}_bias", features)
    return b.op("linear", f"{name}_projected", inputs, dtype=str(b.activation))


def _norm(b: _Builder, spec: ModelSpec, prefix: str, x: str) -> str:
    weight = _vector(b, spec, f"{prefix}.norm", spec.model.hidden_size)
    return b.op("rms_norm", f"{prefix}.normed", {"x": x, "weight": weight}, eps=spec.model.norm.eps)


def _attention_block(b: _Builder, spec: ModelSpec, layer: int, x: str) -> str:
    model, a = spec.model, spec.model.attention
    prefix = f"layers.{layer}.attention"
    hidden, heads, kv_heads = model.hidden_size, a.num_heads, a.num_kv_heads
    normed = _norm(b, spec, prefix, x)
    q = _linear(b, spec, prefix, "q", normed, hidden, heads * a.head_dim, a.qkv_bias)
    k = _linear(b, spec, prefix, "k", normed, hidden, kv_heads * a.head_dim, a.qkv_bias)
    v = _linear(b, spec, prefix, "v", normed, hidden, kv_heads * a.head_dim, a.qkv_bias)
    rotary: dict[str, AttrValue] = {"rotary_dim": model.rotary_dim, "rope_layout": model.rope.layout}
    place = {"positions": "positions", "frequencies": "rope_frequencies"}
    q = b.op("rope", f"{prefix}.q_rotated", {"x": q} | place, num_heads=heads, head_dim=a.head_dim, **rotary)
    k = b.op("rope", f"{prefix}.k_rotated", {"x": k} | place, num_heads=kv_heads, head_dim=a.head_dim, **rotary)
    arena = {"k_arena": "k_arena", "v_arena": "v_arena"}
    b.op(
        "cache_write",
        f"{prefix}.cache_write",
        {"k": k, "v": v, "slots": "slots"} | arena,
        layer=layer,
        num_kv_heads=kv_heads,
        head_dim=a.head_dim,
    )
    tables = {name: name for name in ("positions", "query_start", "context_lens", "block_tables")}
    attended = b.op(
        "attention",
        f"{prefix}.attended",
        {"q": q} | tables | arena,
        layer=layer,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=a.head_dim,
        scale=1 / math.sqrt(a.head_dim),
        window=a.sliding_window,
    )
    o = _linear(b, spec, prefix, "o", attended, heads * a.head_dim, hidden, a.output_bias)
    return b.op("add", f"{prefix}.out", {"a": x, "b": o})


def _mlp_block(b: _Builder, spec: ModelSpec, layer: int, x: str) -> str:
    model, mlp = spec.model, spec.model.mlp
    prefix = f"layers.{layer}.mlp"
    normed = _norm(b, spec, prefix, x)
    gate = _linear(b, spec, prefix, "gate", normed, model.hidden_size, mlp.intermediate_size, mlp.bias)
    up = _linear(b, spec, prefix, "up", normed, model.hidden_size, mlp.intermediate_size, mlp.bias)
    gate = b.op("activation", f"{prefix}.activated", {"x": gate}, kind=mlp.activation)
    gated = b.op("multiply", f"{prefix}.gated", {"a": gate, "b": up})
    down = _linear(b, spec, prefix, "down", gated, mlp.intermediate_size, model.hidden_size, mlp.bias)
    return b.op("add", f"{prefix}.out", {"a": x, "b": down})
