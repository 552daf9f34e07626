"""The `metal` host: the artifact's kernels through `mx.fast.metal_kernel` on Apple silicon.

A step is built lazily and MLX runs it; nothing here waits for the GPU, so steps may be queued. Order on the arena comes
from the token that every access binds and makes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ARENA_TOKEN, Artifact, KernelEntry, Launch, Step
from mlxr.compiler.errors import HostError
from mlxr.runtime.arena import Arena
from mlxr.runtime.batch import Batch, padded
from mlxr.runtime.hosts.binding import Dims, batch_arrays, batch_dims, grid_of, shape_of, step_of
from mlxr.runtime.hosts.host import ArrayHost, Logits
from mlxr.runtime.mlx_ops import LARGE_OPS, MLX_DTYPES

Arrays = dict[str, mx.array]


def metal_kernel(artifact: Artifact, kernel: KernelEntry) -> Callable[..., list[mx.array]]:
    """A kernel as MLX takes it. The arena must never be copied, so contiguity copies are off for all inputs."""
    header, body = artifact.kernel_sections(kernel.name)
    made: Callable[..., list[mx.array]] = mx.fast.metal_kernel(  # type: ignore[assignment]
        name=kernel.name,
        input_names=[port.name for port in kernel.inputs],
        output_names=[port.name for port in kernel.outputs],
        header=header,
        source=body,
        ensure_row_contiguous=False,
    )
    return made


class MetalHost(ArrayHost):
    """Runs the plan on the GPU."""

    name = "metal"

    def __init__(self, artifact: Artifact, weights: Mapping[str, mx.array], arena: Arena) -> None:
        """See `ArrayHost`; MLX compiles each kernel at its first launch."""
        super().__init__(artifact, weights, arena)
        self._kernels = {k.name: (k, metal_kernel(artifact, k)) for k in self.plan.kernels}
        self._graphs = {step.name: artifact.graph(step.name) for step in self.plan.steps}
        self._shapes = {step.name: {b.name: b.shape for b in step.buffers} for step in self.plan.steps}
        self._read = {s.name: {name for one in s.launches for name in one.inputs} for s in self.plan.steps}
        self._fixed: Arrays = {
            f"layer.{i}": mx.array([i] + [0] * 7, dtype=mx.uint32) for i in range(self.plan.num_layers)
        }
        self._fixed |= {name: _bindable(weight) for name, weight in weights.items()}
        self._fixed |= {"k_arena": arena.k, "v_arena": arena.v}

    def step(self, batch: Batch) -> mx.array:
        """Builds one step; the result and the arena's new token are lazy."""
        step, dims = step_of(self.plan, batch), batch_dims(batch)
        arrays = self._fixed | {
            name: mx.array(padded(array))
            for name, array in batch_arrays(batch).items()
            if name in self._read[step.name]
        }
        arrays[ARENA_TOKEN] = self.arena.token
        for launch in step.launches:
            self._run(step, launch, arrays, dims)
        name, token_name = step.outputs
        self.arena.token = arrays[token_name]
        logits = _of_shape(arrays[name], (dims["rows"], self.plan.vocab_size)) if name in arrays else None
        if logits is None:
            logits = mx.zeros((0, self.plan.vocab_size))
            mx.async_eval(self.arena.token)  # type: ignore[no-untyped-call]
        return logits

    def read(self, logits: Logits) -> npt.NDArray[np.float32]:
        """Waits for a step's logits; after a failure the arena's token is a new one, so that later steps can run."""
        try:
            return super().read(logits)
        except (RuntimeError, ValueError) as error:
            self.arena.token = mx.zeros((8,), dtype=mx.uint32)
            raise HostError(f"the step failed on the GPU: {error}") from error

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Launches the copy kernel once for all pairs."""
        launch = self.plan.copy_blocks
        assert launch is not None, "the pager forks only when the plan has the kernel"
        pairs = np.zeros((max(4, len(copies)), 2), dtype=np.int32)
        pairs[: len(copies)] = copies
        arrays = {"copies": mx.array(pairs), "k_arena": self.arena.k, "v_arena": self.arena.v}
        arrays[ARENA_TOKEN] = self.arena.token
        grid = grid_of(launch, {"copies": len(copies)})
        assert grid is not None, "there are copies to make"
        self._launch(launch, arrays, grid, {})
        self.arena.token = arrays[launch.outputs[0]]

    def _run(self, step: Step, launch: Launch, arrays: Arrays, dims: Dims) -> None:
        grid = grid_of(launch, dims)
        if grid is None:
            return
        buffers = self._shapes[step.name]
        if launch.runs_as_mlx(dims) and not launch.feeds_mlx:
            op = self._graphs[step.name].op(launch.op)
            names = {**op.inputs, **dict(launch.mlx_inputs)}
            inputs = {port: self._exact(name, buffers, arrays, dims) for port, name in names.items() if name in arrays}
            arrays[op.out] = _bindable(LARGE_OPS[op.kind](inputs, op.attrs))
            self.count(f"mlx.{op.kind}", launch.op)
            return
        shapes = {name: shape_of(buffers[name], dims) for name in launch.outputs if name in buffers}
        self._launch(launch, arrays, grid, shapes)

    def _exact(self, name: str, buffers: Mapping[str, tuple[int | str, ...]], arrays: Arrays, dims: Dims) -> mx.array:
        """An array as MLX's ops take it: without what was added to bind it."""
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
            "output_shapes": [_bindable_shape(shapes.get(name, (8,))) for name in launch.outputs],
            "output_dtypes": [MLX_DTYPES[str(port.dtype)] for port in entry.outputs],
        }
        try:
            outputs = kernel(inputs=[arrays[name] for name in launch.inputs], **options)
        except (RuntimeError, ValueError) as error:
            raise HostError(f"kernel {launch.kernel} cannot be launched: {error}") from error
        arrays.update(zip(launch.outputs, outputs, strict=True))
        self.count(launch.kernel, grid)


# MLX binds arrays of fewer elements in Metal's constant address space, which would be another kernel.
_MIN_ELEMENTS = 8


def _bindable_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, or that of the smallest buffer which holds it where it has too few elements; kernels see no shapes."""
    return shape if math.prod(shape) >= _MIN_ELEMENTS else (_MIN_ELEMENTS,)


def _bindable(array: mx.array) -> mx.array:
    """The array, or one of that shape with its elements first."""
    if array.size >= _MIN_ELEMENTS:
        return array
    return mx.concatenate([array.reshape(-1), mx.zeros((_MIN_ELEMENTS - array.size,), array.dtype)])


def _of_shape(array: mx.array, shape: tuple[int, ...]) -> mx.array:
    """What `_bindable_shape` stands for, as MLX's ops take it."""
    return array if array.shape == shape else array.reshape(-1)[: math.prod(shape)].reshape(shape)
