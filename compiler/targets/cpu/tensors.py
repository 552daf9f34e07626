"""The weights in memory, for the C program."""

from collections.abc import Sequence

from mlxr.compiler.artifact.c_library import CTensor
from mlxr.compiler.artifact.weight_plan import TensorSource, WeightPlan
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS


def c_tensors(weights: Sequence[WeightPlan]) -> tuple[CTensor, ...]:
    """The tensors of all weights: one for each part of a matrix that files store, and one for a whole vector."""
    tensors: dict[str, CTensor] = {}
    for weight in weights:
        if len(weight.shape) == 1:
            tensors[weight.name] = CTensor(
                name=weight.name,
                layout="vector",
                format=WeightFormat.F32,
                shape=weight.shape,
                size_bytes=4 * weight.shape[0],
                parts=weight.parts,
            )
            continue
        for part in weight.parts:
            tensors[part.name] = _matrix(part)
    return tuple(tensors.values())


def _matrix(part: TensorSource) -> CTensor:
    rows, columns = part.shape
    packed = part.format.is_quantised
    in_memory = -(-rows // PANEL_ROWS) * PANEL_ROWS if packed else rows
    return CTensor(
        name=part.name,
        layout="packed" if packed else "rows",
        format=part.format,
        shape=part.shape,
        size_bytes=in_memory * part.format.row_bytes(columns),
        parts=(part,),
    )
