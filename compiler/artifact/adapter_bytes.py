"""How large the matrices of adapters are in the memory of a C program; how they lie there: templates/cpu/adapters.h."""

from mlxr.compiler.artifact.weight_plan import TensorSource
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.spec.adapters import UP, Adapters

LIFT_RANKS = 16
"""Ranks of a tile of 8-bit integers."""
LIFT_TILE_BYTES = PANEL_ROWS * 4 + PANEL_ROWS * LIFT_RANKS
"""Those of a tile: scales in f32, and the integers."""


def matrix_bytes(part: TensorSource, format_: WeightFormat, adapters: Adapters) -> int:
    """Bytes of one of the two matrices of all places: of first ones in 8 bits, rows of Q8_0; of second ones, tiles."""
    ranks = adapters.rank * adapters.slots
    width = part.shape[0] // ranks
    if format_.is_quantised and part.name.endswith(UP):
        return -(-width // PANEL_ROWS) * (ranks // LIFT_RANKS) * LIFT_TILE_BYTES
    return ranks * format_.row_bytes(width)
