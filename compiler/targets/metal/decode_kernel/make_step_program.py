"""Makes the programs of decode steps: one for each class of numbers of sequences.

A step program has the launches that a step with one token per sequence needs, in the plan's order. Numbers of sequences
that need the same launches share a step program; its grids may still depend on the number.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, product

from mlxr.compiler.artifact.launch import Condition, Extent, Launch
from mlxr.compiler.artifact.library_call import CollectiveCall, HandoverCall
from mlxr.compiler.artifact.parallel.peer_mailboxes import BLOCKS
from mlxr.compiler.artifact.program import Phase, Program
from mlxr.compiler.artifact.step_kernel_entry import LAYERS, PEERS, SCRATCH
from mlxr.compiler.artifact.typical_steps import decode_dims
from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.tensor import ARENA_TOKEN, BatchDim, layer_buffer
from mlxr.compiler.targets.metal.decode_kernel.step_program import (
    Grid,
    MemoryRange,
    StepLaunch,
    StepProgram,
    with_barriers,
)
from mlxr.compiler.targets.metal.decode_kernel.sum_in_step import sum_entry

MOST_CONDITIONS = 32
"""Bits of the mask."""
ONE_SEQUENCE = range(1, 2)
_LAYER_BYTES = 32
_TOKEN_BYTES = 128  # [8] u32, and a cache line to itself

Dims = Mapping[BatchDim, int]


class NotOneKernelError(PlanError):
    """A decode step that cannot be one kernel; its launches run one by one instead."""


def step_classes(program: Program, most: int) -> list[range]:
    """The numbers of sequences from 1 to `most`, in classes of neighbours that need the same launches."""
    contexts = _contexts(program)
    launches = {(la.when, la.yields): la for la in program.phase("decode").launches if not la.needs_library}

    def needed(count: int) -> list[tuple[bool, bool]]:
        batches = [decode_dims(count, context) for context in contexts]
        return [
            (launch.runs(dims, library=False), launch.runs(dims, library=True))
            for dims in batches
            for launch in launches.values()
        ]

    classes = [list(counts) for _, counts in groupby(range(1, most + 1), key=needed)]
    return [range(counts[0], counts[-1] + 1) for counts in classes]


def make_step_program(program: Program, counts: range = ONE_SEQUENCE) -> StepProgram:
    """The program of the decode steps of some numbers of sequences.

    Args:
        program: the program whose steps to run.
        counts: one of `step_classes`.

    Raises:
        NotOneKernelError: a launch cannot be part of one kernel; the message says which launch and why.
    """
    phase, contexts = program.phase("decode"), _contexts(program)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    places, scratch_bytes = _places(phase, program.arena.num_layers)
    batches = _extreme_batches(counts, contexts)
    stores = frozenset(allocation.name for allocation in program.arena.allocations)
    conditions: dict[Condition, int] = {}
    launches: list[StepLaunch] = []
    arguments: dict[str, None] = {ARENA_TOKEN: None}
    for launch in phase.launches:
        running = [dims for dims in batches if launch.runs(dims, library=False)]
        if not running:
            continue
        if isinstance(launch.body, HandoverCall):
            raise NotOneKernelError(f"the CPU computes between the launches of a step ({launch.op})")
        if isinstance(launch.body, CollectiveCall):
            if launch.body.function == "gather" and launch.inputs and launch.outputs[0] == phase.outputs[0]:
                continue  # the host gathers what the kernel gives
            launches.append(_sum(launch, launch.body, places, counts))
            arguments |= dict.fromkeys(place.argument for place in launches[-1].operands)
            continue
        grid = _grid(launch, running)
        condition = None
        if launch.when is not None and any(part.dim == "context" for part in launch.when.parts):
            condition = conditions.setdefault(launch.when, len(conditions))
        operands = tuple(places.get(name) or MemoryRange(name) for name in (*launch.inputs, *launch.outputs))
        arguments |= dict.fromkeys(place.argument for place in operands)
        launches.append(StepLaunch(kernels[launch.kernel], grid, operands, len(launch.inputs), condition, stores))
    if len(conditions) > MOST_CONDITIONS:
        raise NotOneKernelError(
            f"the step has {len(conditions)} conditions on the context; one kernel has {MOST_CONDITIONS}"
        )
    logits, token = own_result(phase), phase.outputs[1]
    outputs = (logits, token, SCRATCH)
    inputs = tuple(name for name in arguments if name not in outputs)
    step = StepProgram(counts, tuple(launches), inputs, outputs, tuple(conditions), scratch_bytes)
    return with_barriers(step, {step.mask(dims) for dims in batches})


def own_result(phase: Phase) -> str:
    """The buffer of the step's result, or, of a rank, that of its own columns of it, which are gathered afterwards."""
    gathers = [launch for launch in phase.launches if launch.outputs[:1] == phase.outputs[:1]]
    gathers = [launch for launch in gathers if isinstance(launch.body, CollectiveCall) and launch.inputs]
    return gathers[0].inputs[0] if gathers else phase.outputs[0]


def _sum(launch: Launch, call: CollectiveCall, places: Mapping[str, MemoryRange], counts: range) -> StepLaunch:
    if call.function != "all_sum":
        raise NotOneKernelError(f"ranks exchange rows between the launches of a step ({call.function})")
    entry = sum_entry(call)
    dims = MemoryRange("dims" if len(counts) > 1 else PEERS)  # of one sequence, it is not read
    x, out = (places[name] for name in (*launch.inputs, *launch.outputs))
    grid = (Extent(times=BLOCKS), Extent(), Extent())
    return StepLaunch(entry, grid, (x, MemoryRange(PEERS), dims, out), 3, None)


def _extreme_batches(counts: range, contexts: Iterable[int]) -> list[Dims]:
    """Batches that stand for all: grids only grow with the number of sequences, so the smallest and largest suffice."""
    return [decode_dims(count, context) for count, context in product(sorted({counts[0], counts[-1]}), contexts)]


def _contexts(program: Program) -> list[int]:
    """Contexts on both sides of every condition's limits: they cover every combination of conditions that can occur."""
    borders = {1, program.arena.context}
    parts = {part for launch in program.phase("decode").launches for part in launch.conditions}
    for part in (part for part in parts if part.dim == "context"):
        borders |= {part.minimum, part.minimum - 1}
        borders |= set() if part.maximum is None else {part.maximum, part.maximum + 1}
    return sorted(context for context in borders if 1 <= context <= program.arena.context)


def _grid(launch: Launch, running: Sequence[Dims]) -> Grid:
    """A launch's threadgroups, which must be the same for all contexts."""
    if not all(launch.runs(dims, library=True) for dims in running):
        raise NotOneKernelError(f"MLX runs {launch.op}, which cannot be part of one kernel")
    grid = []
    for extent in launch.threadgroups:
        values = {extent.value(dims) for dims in running}
        if len(values) > 1 and extent.dim == "context":
            raise NotOneKernelError(f"the grid of {launch.kernel} depends on the context")
        grid.append(Extent(times=values.pop()) if len(values) == 1 else extent)
    return grid[0], grid[1], grid[2]


def _places(phase: Phase, num_layers: int) -> tuple[dict[str, MemoryRange], int]:
    """The places of the phase's own buffers and of the layers' constants, and the size of scratch memory."""
    places = {layer_buffer(i): MemoryRange(LAYERS, i * _LAYER_BYTES, _LAYER_BYTES) for i in range(num_layers)}
    for buffer in phase.buffers:
        if buffer.name in (own_result(phase), *phase.outputs):
            places[buffer.name] = MemoryRange(buffer.name)
        else:
            places[buffer.name] = MemoryRange(SCRATCH, buffer.offset_bytes, buffer.size_bytes)
    end = -(-phase.activation_bytes // _TOKEN_BYTES) * _TOKEN_BYTES
    tokens = dict.fromkeys(name for launch in phase.launches for name in launch.outputs if name not in places)
    for name in tokens:
        if name not in phase.outputs:
            places[name] = MemoryRange(SCRATCH, end, _TOKEN_BYTES)
            end += _TOKEN_BYTES
    return places, end
