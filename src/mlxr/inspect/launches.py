"""The launches of an artifact as rows, and the rows of layers that are alike folded into one block."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mlxr.compiler.artifact import (
    Artifact,
    BatchDim,
    CollectiveCall,
    HandoverCall,
    KernelCall,
    KernelEntry,
    Launch,
    Op,
    OpGraph,
    Phase,
    Plan,
    Program,
    layer_buffer,
)
from mlxr.inspect.layers import alike, is_in_layer, model_layer, without_layer
from mlxr.inspect.use_of_launch import use_of_launch
from mlxr.runtime.hosts.registry import hosts_that_call_mlx

_ARENA_ONLY = "copy_blocks"


@dataclass(frozen=True)
class LibraryRow:
    """The call of a function of MLX, or an exchange with other ranks or the CPU; `reads` and `writes` are in short."""

    launch: Launch
    reads: str
    writes: str

    @property
    def name(self) -> str:
        """Of the function: `MLX matmul`, `all_sum over ranks`, or `give to the CPU`."""
        body = self.launch.body
        assert not isinstance(body, KernelCall), "rows of kernels are others"
        if isinstance(body, HandoverCall):
            return "give to the CPU" if body.function == "give" else "take from the CPU"
        return f"{body.function} over ranks" if isinstance(body, CollectiveCall) else f"MLX {body.function}"

    @property
    def flow(self) -> str:
        """What it reads and writes, and on which hosts it runs."""
        note = (
            "" if isinstance(self.launch.body, CollectiveCall | HandoverCall) else f" (only on {hosts_that_call_mlx()})"
        )
        return f"{self.reads} -> {self.writes}{note}"

    @property
    def when(self) -> str:
        """The condition it runs under."""
        return _when(self.launch)


@dataclass(frozen=True)
class LaunchRow:
    """The launch of a kernel, with what the table says about it.

    Attributes:
        phase: `decode`, `prefill` or `copy_blocks`.
        index: its place among the phase's launches of kernels.
        op_kind: kind of the graph's op it computes.
        weight_bytes: bytes of weights that it reads once, or for each token when `per_token`.
        reads, writes: its buffers in short.
        library: the calls of MLX's functions that replace it and the kernels before it, on hosts that have them, and
            the exchanges with other ranks that follow it.
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
    library: tuple["LibraryRow", ...] = ()

    @property
    def layer(self) -> int | None:
        """The layer of the model that it belongs to; None for one outside of the layers."""
        return model_layer(self.launch.op, self.launch.layer)

    @property
    def grid(self) -> str:
        """Threadgroups along x, y and z."""
        return " x ".join(str(extent) for extent in self.launch.threadgroups)

    @property
    def flow(self) -> str:
        """What it reads and writes, in short, and on which hosts it runs."""
        note = f" (only on {hosts_that_call_mlx()})" if self.launch.needs_library else ""
        if self.launch.yields is not None:
            note = f" (not on {hosts_that_call_mlx()} if {self.launch.yields})"
        return f"{self.reads} -> {self.writes}{note}"

    @property
    def when(self) -> str:
        """The condition it runs under."""
        return _when(self.launch)

    def runs(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether it runs for a batch, on hosts that leave nothing to MLX."""
        return self.launch.runs(dims, library=False)


@dataclass(frozen=True)
class FoldedLayers:
    """Rows of a representative layer, which stand for every layer in `layers`; if that is empty, of no layer."""

    layers: tuple[int, ...]
    rows: tuple[LaunchRow, ...]

    @property
    def times(self) -> int:
        """How many launches each row stands for."""
        return max(1, len(self.layers))


@dataclass(frozen=True)
class PhaseRows:
    """The rows of one phase, in launch order.

    Attributes:
        name: of the phase.
        rows: its launches of kernels.
        first, last: exchanges with other stages before the first layer and after the last one.
    """

    name: str
    rows: tuple[LaunchRow, ...]
    first: tuple[LibraryRow, ...] = ()
    last: tuple[LibraryRow, ...] = ()

    @cached_property
    def blocks(self) -> tuple[FoldedLayers, ...]:
        """Rows with the layers that are alike folded, in order of first appearance."""
        by_layer: dict[int, list[LaunchRow]] = {}
        for row in self.rows:
            if row.layer is not None:
                by_layer.setdefault(row.layer, []).append(row)
        launches = [call.launch for call in self.first]
        for row in self.rows:
            launches += [row.launch, *(call.launch for call in row.library)]
        written = {name for launch in launches for name in launch.outputs}
        signatures = {layer: tuple(_signature(row, written) for row in rows) for layer, rows in by_layer.items()}
        groups = {group[0]: group for group in alike(signatures)}
        blocks: list[FoldedLayers] = []
        for row in self.rows:
            if row.layer is None:
                if blocks and not blocks[-1].layers:
                    blocks[-1] = FoldedLayers((), (*blocks[-1].rows, row))
                else:
                    blocks.append(FoldedLayers((), (row,)))
            elif row.layer in groups:
                blocks.append(FoldedLayers(groups.pop(row.layer), tuple(by_layer[row.layer])))
        return tuple(blocks)

    def running(self, dims: Mapping[BatchDim, int]) -> list[LaunchRow]:
        """The rows that run for a batch."""
        return [row for row in self.rows if row.runs(dims)]


def phase_rows(artifact: Artifact, target: str) -> list[PhaseRows]:
    """Every launch of a target's program: decode, prefill, and the copy of shared blocks where there is one."""
    plan, program = artifact.plan, artifact.plan.program(target)
    phases = [_rows(plan, program, phase, artifact.graph(phase.name)) for phase in program.phases]
    copies = tuple(
        LaunchRow(
            phase=_ARENA_ONLY,
            index=index,
            launch=launch,
            kernel=program.kernel(launch.kernel),
            op_kind=_ARENA_ONLY,
            weight_bytes=0,
            per_token=False,
            reads="copies, blocks, arena, token",
            writes="token",
        )
        for index, launch in enumerate(program.copy_blocks)
    )
    if copies:
        phases.append(PhaseRows(_ARENA_ONLY, copies))
    return phases


def _rows(plan: Plan, program: Program, phase: Phase, graph: OpGraph) -> PhaseRows:
    sizes = {w.name: w.size_bytes for w in plan.weights}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    casts = {cast.name: cast.weight for cast in program.casts}
    rows: list[LaunchRow] = []
    first: list[LibraryRow] = []
    last: list[LibraryRow] = []
    for launch in phase.launches:
        op = graph.op(launch.op)
        inputs = tuple(casts.get(name, name) for name in launch.inputs)
        reads, writes = (_short_list(names, op, graph) for names in (inputs, launch.outputs))
        if not isinstance(launch.body, KernelCall):
            call = LibraryRow(launch, reads, writes)
            if rows and rows[-1].launch.layer == launch.layer:
                rows[-1] = replace(rows[-1], library=(*rows[-1].library, call))
            else:
                (last if rows else first).append(call)
            continue
        weights = [name for name in launch.inputs if name in sizes]
        read, part = sum(sizes[name] for name in weights), op.attrs.weights_per_token(use_of_launch(graph, op, weights))
        if part is not None:
            read = read * part.numerator // part.denominator
        rows.append(
            LaunchRow(
                phase=phase.name,
                index=len(rows),
                launch=launch,
                kernel=kernels[launch.kernel],
                op_kind=op.kind,
                weight_bytes=read,
                per_token=part is not None,
                reads=reads,
                writes=writes,
            )
        )
    return PhaseRows(phase.name, tuple(rows), tuple(first), tuple(last))


def _signature(row: LaunchRow, written: set[str]) -> tuple[object, ...]:
    """What layers that are alike share: everything except the layer's number and where its input comes from."""
    launch = row.launch

    def relative(name: str) -> str:
        if launch.layer is not None and name == layer_buffer(launch.layer):
            return "layer"
        if is_in_layer(name, row.layer):
            return without_layer(name, row.layer)
        return "earlier" if name in written or name.endswith("_token") else name

    names = tuple(relative(name) for name in (*launch.inputs, "->", *launch.outputs))
    conditions = (str(launch.when), str(launch.yields), launch.needs_library)
    library = tuple((call.when, call.launch.body) for call in row.library)
    return (launch.body, conditions, row.op_kind, names, library)


def _when(launch: Launch) -> str:
    return "always" if launch.when is None else str(launch.when)


def _short_list(names: tuple[str, ...], op: Op, graph: OpGraph) -> str:
    """Buffers of a launch in short: metadata as `batch`, stores as `arena`, values without their layer."""
    shorts: list[str] = []
    layer = model_layer(op.name, op.layer)
    has_values = any(name in graph and graph.value(name).role == "activation" for name in names)
    of_batch = ("dims",) if op.layer is None else ("dims", layer_buffer(op.layer))
    for name in names:
        role = graph.value(name).role if name in graph else None
        if role == "store":
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
    return model_layer(producer.name, producer.layer) if producer else None
