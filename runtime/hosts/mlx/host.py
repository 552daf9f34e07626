"""The base of the hosts whose kernels MLX launches, `metal` and `cuda`: a step is a lazy MLX graph.

Nothing here waits for the GPU, so several steps may be queued. Accesses to the arena stay in order because each one
binds the token of the previous access and returns a new one.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import (
    ARENA_TOKEN,
    Artifact,
    CollectiveCall,
    Launch,
    Phase,
    layer_buffer,
)
from mlxr.compiler.errors import HostError
from mlxr.runtime.arrays.mlx_arrays import MLX_DTYPES, start_computing
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.arena_blocks import check_blocks
from mlxr.runtime.hosts.batch import MOST_TOPS, Batch
from mlxr.runtime.hosts.binding import BatchArrays, Dims, batch_arrays, batch_dims, from_buffer, phase_of
from mlxr.runtime.hosts.exchange import EXACT_IDS, Exchange
from mlxr.runtime.hosts.handover import last_taken
from mlxr.runtime.hosts.host import ArrayHost, Logits, Progress
from mlxr.runtime.hosts.mlx.bindable import MIN_ELEMENTS, bindable, kernel_input, of_shape
from mlxr.runtime.hosts.mlx.launcher import Arrays, Launcher, MlxKernel
from mlxr.runtime.hosts.mlx.padding import padded_batch, state_columns, table_columns
from mlxr.runtime.weights.weight_file import WeightFile

_TOPS = (1, 64, MOST_TOPS)
"""Few numbers, because each makes a trace."""


class MlxHost(ArrayHost):
    """Runs the plan on the GPU that MLX computes on.

    Attributes:
        launcher: runs the program's launches.
        fixed: weights, the arena's stores, and what else stays the same in all steps, by the plan's buffer names.
    """

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
        self.launcher = Launcher(self.program, self.make_kernels(artifact, progress), self.count)
        self._read = {
            phase.name: {"token_ids", *(name for launch in phase.launches for name in launch.inputs)}
            for phase in self.program.phases
        }
        self.fixed: Arrays = {
            layer_buffer(i): mx.array([i] + [0] * 7, dtype=mx.uint32) for i in range(self.plan.num_layers)
        }
        self.fixed |= {name: bindable(weight) for name, weight in weights.items()}
        self.fixed |= arena.stores
        self._no_blocks = mx.zeros((MIN_ELEMENTS,), mx.uint8)
        casts = {cast.name: weights[cast.weight].astype(MLX_DTYPES[str(cast.dtype)]) for cast in self.program.casts}
        mx.eval(list(casts.values()))  # a trace of a step would compute lazy ones again each time
        self.fixed |= casts

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

    @classmethod
    @abstractmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, MlxKernel]:
        """The artifact's kernels as MLX launches them, by name.

        The arena must never be copied, so they make no contiguous copies of inputs.

        Args:
            artifact: the compiled model.
            progress: called with (kernels ready, all kernels).

        Raises:
            HostError: a kernel cannot be built.
        """

    def use(self, exchange: Exchange) -> None:
        """See `Host.use`."""
        self.launcher.exchange, self.gathers_tops = exchange, True

    def shared_ids(self, ids: mx.array | None, count: int) -> mx.array:
        """See `Host.shared_ids`: a sum to which the others give zeros."""
        exchange = self.launcher.exchange
        assert exchange is not None and self.plan.vocab_size <= EXACT_IDS, "a part of a model whose ids f32 has"
        own = mx.zeros((count,), mx.float32) if ids is None else ids.astype(mx.float32)
        self.count("token_ids", count)
        return exchange.all_sum_lazily(own).astype(mx.int32)

    def step(self, batch: Batch) -> mx.array:
        """Builds the graph of one step; its result and the arena's new token are lazy."""
        phase = self.program.phase(phase_of(self.plan, batch))
        batch = self.completed(batch)
        if phase.name == "prefill":
            batch = padded_batch(batch, self.plan)
        dims, tops = batch_dims(batch), self._tops(phase, batch)
        if self.launcher.handover is not None:
            self.launcher.handover.begin()
        logits, self.arena.token = self.launch_step(phase, dims, self.arrays_of(phase, batch), tops)
        if self.launcher.handover is not None:
            self.launcher.handover.follow(self.arena.token)
        if not dims["rows"]:
            with self.failures():
                start_computing([self.arena.token])
        return logits

    def arrays_of(self, phase: Phase, batch: Batch) -> BatchArrays:
        """What a phase reads of a batch, by the plan's buffer names."""
        arena = self.plan.arena
        columns = table_columns(batch, arena.max_blocks_per_sequence)
        arrays = batch_arrays(batch, columns, state_columns(batch, arena.state_columns))
        return {name: array for name, array in arrays.items() if name in self._read[phase.name]}

    def _tops(self, phase: Phase, batch: Batch) -> int:
        """How many of the greatest logits are exchanged, at least `Batch.tops`; 0: all."""
        exchange = self.launcher.exchange
        if exchange is None or not batch.tops:
            return 0
        # NCCL is expected to send a row as quickly as a card finds its greatest. Each size of prompt is traced once.
        if batch.num_rows == 1 and (exchange.stays_on_gpu or phase.name == "prefill"):
            return 0
        return next(tops for tops in _TOPS if tops >= batch.tops)

    def launch_step(self, phase: Phase, dims: Dims, batch: BatchArrays, tops: int) -> tuple[mx.array, mx.array]:
        """Launches a step after the last access of the arena.

        Args:
            phase: the program's phase that runs the step.
            dims: the dims of the batch.
            batch: the metadata that the step reads, by the plan's buffer names.
            tops: how many of the greatest logits are exchanged; 0: all.

        Returns:
            Logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        inputs = {name: kernel_input(array) for name, array in batch.items()}
        return self.run(phase, dims, inputs | {ARENA_TOKEN: self.arena.token}, tops)

    def run(self, phase: Phase, dims: Dims, inputs: Arrays, tops: int) -> tuple[mx.array, mx.array]:
        """Launches a step's kernels.

        Args:
            phase: the program's phase that runs the step.
            dims: the dims of the batch.
            inputs: the batch's metadata and the arena's token, by the plan's buffer names.
            tops: how many of the greatest logits are exchanged; 0: all.

        Returns:
            Logits [rows, vocab] f32 and the arena's new token, both lazy.
        """
        arrays = self.run_launches(phase, self.launcher.running(phase, dims), dims, inputs, tops)
        return self.results_of(phase, dims, arrays)

    def run_launches(
        self, phase: Phase, launches: Sequence[Launch], dims: Dims, inputs: Arrays, tops: int = 0
    ) -> Arrays:
        """Launches some of a step's kernels.

        Args:
            phase: the program's phase that runs the step.
            launches: launches of the phase that run for the batch, in order.
            dims: the dims of the batch.
            inputs: what these launches read besides weights and the arena, by the plan's buffer names.
            tops: how many of the greatest logits are exchanged; 0: all.

        Returns:
            All arrays: weights, arena, inputs, and the outputs of the launches.
        """
        arrays = {**self.fixed, **inputs}
        for launch in launches:
            self.launcher.run(phase.name, launch, arrays, dims, tops)
        return arrays

    def results_of(self, phase: Phase, dims: Dims, arrays: Arrays) -> tuple[mx.array, mx.array]:
        """Logits [rows, vocab] f32 and the arena's new token, from all arrays of a step."""
        name, token_name = (*phase.outputs, ARENA_TOKEN)[:2]  # a model that caches nothing passes no token on
        shape = (dims["rows"], self.plan.output_width)
        sent = [arrays[name] for name in sent_by(phase)]
        if sent:  # a step without rows of logits has nothing else that depends on it
            arrays[token_name] = mx.depends([arrays[token_name]], sent)[0]
        return of_shape(arrays[name], shape) if name in arrays else mx.zeros(shape), arrays[token_name]

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
        if self.launcher.handover is not None:
            self.launcher.handover.recover()
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
        except BaseException:
            if self.launcher.handover is not None:  # Ctrl-C: what was given to the CPU may never be taken
                self.recover()
            raise

    def write_adapter(self, slot: int, matrices: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """See `Host.write_adapter`: in place, once the device has read what is there."""
        with self.failures():
            mx.synchronize()
        super().write_adapter(slot, matrices)

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Launches the group's copy kernel once for all pairs."""
        self._copy(copies, self._no_blocks, group)

    def read_blocks(self, block_ids: Sequence[int], group: int | None = 0) -> npt.NDArray[np.uint8]:
        """See `Host.read_blocks`. MLX gathers the blocks on the device: reading the arena itself would move it."""
        geometry = self.arena.geometry
        check_blocks(geometry, block_ids, group=group)
        ids, axis = mx.array(list(block_ids), mx.int32), 0 if geometry.layout == "block" or group is None else 1
        stores = [self.arena.stores[allocation.name] for allocation in geometry.of_group(group)]
        if not stores:  # a stage's layers may have none
            return np.empty((len(block_ids), 0), np.uint8)
        with self.failures():
            mx.eval(self.arena.token)  # MLX does not see that kernels write the arena, and would read it too early
            parts = [mx.take(array, ids, axis).swapaxes(0, axis) for array in stores]
            blocks = mx.concatenate([part.reshape(len(block_ids), -1).view(mx.uint8) for part in parts], axis=1)
            return np.array(blocks)

    def write_blocks(self, block_ids: Sequence[int], data: npt.NDArray[np.uint8], group: int | None = 0) -> None:
        """Launches the copy kernel once for all blocks; see `Host.write_blocks`."""
        check_blocks(self.arena.geometry, block_ids, data, group)
        self._copy(from_buffer(block_ids), mx.array(data), group)

    def _copy(self, copies: Sequence[tuple[int, int]], blocks: mx.array, group: int | None = 0) -> None:
        launch = self.program.copy_blocks_of(group)
        if launch is None:
            return
        pairs = np.zeros((max(4, len(copies)), 2), dtype=np.int32)
        pairs[: len(copies)] = copies
        arrays = {"copies": mx.array(pairs), "blocks": blocks, ARENA_TOKEN: self.arena.token, **self.arena.stores}
        self.launcher.run(None, launch, arrays, {"copies": len(copies)})
        self.arena.token = arrays[launch.outputs[0]]


def sent_by(phase: Phase) -> list[str]:
    """What a phase sends to the next stage, and takes of the CPU last, by the names of its launches' results."""
    bodies = [(launch.body, launch.outputs) for launch in phase.launches]
    sent = [outputs[0] for body, outputs in bodies if isinstance(body, CollectiveCall) and body.function == "send"]
    return sent + last_taken(phase)
