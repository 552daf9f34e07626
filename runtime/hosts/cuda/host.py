"""The `cuda` host: the artifact's Metal kernels on an NVIDIA GPU.

The kernels have the same text as on Apple silicon. They are compiled with a prelude (see build.py), and MLX launches
them. What a step is, its own classes know: see decode_steps.py and prefill_steps.py. The host puts them together with
the weights that are kept unpacked, if there is memory to spare (kept_weights.py), with the kernels that run whole steps
(step_kernels.py; which steps have none, `notes` and `launches` say), and with the other cards of a stage (parallel/).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import PEERS, Artifact, Launch, Phase, Plan, layer_buffer
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, BatchRequest, Requests
from mlxr.runtime.hosts.binding import BatchArrays, Dims, batch_dims, phase_of, shape_of
from mlxr.runtime.hosts.cuda.activate_sums import activated
from mlxr.runtime.hosts.cuda.build import build_cubins, cuda_source, pool_bytes
from mlxr.runtime.hosts.cuda.card_writer import card_writer
from mlxr.runtime.hosts.cuda.decode_steps import DecodeSteps
from mlxr.runtime.hosts.cuda.device import architecture, limit_cache
from mlxr.runtime.hosts.cuda.device_array import filled_on_device, on_device, sent
from mlxr.runtime.hosts.cuda.handover.card_handover import CardHandover
from mlxr.runtime.hosts.cuda.kept_weights import KeptWeights
from mlxr.runtime.hosts.cuda.packed import Packed
from mlxr.runtime.hosts.cuda.parallel.peers import Peers
from mlxr.runtime.hosts.cuda.prefill_steps import PrefillSteps
from mlxr.runtime.hosts.cuda.products_ahead import begin_products
from mlxr.runtime.hosts.cuda.prompt_batch import is_packed_at_once, prompt_batch
from mlxr.runtime.hosts.cuda.recorded_memory import MOST_STEPS, recorded_bytes
from mlxr.runtime.hosts.cuda.step_kernel import StepImages, build_steps
from mlxr.runtime.hosts.cuda.step_kernels import StepKernels
from mlxr.runtime.hosts.exchange import Exchange
from mlxr.runtime.hosts.handover import ExpertsBeside
from mlxr.runtime.hosts.host import Logits, Progress
from mlxr.runtime.hosts.likeliest import Asked, Likeliest, LikeliestOfSteps, MoreSteps
from mlxr.runtime.hosts.mlx.host import MlxHost
from mlxr.runtime.hosts.mlx.launcher import Arrays, MlxKernel
from mlxr.runtime.memory.free_memory import FreeMemory, gpu_memory
from mlxr.runtime.weights.load_weights import MakeArray
from mlxr.runtime.weights.weight_file import WeightFile

_TOKENS = "token_ids"


class CudaHost(MlxHost):
    """Runs the plan on an NVIDIA GPU."""

    name = "cuda"
    most_steps, most_prepared = MOST_STEPS // 6, MOST_STEPS // 2
    has_step_kernels = True
    has_own_memory = True

    def __init__(
        self,
        artifact: Artifact,
        weights: Mapping[str, mx.array],
        arena: Arena,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """See `MlxHost`."""
        limit_cache()
        with ThreadPoolExecutor(max_workers=1) as beside:  # the largest texts, compiled at the same time as the others
            images = beside.submit(self.build_steps, artifact)
            super().__init__(artifact, weights, arena, progress)
        self.launcher.activated = activated
        layers = [layer_buffer(i) for i in range(self.plan.num_layers)]
        self.fixed |= {name: on_device(self.fixed[name]) for name in layers}
        mx.eval(list(self.fixed.values()))  # a lazy array would be computed in each step
        numbers = [self.fixed[name] for name in layers] or [mx.zeros((8,), mx.uint32)]  # an encoder caches nothing
        stacked = on_device(mx.stack(numbers))
        self._step_kernels = StepKernels(images.result(), self.plan, stacked, self.launcher_of)
        self._step_kernels.hold(self.fixed)
        self._kept, self._peers = KeptWeights(), Peers()
        self._prefills = PrefillSteps(self, self._launches_of)
        own = (self._step_kernels, self._peers, self._launches_of, self._prefills.recorded)
        self._decodes = DecodeSteps(self, *own)
        self._reads_all = self.plan.pads and is_packed_at_once(self._read["prefill"])
        self._tell_notes()

    @classmethod
    def free_memory(cls) -> FreeMemory:
        """See `Host.free_memory`: the GPU's own memory."""
        return gpu_memory() or super().free_memory()

    @classmethod
    def recorded_bytes(cls, plan: Plan) -> int:
        """See `Host.recorded_bytes`."""
        return recorded_bytes(plan)

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
        begin_products(artifact.plan)
        return super().from_file(artifact, file, arena, progress=progress, lender=lender)

    @classmethod
    def array_maker(cls) -> MakeArray:
        """See `ArrayHost.array_maker`; the weights are in the GPU's own memory."""
        return functools.partial(filled_on_device, writer=functools.cache(card_writer))

    @classmethod
    def make_kernels(
        cls, artifact: Artifact, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, MlxKernel]:
        """See `MlxHost.make_kernels`; all are compiled, or loaded from the cache, before this returns."""
        sources = {
            k.name: cuda_source(k, *artifact.kernel_sections(k.name, cls.target))
            for k in artifact.plan.program(cls.target).kernels
        }
        cubins = build_cubins(sources, architecture(), progress)
        pools = {k.name: pool_bytes(k) for k in artifact.plan.program(cls.target).kernels}
        return {name: launcher(name, cubin, pools[name]) for name, cubin in cubins.items()}

    @staticmethod
    def build_steps(artifact: Artifact) -> StepImages:
        """See `step_kernel.build_steps`."""
        return build_steps(artifact, architecture())

    @staticmethod
    def launcher_of(name: str, image: bytes, pool: int = 0) -> MlxKernel:
        """See `launcher`."""
        return launcher(name, image, pool)

    def use(self, exchange: Exchange) -> None:
        """See `MlxHost.use`."""
        super().use(exchange)
        self._peers.unmet = exchange

    def use_experts(self, experts: ExpertsBeside) -> None:
        """See `Host.use_experts`."""
        self.launcher.handover = CardHandover(self.plan, experts)
        self.most_steps = 1  # the CPU takes part in each

    def close(self) -> None:
        """See `Host.close`: steps that are launched end before the CPU no longer answers."""
        if self.launcher.handover is not None:
            with suppress(RuntimeError):
                mx.synchronize()
            self.launcher.handover.close()

    def shared_ids(self, ids: mx.array | None, count: int) -> mx.array:
        """See `Host.shared_ids`."""
        if self._peers.unmet is not None:
            self._meet_peers()
        self._peers.begin()
        return super().shared_ids(ids, count)

    def _meet_peers(self) -> None:
        if (given := self._peers.meet(self.count)) is not None:
            self._step_kernels.keep_those_of_all(given)
            assert self._peers.memories is not None and self._peers.exchange is not None, "they have met"
            self.fixed[PEERS], self.launcher.exchange = self._peers.memories, self._peers.exchange
        self._tell_notes()

    def _tell_notes(self) -> None:
        others = filter(None, (self._peers.note, self._kept.note))
        self.notes = (*self._step_kernels.notes, *others, *self._decodes.notes, *self._prefills.notes)

    def decode(self, batch: Batch) -> Callable[[npt.NDArray[np.int32] | mx.array], Logits]:
        """See `Host.decode`: arrays, launches and traces are found once for all steps."""
        phase = self.program.phase(phase_of(self.plan, batch))
        is_alone = self.launcher.exchange is None and self.launcher.handover is None
        if phase.name != "decode" or not (self._traces and is_alone):
            return super().decode(batch)
        arrays = self.arrays_of(phase, self.completed(batch))
        steady = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and name != _TOKENS}
        launch = self._decodes.bind(phase, batch_dims(batch), steady, _slots(batch, steady), batch.num_steps, 0)

        def run(tokens: npt.NDArray[np.int32] | mx.array) -> mx.array:
            logits, self.arena.token = launch(tokens if isinstance(tokens, mx.array) else mx.array(tokens))
            return logits

        return run

    def batch_of(self, requests: Requests, pager: Pager, tokens: mx.array | None = None, steps: int = 1) -> Batch:
        """See `Host.batch_of`: that of one prompt is made at once as the card reads it."""
        if self._packs and len(requests) == 1 and tokens is None and isinstance(request := requests[0], BatchRequest):
            batch = prompt_batch(request, pager, self.plan, "context_lens" in self._read["prefill"])
            if batch is not None:
                return batch
        return super().batch_of(requests, pager, tokens, steps)

    @property
    def _packs(self) -> bool:
        """Whether batches of one prompt are packed as they are made."""
        is_alone = self.launcher.exchange is None and self.launcher.handover is None
        return is_alone and self._reads_all and not (self.has_types or self.has_adapters)

    def step(self, batch: Batch) -> mx.array:
        """See `MlxHost.step`."""
        if batch.packed is None:
            return super().step(batch)
        phase, dims = self.program.phase(phase_of(self.plan, batch)), batch_dims(batch)
        logits, self.arena.token = self._prefills.run(phase, dims, Packed(*batch.packed), {}, 0, traces=self._traces)
        if not dims["rows"]:
            with self.failures():
                start_computing([self.arena.token])
        return logits

    def likeliest_of(self, logits: Logits) -> Likeliest | None:
        """See `Host.likeliest_of`: of recorded prompts."""
        return self._prefills.recorded.likeliest_of(logits)

    def likeliest_of_steps(self, batch: Batch, asked: Asked | None = None) -> LikeliestOfSteps | None:
        """See `Host.likeliest_of_steps`: by recorded steps."""
        phase = self.program.phase(phase_of(self.plan, batch))
        if phase.name != "decode" or not self._traces:
            return None
        arrays = self.arrays_of(phase, self.completed(batch))
        steady = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and name != _TOKENS}
        tokens = batch.tokens if isinstance(batch.tokens, mx.array) else mx.array(batch.tokens)
        slots = _slots(batch, steady)
        return self._decodes.choose(phase, batch_dims(batch), steady, slots, batch.num_steps, tokens, asked)

    def go_on(self, after: LikeliestOfSteps, more: MoreSteps) -> LikeliestOfSteps | None:
        """See `Host.go_on`: after recorded steps."""
        return self._decodes.go_on(after, more) if self._traces else None

    @contextmanager
    def only_preparing(self) -> Iterator[None]:
        """See `Host.only_preparing`: recorded prompts are not run."""
        self._prefills.only_prepares = True
        try:
            yield
        finally:
            self._prefills.only_prepares = False

    def run_on(self, steps: LikeliestOfSteps, count: int, until: int, called: Callable[[], bool] | None) -> int | None:
        """See `Host.run_on`: recorded steps."""
        return self._decodes.run_on(steps, count, until, called)

    @property
    def _traces(self) -> bool:
        """Whether steps are traced: to print launches, each must happen."""
        return not self._tell

    def launch_step(self, phase: Phase, dims: Dims, batch: BatchArrays, tops: int) -> tuple[mx.array, mx.array]:
        """See `MlxHost.launch_step`."""
        if self._peers.unmet is not None:
            self._meet_peers()
        arrays = {name: array for name, array in batch.items() if isinstance(array, np.ndarray)}
        others = {name: array for name, array in batch.items() if isinstance(array, mx.array)}
        if phase.name == "decode" and self._traces:
            ids = others[_TOKENS] if others else mx.array(arrays.pop(_TOKENS))
            slots = {name: array[None] for name, array in arrays.items() if name.partition(".")[0] == "slots"}
            return self._decodes.bind(phase, dims, arrays, slots, 1, tops)(ids)
        return self._prefills.run(phase, dims, Packed.of(arrays), others, tops, traces=self._traces)

    @property
    def recorded_steps(self) -> int:
        """How many decode steps were recorded ones; the others were launched by MLX."""
        return self._decodes.num_recorded

    @property
    def recorded_prompts(self) -> int:
        """How many steps of prompts were recorded ones."""
        return self._prefills.num_recorded

    def copy_to_read(self, result: mx.array) -> mx.array:
        """See `Host.copy_to_read`. Reading moves an array to managed memory, where the next step takes a page fault.

        A single number needs no copy: MLX keeps it in memory that the CPU and the GPU share.
        """
        return result if result.size == 1 else result | 0

    def to_read_together(self, results: Sequence[mx.array]) -> list[mx.array]:
        """See `Host.to_read_together`: one array, which no step takes, unless they are single numbers."""
        views = super().to_read_together(results)
        return views if all(result.size == 1 for result in results) else [mx.concatenate(views)]

    def send(self, numbers: npt.NDArray[Any]) -> mx.array:
        """See `Host.send`; to the GPU's own memory."""
        return sent(numbers)

    def recover(self) -> None:
        """See `MlxHost.recover`."""
        super().recover()
        self._decodes.forget()
        self._prefills.forget()

    def run_launches(
        self, phase: Phase, launches: Sequence[Launch], dims: Dims, inputs: Arrays, tops: int = 0
    ) -> Arrays:
        """See `MlxHost.run_launches`; what is kept is not made again."""
        self._peers.begin()
        return super().run_launches(phase, [la for la in launches if not self._kept.has(la)], dims, inputs, tops)

    def _launches_of(self, phase: Phase, dims: Dims, launches: Sequence[Launch] | None) -> list[Launch]:
        """The launches of a step, or those of some that are needed, once what is kept has been unpacked."""
        self._keep_unpacked(phase, dims)
        launches = self.launcher.running(phase, dims) if launches is None else launches
        return [launch for launch in launches if not self._kept.has(launch)]

    def _keep_unpacked(self, phase: Phase, dims: Dims) -> None:
        """Unpacks and keeps the weights that the step needs unpacked, as far as there is memory to spare."""
        shapes = {buffer.name: buffer.shape for buffer in phase.buffers}
        self._kept.keep(
            [launch for launch in self.launcher.running(phase, dims) if self._reads_weights_alone(launch)],
            self.program.kernel,
            lambda name: shape_of(shapes[name], dims),
            lambda launches: self.run_launches(phase, launches, dims, {}),
        )
        self.fixed |= self._kept.arrays
        self._tell_notes()

    def _reads_weights_alone(self, launch: Launch) -> bool:
        return launch.needs_library and self.weights.keys() >= set(launch.inputs)


def _slots(batch: Batch, read: Mapping[str, object]) -> dict[str, npt.NDArray[np.int32]]:
    """The slots of all groups in each step, [steps, seqs], as far as steps read them, by the plan's buffer names."""
    by_name = {name: array[None] for name, array in batch.blocks.items() if array.ndim == 1}
    of_steps = batch.slots_of_steps or tuple(by_name.values())
    return {name: slots for name, slots in zip(by_name, of_steps, strict=True) if name in read}


def launcher(name: str, cubin: bytes, pool: int = 0) -> MlxKernel:
    """Launches a kernel through MLX, which never copies inputs; `pool` is the shared memory that a launch asks for."""
    return functools.partial(
        mx.fast.precompiled_cuda_kernel,
        name=name,
        compiled_source=cubin,
        scalars=[],
        ensure_row_contiguous=False,
        shared_memory=pool,
    )
