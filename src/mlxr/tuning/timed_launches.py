"""Launches of an artifact as tasks that a stopwatch times: one launch, or all launches of an op in a batch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from mlxr.compiler.artifact import Artifact, DType, KernelCall, Launch, Phase, Program
from mlxr.compiler.errors import HostError
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.binding import batch_dims, phase_of
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr.runtime.hosts.mlx.launcher import Launcher, MlxKernel
from mlxr.runtime.hosts.select import check_host, resolve_host
from mlxr.tuning.random_inputs import Input, RandomInputs
from mlxr.tuning.stopwatch import TimedTask


class KernelMaker(Protocol):
    """Builds an artifact's kernels for a host."""

    def __call__(self, artifact: Artifact, /) -> Mapping[str, MlxKernel]:
        """Returns the kernels, ready to launch, by name.

        Raises:
            HostError: a kernel cannot be built.
        """
        ...


def gpu_host(name: str, artifact: Artifact) -> type[MlxHost]:
    """The class of the host on which launches are timed, after a check that it can run here.

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
    """The name that the GPU gives itself: `Apple M3 Max`, `NVIDIA H200`."""
    return str(mx.device_info().get("device_name", "a GPU of unknown name"))


def running(artifact: Artifact, batch: Batch) -> list[Launch]:
    """The launches of a batch, in order."""
    dims = batch_dims(batch)
    return [launch for launch in _phase(artifact, batch).launches if launch.runs(dims, library=True)]


def planned(artifact: Artifact, batch: Batch) -> list[Launch]:
    """The kernel launches for a batch, in order, including those that MLX's functions replace."""
    dims = batch_dims(batch)
    launches = (la for la in _phase(artifact, batch).launches if isinstance(la.body, KernelCall))
    return [la for la in launches if la.runs(dims, library=la.needs_library)]


def with_kernels_of(artifact: Artifact, launches: Sequence[Launch]) -> Artifact:
    """The artifact reduced to the kernels of these launches, so that no others are built."""
    names = {launch.kernel for launch in launches if isinstance(launch.body, KernelCall)}
    kernels = tuple(kernel for kernel in _program(artifact).kernels if kernel.name in names)
    plan = artifact.plan.with_program("metal", kernels=kernels)
    return Artifact({**artifact.files, "plan.json": plan.model_dump_json()})


def _program(artifact: Artifact) -> Program:
    """The program whose launches are timed."""
    return artifact.plan.program("metal")


def _phase(artifact: Artifact, batch: Batch) -> Phase:
    return _program(artifact).phase(phase_of(artifact.plan, batch))


class TimedLaunches:
    """Makes tasks of one artifact's launches for one batch."""

    def __init__(
        self, artifact: Artifact, kernels: Mapping[str, MlxKernel], inputs: RandomInputs, batch: Batch
    ) -> None:
        """Prepares.

        Args:
            artifact: whose launches.
            kernels: ready to launch, by name; those that are used.
            inputs: of this artifact, or of one that differs in geometry alone.
            batch: what the step runs.
        """
        self._artifact, self._inputs, self._batch = artifact, inputs, batch
        self._phase, self._dims = _phase(artifact, batch), batch_dims(batch)
        program = _program(artifact)
        self._launcher = Launcher(program, kernels)
        self._entries = {kernel.name: kernel for kernel in program.kernels}

    @property
    def running(self) -> list[Launch]:
        """The launches of the batch, in order."""
        return running(self._artifact, self._batch)

    @property
    def planned(self) -> list[Launch]:
        """See `planned`."""
        return planned(self._artifact, self._batch)

    def task(self, launches: Sequence[Launch]) -> TimedTask:
        """Launches as one task; what one of them makes, the next ones read."""
        outputs = {name for launch in launches for name in launch.outputs}
        inputs: dict[str, Input] = {}
        for launch in launches:
            for name, dtype in self._read(launch):
                if name not in outputs and name not in inputs:
                    inputs[name] = self._inputs.input(self._phase, self._batch, name, dtype)
        # x is no weight: weights take turns, and are too large to be computed by the task before.
        names = [name for launch in launches for name in launch.inputs if name in inputs]
        first = next((name for name in names if not self._inputs.is_weight(name)), names[0])

        def run(turn: int, x: mx.array) -> mx.array:
            arrays = {name: array(turn) for name, array in inputs.items()} | {first: x}
            for launch in launches:
                self._launcher.run(self._phase.name, launch, arrays, self._dims)
            return arrays[launches[-1].outputs[0]]

        return TimedTask(inputs[first](0), run)

    def _read(self, launch: Launch) -> Iterator[tuple[str, DType]]:
        """The buffers that a launch reads, with the types of its ports."""
        body = launch.body
        ports = self._entries[body.kernel].inputs if isinstance(body, KernelCall) else body.ports
        dtypes = [port.dtype for port in ports]
        return zip(launch.inputs, dtypes, strict=True)
