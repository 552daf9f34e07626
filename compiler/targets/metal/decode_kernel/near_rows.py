"""Where a block of a step kernel has its rows of a weight, if they are copied to its shared memory ahead of the launch.

A weight does not depend on the launch before, so its rows can be on their way while a block computes, or waits for,
something else. Each threadgroup multiplies consecutive rows, so a few bulk copies bring all that a block needs. They
lie there as in the weight: the kernel's text reads them as it would in the card's memory.

Of a launch, the rows of the first threadgroups, as many as a block runs side by side, are asked for when the launch
before begins; those of the others when it begins itself. Launches take turns at the two ends of the memory for rows.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlxr.compiler.artifact.kernel_entry import body_of, header_of
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout, plane_row_bytes
from mlxr.compiler.targets.metal.decode_kernel.step_program import StepLaunch, StepProgram

_PLACE = re.compile(
    r"of_all = (?:\d+u \+ )?\(?threadgroup_position_in_grid\.x(?: - \d+u\))? \* (?P<all>\d+)u;"
    r"|\(?\(threadgroup_position_in_grid\.x \* (?P<tiles>\d+)u \+ simdgroup_index_in_threadgroup(?: / \d+u)?\)"
    r"(?: - \d+u)?\)? \* (?P<outs>\d+)u;"
    r"|if \(threadgroup_position_in_grid\.x < \d+u\)"
)
"""The uses of a threadgroup's position where threadgroups multiply the rows of a weight in order."""
_MOST_PARTS = 2
_MOST_COPIES = 32  # one for each lane
_VECTOR = 16


@dataclass(frozen=True)
class NearPart:
    """Rows of a weight that lie together, and the outputs that they are for.

    Attributes:
        operand: the number of the weight among the kernel's inputs.
        offset_bytes: where the first of these rows is in the weight.
        first, rows: the first of the outputs, and how many.
        row_bytes: bytes of a row.
        each: outputs of a threadgroup.
        threadgroups: all that the launch has.
    """

    operand: int
    offset_bytes: int
    first: int
    rows: int
    row_bytes: int
    each: int
    threadgroups: int

    @property
    def bytes(self) -> int:
        """Bytes of a threadgroup's rows in shared memory, in whole vectors, wherever in one they begin."""
        return -(-self.each * self.row_bytes // _VECTOR) * _VECTOR + _VECTOR


@dataclass(frozen=True)
class NearRows:
    """The rows of a launch in shared memory.

    Attributes:
        parts: the parts of the weight. A threadgroup has rows of all, if they are for the same outputs, or of one.
        groups: threadgroups that a block runs side by side.
        most: threadgroups of a block.
    """

    parts: tuple[NearPart, ...]
    groups: int
    most: int

    @property
    def part_at(self) -> tuple[int, ...]:
        """Where each part of a threadgroup's rows begins."""
        together = len({part.first for part in self.parts}) < len(self.parts)
        places = [0]
        for part in self.parts:
            places.append(places[-1] + part.bytes if together else 0)
        return tuple(places[:-1])

    @property
    def slot_bytes(self) -> int:
        """Shared memory for the rows of a threadgroup."""
        return max(at + part.bytes for at, part in zip(self.part_at, self.parts, strict=True))

    @property
    def first_bytes(self) -> int:
        """The same of the threadgroups that a block runs first."""
        return self.groups * self.slot_bytes

    @property
    def all_bytes(self) -> int:
        """The same of all threadgroups of a block."""
        return self.most * self.slot_bytes


def near_rows(
    launch: StepLaunch,
    layouts: Mapping[str, WeightLayout],
    program: StepProgram,
    source: str,
    groups: int,
    blocks: int,
) -> NearRows | None:
    """The rows of a launch, if its threadgroups multiply a weight's rows in order; else None.

    Args:
        launch: the launch.
        layouts: where the rows of each weight lie, by the weight's name.
        program: the step.
        source: the Metal text of the launch's kernel.
        groups: threadgroups that a block can run side by side.
        blocks: of the grid, at least.
    """
    parts = tuple(_parts(launch, layouts, program, source))
    if not 0 < len(parts) <= _MOST_PARTS:
        return None
    most = -(-parts[0].threadgroups // blocks)
    return NearRows(parts, min(groups, most), most) if most * len(parts) <= _MOST_COPIES else None


def _parts(
    launch: StepLaunch, layouts: Mapping[str, WeightLayout], program: StepProgram, source: str
) -> Iterator[NearPart]:
    # The kernel reads the weight only as `weight + bytes`, which is another address then.
    if launch.condition is not None or re.search(r"\bweight\b(?! \+)", header_of(source) + body_of(source)):
        return
    ports = [port.name for port in launch.kernel.inputs]
    threadgroups, *others = (extent.times for extent in launch.grid)
    if "weight" not in ports or "adapter_ids" in ports or others != [1, 1]:
        return
    operand = ports.index("weight")
    layout, out = layouts.get(launch.operands[operand].argument), program.handed.get(launch.written[0])
    if layout is None or layout.dtype is not DType.U8 or layout.size_bytes >= 1 << 31:
        return
    outputs = layout.rows if out is None else out.count
    each = outputs // threadgroups
    if _each(body_of(source)) != {each}:
        return
    borders = {border for segment in layout.segments for border in (segment.first_row, segment.end_row)}
    if layout.rows % outputs or outputs % threadgroups or any(border % each for border in borders):
        return
    for segment in layout.segments:
        for half in range(layout.rows // outputs):
            begin, end = max(segment.first_row, half * outputs), min(segment.end_row, (half + 1) * outputs)
            for plane, offset in enumerate(segment.offsets if begin < end else ()):
                size = plane_row_bytes(segment.format, plane, layout.columns)
                first = offset + (begin - segment.first_row) * size
                yield NearPart(operand, first, begin - half * outputs, end - begin, size, each, threadgroups)


def _each(body: str) -> set[int]:
    """The outputs of a threadgroup, if threadgroups have them in order."""
    if "threadgroup_position_in_grid" in _PLACE.sub("", body):
        return set()
    found = [place.groupdict() for place in _PLACE.finditer(body)]
    numbers = [place["all"] or place["outs"] for place in found]
    return {int(outs) * int(place["tiles"] or 1) for outs, place in zip(numbers, found, strict=True) if outs}
