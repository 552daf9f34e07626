"""The cosines and sines of a step's positions, which one call computes for all layers."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.lowering import CpuLowering


@dataclass(frozen=True)
class CpuRopeTable(CpuKernel):
    """Cosines and sines of a step's positions.

    Attributes:
        frequencies: radians per position of each pair, after scaling.
        scale: factor of the cosines and sines.
    """

    template = "rope_table.jinja"
    frequencies: tuple[float, ...]
    scale: float = 1.0

    @property
    def params(self) -> tuple[Param, ...]:
        """The table, [tokens, rotary_dim] f32: a token's cosines, then its sines."""
        return (Param("out", "output"),)

    @property
    def rotary_dim(self) -> int:
        """Columns of the table, and elements of a head that are rotated."""
        return 2 * len(self.frequencies)


def rope_table_buffers(lowering: CpuLowering, op: Op, scale: float) -> dict[str, str]:
    """The buffer of an op's rotations, by the kernel's parameter; empty if nothing is rotated.

    Ops with the same rotations read the same table. `scale`: factor of the cosines and sines.
    """
    if "frequencies" not in op.inputs:
        return {}
    frequencies = lowering.value(op, "frequencies").data
    table = CpuRopeTable(label="rope_table", frequencies=frequencies, scale=scale)
    return {"rope_table": lowering.table(table, ("tokens", table.rotary_dim))}
