"""Builds the source graph: one op per mathematical step, nothing fused, nothing merged.

The reference host runs this graph, so every pass is checked against it.
"""

from mlxr.compiler.build.build_attention import build_attention
from mlxr.compiler.build.build_eagle import build_eagle, keep_taps
from mlxr.compiler.build.build_guesses import build_head, keep_hidden
from mlxr.compiler.build.build_layer_embeddings import add_layer_vector, build_layer_embeddings
from mlxr.compiler.build.build_mlp import build_mlp
from mlxr.compiler.build.build_recurrent import build_recurrent
from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import of_group
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.elementwise import Add, Scale, ScaleBy, SoftCap
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.norm import NormRows
from mlxr.compiler.ir.ops.rows import Embed, GatherRows
from mlxr.compiler.ir.tensor import Shape, layer_prefix
from mlxr.compiler.spec.model import LayerType, ModelSpec


def build_graph(spec: ModelSpec, arena: ArenaGeometry) -> OpGraph:
    """The source graph of a spec: token ids and batch metadata in; logits [rows, vocab] or hidden rows out, in f32.

    With `output: guesses` it is that of the head that guesses, whose token ids are each one further than its positions.
    """
    model = spec.model
    b = Builder(spec, arena)
    _declare_inputs(b, arena)
    for layer in _built_layers(spec):
        if layer.rope is not None:
            b.frequencies(layer.rope, layer.rotary_dim)
    if spec.output == "guesses" and model.eagle is not None:
        return OpGraph(b.values, b.ops, [build_eagle(b)])
    words = Axis("vocabulary", model.vocab_size)
    table = b.matrix("embedding", (model.vocab_size, model.hidden_size), words)
    x = b.op(Embed(b.activation, model.embedding_scale), "embedded", {"ids": "token_ids", "table": table})
    if model.token_types is not None:
        rows = b.matrix("token_type_embedding", (model.token_types, model.hidden_size))
        x = b.op(Embed(b.activation, 1.0), "typed", {"ids": "token_types", "table": rows, "residual": x})
    if model.learned_positions is not None:
        rows = b.matrix("position_embedding", (model.learned_positions, model.hidden_size))
        x = b.op(Embed(b.activation, 1.0), "placed", {"ids": "positions", "table": rows, "residual": x})
    if model.embedding_norm:
        x = b.norm("embedding_norm", "embedded_normed", x, model.hidden_size)
    vectors = None if model.layer_embeddings is None else build_layer_embeddings(b, model.layer_embeddings, x)
    final = "final_norm"
    if spec.output == "guesses":
        x, final = build_head(b, x, lambda x: _layer(b, model.num_layers, x, None))
    else:
        stream = [x]
        for index in range(model.num_layers):
            with b.in_layer(index):
                stream.append(_layer(b, index, stream[-1], vectors))
        x = stream[-1]
        if model.mtp is not None:
            keep_hidden(b, x)
        if model.eagle is not None:
            keep_taps(b, [stream[tap] for tap in model.eagle.taps])
    if spec.output == "hidden":
        return OpGraph(b.values, b.ops, [_hidden_rows(b, x)])
    normed = b.norm(final, "normed", x, model.hidden_size)
    if not model.tie_embeddings:
        table = b.matrix("output", (model.vocab_size, model.hidden_size), words)
    inputs = {"x": normed, "weight": table}
    if model.output_bias:
        inputs["bias"] = b.vector("output_bias", model.vocab_size, words)
    logits = b.op(Linear(DType.F32), "logits_of_all_tokens", inputs)
    if model.logit_scale != 1:
        logits = b.op(Scale(model.logit_scale), "logits_scaled", {"x": logits})
    if model.logit_softcap is not None:
        logits = b.op(SoftCap(model.logit_softcap), "logits_capped", {"x": logits})
    logits = b.op(GatherRows(), "logits", {"x": logits, "rows": "logit_rows"})
    return OpGraph(b.values, b.ops, [logits])


def _built_layers(spec: ModelSpec) -> tuple[LayerType, ...]:
    """The layers whose positions are rotated in the graph."""
    model = spec.model
    if model.eagle is None:
        return model.all_layers
    return model.all_layers[-1:] if spec.output == "guesses" else model.layers


def _hidden_rows(b: Builder, x: str) -> str:
    """Adds the final norm of the rows that the batch asks for."""
    norm, last = b.spec.model.norm, b.spec.model.num_layers - 1
    name = f"{layer_prefix(last)}mlp.norm" if norm.placement == "after" else "final_norm"
    inputs = {"x": x, "rows": "logit_rows"}
    if norm.weight:
        inputs["weight"] = b.vector(name, b.spec.model.hidden_size)
    if norm.bias:
        inputs["bias"] = b.vector(f"{name}_bias", b.spec.model.hidden_size)
    return b.op(NormRows(norm.kind, norm.eps), "hidden", inputs)


def _declare_inputs(b: Builder, arena: ArenaGeometry) -> None:
    groups = list(enumerate(arena.groups))
    inputs: list[tuple[str, Shape]] = [
        ("token_ids", ("tokens",)),
        ("positions", ("tokens",)),
        *([("token_types", ("tokens",))] if b.spec.model.token_types is not None else []),
        *((of_group("slots", i), ("tokens",)) for i, _ in groups),
        ("query_start", ("seqs+1",)),
        ("context_lens", ("seqs",)),
        *((of_group("block_tables", i), ("seqs", group.max_blocks_per_sequence)) for i, group in groups),
        ("logit_rows", ("rows",)),
        *([("state_table", ("seqs", arena.state_columns))] if arena.num_slots and b.spec.output != "guesses" else []),
    ]
    for name, shape in inputs:
        b.declare(name, "input", shape, DType.I32)
    if b.spec.adapters is not None and b.spec.output != "guesses":
        b.declare("adapter_ids", "input", ("tokens",), DType.I32)
        b.declare("adapter_scales", "input", ("tokens",), DType.F32)
    for allocation in arena.allocations:
        b.declare(allocation.name, "store", allocation.shape, allocation.dtype)


def _layer(b: Builder, index: int, x: str, vectors: str | None) -> str:
    """Adds a layer to the residual stream x: its blocks and, where the model has them, its vector and its factor."""
    model, x = b.spec.model, _blocks(b, index, x)
    if model.layer_embeddings is not None and vectors is not None:
        x = add_layer_vector(b, index, model.layer_embeddings, x, vectors)
    if model.layer_scale:
        name = f"{layer_prefix(index)}scale"
        x = b.op(ScaleBy(), f"{name}d", {"x": x, "weight": b.vector(name, 1)})
    return x


def _blocks(b: Builder, index: int, x: str) -> str:
    """Adds the blocks of a layer to the residual stream x, with the norms where the spec places them."""
    model, layer = b.spec.model, b.spec.model.layer(index)
    attention, mlp = f"{layer_prefix(index)}attention", f"{layer_prefix(index)}mlp"
    if model.parallel_blocks:
        assert layer.mlp is not None, "the spec refuses other parallel blocks"
        normed = _pre_norm(b, attention, x) if index or model.norm.first else x
        attended = build_attention(b, index, layer, normed)
        normed = _pre_norm(b, mlp, x) if model.parallel_norms else normed
        between = b.residual(f"{attention}.out", x, attended)
        return _add_all(b, mlp, between, build_mlp(b, mlp, layer.mlp, normed, x))
    x = _mixed(b, index, layer, x)
    if layer.mlp is None:
        return x
    return _add_all(b, mlp, x, build_mlp(b, mlp, layer.mlp, _pre_norm(b, mlp, x), x))


def _mixed(b: Builder, index: int, layer: LayerType, x: str) -> str:
    """Adds the blocks that mix tokens, attention and recurrence, of which a layer may have any."""
    mixers = [block for block in layer.blocks if block != "mlp"]
    if not mixers:
        return x
    prefix = f"{layer_prefix(index)}{mixers[0]}"
    normed = _pre_norm(b, prefix, x) if index or b.spec.model.norm.first else x
    built = {"attention": build_attention, "recurrent": build_recurrent}
    return _add_all(b, prefix, x, [built[block](b, index, layer, normed) for block in mixers])


def _pre_norm(b: Builder, prefix: str, x: str) -> str:
    if b.spec.model.norm.placement in ("post", "after"):
        return x
    return b.norm(f"{prefix}.norm", f"{prefix}.normed", x, b.spec.model.hidden_size)


def _add_all(b: Builder, prefix: str, x: str, results: list[str]) -> str:
    """Adds the results of a block to the residual stream x, after their norm if the spec has one.

    Without a norm in between, each result is added separately, because a projection can add one residual. Where norms
    come after that, the last one of all is the norm of the rows that are wanted.
    """
    model = b.spec.model
    if model.norm.placement in ("pre", "after"):
        for number, result in enumerate(results, 1):
            x = b.residual(f"{prefix}.out" if number == len(results) else f"{prefix}.out_{number}", x, result)
        is_last = prefix == f"{layer_prefix(model.num_layers - 1)}mlp" and b.spec.output == "hidden"
        if model.norm.placement == "pre" or is_last:
            return x
        return b.norm(f"{prefix}.norm", f"{prefix}.normed", x, model.hidden_size)
    total = results[0]
    for result in results[1:]:
        total = b.op(Add(1.0), f"{prefix}.sum", {"a": total, "b": result})
    normed = b.norm(f"{prefix}.post_norm", f"{prefix}.post_normed", total, b.spec.model.hidden_size)
    return b.residual(f"{prefix}.out", x, normed)
