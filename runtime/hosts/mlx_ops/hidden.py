"""Rows that are kept for the head that guesses, and what that head makes of them.

Rows are written in place through NumPy views, as by `mlxr.runtime.hosts.mlx_ops.attend`.
"""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import HIDDEN
from mlxr.compiler.ir.ops.hidden import GuessInput, GuessWrite, HiddenOp, HiddenWrite
from mlxr.runtime.arrays.mlx_arrays import as_bits
from mlxr.runtime.hosts.mlx_ops.attend import pass_token
from mlxr.runtime.hosts.mlx_ops.normalise import normalise
from mlxr.runtime.hosts.mlx_ops.table import evaluates
from mlxr.runtime.hosts.mlx_ops.types import ArenaLayer, Inputs, Outputs, f32


@evaluates(HiddenWrite)
def hidden_write(inputs: Inputs, attrs: HiddenWrite, arena: ArenaLayer | None = None) -> Outputs:
    """Stores each row of x [tokens, hidden], or its norm, in its slot."""
    _store(inputs, attrs, f32(inputs["x"]), np.array(inputs["slots"]))
    return pass_token(inputs)


@evaluates(GuessWrite)
def guess_write(inputs: Inputs, attrs: GuessWrite, arena: ArenaLayer | None = None) -> Outputs:
    """Stores the rows x[rows], or their norms, in the slots that follow those of their tokens."""
    assert arena is not None, "it has a layer"
    rows, start = np.array(inputs["rows"]), np.array(inputs["query_start"])
    if len(rows):
        size, mode = arena.arena.geometry.block_size, arena.arena.geometry.mode
        following = np.array(inputs["positions"])[rows] + 1
        blocks = following // size
        if mode == "paged":
            blocks = np.array(inputs["block_tables"])[np.searchsorted(start, rows, "right") - 1, blocks]
        _store(inputs, attrs, f32(inputs["x"])[inputs["rows"]], blocks * size + following % size)
    return pass_token(inputs)


@evaluates(GuessInput)
def guess_input(inputs: Inputs, attrs: GuessInput, arena: ArenaLayer | None = None) -> Outputs:
    """The norms of x [tokens, hidden] and of the tokens' kept rows, side by side: [tokens, 2 * hidden]; and the row."""
    x = inputs["x"]
    assert attrs.kind is not None, "what is projected is normalised"
    kept = f32(inputs[HIDDEN].reshape(-1, x.shape[1])[inputs["slots"]])
    parts = [
        normalise(f32(x), inputs.get("weight"), inputs.get("bias"), attrs.kind, attrs.eps),
        normalise(kept, inputs.get("hidden_weight"), inputs.get("hidden_bias"), attrs.kind, attrs.eps),
    ]
    out = mx.concatenate(parts[::-1] if attrs.hidden_first else parts, axis=-1).astype(x.dtype)
    row = None if attrs.gives is None else (kept if attrs.gives == "raw" else parts[1]).astype(x.dtype)
    mx.eval(out, row)  # later writes change the arena in place
    return {"out": out} | ({} if row is None else {"row": row}) | pass_token(inputs)


def _store(inputs: Inputs, attrs: HiddenOp, x: mx.array, slots: npt.NDArray[np.int32]) -> None:
    if attrs.kind is not None:
        x = normalise(x, inputs.get("weight"), inputs.get("bias"), attrs.kind, attrs.eps)
    rows = x.astype(inputs[HIDDEN].dtype)
    mx.eval(rows)
    is_token = slots >= 0
    as_bits(inputs[HIDDEN]).reshape(-1, x.shape[1])[slots[is_token]] = as_bits(rows)[is_token]
