"""Writes one adapter's matrices as 8-bit integers with scales, as templates/cpu/adapters.h reads them."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import DOWN, LIFT_RANKS, PANEL_ROWS, UP, Adapters, TensorSource, WeightFormat, matrix_bytes

_BLOCK = 32
_MOST = 127
_LEAST = np.finfo(np.float32).tiny
"""Of scales: smaller ones, which have no inverse, are of zeros."""
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def fill_slot_bytes(
    memory: Bytes, parts: Sequence[TensorSource], slot: int, places: Adapters, matrices: Mapping[str, Floats]
) -> None:
    """Writes the matrices of one adapter.

    Args:
        memory: the weight, its parts one after the other, each [slots] of matrices.
        parts: its parts.
        slot: the adapter's place.
        places: all places.
        matrices: as for `fill_slot`.
    """
    first = 0
    for part in parts:
        size = matrix_bytes(part, WeightFormat.Q8_0, places)
        own = memory[first : first + size].reshape(places.slots, -1)[slot]
        first += size
        if (matrix := matrices.get(part.name)) is None:
            own[:] = 0
        elif part.name.endswith(UP):
            own[:] = _tiles(matrix / _factor(matrices[part.name.removesuffix(UP) + DOWN]))
        else:
            own[:] = _panels(matrix * _factor(matrix))


def _factor(down: Floats) -> Floats:
    """By rank the power of two that brings its row of a first matrix near 1.

    So the scales of blocks are numbers of f16, and rows in low rank, whose ranks share a scale, have about equal ones:
    files may have small numbers of a rank in one matrix and large ones in the other.
    """
    _, exponents = np.frexp(np.abs(down).max(axis=1, keepdims=True))
    factors: Floats = np.ldexp(np.float32(1), -np.clip(exponents, -100, 100))
    return factors


def _rounded(numbers: Floats, axis: int) -> tuple[Floats, npt.NDArray[np.int8]]:
    """Scales, and integers, of the numbers along an axis."""
    scales = np.abs(numbers).max(axis=axis, keepdims=True) / np.float32(_MOST)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales >= _LEAST)
    return scales.squeeze(axis), np.rint(numbers * inverse).astype(np.int8)


def _panels(down: Floats) -> Bytes:
    """[rank, columns] as panels of Q8_0: the scales of two blocks, then their numbers; a last block has its own."""
    panels, blocks = down.shape[0] // PANEL_ROWS, down.shape[1] // _BLOCK
    scales, numbers = _rounded(down.reshape(panels, PANEL_ROWS, blocks, _BLOCK), 3)
    heads = scales.transpose(0, 2, 1).astype("<f2", order="C").view(np.uint8)
    groups = numbers.reshape(panels, PANEL_ROWS, blocks, _BLOCK // 4, 4).transpose(0, 2, 3, 1, 4)
    bodies = np.ascontiguousarray(groups).view(np.uint8).reshape(panels, blocks, -1)
    even = blocks // 2 * 2
    pairs = [x[:, :even].reshape(panels, even // 2, -1) for x in (heads, bodies)]
    last = [x[:, even:].reshape(panels, -1) for x in (heads, bodies)]
    return np.concatenate([np.concatenate(pairs, axis=2).reshape(panels, -1), *last], axis=1).reshape(-1)


def _tiles(lift: Floats) -> Bytes:
    """[rank, outputs] as tiles of 16 ranks and 16 outputs, by panels of outputs."""
    rank, outputs = lift.shape
    tiles, panels = rank // LIFT_RANKS, -(-outputs // PANEL_ROWS)
    whole = np.zeros((rank, panels * PANEL_ROWS), np.float32)
    whole[:, :outputs] = lift
    scales, numbers = _rounded(whole.reshape(tiles, LIFT_RANKS, panels, PANEL_ROWS), 1)
    heads = scales.transpose(1, 0, 2).astype("<f4", order="C").view(np.uint8)
    groups = numbers.reshape(tiles, LIFT_RANKS // 4, 4, panels, PANEL_ROWS).transpose(3, 0, 1, 4, 2)
    bodies = np.ascontiguousarray(groups).view(np.uint8).reshape(panels, tiles, -1)
    return np.concatenate([heads, bodies], axis=2).reshape(-1)
