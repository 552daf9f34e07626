"""The weights in memory, for the C program."""

from collections.abc import Iterable, Mapping, Sequence

from mlxr.compiler.artifact.adapter_bytes import matrix_bytes
from mlxr.compiler.artifact.c_library import CTensor
from mlxr.compiler.artifact.weight_plan import TensorSource, WeightPlan
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.experts import ExpertProduct
from mlxr.compiler.spec.adapters import Adapters

_PAGE = 16 << 10
"""Bytes of a page, at most: other systems have smaller ones, of which that is a multiple."""
_LEAST_PAGES = 16
"""Experts of so many pages begin at a page of their own; smaller ones would grow by too much."""
Choices = Mapping[str, tuple[int, int]]
"""By the name of a tensor that has the matrices of all experts: how many these are, and how many a token chooses."""


def choices_of(graphs: Iterable[OpGraph]) -> Choices:
    """The tensors of experts that graphs multiply with."""
    return {
        part: (op.attrs.num_experts, min(op.attrs.top_k, op.attrs.num_experts))
        for graph in graphs
        for op in graph.ops
        if isinstance(op.attrs, ExpertProduct)
        for part in graph.value(op.inputs["weight"]).parts
    }


def expert_stride(rows: int, row_bytes: int, *, packed: bool) -> int:
    """Bytes from one expert's matrix to the next one's: whole pages, so that each is one run of them."""
    size = rows * row_bytes
    return -(-size // _PAGE) * _PAGE if packed and size >= _LEAST_PAGES * _PAGE else size


def c_tensors(
    weights: Sequence[WeightPlan],
    choices: Choices,
    formats: Mapping[str, WeightFormat],
    adapters: Adapters | None,
) -> tuple[CTensor, ...]:
    """The tensors of all weights: one for each part of a matrix that files store, and one for a whole vector.

    Args:
        weights: all of them.
        choices: see `choices_of`.
        formats: of those of adapters.
        adapters: the places for them; None: there are none.
    """
    tensors: dict[str, CTensor] = {}
    for weight in weights:
        if weight.is_of_adapters:
            assert adapters is not None, "the spec has places"
            own = formats.get(weight.name, WeightFormat.F16)
            sizes = [matrix_bytes(part, own, adapters) for part in weight.parts]
            tensors[weight.name] = CTensor(
                name=weight.name,
                layout="rows",
                format=own,
                shape=weight.shape,
                size_bytes=sum(sizes),
                parts=weight.parts,
            )
            continue
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
            tensors[part.name] = _matrix(part, *choices.get(part.name, (1, 1)))
    return tuple(tensors.values())


def _matrix(part: TensorSource, matrices: int, chosen: int) -> CTensor:
    rows, columns = part.shape
    packed = part.format.is_quantised
    in_memory = -(-rows // PANEL_ROWS) * PANEL_ROWS if packed else rows
    return CTensor(
        name=part.name,
        layout="packed" if packed else "rows",
        format=part.format,
        shape=part.shape,
        size_bytes=matrices * expert_stride(in_memory // matrices, part.format.row_bytes(columns), packed=packed),
        parts=(part,),
        matrices=matrices,
        chosen=chosen,
    )
