"""The decayed sum of a sequence's rows."""

import mlx.core as mx
import numpy as np

from mlxr.compiler.ir.ops.decayed_sum import DecayedSum
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(DecayedSum)
def decayed_sum(inputs: Inputs, attrs: DecayedSum, arena: ArenaLayer | None = None) -> Outputs:
    """Adds to each row the sum of the rows before it."""
    assert arena is not None, "it has a layer"
    rows = np.array(f32(inputs["x"]))
    every = as_bits(inputs["sums"]).view(np.float32)
    sums = every.reshape(*every.shape[:2], rows.shape[1])[:, arena.place("sums")]
    start, out = np.array(inputs["query_start"]).tolist(), np.empty_like(rows)
    for row, begin, end in zip(np.array(inputs["state_table"]).tolist(), start, start[1:], strict=False):
        total = sums[row[0]].copy() if row[0] >= 0 else np.zeros_like(rows[0])
        for i in range(begin, end):
            total = rows[i] + np.float32(attrs.decay) * total
            out[i] = rows[i] + total
            if end - i < len(row) and row[end - i] >= 0:
                sums[row[end - i]] = total
    token = inputs.get("token")
    return {"out": mx.array(out).astype(inputs["x"].dtype)} | ({} if token is None else {"token": token + 1})
