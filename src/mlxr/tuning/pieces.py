"""Launches of an artifact as pieces that a stopwatch times: one launch, or all launches of an op in a batch."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from mlxr.compiler.artifact import Artifact, DType, Launch, Op, Phase, Program
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.binding import Dims, batch_dims, grid_of, phase_of, shape_of
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr.runtime.hosts.mlx.norms import NORM_PORTS
from mlxr.runtime.hosts.mlx_ops import MLX_DTYPES, evaluate_large
from mlxr.runtime.hosts.mlx_ops.large import compute_type
from mlxr.runtime.hosts.select import check_host, resolve_host
from mlxr.tuning.random_inputs import Input, RandomInputs
from mlxr.tuning.stopwatch import Piece

Launcher = Callable[..., list[mx.array]]
"""A kernel as MLX launches it: called with inputs, grid, threadgroup, output_shapes and output_dtypes."""


class KernelMaker(Protocol):
    """What a host does to an artifact's kernels."""

    def __call__(self, artifact: Artifact, /) -> Mapping[str, Launcher]:
        """They are ready to launch, by name.

        Raises:
            HostError: one cannot be built.
        """
        ...


def gpu_host(name: str, artifact: Artifact) -> type[MlxHost]:
    """The class of the host that times launches, once it is certain that it can run here.

    Args:
        name: the name of a host; `auto`: this machine's.
        artifact: whose launches are to be timed.

    Raises:
        HostError: the host launches no kernels on a GPU, or it cannot run here.
    """
    targets = artifact.plan.targets
    entry = resolve_host(name, targets)
    host = entry.load()
    if not issubclass(host, MlxHost):
        raise HostError(
            f"host {entry.name} launches no kernels on a GPU, so there is nothing to time; this needs an Apple silicon "
            "Mac or an NVIDIA GPU" + ("" if "metal" in targets else ", and an artifact with target metal")
        )
    check_host(entry.name, targets)
    return host


def device_name() -> str:
    """What the GPU calls itself: `Apple M3 Max`, `NVIDIA H200`."""
    return str(mx.device_info().get("device_name", "a GPU of unknown name"))


def running(artifact: Artifact, batch: Batch) -> list[Launch]:
    """The launches of a batch, in order."""
    dims = batch_dims(batch)
    return [launch for launch in _phase(artifact, batch).launches if grid_of(launch, dims) is not None]


def with_kernels_of(artifact: Artifact, launches: Sequence[Launch]) -> Artifact:
    """The artifact with no other kernels than those of these launches, so that no others are built."""
    names = {launch.kernel for launch in launches}
    kernels = tuple(kernel for kernel in _program(artifact).kernels if kernel.name in names)
    plan = artifact.plan.with_program("metal", kernels=kernels)
    return Artifact({**artifact.files, "plan.json": plan.model_dump_json()})


def _program(artifact: Artifact) -> Program:
    """What the hosts run whose launches are timed."""
    return artifact.plan.program("metal")


def _phase(artifact: Artifact, batch: Batch) -> Phase:
    return _program(artifact).phase(phase_of(artifact.plan, batch))


class Pieces:
    """Makes pieces of one artifact's launches for one batch."""

    def __init__(self, artifact: Artifact, kernels: Mapping[str, Launcher], inputs: RandomInputs, batch: Batch) -> None:
        """Prepares.

        Args:
            artifact: whose launches.
            kernels: ready to launch, by name; those that are used.
            inputs: of this artifact, or of one that differs in geometry alone.
            batch: what the step runs.
        """
        self._artifact = artifact
        self._kernels, self._inputs, self._batch = kernels, inputs, batch
        self._phase = _phase(artifact, batch)
        self._dims: Dims = batch_dims(batch)
        self._entries = {kernel.name: kernel for kernel in _program(artifact).kernels}
        self._shapes = {buffer.name: buffer.shape for buffer in self._phase.buffers}
        self._graph = artifact.graph(self._phase.name)

    @property
    def running(self) -> list[Launch]:
        """The launches of the batch, in order."""
        return running(self._artifact, self._batch)

    def piece(self, launches: Sequence[Launch]) -> Piece:
        """Launches as one piece; what one of them makes, the next ones read."""
        made = {name for launch in launches for name in launch.outputs}
        inputs: dict[str, Input] = {}
        for launch in launches:
            for name, dtype in self._read(launch):
                if name not in made and name not in inputs:
                    inputs[name] = self._inputs.input(self._phase, self._batch, name, dtype)
            inputs |= self._norms(launch, inputs)
        # What stands for the step before is no weight: those take turns, and are too large to be made anew.
        names = [name for launch in launches for name in launch.inputs if name in inputs]
        first = next((name for name in names if not self._inputs.is_weight(name)), names[0])

        def run(turn: int, x: mx.array) -> mx.array:
            arrays = {name: array(turn) for name, array in inputs.items()} | {first: x}
            for launch in launches:
                arrays |= self._run(launch, arrays)
            return arrays[launches[-1].outputs[0]]

        return Piece(inputs[first](0), run)

    def _read(self, launch: Launch) -> list[tuple[str, DType]]:
        """The buffers that a launch reads, those that only MLX's ops take among them."""
        ports = self._entries[launch.kernel].inputs
        dtypes = {buffer.name: buffer.dtype for buffer in self._phase.buffers}
        for_mlx = [(name, dtypes[name]) for _, name in launch.mlx_inputs]
        return [(name, port.dtype) for name, port in zip(launch.inputs, ports, strict=True)] + for_mlx

    def _norms(self, launch: Launch, inputs: Mapping[str, Input]) -> dict[str, Input]:
        """What a launch that runs as an MLX op normalises with, as hosts have it: cast before any step."""
        if not launch.runs_as_mlx(self._dims) or launch.feeds_mlx:
            return {}
        op, dtypes = self._graph.op(launch.op), dict(self._read(launch))
        names = {**op.inputs, **dict(launch.mlx_inputs)}
        if "norm" not in names:
            return {}
        x, weight = (MLX_DTYPES[str(dtypes[names[port]])] for port in ("x", "weight"))
        dtype = compute_type(x, weight, MLX_DTYPES[str(self._graph.value(op.out).dtype)])
        return {names[port]: _cast(inputs[names[port]], dtype) for port in NORM_PORTS if port in names}

    def _run(self, launch: Launch, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        op = self._graph.op(launch.op)
        if launch.runs_as_mlx(self._dims) and not launch.feeds_mlx:
            return {op.out: self._run_on_mlx(op, launch, arrays)}
        grid = grid_of(launch, self._dims)
        assert grid is not None, "only launches that run are timed"
        entry = self._entries[launch.kernel]
        shapes = [shape_of(self._shapes[name], self._dims) if name in self._shapes else (8,) for name in launch.outputs]
        try:
            outputs = self._kernels[launch.kernel](
                inputs=[arrays[name] for name in launch.inputs],
                grid=(grid[0] * entry.threads, grid[1], grid[2]),
                threadgroup=(entry.threads, 1, 1),
                output_shapes=[shape if math.prod(shape) >= 8 else (8,) for shape in shapes],
                output_dtypes=[MLX_DTYPES[str(port.dtype)] for port in entry.outputs],
            )
        except (RuntimeError, ValueError) as error:
            raise HostError(f"kernel {launch.kernel} cannot be launched: {error}") from error
        return dict(zip(launch.outputs, outputs, strict=True))

    def _run_on_mlx(self, op: Op, launch: Launch, arrays: Mapping[str, mx.array]) -> mx.array:
        inputs = {}
        for port, name in {**op.inputs, **dict(launch.mlx_inputs)}.items():
            if name not in arrays:
                continue
            inputs[port] = arrays[name]
            shape = shape_of(self._shapes[name], self._dims) if name in self._shapes else arrays[name].shape
            if arrays[name].shape != shape:
                inputs[port] = arrays[name].reshape(-1)[: math.prod(shape)].reshape(shape)
        if "rows" in inputs:
            inputs["rows"] = inputs["rows"][: self._dims["rows"]]
        return evaluate_large(op.attrs, inputs)


def _cast(source: Input, dtype: mx.Dtype) -> Input:
    """The input in another type, computed when it is first asked for."""

    @functools.cache
    def at(turn: int) -> mx.array:
        array = source(turn).astype(dtype)
        mx.eval(array)
        return array

    return at
