"""The launches of an artifact as rows, and the rows of layers that are alike folded into one block."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mlxr.compiler.artifact import Artifact, BatchDim, KernelEntry, Launch, OpGraph, Phase, Plan, Program, layer_buffer
from mlxr.compiler.artifact.running import runs
from mlxr.compiler.ir.ops.experts import ExpertProduct
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.inspect.layers import alike, is_in_layer, without_layer

_ARENA_ONLY = "copy_blocks"


@dataclass(frozen=True)
class LaunchRow:
    """A launch, with what the table says about it.

    Attributes:
        phase: `decode`, `prefill` or `copy_blocks`.
        index: its place in the phase.
        op_kind: kind of the graph's op it computes.
        weight_bytes: bytes of weights that it reads once, or for each token when `per_token`.
    """

    phase: str
    index: int
    launch: Launch
    kernel: KernelEntry
    op_kind: str
    weight_bytes: int
    per_token: bool
    reads: str
    writes: str

    @property
    def layer(self) -> int | None:
        """The layer it belongs to; None for one outside of the layers."""
        return self.launch.layer

    @property
    def grid(self) -> str:
        """Threadgroups along x, y and z."""
        return " x ".join(str(extent) for extent in self.launch.threadgroups)

    @property
    def flow(self) -> str:
        """What it reads and writes, in short."""
        when = " and ".join(map(str, self.launch.mlx))
        note = "for MLX, " if self.launch.feeds_mlx else "MLX ops on metal and cuda "
        return f"{self.reads} -> {self.writes}" + (f" ({note}if {when})" if when else "")

    @property
    def when(self) -> str:
        """The condition it runs under."""
        return "always" if self.launch.when is None else str(self.launch.when)

    def runs(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether it runs for a batch, on hosts that leave nothing to MLX."""
        return runs(self.launch, dims)


@dataclass(frozen=True)
class Block:
    """Rows of a representative layer, which stand for every layer in `layers`; if that is empty, of no layer."""

    layers: tuple[int, ...]
    rows: tuple[LaunchRow, ...]

    @property
    def times(self) -> int:
        """How many launches each row stands for."""
        return max(1, len(self.layers))


@dataclass(frozen=True)
class PhaseRows:
    """The rows of one phase, in launch order."""

    name: str
    rows: tuple[LaunchRow, ...]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Rows with the layers that are alike folded, in order of first appearance."""
        by_layer: dict[int, list[LaunchRow]] = {}
        for row in self.rows:
            if row.layer is not None:
                by_layer.setdefault(row.layer, []).append(row)
        written = {name for row in self.rows for name in row.launch.outputs}
        signatures = {layer: tuple(_signature(row, written) for row in rows) for layer, rows in by_layer.items()}
        groups = {group[0]: group for group in alike(signatures)}
        blocks: list[Block] = []
        for row in self.rows:
            if row.layer is None:
                if blocks and not blocks[-1].layers:
                    blocks[-1] = Block((), (*blocks[-1].rows, row))
                else:
                    blocks.append(Block((), (row,)))
            elif row.layer in groups:
                blocks.append(Block(groups.pop(row.layer), tuple(by_layer[row.layer])))
        return tuple(blocks)

    def running(self, dims: Mapping[BatchDim, int]) -> list[LaunchRow]:
        """The rows that run for a batch."""
        return [row for row in self.rows if row.runs(dims)]


def phase_rows(artifact: Artifact, target: str) -> list[PhaseRows]:
    """Every launch of a target's program: decode, prefill, and the copy of shared blocks where there is one."""
    plan, program = artifact.plan, artifact.plan.program(target)
    phases = [_rows(plan, program, phase, artifact.graph(phase.name)) for phase in program.phases]
    if program.copy_blocks is not None:
        launch = program.copy_blocks
        row = LaunchRow(
            phase=_ARENA_ONLY,
            index=0,
            launch=launch,
            kernel=program.kernel(launch.kernel),
            op_kind=_ARENA_ONLY,
            weight_bytes=0,
            per_token=False,
            reads="copies, arena, token",
            writes="token",
        )
        phases.append(PhaseRows(_ARENA_ONLY, (row,)))
    return phases


def _rows(plan: Plan, program: Program, phase: Phase, graph: OpGraph) -> PhaseRows:
    sizes = {w.name: w.size_bytes for w in plan.weights}
    rows_of = {w.name: w.shape[0] for w in plan.weights}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    rows = []
    for index, launch in enumerate(phase.launches):
        op = graph.op(launch.op)
        weights = [name for name in launch.inputs if name in sizes]
        gathers = isinstance(op.attrs, Embed | ExpertProduct)
        if isinstance(op.attrs, ExpertProduct):  # of an expert's weights, those of the chosen ones
            read = sum(sizes[name] for name in weights) * op.attrs.top_k // op.attrs.num_experts
        else:
            read = sum(sizes[name] // rows_of[name] if gathers else sizes[name] for name in weights)
        rows.append(
            LaunchRow(
                phase=phase.name,
                index=index,
                launch=launch,
                kernel=kernels[launch.kernel],
                op_kind=op.kind,
                weight_bytes=read,
                per_token=gathers,
                reads=_short_list(launch.inputs, op.layer, graph),
                writes=_short_list(launch.outputs, op.layer, graph),
            )
        )
    return PhaseRows(phase.name, tuple(rows))


def _signature(row: LaunchRow, written: set[str]) -> tuple[object, ...]:
    """What layers that are alike share: everything except the layer's number and where its input comes from."""
    launch = row.launch

    def relative(name: str) -> str:
        if row.layer is not None and name == layer_buffer(row.layer):
            return "layer"
        if is_in_layer(name, row.layer):
            return without_layer(name, row.layer)
        return "earlier" if name in written or name.endswith("_token") else name

    names = tuple(relative(name) for name in (*launch.inputs, "->", *launch.outputs))
    return (launch.kernel, launch.threadgroups, str(launch.when), launch.mlx, launch.feeds_mlx, row.op_kind, names)


def _short_list(names: tuple[str, ...], layer: int | None, graph: OpGraph) -> str:
    """Buffers of a launch in short: metadata as `batch`, both arenas as `arena`, values without their layer."""
    shorts: list[str] = []
    has_values = any(name in graph and graph.value(name).role == "activation" for name in names)
    of_batch = ("dims",) if layer is None else ("dims", layer_buffer(layer))
    for name in names:
        role = graph.value(name).role if name in graph else None
        if role == "arena":
            short = "arena"
        elif role == "token":
            short = "token"
        elif name in of_batch or (role in ("input", "constant") and has_values):
            short = "batch"
        elif role == "activation" and _layer_of(graph, name) != layer:
            short = "layer output" if layer is None else "layer input"
        else:
            short = without_layer(name, layer)
            short = short if short.endswith(".out") else short.rpartition(".")[2]
        if short not in shorts:
            shorts.append(short)
    return ", ".join(shorts)


def _layer_of(graph: OpGraph, name: str) -> int | None:
    """The layer of the op that makes a value."""
    producer = graph.producer(name)
    return producer.layer if producer else None
