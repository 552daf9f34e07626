"""What bounds each launch on a chip: the bytes that it must move, its arithmetic, and the cost of a launch.

A launch takes at least the larger of bytes / bandwidth and FLOPs / rate: its limit. Launches wait for one another, so
the prediction is the limit plus the launch cost. The count is what any implementation has to do:

1. Every weight once per launch; of an embedding table only the tokens' rows; of experts only the chosen ones, assumed
   to be different as long as there are others.
2. The keys and values that the tokens see, once for each sequence, and those that are written.
3. Activations, read and written once.
4. The arithmetic that op kinds say of themselves (`OpKind.work`): two FLOPs for each weight and row, and four for each
   query head, visible key and element of a head. Work on each element of an activation (norms, rotations) is not
   counted.

Everything is assumed to come from memory: a model whose weights fit into the chip's cache may be faster than this.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mlxr.compiler.artifact import BATCH_DIMS, Artifact, BatchDim, Chip, Op, OpGraph, Phase, Plan
from mlxr.compiler.artifact.typical_steps import chunk_dims, decode_dims
from mlxr.compiler.errors import ArtifactError, RequestError
from mlxr.compiler.ir.work import OpWork
from mlxr.inspect.c_report import CallRow
from mlxr.inspect.launches import LaunchRow, PhaseRows, phase_rows
from mlxr.inspect.use_of_launch import use_of_launch

Bound = Literal["memory", "compute", "launch"]
Dims = Mapping[BatchDim, int]
MLX = "MLX matmul"
TARGET = "metal"
"""The target of GPUs, whose launches this is about."""


@dataclass(frozen=True)
class Work:
    """The work of a launch: bytes and FLOPs."""

    size_bytes: int
    flops: int


@dataclass(frozen=True)
class LaunchLimit:
    """The limit of a launch, for a batch on a chip.

    Attributes:
        row: the launch.
        runs_as: its kernel's name, or what MLX runs instead.
        work: bytes and FLOPs.
        memory_us, compute_us, launch_us: the time of each of the three by itself.
    """

    row: LaunchRow
    runs_as: str
    work: Work
    memory_us: float
    compute_us: float
    launch_us: float

    @property
    def limit_us(self) -> float:
        """The least time that memory and arithmetic allow."""
        return max(self.memory_us, self.compute_us)

    @property
    def predicted_us(self) -> float:
        """The limit, plus the launch itself."""
        return self.limit_us + self.launch_us

    @property
    def bound(self) -> Bound:
        """Which of the three takes longest."""
        if self.launch_us > self.limit_us:
            return "launch"
        return "memory" if self.memory_us >= self.compute_us else "compute"


@dataclass(frozen=True)
class StepRoofline:
    """The limits of a step, for a batch on a chip.

    Attributes:
        name: `decode` or `prefill`.
        about: the batch, for people.
        tokens: new tokens of the batch.
        rows: all launches of the phase.
        dims: the batch's dims.
        launches: the launches that run.
    """

    name: str
    about: str
    tokens: int
    rows: PhaseRows
    dims: Dims
    launches: tuple[LaunchLimit, ...]

    @property
    def work(self) -> Work:
        """The work of all launches together."""
        works = [launch.work for launch in self.launches]
        return Work(sum(work.size_bytes for work in works), sum(work.flops for work in works))

    @property
    def limit_us(self) -> float:
        """The sum of the launches' limits."""
        return sum(launch.limit_us for launch in self.launches)

    @property
    def predicted_us(self) -> float:
        """The sum of the launches' predictions."""
        return sum(launch.predicted_us for launch in self.launches)


def roofline(artifact: Artifact, chip: Chip, context: int, batch: int) -> tuple[StepRoofline, StepRoofline]:
    """A decode step of `batch` sequences with `context` tokens each, and a prefill of one prompt's first chunk.

    Raises:
        RequestError: the artifact does not hold so many sequences or tokens.
        ArtifactError: it has no code for GPUs, or the chip's speed is not known.
    """
    plan = artifact.plan
    check_batch(plan, context, batch)
    chunk = chunk_dims(plan)
    sequences = f"{batch} sequence{'s' if batch > 1 else ''}"
    rows = {phase.name: phase for phase in phase_rows(artifact, TARGET)}
    return (
        limits_of(artifact, chip, rows["decode"], decode_dims(batch, context), f"{sequences} of {context} tokens"),
        limits_of(artifact, chip, rows["prefill"], chunk, f"the first {chunk['tokens']} tokens of a prompt"),
    )


def check_batch(plan: Plan, context: int, batch: int) -> None:
    """Whether a plan has code for GPUs, and holds so many sequences with so many tokens each.

    Raises:
        RequestError: it does not hold them.
        ArtifactError: it has no such code.
    """
    if TARGET not in plan.targets:
        raise ArtifactError("the artifact has no code for GPUs; compile it with mlxr-compile --target metal")
    for name, value, most in (("context", context, plan.arena.context), ("batch", batch, plan.arena.max_sequences)):
        if not 1 <= value <= most:
            raise RequestError(f"--{name} is {value}; the artifact holds 1 to {most}")


def runs_on_mlx(row: LaunchRow, dims: Dims) -> bool:
    """Whether a call of MLX's functions replaces a launch, on hosts that have them."""
    return row.launch.yields is not None and row.launch.yields.holds(dims)


def works(artifact: Artifact, rows: PhaseRows, dims: Dims) -> dict[int, Work]:
    """The work of each launch of a phase that runs for a batch, by its index; it is the same on any chip."""
    phase = next(phase for phase in artifact.plan.program(TARGET).phases if phase.name == rows.name)
    graph = artifact.graph(phase.name)
    return {row.index: _work(phase, graph, row, dims) for row in rows.running(dims)}


def call_works(artifact: Artifact, target: str, rows: Iterable[CallRow], dims: Dims) -> dict[int, Work]:
    """The work of each call of a phase of a program in C that runs for a batch, by its index.

    Args:
        artifact: whose.
        target: whose program is in C.
        rows: of one phase.
        dims: the batch.
    """
    phases: dict[str, Phase] = {phase.name: phase for phase in artifact.plan.program(target).phases}
    works: dict[int, Work] = {}
    for call in rows:
        if not call.launch.runs(dims, library=False):
            continue
        graph, row = artifact.graph(call.phase), call
        ops = {op.name: op for op in graph.ops}
        if (op := ops.get(row.launch.op)) is None:  # a table that the phase makes first
            works[row.index] = Work(0, 0)
            continue
        part = op.attrs.weights_per_token(graph.use(op))
        if part is not None and not row.per_token:
            chosen = row.weight_bytes * part.numerator // part.denominator
            row = replace(row, weight_bytes=chosen, per_token=True)
        works[row.index] = _work(phases[call.phase], graph, row, dims)
    return works


def limits_of(artifact: Artifact, chip: Chip, rows: PhaseRows, dims: Dims, about: str) -> StepRoofline:
    """The limits of one step.

    Args:
        artifact: whose.
        chip: where it runs.
        rows: the phase's launches.
        dims: the batch.
        about: the batch, for people.

    Raises:
        ArtifactError: the chip's speed is not known.
    """
    figures = chip.figures
    if figures is None:
        raise ArtifactError(f"it is not known how fast {chip.title} is; name a chip with --chip")
    launches, work_of = [], works(artifact, rows, dims)
    for row in rows.running(dims):
        on_mlx = runs_on_mlx(row, dims)
        halves = on_mlx and row.kernel.inputs[0].dtype.size_bytes == 2
        rate = figures.matmul_tflops.value if halves else figures.f32_tflops.value
        work = work_of[row.index]
        launches.append(
            LaunchLimit(
                row=row,
                runs_as=MLX if on_mlx else row.launch.kernel,
                work=work,
                memory_us=work.size_bytes / figures.bandwidth_gb_per_s.value / 1e3,
                compute_us=work.flops / rate / 1e6,
                launch_us=figures.launch_us.value,
            )
        )
    return StepRoofline(rows.name, about, dims["tokens"], rows, dims, tuple(launches))


def _work(phase: Phase, graph: OpGraph, row: LaunchRow | CallRow, dims: Dims) -> Work:
    """The work of a launch: what it moves itself, and its op's arithmetic if it is the launch that does that."""
    op = graph.op(row.launch.op)
    own = op.attrs.work(use_of_launch(graph, op, row.launch.inputs), dims)
    size = int(row.weight_bytes * own.weight_tokens) + _activation_bytes(phase, graph, row, op, own, dims)
    if not _computes(graph, row, op, own):
        return Work(size, 0)
    return Work(size + own.store_bytes, own.flops)


def _computes(graph: OpGraph, row: LaunchRow | CallRow, op: Op, own: OpWork) -> bool:
    """Whether a launch does its op's arithmetic: it binds the op's stores, else its weights if it has some.

    Other launches of the op prepare, or merge. Calls in C do not bind stores.
    """
    roles = {name: graph.value(name).role for name in op.inputs.values()}
    if own.store_bytes:
        return isinstance(row, CallRow) or any(roles.get(name) == "store" for name in row.launch.inputs)
    return row.weight_bytes > 0 or "weight" not in roles.values()


def _activation_bytes(phase: Phase, graph: OpGraph, row: LaunchRow | CallRow, op: Op, own: OpWork, dims: Dims) -> int:
    buffers = {buffer.name: buffer for buffer in phase.buffers}
    rows = {op.inputs[port]: number for port, number in own.rows.items()}
    total = 0
    for name in dict.fromkeys((*row.launch.inputs, *row.launch.outputs)):
        if name not in buffers:
            continue
        shape = [dims[BATCH_DIMS[d]] if isinstance(d, str) else d for d in buffers[name].shape]
        shape[0] = rows.get(name, shape[0])
        parts = name not in graph and len(shape) > 2  # [seqs, heads, partitions, ...]
        if parts and isinstance(row, LaunchRow) and own.span:
            shape[2] = _partitions(row, own.span, shape[2])
        total += math.prod(shape) * buffers[name].dtype.size_bytes
    return total


def _partitions(row: LaunchRow, span: int, most: int) -> int:
    """How many partitions of equal length a context is cut into; the length is a multiple of the shortest one.

    Where a kernel does not say it (latent attention in one op), it is taken for the longest context without partitions.
    """
    chosen, when, last = row.kernel.chosen, row.launch.when, span - 1
    if chosen is not None:
        shortest = chosen.sizes["partition"]
    elif when is not None and when.dim == "context" and when.minimum > 1:
        shortest = when.minimum - 1
    else:
        return most
    return last // (last // (shortest * most) * shortest + shortest) + 1
