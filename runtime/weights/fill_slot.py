"""Writes one adapter's matrices into a weight that has those of all adapters."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import PANEL_ROWS, UP, TensorSource
from mlxr.runtime.weights.element_types import Array, encode


def fill_slot(
    numbers: npt.NDArray[np.float16] | npt.NDArray[np.uint16],
    parts: Sequence[TensorSource],
    slot: int,
    slots: int,
    matrices: Mapping[str, npt.NDArray[np.float32]],
    *,
    in_panels: bool = False,
) -> None:
    """Writes the matrices of one adapter.

    Args:
        numbers: the weight, its parts one after the other, each [slots, rank, width]: f16, or bf16 as its bits.
        parts: its parts.
        slot: the adapter's place.
        slots: how many there are.
        matrices: by the name of a part: [rank, width]; of other parts, zeros.
        in_panels: whether second matrices lie in panels of 16 outputs, as templates/cpu/adapters.h reads them: those of
            bf16 by pairs of ranks.
    """
    first, by_pairs = 0, numbers.dtype == np.uint16
    for part in parts:
        (size,) = part.shape
        own = numbers[first : first + size].reshape(slots, -1)[slot]
        matrix = matrices.get(part.name)
        if matrix is None:
            own[:] = 0
        elif in_panels and part.name.endswith(UP):
            panels = _panels(matrix, 2 if by_pairs else 1)
            own[:] = _as(numbers, np.concatenate([panel.reshape(-1) for panel in panels]))
        else:
            own[:] = _as(numbers, matrix.reshape(-1))
        first += size


def _as(numbers: Array, matrix: npt.NDArray[np.float32]) -> Array:
    return encode(matrix, "bf16") if numbers.dtype == np.uint16 else matrix


def _panels(matrix: npt.NDArray[np.float32], ranks: int) -> list[npt.NDArray[np.float32]]:
    """Each [rank / ranks, outputs, ranks]."""
    by_rank = matrix.reshape(-1, ranks, matrix.shape[1]).transpose(0, 2, 1)
    return [by_rank[:, first : first + PANEL_ROWS] for first in range(0, matrix.shape[1], PANEL_ROWS)]
