"""How normalising kernels share the elements of a row among their lanes, and add up the lanes' sums."""

from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH

QUAD = 4
"""Elements of a vector load."""
_QUADS_PER_LANE = 4
_MOST_SIMDGROUPS = 32


def simdgroups_for(elements: int) -> int:
    """Simdgroups that share this many elements: a lane holds 16 elements, or more if the threadgroup is full."""
    simdgroups = -(-elements // (QUAD * _QUADS_PER_LANE * SIMD_WIDTH))
    return min(_MOST_SIMDGROUPS, simdgroups)


def sums_bytes(kind: NormKind, simdgroups: int) -> int:
    """Bytes of the simdgroups' sums in threadgroup memory: of the squares, and in `layer` of the elements too."""
    sums = 2 if kind == "layer" else 1
    return 4 * simdgroups * sums if simdgroups > 1 else 0


def check_columns(op: Op, columns: int) -> None:
    """Raises PlanError if a row, or a piece of one, cannot be read 4 elements at a time."""
    if columns % QUAD:
        raise PlanError(
            f"op {op.name!r} normalises groups of {columns} columns, and Metal kernels read {QUAD} at a time: "
            "compile with --target cpu"
        )
