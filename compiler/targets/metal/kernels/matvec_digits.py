"""Projections of one row with matrix instructions of 8-bit numbers, for which x is integers of four digits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.targets.metal.kernel_parts.kernel import BLOCK_BYTES, MMA_ROWS, SIMD_WIDTH, THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernel_parts.passes import passes_of, tiles_of
from mlxr.compiler.targets.metal.kernel_parts.projection_facts import ProjectionFacts
from mlxr.compiler.targets.metal.kernel_parts.projection_kernel import ProjectionKernel

DIGIT_FORMATS = frozenset({WeightFormat.Q4_K, WeightFormat.Q6_K})
"""Formats that the kernel can take."""
UNIT = 128
"""Columns that a simdgroup multiplies at a time."""
_MOST_HELD = 72
"""Registers of a lane for codes and scales."""
_MOST_LOADED = 4
"""Rows of a unit that lanes load by themselves."""


@dataclass(frozen=True)
class MatvecDigitsKernel(ProjectionKernel):
    """A projection of one row: the simdgroups of a threadgroup share the columns of its tiles of 16 rows.

    A simdgroup holds all that it multiplies in registers before x is there.
    """

    template = "matvec_digits.metal.jinja"
    most_bytes: ClassVar[int] = BLOCK_BYTES

    @property
    def units(self) -> int:
        """Units of columns."""
        return self.in_features // UNIT

    @property
    def steps(self) -> int:
        """Units that a simdgroup takes."""
        return -(-self.units // self.simdgroups)

    @property
    def partly(self) -> bool:
        """Whether some simdgroups take one unit less."""
        return self.units % self.simdgroups != 0

    def unit_of(self, step: str) -> str:
        """The unit of a step of a simdgroup, as text; past the end it repeats the last one."""
        unit = f"share + {step} * {self.simdgroups}u"
        return f"min({unit}, {self.units - 1}u)" if self.partly else f"({unit})"

    def has(self, step: str) -> str:
        """Whether a simdgroup has a unit in a step, as text."""
        return f"share + {step} * {self.simdgroups}u < {self.units}u"

    @property
    def held(self) -> int:
        """Rows of a unit that a lane holds."""
        return 2 * self.passes * self.steps

    @property
    def registers(self) -> int:
        """Registers of a lane for what it holds of rows: codes, unless they are near and not unpacked, and scales."""
        of_rows = [12 if format is WeightFormat.Q6_K else 4 if self.near(format) else 8 for format in self.formats]
        return self.held * max(of_rows)

    @property
    def clamps(self) -> bool:
        """Whether some threadgroups have fewer tiles."""
        return not self._spans_are_multiples_of(self.outs_per_threadgroup)

    def first_of(self, tile: str) -> str:
        """The first output of a threadgroup's tile, as text."""
        first = f"of_all + {tile} * {self.outs}u"
        return f"min({first}, end - {self.outs}u)" if self.clamps else f"({first})"

    def row_bytes_of(self, format: WeightFormat) -> int:
        """Bytes of a row."""
        return self.in_features // format.block_elements * format.planes[0].block_bytes

    def near(self, format: WeightFormat) -> bool:
        """Whether rows of a format are copied to threadgroup memory."""
        return format is WeightFormat.Q6_K or self.held > _MOST_LOADED

    def loops(self, format: WeightFormat) -> bool:
        """Whether tiles of a format are taken one after the other, and decoded then."""
        return self.near(format) and (self.steps == 1 or self.passes <= 2)

    @property
    def near_bytes(self) -> int:
        """Bytes of threadgroup memory for rows."""
        rows = [self.row_bytes_of(format) for format in self.formats if self.near(format)]
        return MMA_ROWS * self.passes * max(rows, default=0)

    @property
    def lanes_of_output(self) -> int:
        """Threads that add up an output: a power of two."""
        return 1 << (min(self.threads // self.outs_per_threadgroup, self.simdgroups, SIMD_WIDTH).bit_length() - 1)

    @property
    def numbers(self) -> int:
        """Numbers of a simdgroup in threadgroup memory: the digits of its x, and later its sums."""
        return max(self.steps * UNIT, 64 * self.passes)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of x, of all sums, and of rows."""
        return 4 * self.simdgroups * (self.numbers + 8 * self.steps + self.reduces_scale) + self.near_bytes


def in_digits(p: ProjectionFacts) -> Iterator[MatvecDigitsKernel]:
    """The kernels of a projection, if it has any: first with as many tiles a threadgroup as the geometry asks for."""
    g = p.choice.geometry.one_row
    norms = p.norm is None or (p.norm.kind == "rms" and not p.norm.bias)
    if p.added or not norms or not set(p.layout.formats) <= DIGIT_FORMATS or p.layout.columns % (2 * UNIT):
        return
    simdgroups = min(g.simdgroups, p.layout.columns // UNIT)
    one = MatvecDigitsKernel(
        label=p.label,
        norm=p.norm,
        added=None,
        **p.fields,
        x_columns=p.x_columns,
        outs=MMA_ROWS // p.epilogue.halves,
        simdgroups=simdgroups,
        split=simdgroups,
        tile=1,
        passes=1,
    )
    if all(len(s.groups) == 1 and (s.end_out - s.first_out) % one.outs == 0 for s in one.spans):
        most = passes_of(tiles_of(one), g.threadgroups) if g.threadgroups else 1
        yield from (replace(one, passes=passes) for passes in range(most, 0, -1))


def fits(kernel: MatvecDigitsKernel) -> bool:
    """Whether registers and threadgroup memory hold what the kernel needs, and each output has a thread."""
    return (
        kernel.registers <= _MOST_HELD
        and kernel.outs_per_threadgroup <= kernel.threads
        and kernel.threadgroup_bytes <= (BLOCK_BYTES if kernel.near_bytes else THREADGROUP_BYTES)
    )
