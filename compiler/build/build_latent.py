"""Latent attention in the source graph, absorbed: see `mlxr.compiler.ir.ops.latent`."""

from mlxr.compiler.build.builder import Builder
from mlxr.compiler.build.rope import rope_scale
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.division import Axis
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.latent import HeadProduct, LatentAttention, LatentQueries, LatentWrite
from mlxr.compiler.ir.tensor import layer_prefix
from mlxr.compiler.spec.model import Latent, LayerType


def build_latent(b: Builder, index: int, layer: LayerType, latent: Latent, x: str) -> str:
    """Adds the latent attention of one layer.

    Args:
        b: the builder that gets the ops.
        index: the layer's number.
        layer: the layer's properties.
        latent: those of its attention's latents.
        x: the block's input, [tokens, hidden], after the norm if the model has one there.

    Returns:
        The result of the output projection, [tokens, hidden].
    """
    a, hidden = layer.own_attention, b.spec.model.hidden_size
    prefix = f"{layer_prefix(index)}attention"
    eps = latent.eps or b.spec.model.norm.eps
    turn = {"positions": "positions", "frequencies": b.frequencies(layer.rope, latent.rope_dim)}
    layout: RopeLayout = "half" if layer.rope is None else layer.rope.layout
    scale = 1.0 if layer.rope is None else rope_scale(layer.rope, b.spec.model.context)

    def per_head(size: int) -> Axis:
        return Axis("heads", a.num_heads, size)

    cache = b.stores(index, (LATENTS,))
    q = _queries(b, prefix, latent, per_head(latent.qk_dim), x)
    kv = b.linear(f"{prefix}.kv_a", x, (latent.row_dim, hidden))
    write = LatentWrite(latent.kv_rank, latent.rope_dim, 0, layout, scale, eps)
    norm = {"kv_norm": b.vector(f"{prefix}.kv_norm", latent.kv_rank)}
    b.op_with_outputs(write, f"{prefix}.cache_write", {"x": kv} | norm | turn | b.of_blocks(index, "slots") | cache, ())
    shape = (a.num_heads * latent.kv_rank, latent.nope_dim)
    k_b = b.matrix(f"{prefix}.k_b", shape, per_head(latent.kv_rank))
    queries = LatentQueries(a.num_heads, latent.qk_dim, b.activation, latent.rope_dim, layout, scale)
    q = b.op(queries, f"{prefix}.queries", {"x": q, "weight": k_b} | turn)
    tables = {name: name for name in ("positions", "query_start", "context_lens")} | b.of_blocks(index, "block_tables")
    temperature = (a.temperature.beta, a.temperature.original_context) if a.temperature else (None, None)
    attention = LatentAttention(a.num_heads, latent.kv_rank, latent.rope_dim, a.score_scale, *temperature)
    attended = b.op(attention, f"{prefix}.attended", {"q": q} | tables | cache)
    v_b = b.matrix(f"{prefix}.v_b", (a.num_heads * latent.v_dim, latent.kv_rank), per_head(latent.v_dim))
    product = HeadProduct(a.num_heads, latent.kv_rank, b.activation)
    values = b.op(product, f"{prefix}.values", {"x": attended, "weight": v_b})
    return b.linear(f"{prefix}.o", values, (hidden, a.num_heads * latent.v_dim), columns=per_head(latent.v_dim))


def _queries(b: Builder, prefix: str, latent: Latent, heads: Axis, x: str) -> str:
    """The queries, [tokens, heads * qk_dim], by one projection or by two with a norm between them."""
    width, hidden = heads.count * heads.size, b.spec.model.hidden_size
    if latent.q_rank is None:
        return b.linear(f"{prefix}.q", x, (width, hidden), rows=heads)
    x = b.linear(f"{prefix}.q_a", x, (latent.q_rank, hidden))
    x = b.norm(f"{prefix}.q_norm", f"{prefix}.q_normed", x, latent.q_rank, kind="rms", eps=latent.eps, bias=False)
    return b.linear(f"{prefix}.q_b", x, (width, latent.q_rank), rows=heads)
