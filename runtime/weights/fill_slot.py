"""Writes one adapter's matrices into a weight that has those of all adapters."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import TensorSource


def fill_slot(
    numbers: npt.NDArray[np.float32],
    parts: Sequence[TensorSource],
    slot: int,
    slots: int,
    matrices: Mapping[str, npt.NDArray[np.float32]],
) -> None:
    """Writes the matrices of one adapter.

    Args:
        numbers: the weight, its parts one after the other, each [slots, rank, width].
        parts: its parts.
        slot: the adapter's place.
        slots: how many there are.
        matrices: by the name of a part: [rank, width]; of other parts, zeros.
    """
    first = 0
    for part in parts:
        (size,) = part.shape
        own = numbers[first : first + size].reshape(slots, -1)[slot]
        matrix = matrices.get(part.name)
        own[:] = 0.0 if matrix is None else matrix.reshape(-1)
        first += size
