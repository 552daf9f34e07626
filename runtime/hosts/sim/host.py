"""The `sim` host: runs the artifact's complete Metal files on the CPU and checks every access.

Activations are in one block of memory, at the offsets of the plan. It is filled with NaN before each step, so that a
wrong lifetime shows. The arena is the same MLX arrays as on the GPU, written in place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import (
    ARENA_TOKEN,
    BATCH_DIMS,
    Artifact,
    BatchDim,
    CollectiveCall,
    DType,
    HandoverCall,
    Launch,
    Phase,
    PhaseName,
    layer_buffer,
)
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import check_blocks
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.binding import Dims, batch_arrays, batch_dims, from_buffer, grid_of, phase_of, shape_of
from mlxr.runtime.hosts.exchange import BlockingExchange
from mlxr.runtime.hosts.handover import ExpertsBeside, Handover
from mlxr.runtime.hosts.host import ArrayHost, Progress
from mlxr.runtime.hosts.sim.kernel import SimBuffer, prepare
from mlxr.runtime.weights.element_types import ElementType, decode, encode
from mlxr.runtime.weights.weight_file import WeightFile

_MOST_LAYOUTS = 64
_MOST_INPUTS = 4096


class SimHost(ArrayHost):
    """Runs the plan's kernels one after another, and waits for each."""

    name = "sim"
    target: ClassVar[str] = "metal"

    def __init__(
        self,
        artifact: Artifact,
        weights: Mapping[str, mx.array],
        arena: Arena,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """See `ArrayHost`. All kernels are compiled, or loaded from the cache, before this returns.

        Args:
            artifact: the compiled model.
            weights: packed weights.
            arena: the KV arena.
            progress: called with (kernels ready, all kernels).
        """
        super().__init__(artifact, weights, arena)
        texts = {k.name: artifact.kernel_text(k.name, self.target) for k in self.program.kernels}
        self._kernels = prepare(texts, progress)
        self._threads = {k.name: (k.threads, 1, 1) for k in self.program.kernels}
        memory = max(phase.activation_bytes for phase in self.program.phases)
        self._memory = np.zeros(memory + 256, dtype=np.uint8)
        self._base = -(-self._memory.ctypes.data // 256) * 256
        self._tokens: dict[str, np.ndarray] = {}
        self._fixed: dict[str, SimBuffer] = {
            name: SimBuffer.of(array, writable=True, name=name) for name, array in arena.stores.items()
        }
        casts = {cast.name: weights[cast.weight].astype(MLX_DTYPES[str(cast.dtype)]) for cast in self.program.casts}
        mx.eval(list(casts.values()))
        for name, array in (*weights.items(), *casts.items()):
            self._fixed[name] = SimBuffer.of(array, writable=False, name=name)
        for layer in range(self.plan.num_layers):
            self._fix(layer_buffer(layer), np.array([layer] + [0] * 7, dtype=np.uint32), writable=False)
        # The dims that the sizes of a step's activations depend on.
        self._sizes: dict[str, list[BatchDim]] = {
            phase.name: sorted({BATCH_DIMS[d] for b in phase.buffers for d in b.shape if isinstance(d, str)})
            for phase in self.program.phases
        }
        self._layouts: dict[tuple[str | int, ...], dict[str, SimBuffer]] = {}
        self._inputs: dict[tuple[int, int], SimBuffer] = {}
        self._seed = 0
        self._others: BlockingExchange | None = None
        self._handover: Handover | None = None

    @classmethod
    def from_file(
        cls,
        artifact: Artifact,
        file: WeightFile,
        arena: Arena,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        lender: Self | None = None,
        resident: int | None = None,
    ) -> Self:
        """See `Host.from_file`."""
        weights = cls.read_arrays(artifact, file, progress, lender)
        return cls(artifact, weights, arena, progress and (lambda done, total: progress("kernels", done, total)))

    def step(self, batch: Batch) -> mx.array:
        """Runs one batch and waits for it."""
        phase, dims = self.program.phase(phase_of(self.plan, batch)), batch_dims(batch)
        self._memory.fill(0xFF)
        batch = self.completed(batch)
        self._begin()
        if self._handover is not None:
            self._handover.begin()
        arrays = batch_arrays(batch)
        buffers = self._fixed | self._layout(phase, dims)
        buffers |= {n: SimBuffer.of(array, writable=False, name=n) for n, array in arrays.items()}
        for launch in phase.launches:
            if isinstance(launch.body, CollectiveCall):
                if launch.runs(dims, library=False):
                    self._exchange(launch.body, launch, buffers, dims, batch.tops)
                continue
            if isinstance(launch.body, HandoverCall):
                self._hand_over(phase.name, launch.body, launch, buffers, dims)
                continue
            grid = grid_of(launch, dims)
            if grid is not None:
                self._launch(launch, buffers, grid)
        logits, *token = phase.outputs
        for name in token:
            self._finish(name)
        rows = batch.num_rows
        if not rows:
            return mx.zeros((0, self.plan.output_width))
        offset = buffers[logits].address - self._memory.ctypes.data
        size = rows * self.plan.output_width * 4
        return mx.array(self._memory[offset : offset + size].view(np.float32).reshape(rows, self.plan.output_width))

    def use(self, exchange: BlockingExchange) -> None:
        """See `Host.use`."""
        self._others, self.gathers_tops = exchange, True

    def use_experts(self, experts: ExpertsBeside) -> None:
        """See `Host.use_experts`."""
        self._handover = Handover(self.plan, experts)

    def _hand_over(
        self, phase: PhaseName, call: HandoverCall, launch: Launch, buffers: dict[str, SimBuffer], dims: Dims
    ) -> None:
        """Gives the CPU rows, or takes its sum, in f32."""
        handover = self._handover
        assert handover is not None, "a card that leaves experts to the CPU is given them before its first step"
        bound = {port.name: (port, buffers[name]) for port, name in zip(call.ports, launch.inputs, strict=True)}

        def floats(name: str) -> npt.NDArray[np.float32] | None:
            if name not in bound:
                return None
            port, buffer = bound[name]
            return self._floats(buffer, shape_of(port.shape, dims), str(port.dtype))

        if call.function == "give":
            x, (port, buffer) = floats("x"), bound["experts"]
            assert x is not None, "rows are given"
            start, shape = buffer.address - self._memory.ctypes.data, shape_of(port.shape, dims)
            experts = self._memory[start : start + 4 * int(np.prod(shape))].view(np.int32).reshape(shape)
            handover.give(phase, call.place, x, experts, floats("weights"))
        else:
            out, residual = np.empty((dims["tokens"], call.width), np.float32), floats("residual")
            handover.take(out)
            if residual is not None:
                out = residual + np.float32(call.residual_scale) * out
            self._write(buffers[launch.outputs[0]], out, call.dtype)
        self.count(call.label, launch.op)

    def _write(self, buffer: SimBuffer, numbers: npt.NDArray[np.float32], dtype: DType) -> None:
        to, size = buffer.address - self._memory.ctypes.data, numbers.size * dtype.size_bytes
        self._memory[to : to + size] = encode(numbers, str(dtype)).reshape(-1).view(np.uint8)

    def _exchange(
        self, call: CollectiveCall, launch: Launch, buffers: dict[str, SimBuffer], dims: Dims, tops: int
    ) -> None:
        """Runs one, in f32."""
        others = self._others
        assert others is not None, "a part of a model is given it before its first step"
        values = {
            port.name: self._floats(buffers[name], shape_of(port.shape, dims), str(port.dtype))
            for port, name in zip(call.ports, launch.inputs, strict=True)
        }
        rows = dims["rows" if call.function == "gather" else "tokens"]
        out = np.zeros((rows, call.width), np.float32)
        if call.function == "all_sum":
            others.all_sum(values["x"], out)
        elif call.function == "send":
            others.send(values["x"])
        elif call.function == "receive":
            others.receive(out)
        else:
            others.gather_result(values.get("x"), out, tops)
        self._write(buffers[launch.outputs[0]], out, call.dtype)
        self.count(call.label, launch.op)

    def _floats(self, buffer: SimBuffer, shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.float32]:
        """A copy of an activation as f32."""
        start = buffer.address - self._memory.ctypes.data
        element = ElementType(dtype.upper(), 1, DType(dtype).size_bytes)
        numbers = decode(self._memory[start : start + buffer.size_bytes], element)
        return np.asarray(numbers, np.float32).reshape(-1)[: int(np.prod(shape))].reshape(shape)

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Launches the group's copy kernel once for all pairs."""
        self._copy(copies, np.zeros(8, np.uint8), group)

    def write_blocks(self, block_ids: Sequence[int], data: npt.NDArray[np.uint8], group: int | None = 0) -> None:
        """Launches the copy kernel once for all blocks; see `Host.write_blocks`."""
        check_blocks(self.arena.geometry, block_ids, data, group)
        self._copy(from_buffer(block_ids), np.ascontiguousarray(data), group)

    def _copy(self, copies: Sequence[tuple[int, int]], blocks: npt.NDArray[np.uint8], group: int | None = 0) -> None:
        launch = self.program.copy_blocks_of(group)
        if launch is None:
            return
        inputs = {"copies": np.array(copies, np.int32), "blocks": blocks}
        grid = grid_of(launch, {"copies": len(copies)})
        assert grid is not None, "there are copies to make"
        self._begin()
        bound = {name: SimBuffer.of(array, writable=False, name=name) for name, array in inputs.items()}
        self._launch(launch, self._fixed | bound, grid)
        self._finish(launch.outputs[0])

    def _launch(self, launch: Launch, buffers: dict[str, SimBuffer], grid: tuple[int, int, int]) -> None:
        for name in launch.outputs:
            if name not in buffers:
                buffers[name] = self._token(name)
        self._seed += 1
        bound = [self._reading(buffers[name]) for name in launch.inputs] + [buffers[name] for name in launch.outputs]
        self._kernels[launch.kernel].launch(bound, grid, self._threads[launch.kernel], seed=self._seed)
        self.count(launch.kernel, grid)

    def _reading(self, buffer: SimBuffer) -> SimBuffer:
        """A buffer as a kernel's input, which is read-only unless it is a store."""
        if not buffer.writable or buffer.name in self.arena.stores:
            return buffer
        key = (buffer.address, buffer.size_bytes)
        if key not in self._inputs:
            if len(self._inputs) >= _MOST_INPUTS:
                self._inputs.clear()
            self._inputs[key] = replace(buffer, writable=False)
        return self._inputs[key]

    def _begin(self) -> None:
        """Makes the arena's newest token the first token of this step."""
        token = np.array(self.arena.token, dtype=np.uint32)
        self._fix(ARENA_TOKEN, token, writable=False)

    def _finish(self, last: str) -> None:
        self.arena.token = mx.array(self._tokens[last])

    def _fix(self, name: str, array: np.ndarray, writable: bool) -> None:
        self._tokens[name] = array
        self._fixed[name] = SimBuffer.of(array, writable=writable, name=name)

    def _token(self, name: str) -> SimBuffer:
        if name not in self._fixed:
            self._fix(name, np.zeros(8, dtype=np.uint32), writable=True)
        return self._fixed[name]

    def _layout(self, phase: Phase, dims: Dims) -> dict[str, SimBuffer]:
        """The step's activations, each exactly as large as this batch makes it."""
        key = (phase.name, *(dims[dim] for dim in self._sizes[phase.name]))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = {}
            for b in phase.buffers:
                size = int(np.prod(shape_of(b.shape, dims), dtype=np.int64)) * b.dtype.size_bytes
                layout[b.name] = SimBuffer(self._base + b.offset_bytes, size, True, b.name)
            self._layouts[key] = layout
        return dict(layout)
