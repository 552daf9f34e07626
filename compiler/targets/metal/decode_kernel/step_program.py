"""A decode step as a program for one kernel: its launches in order, with the places of their buffers.

Activations are in one scratch buffer, at the offsets of the memory plan. Launches whose condition depends on the
context stay conditional, so that one program serves all contexts; a mask says which conditions hold.

Blocks wait for each other before a launch if and only if it conflicts with one since the last wait: it touches bytes
that the other wrote, or writes bytes that the other read. A wait costs about a microsecond; a missing one is a race.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.step_kernel_entry import condition_mask
from mlxr.compiler.ir.tensor import BatchDim

Grid = tuple[Extent, Extent, Extent]
_UNKNOWN_BYTES = 1 << 62


@dataclass(frozen=True)
class MemoryRange:
    """The place of a buffer: `offset_bytes` into one of the step kernel's arguments."""

    argument: str
    offset_bytes: int = 0
    size_bytes: int = _UNKNOWN_BYTES

    def overlaps(self, other: "MemoryRange") -> bool:
        """Whether the two places share bytes."""
        return (
            self.argument == other.argument
            and self.offset_bytes < other.offset_bytes + other.size_bytes
            and other.offset_bytes < self.offset_bytes + self.size_bytes
        )


@dataclass(frozen=True)
class StepLaunch:
    """One launch of the step.

    Attributes:
        kernel: its kernel.
        grid: threadgroups along each axis; an axis that does not depend on the number of sequences is a number.
        operands: places of its inputs and outputs, in order.
        num_inputs: how many of the operands are inputs.
        condition: index of its condition in the program; None: it always runs.
        stores: the stores among the arguments of the step.
        waits: whether all blocks wait for each other before it.
    """

    kernel: KernelEntry
    grid: Grid
    operands: tuple[MemoryRange, ...]
    num_inputs: int
    condition: int | None
    stores: frozenset[str] = frozenset()
    waits: bool = False

    def threadgroups(self, dims: Mapping[BatchDim, int]) -> tuple[int, int, int]:
        """Its grid for a batch."""
        x, y, z = (extent.value(dims) for extent in self.grid)
        return x, y, z

    @property
    def reads(self) -> tuple[MemoryRange, ...]:
        """Places of its inputs, the arena included."""
        return self.operands[: self.num_inputs]

    @property
    def writes(self) -> tuple[MemoryRange, ...]:
        """Places that it writes. A launch that makes a token also writes stores, which are inputs."""
        outputs = self.operands[self.num_inputs :]
        makes_token = any(port.name == "token_out" for port in self.kernel.outputs)
        return outputs + tuple(place for place in self.reads if makes_token and place.argument in self.stores)

    def conflicts(self, earlier: "StepLaunch") -> bool:
        """Whether it must wait for an earlier launch: one of the two writes bytes that the other reads or writes."""
        touches = (*self.reads, *self.writes)
        return any(place.overlaps(written) for written in earlier.writes for place in touches) or any(
            place.overlaps(read) for read in earlier.reads for place in self.writes
        )


@dataclass(frozen=True)
class StepProgram:
    """The decode steps of some numbers of sequences.

    Attributes:
        counts: numbers of sequences, each with one token and one row of logits.
        launches: the launches, in order.
        inputs: the arguments that the step kernel reads, by the plan's names, and `LAYERS`.
        outputs: the logits and the arena's last token, by the plan's names, and `SCRATCH`.
        conditions: conditions on the context; bit i of the mask says whether conditions[i] holds.
        scratch_bytes: size of `SCRATCH`.
    """

    counts: range
    launches: tuple[StepLaunch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, str, str]
    conditions: tuple[Condition, ...]
    scratch_bytes: int

    def mask(self, dims: Mapping[BatchDim, int]) -> int:
        """Which conditions hold for a batch, as bits."""
        return condition_mask(self.conditions, dims)

    def running(self, mask: int) -> Iterator[StepLaunch]:
        """The launches that run with a mask."""
        return (launch for launch in self.launches if launch.condition is None or mask >> launch.condition & 1)


def with_barriers(program: StepProgram, masks: Iterable[int]) -> StepProgram:
    """The program with exactly the waits that it needs when it runs with any of these masks."""
    placed = {id(launch): replace(launch, waits=False) for launch in program.launches}
    for mask in sorted(masks):
        since: list[StepLaunch] = []
        for launch in program.running(mask):
            if not placed[id(launch)].waits and any(launch.conflicts(earlier) for earlier in since):
                placed[id(launch)] = replace(launch, waits=True)
            since = [launch] if placed[id(launch)].waits else [*since, launch]
    return replace(program, launches=tuple(placed.values()))
