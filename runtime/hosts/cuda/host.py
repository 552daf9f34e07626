"""The `cuda` host: the artifact's Metal kernels on an NVIDIA GPU.

The kernels have the same text as on Apple silicon. They are compiled with a prelude (see build.py), and MLX launches
them. Building the graph of a step in Python takes longer than a small model's step. So a decode step is traced once
(`mx.compile`) for each set of shapes and launch conditions; weights and arena are constants of the trace, and the
arena's token is an input and an output. Prefill is traced too. Its steps are padded to one of few sizes (see
runtime/hosts/mlx/padding.py), all of which are traced at load. It runs in parts, so that the GPU starts with the first
layers while the CPU works on the others.

Weights that MLX's matmul needs unpacked are kept unpacked, if there is memory to spare (see kept_weights.py).

If the plan asks for it, a decode step is a single kernel that contains the others (see step_kernel.py). If that is not
possible, its kernels are launched one by one, and `notes` and `launches` say so.
"""

import functools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import ARENA_TOKEN, PEERS, Artifact, KernelCall, Launch, Phase, layer_buffer, mailbox_bytes
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.binding import BatchArrays, Dims, shape_of
from mlxr.runtime.hosts.collectives import Collectives
from mlxr.runtime.hosts.cuda.build import build_cubins, cuda_source
from mlxr.runtime.hosts.cuda.device import architecture, limit_cache
from mlxr.runtime.hosts.cuda.device_array import filled_on_device, on_device
from mlxr.runtime.hosts.cuda.kept_weights import KeptWeights
from mlxr.runtime.hosts.cuda.meet_peers import NoPeersError, meet_peers
from mlxr.runtime.hosts.cuda.packed import DecodeInputs, Packed
from mlxr.runtime.hosts.cuda.peer_collectives import PeerCollectives
from mlxr.runtime.hosts.cuda.peer_sums import PeerSums
from mlxr.runtime.hosts.cuda.step_kernel import NoStepKernelError, StepImages, StepKernel, build_steps
from mlxr.runtime.hosts.mlx.bindable import of_shape
from mlxr.runtime.hosts.mlx.host import MlxHost, sent_by
from mlxr.runtime.hosts.mlx.launcher import Arrays, MlxKernel
from mlxr.runtime.memory.free_memory import FreeMemory, gpu_memory
from mlxr.runtime.weights.load_weights import Fill

_MOST_TRACES = 128
AS_LAUNCHES = "step_as_launches"
"""The name under which steps are counted that the plan wants as one kernel but that are single launches."""
_PART = 16
"""Launches of prefill that are given to the GPU together: few, because all weights that they unpack use memory."""
_PARTS_AHEAD = 6
"""Most parts that wait for the GPU: their outputs use memory too."""

_Key = tuple[str | int | bool, ...]
_Traces = TypeVar("_Traces")


class _Trace(NamedTuple):
    """A step or a part of one, compiled by MLX, and the launches in it."""

    run: Callable[..., Any]
    launches: Counter[str]


class CudaHost(MlxHost):
    """Runs the plan on an NVIDIA GPU."""

    name = "cuda"
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
        for name in (layer_buffer(i) for i in range(self.plan.num_layers)):
            self._fixed[name] = on_device(self._fixed[name])
        mx.eval(list(self._fixed.values()))  # a lazy array would be computed in each step
        self._layers = on_device(mx.stack([self._fixed[layer_buffer(i)] for i in range(self.plan.num_layers)]))
        built = images.result()
        failures = list(built.failures)
        self._step_kernels: list[StepKernel] = []
        for image in built.images:
            try:
                self._step_kernels.append(StepKernel.load(image, self.plan, self.launcher_of))
            except NoStepKernelError as error:
                failures.append((image.entry.counts, error))
        self._as_launches = [counts for counts, _ in failures]
        self.notes = tuple(_notes_of(failures))
        self._first_notes = self.notes
        decode = self.program.phase("decode")
        self._grid_dims = sorted(
            {
                extent.dim
                for launch in decode.launches
                if isinstance(launch.body, KernelCall)
                for extent in launch.body.threadgroups
                if extent.dim
            }
        )
        self._context_matters = any(
            "context" in buffer.shape
            for phase in self.program.phases
            if phase.name == "prefill"
            for buffer in phase.buffers
        )
        self._inputs = DecodeInputs()
        self._decodes: _Recent[_Trace] = _Recent()
        self._prefills: _Recent[list[_Trace] | None] = _Recent()
        self._kept = KeptWeights()
        self._unmet: Collectives | None = None
        self._peers: PeerCollectives | None = None

    @classmethod
    def free_memory(cls) -> FreeMemory:
        """See `Host.free_memory`: the GPU's own memory."""
        return gpu_memory() or super().free_memory()

    @staticmethod
    def make_array(shape: tuple[int, ...], dtype: mx.Dtype, fill: Fill) -> mx.array:
        """See `ArrayHost.make_array`; the weights are in the GPU's own memory."""
        return filled_on_device(shape, dtype, fill)

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
        return {name: launcher(name, cubin) for name, cubin in cubins.items()}

    @staticmethod
    def build_steps(artifact: Artifact) -> StepImages:
        """See `step_kernel.build_steps`."""
        return build_steps(artifact, architecture())

    def _step_kernel(self, dims: Dims) -> StepKernel | None:
        if self.plan.rank is not None and self._peers is None:
            return None
        return next((kernel for kernel in self._step_kernels if kernel.takes(dims)), None)

    @staticmethod
    def launcher_of(name: str, image: bytes) -> MlxKernel:
        """Launches a kernel through MLX, which never copies inputs."""
        return launcher(name, image)

    def use(self, collectives: Collectives) -> None:
        """See `MlxHost.use`. The ranks meet in the first step, when a heartbeat watches all of them."""
        super().use(collectives)
        self._unmet = collectives

    def ids_of_rank_0(self, ids: mx.array | None, count: int) -> mx.array:
        """See `Host.ids_of_rank_0`."""
        if self._unmet is not None:
            self._meet_peers(self._unmet)
        if self._peers is not None:
            self._peers.begin()
        return super().ids_of_rank_0(ids, count)

    def _meet_peers(self, collectives: Collectives) -> None:
        place, self._unmet = self.plan.rank, None
        if place is None or place.tensor == 1 or place.pipeline > 1:
            return
        try:
            memories = meet_peers(collectives.all_sum, place.tensor_rank, place.tensor, mailbox_bytes(place.tensor))
        except NoPeersError as error:
            self._first_notes = (
                *self._first_notes,
                f"sums go through MLX, which is slower than the cards' memory: {error}",
            )
            self.notes = (*self.notes, self._first_notes[-1])
        else:
            sums = PeerSums(place.tensor_rank, memories)
            self._fixed[PEERS] = sums.memories
            self._step_kernels = self._those_of_all_ranks(collectives, place.tensor)
            self._peers = self.launcher.collectives = PeerCollectives(collectives, sums, self.count)

    def _those_of_all_ranks(self, collectives: Collectives, ranks: int) -> list[StepKernel]:
        """The step kernels that run on every rank: in a step, all ranks must sum in the same way."""
        entries = self.program.step_kernels
        own = {kernel.entry.counts for kernel in self._step_kernels}
        here = np.array([[entry.counts in own for entry in entries]], np.float32)
        on_ranks = here.copy()
        if entries:
            collectives.all_sum(here, on_ranks)
        everywhere = {entry.counts for entry, count in zip(entries, on_ranks[0], strict=True) if count == ranks}
        return [kernel for kernel in self._step_kernels if kernel.entry.counts in everywhere]

    def launch_step(self, phase: Phase, dims: Dims, batch: BatchArrays, tops: int) -> tuple[mx.array, mx.array]:
        """See `MlxHost.launch_step`."""
        if self._unmet is not None:
            self._meet_peers(self._unmet)
        arrays = {name: array for name, array in batch.items() if isinstance(array, np.ndarray)}
        others = {name: array for name, array in batch.items() if isinstance(array, mx.array)}
        if phase.name == "decode" and not self._tell:  # to print launches, each must happen
            return self._decode(phase, dims, arrays, others, tops)
        packed = Packed.of(arrays)
        uploaded = packed.upload()
        places = (*(place.start for place in packed.places.values()), len(packed.numbers))
        key = (*self._prefill_key(phase, dims), tops, *places, len(others))
        parts = self._prefills.get(key)
        if parts is None:
            # Padded steps have few sizes. The first step of another size is not traced: it may be the only one.
            traced = (key in self._prefills or self._has_few_sizes(dims)) and not self._tell
            parts = self._parts(phase, dims, tops, traced=traced)
            self._prefills.keep(key, parts if traced else None)
        else:
            self._prefills.keep(key, parts)
        available: Arrays = {**others, **packed.unpack(uploaded), ARENA_TOKEN: self.arena.token}
        started: list[mx.array] = []
        with self.failures():
            for part in parts:
                start_computing(available.values())
                if len(started) >= _PARTS_AHEAD:
                    mx.eval(started[-_PARTS_AHEAD])
                before, available = available, part.run(available)
                # The last part of a step without logits may have no output that anyone reads.
                if new := [available[name] for name in available.keys() - before.keys()]:
                    started.append(min(new, key=lambda array: array.nbytes))
                self.launches.update(part.launches)
        return self.results_of(phase, dims, available)

    def _has_few_sizes(self, dims: Dims) -> bool:
        return bool(self.plan.padded_sizes) and dims["seqs"] == 1 and dims["rows"] <= 1

    def _prefill_key(self, phase: Phase, dims: Dims) -> _Key:
        """What the trace of a prefill step depends on; on the context only if a buffer has its size."""
        sizes = {name: size for name, size in dims.items() if name != "context" or self._context_matters}
        return (phase.name, *sizes.values(), *self.launcher.choice(phase, dims))

    def _decode(
        self, phase: Phase, dims: Dims, arrays: dict[str, npt.NDArray[Any]], others: Mapping[str, mx.array], tops: int
    ) -> tuple[mx.array, mx.array]:
        tokens = others.get("token_ids")
        tokens = mx.array(arrays.pop("token_ids")) if tokens is None else tokens
        (moving, moved), (steady, stayed) = self._inputs.bind(arrays)
        key = (
            phase.name,
            len(steady.numbers),
            *(dims["tokens"], dims["seqs"], dims["rows"], tops),
            *(dims[dim] for dim in self._grid_dims),
            *self.launcher.choice(phase, dims),
        )
        trace = self._decodes.get(key) or self._trace(phase, dims, moving, steady, tops)
        self._decodes.keep(key, trace)
        if self._step_kernel(dims) is not None:
            with StepKernel.order:
                turn = StepKernel.take_turn()
                logits, token, moved, StepKernel.turn = trace.run(tokens, moved, stayed, self.arena.token, turn)
        else:
            logits, token, moved = trace.run(tokens, moved, stayed, self.arena.token)
        self._inputs.advance(moved)
        self.launches.update(trace.launches)
        return logits, token

    def copy_to_read(self, result: mx.array) -> mx.array:
        """See `Host.copy_to_read`. Reading moves an array to managed memory, where the next step takes a page fault.

        A single number needs no copy: MLX keeps it in memory that the CPU and the GPU share.
        """
        return result if result.size == 1 else result | 0

    def recover(self) -> None:
        """See `MlxHost.recover`."""
        super().recover()
        self._inputs.forget()
        with StepKernel.order:
            StepKernel.turn = None

    def _trace(self, phase: Phase, dims: Dims, moving: Packed, steady: Packed, tops: int) -> _Trace:
        """The step as a function of tokens, the packed arrays, the arena's token and a step kernel's turn."""
        self._keep_unpacked(phase, dims)

        def run(
            tokens: mx.array, moved: mx.array, stayed: mx.array, token: mx.array, *turn: mx.array
        ) -> tuple[mx.array, ...]:
            inputs = {"token_ids": tokens, ARENA_TOKEN: token} | moving.unpack(moved) | steady.unpack(stayed)
            if (kernel := self._step_kernel(dims)) is not None:
                self.launches.update(kernel.counts(dims))
                logits, token, *turns = kernel.run(self._fixed | inputs, self._layers, dims, *turn)
                if self._peers is not None:
                    own = of_shape(logits, (dims["rows"], kernel.width))
                    logits = self.launcher.gather_result(own, dims, tops)
                return logits, token, moved + 1, *turns
            logits, token = self.run(phase, dims, inputs, tops)
            if dims["rows"] == dims["seqs"] and any(dims["seqs"] in counts for counts in self._as_launches):
                self.launches[AS_LAUNCHES] += 1
            return logits, token, moved + 1

        return self._compiled(run)

    def run_launches(
        self, phase: Phase, launches: Sequence[Launch], dims: Dims, inputs: Arrays, tops: int = 0
    ) -> Arrays:
        """See `MlxHost.run_launches`; what is kept is not made again."""
        if self._peers is not None:
            self._peers.begin()
        return super().run_launches(phase, [la for la in launches if not self._kept.has(la)], dims, inputs, tops)

    def _keep_unpacked(self, phase: Phase, dims: Dims) -> None:
        """Unpacks and keeps the weights that the step needs unpacked, as far as there is memory to spare."""
        shapes = {buffer.name: buffer.shape for buffer in phase.buffers}
        self._kept.keep(
            [launch for launch in self.launcher.running(phase, dims) if self._reads_weights_alone(launch)],
            self.program.kernel,
            lambda name: shape_of(shapes[name], dims),
            lambda launches: self.run_launches(phase, launches, dims, {}),
        )
        self._fixed |= self._kept.arrays
        self.notes = (*self._first_notes, self._kept.note) if self._kept.note else self._first_notes

    def _reads_weights_alone(self, launch: Launch) -> bool:
        return launch.needs_library and self.weights.keys() >= set(launch.inputs)

    def _parts(self, phase: Phase, dims: Dims, tops: int, traced: bool) -> list[_Trace]:
        """The step in parts, each a function of all arrays that its launches and those of later parts read."""
        self._keep_unpacked(phase, dims)
        launches = [launch for launch in self.launcher.running(phase, dims) if not self._kept.has(launch)]
        cuts = [*range(0, len(launches), _PART), len(launches)]
        parts, needed = [], {*phase.outputs, *sent_by(phase)}
        for start, end in reversed(list(pairwise(cuts))):
            parts.append(self._part(phase, launches[start:end], dims, tops, frozenset(needed), traced))
            needed.update(*(launch.inputs for launch in launches[start:end]))
        return parts[::-1]

    def _part(
        self, phase: Phase, launches: Sequence[Launch], dims: Dims, tops: int, needed: frozenset[str], traced: bool
    ) -> _Trace:
        passed = [name for name in needed if name not in self._fixed]

        def run(arrays: Arrays) -> Arrays:
            outputs = self.run_launches(phase, launches, dims, arrays, tops)
            return {name: outputs[name] for name in passed if name in outputs}

        return self._compiled(run) if traced else _Trace(run, Counter())

    def _compiled(self, run: Callable[..., Any]) -> _Trace:
        """A function that launches kernels, compiled by MLX; its launches are counted when it is traced."""
        collectives = self.launcher.collectives
        if collectives is not None and not collectives.traceable:
            return _Trace(run, Counter())
        launches: Counter[str] = Counter()

        def counted(*arrays: Any) -> Any:
            own, self.launches = self.launches, launches
            launches.clear()
            try:
                return run(*arrays)
            finally:
                self.launches = own

        compiled: Any = mx.compile(counted)
        return _Trace(compiled, launches)


class _Recent(OrderedDict[_Key, _Traces]):
    """The traces of the sizes of steps that were used last."""

    def keep(self, key: _Key, traces: _Traces) -> None:
        """Keeps traces, and drops those that have not been used for the longest time."""
        self[key] = traces
        self.move_to_end(key)
        if len(self) > _MOST_TRACES:
            self.popitem(last=False)


def _notes_of(failures: Sequence[tuple[range, NoStepKernelError]]) -> Iterator[str]:
    """Messages that say which steps should be one kernel but are single launches, and why."""
    for why in dict.fromkeys(str(error) for _, error in failures):
        counts = [str(count) for counts, error in failures if str(error) == why for count in counts]
        several = (
            f"{', '.join(counts[:-1])} and {counts[-1]} sequences" if len(counts) > 1 else f"{counts[0]} sequence(s)"
        )
        yield f"decode steps of {several} are launches and not one kernel: {why}"


def launcher(name: str, cubin: bytes) -> MlxKernel:
    """Launches a kernel through MLX, which never copies inputs."""
    return functools.partial(
        mx.fast.precompiled_cuda_kernel, name=name, compiled_source=cubin, scalars=[], ensure_row_contiguous=False
    )
