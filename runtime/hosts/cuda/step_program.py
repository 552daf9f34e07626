"""A decode step as a program for one kernel: its launches in order, and where a barrier must stand.

    plan -> StepProgram -> text (step_text.py) -> kernel (step_kernel.py)

The launches of the plan that one token of each sequence needs, in the plan's order. A program is for numbers of
sequences that need the same launches; their grids may still depend on the number. Launches whose condition depends on
the context stay conditional, so that one program serves all contexts. Activations lie in one scratch buffer where the
memory plan has them; a launch waits for the grid exactly if it touches bytes that one since the last barrier wrote, or
writes bytes that one read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

from mlxr.compiler.artifact import ARENA_TOKEN, Condition, Extent, KernelEntry, Launch, Plan, Step, decode_dims
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.binding import Dims, grid_of

ARENAS = ("k_arena", "v_arena")
LAYERS, SCRATCH = "layers", "scratch"
"""Buffers that the plan does not name: the constants of all layers, [layers, 8] u32, and activations."""
MOST_CONDITIONS = 32
"""Bits of the mask that says which hold."""
ALONE = range(1, 2)
"""Sequences of a step that has one."""
Grid = tuple[Extent, Extent, Extent]
_LAYER_BYTES = 32
_TOKEN_BYTES = 128  # [8] u32, and a cache line to itself
_UNKNOWN_BYTES = 1 << 62


@dataclass(frozen=True)
class Place:
    """Where a buffer is: so many bytes into one of the step kernel's arguments."""

    argument: str
    offset_bytes: int = 0
    size_bytes: int = _UNKNOWN_BYTES

    def overlaps(self, other: "Place") -> bool:
        """Whether they share bytes."""
        return (
            self.argument == other.argument
            and self.offset_bytes < other.offset_bytes + other.size_bytes
            and other.offset_bytes < self.offset_bytes + self.size_bytes
        )


@dataclass(frozen=True)
class Entry:
    """One launch.

    Attributes:
        kernel: its kernel.
        grid: its threadgroups along each axis; what does not depend on the number of sequences is a number.
        operands: places of its inputs and outputs, in order.
        num_inputs: how many of them are inputs.
        condition: of the program's conditions, the one it runs under; None: it always runs.
        waits: whether the grid waits for all blocks before it.
    """

    kernel: KernelEntry
    grid: Grid
    operands: tuple[Place, ...]
    num_inputs: int
    condition: int | None
    waits: bool = False

    def threadgroups(self, dims: Dims) -> tuple[int, int, int]:
        """Its grid for a batch."""
        x, y, z = (extent.value(dims) for extent in self.grid)
        return x, y, z

    @property
    def reads(self) -> tuple[Place, ...]:
        """What it reads that a launch of the step may write: the arena, too."""
        return self.operands[: self.num_inputs]

    @property
    def writes(self) -> tuple[Place, ...]:
        """What it writes; one that makes a token writes the arena in place."""
        outputs = self.operands[self.num_inputs :]
        makes_token = any(port.name == "token_out" for port in self.kernel.outputs)
        return outputs + tuple(place for place in self.reads if makes_token and place.argument in ARENAS)

    def conflicts(self, earlier: "Entry") -> bool:
        """Whether it must not run beside an earlier one."""
        after = (*self.reads, *self.writes)
        return any(a.overlaps(b) for b in earlier.writes for a in after) or any(
            a.overlaps(b) for b in earlier.reads for a in self.writes
        )


@dataclass(frozen=True)
class StepProgram:
    """A decode step.

    Attributes:
        counts: numbers of sequences that it is for, each with one token and one row of logits.
        entries: its launches.
        inputs: arguments of the step kernel that it reads, by the plan's names, and `LAYERS`.
        outputs: logits and the arena's last token, by the plan's names, and `SCRATCH`.
        conditions: on the context; bit i of the mask says whether conditions[i] holds.
        scratch_bytes: of activations.
    """

    counts: range
    entries: tuple[Entry, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, str, str]
    conditions: tuple[Condition, ...]
    scratch_bytes: int

    def takes(self, dims: Dims) -> bool:
        """Whether it is for a batch, if that is a decode step."""
        return dims["tokens"] in self.counts and dims["tokens"] == dims["seqs"] == dims["rows"]

    def mask(self, dims: Dims) -> int:
        """Which conditions hold for a batch, as bits."""
        return sum(1 << i for i, condition in enumerate(self.conditions) if condition.holds(dims))

    def running(self, mask: int) -> Iterator[Entry]:
        """The launches that run with a mask."""
        return (one for one in self.entries if one.condition is None or mask >> one.condition & 1)


def classes_of(plan: Plan, most: int) -> list[range]:
    """The numbers of sequences from 1 to `most`, put together where they need the same launches."""
    contexts = _contexts(plan)
    launches = {(one.when, one.mlx, one.feeds_mlx): one for one in plan.step("decode").launches}.values()

    def needed(count: int) -> list[tuple[bool, bool]]:
        every = (decode_dims(count, context) for context in contexts)
        return [(_runs(one, dims), one.runs_as_mlx(dims)) for dims in every for one in launches]

    found = [list(counts) for _, counts in groupby(range(1, most + 1), key=needed)]
    return [range(counts[0], counts[-1] + 1) for counts in found]


def step_program(plan: Plan, counts: range = ALONE) -> StepProgram:
    """The program of a plan's decode step.

    Args:
        plan: whose step it is.
        counts: numbers of sequences, of `classes_of`.

    Raises:
        HostError: a launch cannot be part of one kernel; the message says which and why.
    """
    step, contexts = plan.step("decode"), _contexts(plan)
    places, scratch_bytes = _places(plan, step)
    conditions: dict[Condition, int] = {}
    entries, arguments = [], {ARENA_TOKEN: None}
    for launch in step.launches:
        running = [dims for dims in _every(counts, contexts) if _runs(launch, dims)]
        if not running:
            continue
        grid = _grid(launch, running)
        condition = None
        if launch.when is not None and any(part.dim == "context" for part in launch.when.parts):
            condition = conditions.setdefault(launch.when, len(conditions))
        operands = tuple(places.get(name) or Place(name) for name in (*launch.inputs, *launch.outputs))
        arguments |= dict.fromkeys(place.argument for place in operands)
        entries.append(Entry(plan.kernel(launch.kernel), grid, operands, len(launch.inputs), condition))
    if len(conditions) > MOST_CONDITIONS:
        raise HostError(f"the step has {len(conditions)} conditions on the context; one kernel has {MOST_CONDITIONS}")
    logits, token = step.outputs
    outputs = (logits, token, SCRATCH)
    inputs = tuple(name for name in arguments if name not in outputs)
    program = StepProgram(counts, tuple(entries), inputs, outputs, tuple(conditions), scratch_bytes)
    return with_barriers(program, {program.mask(dims) for dims in _every(counts, contexts)})


def _every(counts: range, contexts: Iterable[int]) -> list[Dims]:
    """Grids only grow with the number of sequences, so its least and its most stand for all."""
    return [decode_dims(count, context) for count, context in product(sorted({counts[0], counts[-1]}), contexts)]


def _runs(launch: Launch, dims: Dims) -> bool:
    return grid_of(launch, dims) is not None


def with_barriers(program: StepProgram, masks: Iterable[int]) -> StepProgram:
    """The program with the barriers it needs and no others, whichever of these masks it runs with."""
    entries = {id(one): replace(one, waits=False) for one in program.entries}
    for mask in sorted(masks):
        since: list[Entry] = []
        for one in program.running(mask):
            if not entries[id(one)].waits and any(one.conflicts(earlier) for earlier in since):
                entries[id(one)] = replace(one, waits=True)
            since = [one] if entries[id(one)].waits else [*since, one]
    return replace(program, entries=tuple(entries.values()))


def _contexts(plan: Plan) -> list[int]:
    """Contexts of which each is on one side of each condition: all that can happen happens with one of them."""
    borders = {1, plan.arena.context}
    for launch in plan.step("decode").launches:
        for condition in (launch.when, *launch.mlx):
            for part in condition.parts if condition is not None else ():
                if part.dim == "context":
                    borders |= {part.minimum, part.minimum - 1}
                    borders |= set() if part.maximum is None else {part.maximum, part.maximum + 1}
    return sorted(context for context in borders if 1 <= context <= plan.arena.context)


def _grid(launch: Launch, running: Sequence[Dims]) -> Grid:
    """A launch's threadgroups, which must be the same for all contexts."""
    if any(launch.runs_as_mlx(dims) for dims in running):
        raise HostError(f"MLX runs {launch.op}, which can be no part of one kernel")
    grid = []
    for extent in launch.threadgroups:
        found = {extent.value(dims) for dims in running}
        if len(found) > 1 and extent.dim == "context":
            raise HostError(f"the grid of {launch.kernel} depends on the context")
        grid.append(Extent(times=found.pop()) if len(found) == 1 else extent)
    return grid[0], grid[1], grid[2]


def _places(plan: Plan, step: Step) -> tuple[dict[str, Place], int]:
    """Where the step's own buffers and the layers' constants are, and the bytes of scratch memory."""
    places = {f"layer.{i}": Place(LAYERS, i * _LAYER_BYTES, _LAYER_BYTES) for i in range(plan.num_layers)}
    for buffer in step.buffers:
        if buffer.name in step.outputs:
            places[buffer.name] = Place(buffer.name)
        else:
            places[buffer.name] = Place(SCRATCH, buffer.offset_bytes, buffer.size_bytes)
    end = -(-step.activation_bytes // _TOKEN_BYTES) * _TOKEN_BYTES
    tokens = dict.fromkeys(name for launch in step.launches for name in launch.outputs if name not in places)
    for name in tokens:
        if name not in step.outputs:
            places[name] = Place(SCRATCH, end, _TOKEN_BYTES)
            end += _TOKEN_BYTES
    return places, end
