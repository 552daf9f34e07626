"""The vectors that layers have of each token, and what a layer adds of its own one."""

from mlxr.compiler.build.builder import Builder
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.ops.elementwise import Activation, MultiplyColumns
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.layer_embeddings import LayerEmbeddings


def build_layer_embeddings(b: Builder, vectors: LayerEmbeddings, x: str) -> str:
    """Adds the vectors of all layers, [tokens, num_layers * width], from the embedding x.

    The factor of the projection goes into the epsilon of its norm, which takes it off again: norm(f y) with eps is
    norm(y) with eps / f^2.
    """
    model = b.spec.model
    columns = model.num_layers * vectors.width
    table = b.matrix("layer_embedding", (model.vocab_size, columns), Axis("vocabulary", model.vocab_size))
    scale = vectors.table_scale * vectors.scale
    embedded = b.op(Embed(b.activation, scale), "layer_embedded", {"ids": "token_ids", "table": table})
    projected = b.linear("layer_projection", x, (columns, model.hidden_size))
    eps = model.norm.eps / vectors.projection_scale**2
    norm = Norm(model.num_layers, vectors.scale, model.norm.kind, eps)
    inputs = {"x": projected, "weight": b.vector("layer_norm", vectors.width), "residual": embedded}
    return b.op(norm, "layer_vectors", inputs)


def add_layer_vector(b: Builder, index: int, vectors: LayerEmbeddings, x: str, all_layers: str) -> str:
    """Adds a layer's gate, its product with the layer's vector, and its projection, to the residual stream x."""
    model, prefix = b.spec.model, f"{layer_prefix(index)}vector"
    gate = b.linear(f"{prefix}.gate", x, (vectors.width, model.hidden_size))
    mlp = model.layer(index).mlp
    assert mlp is not None, "the spec refuses vectors in layers without mlp"
    activation = mlp.activation
    assert activation != "swiglu_oai" and activation != "xielu", "the spec refuses them"  # noqa: PLR1714
    activated = b.op(Activation(activation), f"{prefix}.activated", {"x": gate})
    inputs = {"x": activated, "times": all_layers}
    gated = b.op(MultiplyColumns(index * vectors.width), f"{prefix}.gated", inputs)
    projected = b.linear(f"{prefix}.project", gated, (model.hidden_size, vectors.width))
    normed = b.norm(f"{prefix}.post_norm", f"{prefix}.post_normed", projected, model.hidden_size)
    return b.residual(f"{prefix}.out", x, normed)
