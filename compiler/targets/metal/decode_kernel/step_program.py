"""A decode step as a program for one kernel: its launches in order, with the places of their buffers.

Activations are in one scratch buffer, at the offsets of the memory plan. Launches whose condition depends on the
context stay conditional, so that one program serves all contexts; a mask says which conditions hold.

Blocks wait for each other before a launch if and only if it conflicts with one since the last wait: it touches bytes
that the other wrote, or writes bytes that the other read. A wait costs about a microsecond; a missing one is a race.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.step_kernel_entry import condition_mask
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.tensor import BatchDim

Grid = tuple[Extent, Extent, Extent]
_UNKNOWN_BYTES = 1 << 62
_WHOLE = "x"
"""The port of which each block reads all words."""


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
        names: the plan's names of the operands.
        ignored: operands that need no barrier (see hand_on.py).
    """

    kernel: KernelEntry
    grid: Grid
    operands: tuple[MemoryRange, ...]
    num_inputs: int
    condition: int | None
    stores: frozenset[str] = frozenset()
    waits: bool = False
    names: tuple[str, ...] = ()
    ignored: frozenset[int] = frozenset()

    @property
    def written(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return self.names[self.num_inputs :]

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
        (reads, writes), (read, written) = self.shared, earlier.shared
        return any(place.overlaps(other) for other in written for place in (*reads, *writes)) or any(
            place.overlaps(other) for other in read for place in writes
        )

    @property
    def shared(self) -> tuple[tuple[MemoryRange, ...], tuple[MemoryRange, ...]]:
        """What it reads and writes, but for what is ignored."""
        known = [place for i, place in enumerate(self.operands) if i not in self.ignored]
        reads = tuple(place for place in self.reads if place in known)
        return reads, tuple(place for place in self.writes if place in known)


@dataclass(frozen=True)
class HandedValue:
    """A value that blocks hand each other in words.

    Attributes:
        home: where its words are: the number of its home.
        version: its number among all values of a step, from 1.
        count: its numbers.
        dtype: their type.
    """

    home: int
    version: int
    count: int
    dtype: DType


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
        masks: the masks that occur.
        handed: the values that blocks hand each other in words, by name.
    """

    counts: range
    launches: tuple[StepLaunch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, str, str]
    conditions: tuple[Condition, ...]
    scratch_bytes: int
    masks: frozenset[int] = frozenset()
    handed: Mapping[str, HandedValue] = field(default_factory=dict)

    def mask(self, dims: Mapping[BatchDim, int]) -> int:
        """Which conditions hold for a batch, as bits."""
        return condition_mask(self.conditions, dims)

    def running(self, mask: int) -> Iterator[StepLaunch]:
        """The launches that run with a mask."""
        return (launch for launch in self.launches if launch.condition is None or mask >> launch.condition & 1)


def with_barriers(program: StepProgram, masks: Iterable[int]) -> StepProgram:
    """The program with exactly the waits that it needs when it runs with any of these masks.

    What a launch reads of values that are handed on tells it, too, that launches have ended.
    """
    placed = {id(launch): replace(launch, waits=False) for launch in program.launches}
    for mask in sorted(masks):
        known = _Ended(program.handed)
        for launch in program.running(mask):
            ended = known.before(launch, waits=placed[id(launch)].waits)
            if any(launch.conflicts(earlier) for i, earlier in enumerate(known.launches) if i not in ended):
                placed[id(launch)] = replace(launch, waits=True)
                ended = known.before(launch, waits=True)
            known.add(launch, ended, waits=placed[id(launch)].waits)
    return replace(program, launches=tuple(placed.values()))


def ended_before(program: StepProgram, mask: int) -> dict[int, frozenset[int]]:
    """Of each launch that runs, by number, those that have ended in all blocks before it writes."""
    known, number = _Ended(program.handed), {id(launch): i for i, launch in enumerate(program.launches)}
    for launch in program.running(mask):
        known.add(launch, known.before(launch, waits=launch.waits), waits=launch.waits)
    at = [number[id(launch)] for launch in known.launches]
    return {at[i]: frozenset(at[j] for j in ended) for i, ended in enumerate(known.ended)}


class _Ended:
    """The launches of a step so far, and which of them have ended before each of them writes.

    Each block of a product reads all of x, and so knows what all blocks that made it knew together. Of other values a
    block reads a part, which it has from some block; all blocks of the launch read all of it.
    """

    def __init__(self, handed: Mapping[str, HandedValue]) -> None:
        self.launches: list[StepLaunch] = []
        self.ended: list[frozenset[int]] = []
        self._together: list[frozenset[int]] = []
        self._handed, self._writers, self._barrier = handed, dict[str, int](), 0

    def before(self, launch: StepLaunch, *, waits: bool) -> frozenset[int]:
        """Those that have ended before any block of a launch writes, by number."""
        ended = frozenset(range(len(self.launches) if waits else self._barrier))
        for port, writer in self._read(launch):
            ended |= self._by_all(writer) if port == _WHOLE else self.ended[writer]
        return ended

    def add(self, launch: StepLaunch, ended: frozenset[int], *, waits: bool) -> None:
        """Notes a launch."""
        if waits:
            self._barrier = len(self.launches)
        self._together.append(ended.union(*(self._by_all(writer) for _, writer in self._read(launch))))
        self._writers |= dict.fromkeys(launch.written, len(self.launches))
        self.launches.append(launch)
        self.ended.append(ended)

    def _by_all(self, writer: int) -> frozenset[int]:
        """What has ended once all words of a launch are there."""
        return self._together[writer] | {writer}

    def _read(self, launch: StepLaunch) -> Iterator[tuple[str, int]]:
        """The values in words that a launch reads: the port, and the launch that wrote it."""
        for name, port in zip(launch.names, launch.kernel.inputs, strict=False):
            if name in self._handed and name in self._writers:
                yield port.name, self._writers[name]
