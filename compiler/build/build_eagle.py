"""A head of other files that guesses further tokens (EAGLE-3): what the model keeps for it, and the head itself.

Source: https://github.com/SafeAILab/EAGLE, eagle/model/cnets.py, with the options of vLLM's llama_eagle3.py.
"""

from collections.abc import Sequence

from mlxr.compiler.build.build_attention import build_attention
from mlxr.compiler.build.build_mlp import build_mlp
from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import HIDDEN
from mlxr.compiler.ir.ops.elementwise import Add
from mlxr.compiler.ir.ops.hidden import GuessInput, GuessWrite, HiddenWrite
from mlxr.compiler.ir.ops.join_columns import JoinColumns
from mlxr.compiler.ir.ops.linear import Linear
from mlxr.compiler.ir.ops.rows import Embed, GatherRows
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.eagle import Eagle


def keep_taps(b: Builder, taps: Sequence[str]) -> None:
    """Keeps the projection of what the head reads of the model's residual stream.

    Args:
        b: the builder.
        taps: the stream before each of the layers that the spec names.
    """
    model, head, prefix = b.spec.model, _head(b), _prefix(b)
    layer, joined = model.num_layers, len(taps) * model.hidden_size
    with b.in_layer(layer):
        if head.tap_norm == "each":
            taps = [
                _norm(b, f"{prefix}.tap_{i}_norm", f"{prefix}.tap_{i}_normed", tap, model.hidden_size)
                for i, tap in enumerate(taps)
            ]
        row = b.op(JoinColumns(), f"{prefix}.taps", dict(zip(JoinColumns.inputs, taps, strict=True)))
        if head.tap_norm == "all":
            row = _norm(b, f"{prefix}.taps_norm", f"{prefix}.taps_normed", row, joined)
        row = b.linear(f"{prefix}.fc", row, (head.hidden_size, joined))
        kept = {"x": row, **b.of_blocks(layer, "slots"), **b.stores(layer, [HIDDEN])}
        b.op(HiddenWrite(None, head.eps), "kept", kept)


def build_eagle(b: Builder) -> str:
    """Adds the head, from token ids to logits of the rows that the batch asks for; returns these."""
    model, head, prefix = b.spec.model, _head(b), _prefix(b)
    layer, width = model.num_layers, head.hidden_size
    name = f"{prefix}.embedding" if head.embedding else "embedding"
    table = b.matrix(name, (model.vocab_size, width))
    embedded = b.op(Embed(b.activation, 1.0), "embedded", {"ids": "token_ids", "table": table})
    with b.in_layer(layer):
        x = _layer(b, head, embedded)
        tables = {"rows": "logit_rows", "positions": "positions", "query_start": "query_start"}
        kept = {"x": x, **tables, **b.of_blocks(layer, "block_tables"), **b.stores(layer, [HIDDEN])}
        kept |= {"weight": b.vector(f"{prefix}.norm", width)} if head.norm_rows else {}
        b.op(GuessWrite("rms" if head.norm_rows else None, head.eps), "kept", kept)
    normed = _norm(b, f"{prefix}.norm", "normed", x, width)
    output = f"{prefix}.output" if head.output else "embedding" if model.tie_embeddings else "output"
    inputs = {"x": normed, "weight": b.matrix(output, (head.vocab_size, width))}
    logits = b.op(Linear(DType.F32), "logits_of_all_tokens", inputs)
    return b.op(GatherRows(), "logits", {"x": logits, "rows": "logit_rows"})


def _layer(b: Builder, head: Eagle, embedded: str) -> str:
    """Adds the head's layer; returns the row with what its blocks add."""
    number, prefix = b.spec.model.num_layers, _prefix(b)
    kept = {"x": embedded, **b.of_blocks(number, "slots"), **b.stores(number, [HIDDEN])}
    kept["weight"] = b.vector(f"{prefix}.token_norm", head.hidden_size)
    kept["hidden_weight"] = b.vector(f"{prefix}.hidden_norm", head.hidden_size)
    read = GuessInput("rms", head.eps, hidden_first=False, gives="normed" if head.norm_residual else "raw")
    both, row = b.op_with_outputs(read, f"{prefix}.both", kept, ("out", "row"))
    attention, mlp = f"{layer_prefix(number)}attention", f"{layer_prefix(number)}mlp"
    attended = build_attention(b, number, b.spec.model.layer(number), both)
    x = b.op(Add(1.0), f"{attention}.out", {"a": row, "b": attended})
    normed = _norm(b, f"{mlp}.norm", f"{mlp}.normed", x, head.hidden_size)
    (result,) = build_mlp(b, mlp, head.mlp, normed, x)
    return b.op(Add(1.0), f"{mlp}.out", {"a": x, "b": result})


def _norm(b: Builder, name: str, out: str, x: str, width: int) -> str:
    """Adds one of the head's norms."""
    return b.norm(name, out, x, width, kind="rms", eps=_head(b).eps, weight=True, bias=False)


def _head(b: Builder) -> Eagle:
    head = b.spec.model.eagle
    assert head is not None, "the model has a head of other files"
    return head


def _prefix(b: Builder) -> str:
    """The beginning of the names of what heads have and layers do not."""
    return f"{layer_prefix(b.spec.model.num_layers)}eagle"
