"""The base of the hosts whose kernels MLX launches, `metal` and `cuda`: a step is a lazy MLX graph.

Nothing here waits for the GPU, so several steps may be queued. Accesses to the arena stay in order because each one
binds the token of the previous access and returns a new one.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ARENA_TOKEN, K_ARENA, V_ARENA, Artifact, Launch, Phase, layer_buffer
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch, kernel_input
from mlxr.runtime.hosts.binding import BatchArrays, Dims, batch_arrays, batch_dims, grid_of, phase_of, shape_of
from mlxr.runtime.hosts.host import ArrayHost, Logits, Progress
from mlxr.runtime.hosts.mlx.norms import norms_for_mlx
from mlxr.runtime.hosts.mlx.padding import padded_batch
from mlxr.runtime.hosts.mlx_ops import MLX_DTYPES, evaluate_large
from mlxr.runtime.weights.weight_file import WeightFile

Arrays = dict[str, mx.array]


Launcher = Callable[..., list[mx.array]]
"""Launches a kernel through MLX; called with inputs, grid, threadgroup, output_shapes and output_dtypes."""


class MlxHost(ArrayHost):
    """Runs the plan on the GPU that MLX computes on."""

    target: ClassVar[str] = "metal"
    pipelines = True
    builds_late = True
    has_step_kernels: ClassVar[bool] = False
    """Whether the host can run a whole decode step as one kernel, if the plan asks for that."""

    def __init__(
        self,
        artifact: Artifact,
        weights: Mapping[str, mx.array],
        arena: Arena,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """See `ArrayHost`.

        Args:
            artifact: the compiled model.
            weights: packed weights.
            arena: the KV arena.
            progress: called with (kernels ready, all kernels), if the host makes them before their first launch.
        """
        super().__init__(artifact, weights, arena)
        launchers = self.make_kernels(artifact, progress)
        self._kernels = {k.name: (k, launchers[k.name]) for k in self.program.kernels}
        self._graphs = {phase.name: artifact.graph(phase.name) for phase in self.program.phases}
        self._shapes = {phase.name: {b.name: b.shape for b in phase.buffers} for phase in self.program.phases}
        self._read = {
            phase.name: {name for launch in phase.launches for name in launch.inputs} for phase in self.program.phases
        }
        self._fixed: Arrays = {
            layer_buffer(i): mx.array([i] + [0] * 7, dtype=mx.uint32) for i in range(self.plan.num_layers)
        }
        self._fixed |= {name: _bindable(weight) for name, weight in weights.items()}
        self._fixed |= {K_ARENA: arena.k, V_ARENA: arena.v}
        self._norms = norms_for_mlx(artifact, weights)

    @classmethod
    def from_file(
        cls,
        artifact: Artifact,
        file: WeightFile,
        arena: Arena,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """See `Host.from_file`."""
        weights = cls.read_arrays(artifact, file, progress)
        return cls(artifact, weights, arena, progress and (lambda done, total: progress("kernels", done, total)))

    @classmethod
    @abstractmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Launcher]:
        """Launchers of the artifact's kernels, by name.

        The arena must never be copied, so a launcher makes no contiguous copies of inputs.

        Args:
            artifact: the compiled model.
            progress: called with (kernels ready, all kernels).

        Raises:
            HostError: a kernel cannot be built.
        """

    def step(self, batch: Batch) -> mx.array:
        """Builds the graph of one step; its result and the arena's new token are lazy."""
        phase = self.program.phase(phase_of(self.plan, batch))
        if phase.name == "prefill":
            batch = padded_batch(batch, self.plan)
        dims = batch_dims(batch)
        arrays = {name: array for name, array in batch_arrays(batch).items() if name in self._read[phase.name]}
        logits, self.arena.token = self.launch_step(phase, dims, arrays)
        if not dims["rows"]:
            with self.failures():
                mx.async_eval(self.arena.token)  # type: ignore[no-untyped-call]
        return logits

    def launch_step(self, phase: Phase, dims: Dims, batch: BatchArrays) -> tuple[mx.array, mx.array]:
        """Launches a step after the last access of the arena.

        Args:
            phase: the program's phase that runs the step.
            dims: the dims of the batch.
            batch: the metadata that the step reads, by the plan's buffer names.

        Returns:
            Logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        inputs = {name: kernel_input(array) for name, array in batch.items()}
        return self.run(phase, dims, inputs | {ARENA_TOKEN: self.arena.token})

    def run(self, phase: Phase, dims: Dims, inputs: Arrays) -> tuple[mx.array, mx.array]:
        """Launches a step's kernels.

        Args:
            phase: the program's phase that runs the step.
            dims: the dims of the batch.
            inputs: the batch's metadata and the arena's token, by the plan's buffer names.

        Returns:
            Logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        return self.results_of(phase, dims, self.run_launches(phase, phase.launches, dims, inputs))

    def run_launches(self, phase: Phase, launches: Sequence[Launch], dims: Dims, inputs: Arrays) -> Arrays:
        """Launches some of a step's kernels.

        Args:
            phase: the program's phase that runs the step.
            launches: launches of the phase, in order.
            dims: the dims of the batch.
            inputs: what these launches read besides weights and the arena, by the plan's buffer names.

        Returns:
            All arrays: weights, arena, inputs, and the outputs of the launches.
        """
        arrays = {**self._fixed, **inputs}
        for launch in launches:
            self._run(phase, launch, arrays, dims)
        return arrays

    def results_of(self, phase: Phase, dims: Dims, arrays: Arrays) -> tuple[mx.array, mx.array]:
        """Logits [rows, vocab] f32 and the arena's new token, from all arrays of a step."""
        name, token_name = phase.outputs
        shape = (dims["rows"], self.plan.vocab_size)
        return _of_shape(arrays[name], shape) if name in arrays else mx.zeros(shape), arrays[token_name]

    def names_read(self, phase: Phase, launch: Launch) -> set[str]:
        """The buffers that a launch reads, as a kernel or as MLX ops."""
        op = self._graphs[phase.name].op(launch.op)
        return {*launch.inputs, *op.inputs.values(), *(name for _, name in launch.mlx_inputs)}

    def start(self, *results: mx.array) -> None:
        """See `Host.start`; MLX compiles Metal kernels here."""
        with self.failures():
            super().start(*results)

    def read(self, result: Logits) -> npt.NDArray[Any]:
        """See `Host.read`."""
        with self.failures():
            return super().read(result)

    def recover(self) -> None:
        """Makes a new arena token after a failure, so that later steps can run.

        Waits for steps that are running: the new token would not keep later steps behind them.
        """
        with suppress(RuntimeError, ValueError):
            mx.synchronize()
        self.arena.token = mx.zeros((8,), dtype=mx.uint32)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Turns MLX's errors into HostErrors, after which later steps can run."""
        try:
            yield
        except HostError:
            self.recover()
            raise
        except (RuntimeError, ValueError) as error:
            self.recover()
            raise HostError(f"the step failed on the GPU: {error}") from error

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Launches the copy kernel once for all pairs."""
        launch = self.program.copy_blocks
        assert launch is not None, "the pager forks only when the plan has the kernel"
        pairs = np.zeros((max(4, len(copies)), 2), dtype=np.int32)
        pairs[: len(copies)] = copies
        arrays = {"copies": mx.array(pairs), K_ARENA: self.arena.k, V_ARENA: self.arena.v}
        arrays[ARENA_TOKEN] = self.arena.token
        grid = grid_of(launch, {"copies": len(copies)})
        assert grid is not None, "there are copies to make"
        self._launch(launch, arrays, grid, {})
        self.arena.token = arrays[launch.outputs[0]]

    def _run(self, phase: Phase, launch: Launch, arrays: Arrays, dims: Dims) -> None:
        grid = grid_of(launch, dims)
        if grid is None:
            return
        buffers = self._shapes[phase.name]
        if launch.runs_as_mlx(dims) and not launch.feeds_mlx:
            op = self._graphs[phase.name].op(launch.op)
            names = {**op.inputs, **dict(launch.mlx_inputs)}
            inputs = {port: self._exact(name, buffers, arrays, dims) for port, name in names.items() if name in arrays}
            inputs |= self._norms.get((phase.name, launch.op), {})
            arrays[op.out] = _bindable(evaluate_large(op.attrs, inputs))
            self.count(f"mlx.{op.kind}", launch.op)
            return
        shapes = {name: shape_of(buffers[name], dims) for name in launch.outputs if name in buffers}
        self._launch(launch, arrays, grid, shapes)

    def _exact(self, name: str, buffers: Mapping[str, tuple[int | str, ...]], arrays: Arrays, dims: Dims) -> mx.array:
        """An array without the elements that were added to bind it, as MLX's ops take it."""
        if name in self.weights:
            return self.weights[name]
        if name == "logit_rows":
            return arrays[name][: dims["rows"]]
        return _of_shape(arrays[name], shape_of(buffers[name], dims)) if name in buffers else arrays[name]

    def _launch(
        self, launch: Launch, arrays: Arrays, grid: tuple[int, int, int], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        entry, kernel = self._kernels[launch.kernel]
        options: dict[str, Any] = {
            "grid": (grid[0] * entry.threads, grid[1], grid[2]),
            "threadgroup": (entry.threads, 1, 1),
            "output_shapes": [bindable_shape(shapes.get(name, (8,))) for name in launch.outputs],
            "output_dtypes": [MLX_DTYPES[str(port.dtype)] for port in entry.outputs],
        }
        try:
            outputs = kernel(inputs=[arrays[name] for name in launch.inputs], **options)
        except (RuntimeError, ValueError) as error:
            raise HostError(f"kernel {launch.kernel} cannot be launched: {error}") from error
        arrays.update(zip(launch.outputs, outputs, strict=True))
        self.count(launch.kernel, grid)


# MLX binds smaller arrays in Metal's constant address space, which would need another kernel.
_MIN_ELEMENTS = 8


def bindable_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, or a larger one if it has too few elements to be bound; kernels see no shapes."""
    return shape if math.prod(shape) >= _MIN_ELEMENTS else (_MIN_ELEMENTS,)


def _bindable(array: mx.array) -> mx.array:
    """The array, or one of the bindable shape that begins with its elements."""
    if array.size >= _MIN_ELEMENTS:
        return array
    return mx.concatenate([array.reshape(-1), mx.zeros((_MIN_ELEMENTS - array.size,), array.dtype)])


def _of_shape(array: mx.array, shape: tuple[int, ...]) -> mx.array:
    """The array in its own shape, without the elements that were added to bind it."""
    return array if array.shape == shape else array.reshape(-1)[: math.prod(shape)].reshape(shape)
