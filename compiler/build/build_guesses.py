"""The head of the model's own that guesses further tokens: what the model keeps for it, and the head itself."""

from collections.abc import Callable

from mlxr.compiler.build.builder import Builder
from mlxr.compiler.formats.stores import HIDDEN
from mlxr.compiler.ir.ops.hidden import GuessInput, GuessWrite, HiddenWrite
from mlxr.compiler.ir.tensor import layer_prefix


def keep_hidden(b: Builder, x: str) -> None:
    """Keeps the norm of the residual stream x behind the model's layers, for the head."""
    layer, norm = b.spec.model.num_layers, b.spec.model.norm
    with b.in_layer(layer):
        inputs = {"x": x, **b.of_blocks(layer, "slots"), **b.stores(layer, [HIDDEN])}
        b.op(HiddenWrite(norm.kind, norm.eps), "kept", inputs | _norm(b, "final_norm"))


def build_head(b: Builder, embedded: str, build_layer: Callable[[str], str]) -> tuple[str, str]:
    """Adds the head, to embeddings of tokens.

    Args:
        b: the builder.
        embedded: the embeddings.
        build_layer: adds its layer to a residual stream.

    Returns:
        The residual stream behind it, and the name of the norm that follows.
    """
    model = b.spec.model
    assert model.mtp is not None, "the model has a head"
    layer, norm, prefix = model.num_layers, model.norm, f"{layer_prefix(model.num_layers)}mtp"
    with b.in_layer(layer):
        vectors = _norm(b, f"{prefix}.token_norm")
        vectors |= {f"hidden_{port}": name for port, name in _norm(b, f"{prefix}.hidden_norm").items()}
        inputs = {"x": embedded, **b.of_blocks(layer, "slots"), **b.stores(layer, [HIDDEN]), **vectors}
        both = b.op(GuessInput(norm.kind, norm.eps, model.mtp.hidden_first), f"{prefix}.both", inputs)
        x = build_layer(b.linear(f"{prefix}.join", both, (model.hidden_size, 2 * model.hidden_size)))
        final = f"{prefix}.norm" if model.mtp.norm else "final_norm"
        tables = {"rows": "logit_rows", "positions": "positions", "query_start": "query_start"}
        inputs = {"x": x, **tables, **b.of_blocks(layer, "block_tables"), **b.stores(layer, [HIDDEN])}
        b.op(GuessWrite(norm.kind, norm.eps), "kept", inputs | _norm(b, final))
    return x, final


def _norm(b: Builder, name: str) -> dict[str, str]:
    """The weight and the bias of a norm, as the model's norms have them."""
    norm, width = b.spec.model.norm, b.spec.model.hidden_size
    inputs = {"weight": b.vector(name, width)} if norm.weight else {}
    return inputs | ({"bias": b.vector(f"{name}_bias", width)} if norm.bias else {})
