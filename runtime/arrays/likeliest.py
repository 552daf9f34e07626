"""The tokens that rows of logits make likeliest."""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


def likeliest(
    logits: mx.array | npt.NDArray[np.float32], width: int, ids: Int32Array | None = None
) -> mx.array | Int32Array:
    """The token of each row's greatest number, of equal ones the first: [rows], int32; lazy if the logits are.

    Args:
        logits: [rows, columns], f32.
        width: how many columns count.
        ids: of each of them the token; None: it is the column.
    """
    if isinstance(logits, mx.array):
        if not len(logits):
            return mx.zeros((0,), mx.int32)  # MLX finds no maximum among no rows
        column = mx.argmax(logits[:, :width], axis=-1)
        return column.astype(mx.int32) if ids is None else mx.array(ids)[column]
    columns: npt.NDArray[np.intp] = np.argmax(logits[:, :width], axis=-1)
    return columns.astype(np.int32) if ids is None else ids[columns]
