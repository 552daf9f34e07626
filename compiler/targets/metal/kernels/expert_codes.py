"""Products of few choices of each expert with MMA, on the codes of a weight that comes through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProduct
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ExpertRows, ProjectionKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

_TILE = 8
"""Choices that a threadgroup multiplies: columns of a matrix instruction."""
BLOCK = 256
"""Columns of a block."""
_VECTOR = 16


@dataclass(frozen=True)
class _Layout:
    """How threadgroup memory has what belongs to one block of a row.

    Attributes:
        vectors: of 16 bytes that are copied of a block.
        stride: vectors from one row to the next: lanes read from different banks.
        group: columns of one scale.
        row_pad: vectors after a row of x, likewise.
        padded: what codes have too much.
    """

    vectors: int
    stride: int
    group: int
    row_pad: int
    padded: int


_LAYOUTS = {
    WeightFormat.Q4_K: _Layout(vectors=9, stride=10, group=32, row_pad=4, padded=0),
    WeightFormat.Q6_K: _Layout(vectors=14, stride=14, group=16, row_pad=2, padded=32),
}


@dataclass(frozen=True)
class BlocksKernel(ProjectionKernel):
    """Base of products of experts' choices of which threadgroup memory has a row's blocks, all of one format."""

    @property
    def format(self) -> WeightFormat:
        """The format of all rows."""
        (format,) = self.layout.formats
        return format

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.format.planes[0].block_bytes

    @property
    def units(self) -> int:
        """Blocks of a row."""
        return self.in_features // BLOCK

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the weight."""
        return self.units * self.block_bytes


@dataclass(frozen=True)
class ExpertCodesKernel(BlocksKernel):
    """A product of a tile of an expert's choices. x is already normalised, so `norm` is None.

    Each simdgroup has rows of its own, MMA_ROWS at a time, and all columns.

    Attributes:
        stages: blocks of each row that a simdgroup has asked for and not multiplied yet.
        early: whether the order of choices was there before the launch before began: so weights are on their way before
            x is there.
    """

    template = "expert_codes.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES
    _: KW_ONLY
    stages: int
    early: bool = False

    @property
    def tiles_of_rows(self) -> int:
        """Matrix instructions side by side, which multiply all rows of a simdgroup."""
        return self.rows // MMA_ROWS

    @property
    def padded_tile(self) -> int:
        """Choices, with what a matrix instruction has besides."""
        return -(-self.tile // 8) * 8

    @property
    def near(self) -> _Layout:
        """The places of what is copied."""
        return _LAYOUTS[self.format]

    @property
    def slot(self) -> int:
        """Vectors of a simdgroup for the blocks that it multiplies at a time."""
        return self.rows * self.near.stride

    @property
    def row_of_x(self) -> int:
        """Vectors from one row of x to the next."""
        return self.units_of_x * BLOCK // 8 + self.near.row_pad

    @property
    def chunked(self) -> bool:
        """Whether x comes unit by unit, since threadgroup memory has no room for all of a tile."""
        return self.tile > _TILE

    @property
    def units_of_x(self) -> int:
        """Units of x in threadgroup memory."""
        return 2 if self.chunked else self.units

    @property
    def rows_of_simdgroup(self) -> int:
        """Rows of x that a simdgroup prepares."""
        return -(-self.tile // self.simdgroups)

    @property
    def scales(self) -> int:
        """Numbers of a row's scales."""
        return BLOCK // self.near.group

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of blocks, scales, rows of x and their sums."""
        of_simdgroup = self.stages * self.slot * _VECTOR + self.rows * self.scales * 4
        of_columns = self.units_of_x * (BLOCK // self.near.group + 1)
        of_x = self.tile * self.row_of_x * _VECTOR + self.padded_tile * of_columns * 4
        return self.simdgroups * of_simdgroup + of_x


def expert_codes(lowering: MetalLowering, op: Op, p: ProjectionFacts, experts: ExpertRows) -> ExpertCodesKernel | None:
    """The kernel of an op's product, if the geometry asks for it and it can be made."""
    g, formats = codes_choice(lowering, op, p).geometry.many_rows.matrix, p.layout.formats
    if not g.stages or not p.activation.is_16_bit or len(formats) != 1 or formats[0] not in _LAYOUTS:
        return None
    rows, row_bytes = MMA_ROWS * g.together, p.layout.columns // BLOCK * formats[0].planes[0].block_bytes
    whole = all(s.offsets[0] % _VECTOR == 0 and s.rows * row_bytes % _VECTOR == 0 for s in p.layout.segments)
    if not whole or p.layout.columns % BLOCK or p.out_features % (rows // p.epilogue.halves):
        return None
    tile = _TILE if lowering.phase == "decode" else g.max_rows
    made = ExpertCodesKernel(
        label=f"{p.label}_codes{tile}",
        norm=None,
        **p.fields,
        outs=rows // p.epilogue.halves,
        simdgroups=g.simdgroups,
        passes=1 if tile > _TILE else max(1, g.outputs // rows),  # x that comes unit by unit comes once
        tile=tile,
        experts=experts,
        stages=g.stages,
    )
    return made if made.threadgroup_bytes <= BLOCK_BYTES and len(made.spans) == 1 else None


def codes_choice(lowering: MetalLowering, op: Op, p: ProjectionFacts) -> Choice:
    """The geometry of an op's kernel, which has a label of its own in decode steps and one in prompts."""
    label, experts = f"{p.label}_{'codes' if lowering.phase == 'decode' else 'prompts'}", op.attrs_as(ExpertProduct)
    return lowering.table.choose(Site.of_weight(label, p.layout, experts.num_experts))
