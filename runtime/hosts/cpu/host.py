"""The `cpu` host: runs the artifact's C program, compiled for this CPU. One call runs a whole step.

The program's threads live as long as the host. Weights are mapped from their file, or packed into the program's layout:
in memory, or once, in a file of the cache. The arena's pages are taken as they are used; the program writes them in
place. A step is complete when `step` returns.
"""

import ctypes
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import PHASES, Artifact, CTensor
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.hosts.batch import Batch, Int32Array
from mlxr.runtime.hosts.binding import phase_of
from mlxr.runtime.hosts.cpu.build_ahead import take_library
from mlxr.runtime.hosts.cpu.c_batch import c_batch, next_c_batch
from mlxr.runtime.hosts.cpu.compile_units import Tick
from mlxr.runtime.hosts.cpu.library import CBatch, Library, OpenProgram
from mlxr.runtime.hosts.cpu.mapped_arena import MappedArena
from mlxr.runtime.hosts.cpu.memory import LogitsMemory, ask_for_large_pages
from mlxr.runtime.hosts.cpu.panel_file import PanelFile
from mlxr.runtime.hosts.cpu.parallel.batch_halves import batch_halves
from mlxr.runtime.hosts.cpu.parallel.overlap import fewest_tokens
from mlxr.runtime.hosts.cpu.parallel.program_exchange import ProgramExchange
from mlxr.runtime.hosts.cpu.placing import PlacedTensors
from mlxr.runtime.hosts.cpu.tensors import (
    NO_TENSORS,
    Lender,
    TensorReader,
    bytes_by_place,
    place_tensors,
    read_from,
)
from mlxr.runtime.hosts.cpu.timed_calls import TimedCalls, timed_calls
from mlxr.runtime.hosts.exchange import Exchange, Floats
from mlxr.runtime.hosts.host import Chained, Host, Logits, Progress
from mlxr.runtime.machine.threads import num_threads
from mlxr.runtime.memory.fitting_arena import Footprint
from mlxr.runtime.weights.check_tensors import check_tensors
from mlxr.runtime.weights.fill_slot import fill_slot
from mlxr.runtime.weights.fill_slot_bytes import fill_slot_bytes
from mlxr.runtime.weights.weight_file import WeightFile

_LOG = logging.getLogger(__name__)


class CpuHost(Host):
    """Runs the plan's C program.

    Several Python threads may call it; they take turns. After a fork, the child must load the model again.

    Attributes:
        mapped_bytes: bytes of weights that the program reads in place, from their file or the caller's arrays.
        own_bytes: bytes of weights in memory that the host allocated.
    """

    name = "cpu"
    target: ClassVar[str] = "cpu"
    arena_type: ClassVar[type[Arena]] = MappedArena
    packs_weights: ClassVar[bool] = True
    clock = staticmethod(time.thread_time)  # without the time in which other programs run

    def __init__(
        self,
        artifact: Artifact,
        read: TensorReader,
        arena: Arena,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        lender: Lender | None = None,
        file: WeightFile | None = None,
        resident: int | None = None,
    ) -> None:
        """Compiles the program, or takes it from the cache, loads the weights, and starts the threads.

        Args:
            artifact: the compiled model.
            read: finds the weights.
            arena: the KV arena that every step reads and writes.
            threads: how many threads; None: one for each core that this process may use.
            progress: called as loading proceeds.
            lender: has tensors in memory already: of those, none is read.
            file: what `read` reads; None: arrays, of which no packed ones are kept.
            resident: as in `from_file`.

        Raises:
            WeightsError: a quantised tensor has another format than the program reads, or a tensor cannot be read.
            HostError: there is no compiler, none can build the program, there is too little memory, or that many
                threads cannot run here.
            ArtifactError: the artifact has no target cpu.
        """
        super().__init__(artifact, arena)
        self.threads = count = num_threads(threads)
        planned = self.program.library
        assert planned is not None, "a program in C has a library"
        if progress is not None:
            progress("kernels", 0, 1)
        library = open_library(artifact, shows_progress=progress is not None)
        if (abi := library.abi()) != planned.abi:
            raise HostError(
                f"cpu: the library's interface is {abi:#x}, the plan's {planned.abi:#x}; compile the spec again"
            )
        if progress is not None:
            progress("kernels", 1, 1)
        lent = NO_TENSORS if lender is None else lender.lent()
        tell = progress and partial(progress, "weights")
        own = [tensor for tensor in planned.tensors if tensor not in lent]
        panels = None
        if file is not None and resident is not None:
            panels = PanelFile.of(artifact.spec.name, own, planned.packing, file)
        placed = place_tensors(planned.tensors, library, read, count, tell, lent, panels, resident or 0)
        placed.owners.append(lender)
        for note in placed.notes:
            _LOG.warning("note: %s", note)
        self.mapped_bytes, self.own_bytes = placed.mapped_bytes, placed.own_bytes
        self._placed: PlacedTensors = placed
        self._running = OpenProgram(library, placed.addresses, arena.addresses(), count, keep=(placed.owners, arena))
        self._names = [kernel.name for kernel in self.program.kernels]
        self._told = [0] * len(self._names)
        self._logits = LogitsMemory(self.plan.output_width)
        self._exchange: ProgramExchange | None = None
        self._overlaps_from = sys.maxsize
        if placed.panels is not None:
            if placed.mapped_bytes > self.free_memory().free_bytes - arena.geometry.size_bytes:
                self._running.read_ahead(on=True)
            else:
                ask_for_large_pages(placed.panels)

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
        """See `Host.from_file`. Tensors that the program reads in place stay mapped from the file."""
        plan = artifact.plan
        check_tensors(file, plan.weights, [re.compile(p) for p in plan.ignored_tensors], plan.all_weights)
        make = partial(cls, artifact, read_from(file), arena, threads=threads, progress=progress, lender=lender)
        return make(file=file, resident=resident)

    def lent(self) -> dict[CTensor, int]:
        """The addresses of its tensors, for another host of this machine."""
        planned = self.program.library
        assert planned is not None, "a program in C has a library"
        return dict(zip(planned.tensors, self._placed.addresses, strict=True))

    @classmethod
    def footprint(
        cls, artifact: Artifact, file: WeightFile, threads: int | None = None, *, resident: int | None = None
    ) -> Footprint:
        """See `Host.footprint`. Which tensors stay mapped from the file depends on the file."""
        plan, program = artifact.plan, artifact.plan.program(cls.target)
        assert program.library is not None, "a program in C has a library"
        check_tensors(file, plan.weights, [re.compile(p) for p in plan.ignored_tensors], plan.all_weights)
        own, mapped = bytes_by_place(program.library.tensors, read_from(file), resident)
        scratch = program.library.thread_bytes * (num_threads(threads) - 1)  # the plan counts one thread
        memory = program.memory
        return Footprint(own, mapped, memory.activation_bytes + memory.handover_bytes + scratch)

    @classmethod
    def has_packed(cls, artifact: Artifact, file: WeightFile) -> bool:
        """See `Host.has_packed`."""
        library = artifact.plan.program(cls.target).library
        assert library is not None, "a program in C has a library"
        panels = PanelFile.of(artifact.spec.name, library.tensors, library.packing, file)
        return panels is not None and panels.open() is not None

    def use(self, exchange: Exchange) -> None:
        """See `Host.use`."""
        self.clock = time.perf_counter  # it waits for others
        self._exchange = ProgramExchange(exchange, max(phase.activation_bytes for phase in self.program.phases))
        self.gathers_tops = True
        planned = self.program.library
        assert planned is not None, "a program in C has a library"
        links = self._exchange.links
        if planned.step_batches > 1 and links.sends_sums:

            def all_sum(x: Floats, out: Floats) -> None:
                self._running.all_sum(links.address, x, out)
                links.check()

            self._overlaps_from = fewest_tokens(all_sum, exchange, self.program)
        if memory := links.memory:
            self._running.lend_activations(memory)

    def step(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Runs one batch and waits for it; see `Host.step`.

        Raises:
            RequestError: the batch is larger than the plan allows.
            HostError: the host is closed, or this process was forked from the one that loaded it.
        """
        logits = self._logits.take(batch.num_rows)
        batch = batch.with_adapters if self.has_adapters else batch
        program = PHASES.index(phase_of(self.plan, batch))
        links = 0 if self._exchange is None else self._exchange.links.address
        parts = [batch]
        if program and batch.num_tokens >= self._overlaps_from:
            parts = list(batch_halves(batch) or parts)
        tokens = [np.asarray(part.tokens) for part in parts]
        structures: list[CBatch] = []
        for part, ids in zip(reversed(parts), reversed(tokens), strict=True):
            second = ctypes.addressof(structures[-1]) if structures else 0
            structures.append(c_batch(program, part, ids, logits, links, second))
        if self._exchange is None:
            self._running.step(structures[-1])
        else:
            self._exchange.run(partial(self._running.step, structures[-1]), batch.tops)
        if self._tell:
            self._count_launches()
        return logits

    def chain(self, batches: Sequence[Batch], width: int, ids: Int32Array | None = None) -> Chained:
        """See `Host.chain`. All steps are one call."""
        if self._exchange is not None:
            return super().chain(batches, width, ids)
        if self.has_adapters:
            batches = [batch.with_adapters for batch in batches]
        ends = list(accumulate((batch.num_rows for batch in batches), initial=0))
        found = np.empty(ends[-1], np.int32)
        given = [np.asarray(batches[0].tokens)]
        given += [found[end : end + batch.num_tokens] for end, batch in zip(ends, batches[1:], strict=False)]
        logits = self._logits.take(max(batch.num_rows for batch in batches))
        structures: list[CBatch] = []
        for step, (batch, tokens) in enumerate(zip(batches, given, strict=True)):
            structure = next_c_batch(structures[-1], batches[step - 1], batch, tokens) if step else None
            if structure is None:
                structure = c_batch(PHASES.index(phase_of(self.plan, batch)), batch, tokens, logits, 0, 0)
            structures.append(structure)
        later = self._running.chain(structures, width, ids, found)
        if self._tell:
            self._count_launches()
        return Chained([found[begin:end].tolist() for begin, end in pairwise(ends)], later)

    def serve(self, links: int) -> int:
        """Runs steps of a program that has the experts of a card; see `OpenProgram.serve`."""
        return self._running.serve(links)

    def read(self, logits: Logits) -> npt.NDArray[np.float32]:
        """A step's logits, without a copy."""
        return np.asarray(logits)

    def time_calls(self) -> dict[str, TimedCalls]:
        """Measures each call of a program that is compiled with a clock; see `timed_calls`. Steps may run meanwhile.

        Raises:
            HostError: the model is one of several ranks, or the program cannot be built.
        """
        if self.plan.is_part:
            raise HostError("the calls of one of several ranks cannot be timed alone: ranks wait for each other")
        library = open_library(self.artifact, shows_progress=False, has_clock=True)
        return timed_calls(self.plan, library, self._placed, self.arena.geometry, num_threads(self.threads))

    def write_adapter(self, slot: int, matrices: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """See `Host.write_adapter`; no step runs meanwhile."""
        planned = self.program.library
        assert planned is not None, "a program in C has a library"
        for weight in planned.tensors:
            if (own := self._placed.adapters.get(weight.name)) is None:
                continue
            if weight.format.is_quantised:
                fill_slot_bytes(own, weight.parts, slot, self.adapters, matrices)
            else:
                fill_slot(own, weight.parts, slot, self.adapters.slots, matrices, in_panels=True)

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Copies all pairs, in order, in one call."""
        self._running.copy_blocks(group, np.array(copies, dtype=np.int32).reshape(-1, 2))
        if self._tell:
            self._count_launches()

    def close(self) -> None:
        """Ends the threads and frees the weights; the host cannot run afterwards."""
        self._count_launches()
        self._running.close()

    @property
    def launches(self) -> Counter[str]:
        """See `Host`. The program counts; its numbers are fetched when they are asked for, not in each step."""
        self._count_launches()
        return self._launches

    @launches.setter
    def launches(self, counts: Counter[str]) -> None:
        self._launches = counts

    def _count_launches(self) -> None:
        """Adds the launches that the program has counted since the last call."""
        if (counts := self._running.launches(len(self._names))) is None:
            return
        for name, now, before in zip(self._names, counts, self._told, strict=True):
            if now != before:
                self._launches[name] += now - before
                self.tell(name, f"x {now - before}")
        self._told = counts


def open_library(artifact: Artifact, *, shows_progress: bool, has_clock: bool = False) -> Library:
    """The library of an artifact's program, from the cache or compiled now; `has_clock`: it times its calls.

    Raises:
        HostError: there is no compiler, or none can build the program.
        ArtifactError: the artifact has no target cpu.
    """
    with _CompilingLine(artifact.spec.name, shown=shows_progress) as line:
        text = artifact.source(CpuHost.target)
        if has_clock:
            text = text.replace("\n", "\n#define MLXR_CLOCK\n", 1)
        return Library(take_library(text, artifact.spec.name, line))


class _CompilingLine:
    """A line on standard error, if that is a terminal, that says how long the program has been compiling."""

    def __init__(self, name: str, *, shown: bool) -> None:
        self._name = name
        self._shown = shown and sys.stderr is not None and sys.stderr.isatty()
        self._used = False

    def __call__(self, compiler: str, seconds: float) -> None:
        if self._shown:
            text = f"compiling {self._name} for this CPU with {compiler}: {seconds:.0f} s"
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._used = True

    def __enter__(self) -> Tick:
        return self

    def __exit__(self, *error: object) -> None:
        if self._used:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
