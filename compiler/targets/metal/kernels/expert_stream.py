"""What products of one token by its experts share whose weights come through threadgroup memory, for MMA."""

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProduct
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.targets.metal.kernel_parts.expert_kernel import ExpertKernel
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.matrix_kernel import MatrixKernel
from mlxr.compiler.targets.metal.kernel_parts.passes import bytes_of_sums
from mlxr.compiler.targets.metal.kernels.matvec_stream import STREAM_FORMATS
from mlxr.compiler.targets.metal.lowering import MetalLowering

UNIT = 512
"""Columns that a simdgroup copies and multiplies at a time: two blocks of each row."""
STREAM_IGNORES = OneRow.names("unroll")
"""Flat names of the one-row sizes that have no effect on a stream."""
_VECTOR = 16
_RUNS = {WeightFormat.Q4_K: 2, WeightFormat.Q5_K: 2, WeightFormat.Q6_K: 4}


@dataclass(frozen=True)
class StreamedExperts(MatrixKernel):
    """What both products have in common.

    Attributes:
        stages: units of columns that a simdgroup has asked for and not multiplied yet.
    """

    most_bytes: ClassVar[int] = BLOCK_BYTES
    _: KW_ONLY
    stages: int

    @property
    def format(self) -> WeightFormat:
        """The format of all rows."""
        (format,) = self.layout.formats
        return format

    @property
    def units(self) -> int:
        """Units of columns."""
        return self.in_features // UNIT

    @property
    def parts(self) -> int:
        """f16 numbers whose sum is a number of x."""
        return 2

    @property
    def staged_row(self) -> int:
        """Vectors of a row of x: one for each part of each pair, and one of zeros for lanes of other pairs."""
        return 4 * self.parts + 1

    @property
    def staged(self) -> int:
        """Vectors of 16 bytes of a unit of x."""
        return 16 * self.staged_row

    @property
    def runs(self) -> int:
        """Runs per piece; x has a sum for each run."""
        return _RUNS[self.format]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.in_features // self.format.block_elements * self.block_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.format.planes[0].block_bytes

    @property
    def aligned(self) -> bool:
        """Whether a block begins where a vector does."""
        return self.block_bytes % _VECTOR == 0

    @property
    def vectors_of_block(self) -> int:
        """Vectors that have a block, which begins at a multiple of 2 bytes."""
        return -(-self.block_bytes // _VECTOR)

    @property
    def vectors(self) -> int:
        """Vectors of a unit of a row."""
        return 2 * self.vectors_of_block

    @property
    def ring(self) -> int:
        """Vectors of a simdgroup for what it has asked for."""
        return self.stages * self.rows * self.vectors

    @property
    def shares_x(self) -> bool:
        """Whether a simdgroup multiplies units of x that others prepare."""
        return self.split != self.simdgroups

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of what is asked for, of x and its sums, and of the sums of all tiles."""
        of_x = self.units * (self.staged * _VECTOR + (self.runs * 16 + 1) * 4)
        return self.simdgroups * self.ring * _VECTOR + of_x + bytes_of_sums(self)


StreamT = TypeVar("StreamT", bound=StreamedExperts)


def fitting(kernel: StreamT) -> StreamT | None:
    """The kernel with fewer stages if memory is full; None: it does not fit, or some simdgroups have no columns."""
    while kernel.threadgroup_bytes > BLOCK_BYTES and kernel.stages > 1:
        kernel = replace(kernel, stages=kernel.stages - 1)
    return kernel if kernel.threadgroup_bytes <= BLOCK_BYTES and kernel.split <= kernel.units else None


def stream_choice(lowering: MetalLowering, op: Op, label: str) -> Choice:
    """The geometry of an op's stream, which has a label of its own."""
    num_experts = op.attrs_as(ExpertProduct).num_experts
    return lowering.table.choose(Site.of_weight(f"{label}_stream", lowering.layouts[op.inputs["weight"]], num_experts))


def streams(kernel: ExpertKernel, sizes: OneRow) -> bool:
    """Whether the geometry asks for it, rows have one format that can be copied, and tiles and segments are whole."""
    formats = kernel.layout.formats
    if not (sizes.mma and sizes.stages) or kernel.shared or len(formats) != 1 or formats[0] not in STREAM_FORMATS:
        return False
    row = kernel.in_features // formats[0].block_elements * formats[0].planes[0].block_bytes
    whole = all(s.offsets[0] % _VECTOR == 0 and s.rows * row % _VECTOR == 0 for s in kernel.layout.segments)
    outs = rows_of_tile(sizes) // kernel.epilogue.halves
    return whole and kernel.in_features % formats[0].block_elements == 0 and kernel.out_features % outs == 0


def stream_fields(kernel: ExpertKernel, sizes: OneRow) -> dict[str, Any]:
    """The fields of a kernel with a stream, from those of the kernel without."""
    outs = rows_of_tile(sizes) // kernel.epilogue.halves
    made = replace(kernel, outs=outs, simdgroups=sizes.simdgroups, split=sizes.split, passes=1)
    return {field.name: getattr(made, field.name) for field in fields(made)} | {"stages": sizes.stages}


def rows_of_tile(sizes: OneRow) -> int:
    """Rows of the weight that a simdgroup multiplies at a time."""
    return max(MMA_ROWS, sizes.outputs)
