"""An op of a fused graph with its launches on each target, and what is known of their time."""

from collections.abc import Iterable, Mapping

from mlxr.compiler.artifact import Artifact, BatchDim, Launch
from mlxr.compiler.ir.op_kind import AttrValue
from mlxr.compiler.spec.record import Record
from mlxr.inspect.c_report import CallRow
from mlxr.inspect.launches import LaunchRow
from mlxr.inspect.roofline import LaunchLimit, Work
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls
from mlxr.server.inspector.graph_view import PortView
from mlxr.server.inspector.kernel_view import SizeView, sizes_of
from mlxr.server.inspector.measured import MeasuredTime, measured_times, timed_call


class PredictionView(Record):
    """What bounds a launch on a chip, for the batch that the prediction is for.

    Attributes:
        chip: the chip.
        batch: the batch, for people.
        runs_as: the kernel, or the function of MLX that runs in its place.
        memory_us, compute_us, launch_us: the time of each of the three by itself.
        limit_us: the least time that memory and arithmetic allow.
        predicted_us: that, and the launch itself.
        bound: which of the three takes longest: memory, compute or launch.
    """

    chip: str
    batch: str
    runs_as: str
    memory_us: float
    compute_us: float
    launch_us: float
    limit_us: float
    predicted_us: float
    bound: str


class LaunchView(Record):
    """A launch of an op.

    Attributes:
        target: whose program it is in.
        index: its place among the phase's launches.
        kernel, label: the kernel's name and purpose; see `kernel_view`.
        grid: threadgroups along x, y and z, as functions of the batch; empty on target cpu, where threads share a call.
        threadgroups: the same for a batch; empty there, too.
        threads: threads of a threadgroup; 0 where the host chooses.
        threadgroup_bytes: memory that these share.
        when: the condition that it runs under, or `always`.
        library: the functions of MLX that take its place on hosts metal and cuda, each with its condition.
        inputs, outputs: its buffers, by the plan's names.
        weight_bytes: bytes of weights that it reads, for each token if `per_token`.
        site, sizes: the geometry that was chosen, with the chip's reasons.
        size_bytes, flops: its work for the batch, on any chip; null if it does not run for it.
        prediction: null if the launch does not run for the batch, or no chip with known figures was named.
        measured: times from `mlxr tune`, or from `POST /inspector/measure`; empty if there are none.
        launched: how often the running host has launched the kernel, for all ops and layers; null if none runs it.
    """

    target: str
    index: int
    kernel: str
    label: str
    grid: tuple[str, ...]
    threadgroups: tuple[int, ...]
    threads: int
    threadgroup_bytes: int
    when: str
    library: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weight_bytes: int
    per_token: bool
    site: str | None
    sizes: tuple[SizeView, ...]
    size_bytes: int | None
    flops: int | None
    prediction: PredictionView | None
    measured: tuple[MeasuredTime, ...]
    launched: int | None


class OpView(Record):
    """An op with everything that is known of it.

    Attributes:
        graph, id: where it is.
        layer: its layer; None outside the layers.
        layers: the layers that are like its own, that one among them.
        parts: names of the source ops that it computes.
        computed_by: for an op of the source graph, the op of each fused graph that computes it.
        batch: the batch that threadgroups and predictions are told for, for people; empty in the source graph.
        launches: of a fused op, on each target.
    """

    graph: str
    id: str
    kind: str
    summary: str
    layer: int | None
    layers: tuple[int, ...]
    attributes: Mapping[str, AttrValue]
    inputs: tuple[PortView, ...]
    outputs: tuple[PortView, ...]
    parts: tuple[str, ...]
    computed_by: Mapping[str, str]
    batch: str
    launches: tuple[LaunchView, ...]


def metal_launches(
    artifact: Artifact,
    rows: Iterable[LaunchRow],
    works: Mapping[int, Work],
    limits: Mapping[int, LaunchLimit],
    dims: Mapping[BatchDim, int],
    chip: str,
    batch: str,
    launched: Mapping[str, int] | None,
) -> tuple[LaunchView, ...]:
    """The launches of target metal.

    Args:
        artifact: whose.
        rows: the op's rows.
        works: bytes and FLOPs by index of the launch.
        limits: predictions by index of the launch.
        dims: the batch whose threadgroups are told.
        chip: that of the predictions, for people.
        batch: that of the predictions, for people.
        launched: counts of the running host by kernel.
    """
    return tuple(
        LaunchView(
            target="metal",
            index=row.index,
            kernel=row.kernel.name,
            label=row.kernel.label,
            grid=tuple(map(str, row.launch.threadgroups)),
            threadgroups=row.launch.kernel_call.grid(dims),
            threads=row.kernel.threads,
            threadgroup_bytes=row.kernel.threadgroup_bytes,
            when=row.when,
            library=tuple(f"{call.name}, {call.when}" for call in row.library),
            inputs=row.launch.inputs,
            outputs=row.launch.outputs,
            weight_bytes=row.weight_bytes,
            per_token=row.per_token,
            site=row.kernel.chosen.site if row.kernel.chosen else None,
            sizes=sizes_of(row.kernel.chosen),
            size_bytes=works[row.index].size_bytes if row.index in works else None,
            flops=works[row.index].flops if row.index in works else None,
            prediction=_prediction(limits[row.index], chip, batch) if row.index in limits else None,
            measured=measured_times(artifact, row.kernel.chosen),
            launched=None if launched is None else launched.get(row.kernel.name, 0),
        )
        for row in rows
    )


def c_calls(
    artifact: Artifact,
    rows: Iterable[CallRow],
    works: Mapping[int, Work],
    launched: Mapping[str, int] | None,
    timed: TimedCalls | None,
) -> tuple[LaunchView, ...]:
    """The calls of target cpu; arguments as for `metal_launches`; `timed`: the measured times of the phase's calls."""
    program = artifact.plan.program("cpu")
    return tuple(
        LaunchView(
            target="cpu",
            index=row.index,
            kernel=row.launch.kernel,
            label=program.kernel(row.launch.kernel).label,
            grid=(),
            threadgroups=(),
            threads=0,
            threadgroup_bytes=0,
            when=_when(row.launch),
            library=(),
            inputs=row.launch.inputs,
            outputs=row.launch.outputs,
            weight_bytes=row.weight_bytes,
            per_token=row.per_token,
            site=None,
            sizes=(),
            size_bytes=works[row.index].size_bytes if row.index in works else None,
            flops=works[row.index].flops if row.index in works else None,
            prediction=None,
            measured=timed_call(timed, row.index),
            launched=None if launched is None else launched.get(row.launch.kernel, 0),
        )
        for row in rows
    )


def _when(launch: Launch) -> str:
    return "always" if launch.when is None else str(launch.when)


def _prediction(limit: LaunchLimit, chip: str, batch: str) -> PredictionView:
    return PredictionView(
        chip=chip,
        batch=batch,
        runs_as=limit.runs_as,
        memory_us=limit.memory_us,
        compute_us=limit.compute_us,
        launch_us=limit.launch_us,
        limit_us=limit.limit_us,
        predicted_us=limit.predicted_us,
        bound=limit.bound,
    )
