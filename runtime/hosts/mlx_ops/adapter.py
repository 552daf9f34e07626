"""What low-rank adapters add to projections, token by token."""

import mlx.core as mx

from mlxr.compiler.ir.ops.adapter import AdapterDown, AdapterUp
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.hosts.mlx_ops.activations import activate_projected, xielu
from mlxr.runtime.hosts.mlx_ops.dense import finish_projection
from mlxr.runtime.hosts.mlx_ops.lift import lifted
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(AdapterDown)
def adapter_down(inputs: Inputs, attrs: AdapterDown, arena: ArenaLayer | None = None) -> Outputs:
    """Rows of x [tokens, width] in low rank: [tokens, parts * rank], zeros for tokens without an adapter."""
    x, ids = f32(inputs["x"]), inputs["adapter_ids"]
    down = f32(inputs["down"]).reshape(attrs.parts, attrs.slots, attrs.rank, x.shape[1])
    every = mx.einsum("tk,psrk->tspr", x, down).reshape(x.shape[0], attrs.slots, -1)
    own = mx.take_along_axis(every, mx.maximum(ids, 0)[:, None, None], axis=1)[:, 0]
    return {"out": mx.where((ids < 0)[:, None], 0.0, own * inputs["adapter_scales"][:, None])}


@evaluates(AdapterUp)
def adapter_up(inputs: Inputs, attrs: AdapterUp, arena: ArenaLayer | None = None) -> Outputs:
    """The sums x [tokens, features] with what the adapters add, and the steps after them."""
    rank, parts, elements = attrs.rank, attrs.part_widths, attrs.slots * attrs.rank
    added, first = [], 0
    for part, width in enumerate(parts):
        low = inputs["low"][:, part * rank : (part + 1) * rank]
        lift = inputs["lift"][elements * first : elements * (first + width)]
        added.append(lifted(low, lift, inputs["adapter_ids"], width))
        first += width
    y, finish = f32(inputs["x"]) + mx.concatenate(added, axis=1), attrs.finish
    if finish.activation == "xielu":
        y = xielu(y, inputs["alpha_p"], inputs["alpha_n"])
    else:
        y = activate_projected(y, finish.activation, finish.gated, finish.limit)
    return {"out": finish_projection(y, inputs, finish).astype(MLX_DTYPES[str(attrs.dtype)])}
