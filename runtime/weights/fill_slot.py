"""Writes one adapter's matrices into a weight that has those of all adapters."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import PANEL_ROWS, UP, TensorSource


def fill_slot(
    numbers: npt.NDArray[np.float16],
    parts: Sequence[TensorSource],
    slot: int,
    slots: int,
    matrices: Mapping[str, npt.NDArray[np.float32]],
    *,
    in_panels: bool = False,
) -> None:
    """Writes the matrices of one adapter.

    Args:
        numbers: the weight, its parts one after the other, each [slots, rank, width].
        parts: its parts.
        slot: the adapter's place.
        slots: how many there are.
        matrices: by the name of a part: [rank, width]; of other parts, zeros.
        in_panels: whether second matrices lie in panels of 16 outputs, as templates/cpu/adapters.h reads them.
    """
    first = 0
    for part in parts:
        (size,) = part.shape
        own = numbers[first : first + size].reshape(slots, -1)[slot]
        matrix = matrices.get(part.name)
        if matrix is None:
            own[:] = 0.0
        elif in_panels and part.name.endswith(UP):
            own[:] = np.concatenate([panel.reshape(-1) for panel in _panels(matrix)])
        else:
            own[:] = matrix.reshape(-1)
        first += size


def _panels(matrix: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    return [matrix[:, first : first + PANEL_ROWS] for first in range(0, matrix.shape[1], PANEL_ROWS)]
