"""The interface of a host, which executes batches of one artifact with one set of weights on one arena."""

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, count, pairwise
from typing import Any, ClassVar, NamedTuple, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Adapters, Artifact, Plan, debug_level
from mlxr.compiler.errors import HostError, RankLostError
from mlxr.runtime.arrays.likeliest import likeliest
from mlxr.runtime.arrays.mlx_arrays import start_computing
from mlxr.runtime.cache import arena_blocks
from mlxr.runtime.cache.arena import Arena
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.hosts.batch import Batch, Int32Array, Requests
from mlxr.runtime.hosts.exchange import Exchange
from mlxr.runtime.hosts.handover import ExpertsBeside
from mlxr.runtime.hosts.likeliest import Asked, Likeliest, LikeliestOfSteps, MoreSteps
from mlxr.runtime.memory.fitting_arena import Footprint
from mlxr.runtime.memory.free_memory import FreeMemory, MachineMemory
from mlxr.runtime.weights.fill_slot import fill_slot
from mlxr.runtime.weights.load_weights import MakeArray, in_place, load_buffers, load_weights
from mlxr.runtime.weights.weight_file import WeightFile

Logits = mx.array | npt.NDArray[np.float32]
"""Logits that a step returns, for `Host.read`: [rows, vocab] f32."""
Progress = Callable[[str, int, int], None]
"""Called with the name of what is being prepared (`weights`, `kernels`, `steps`), how much is done, and the total."""


class Chained(NamedTuple):
    """What steps made that take their tokens from each other; see `Host.chain`."""

    tokens: list[list[int]]
    """Of each step the likeliest token of each row, of equal ones the first."""
    later: float
    """The seconds that the steps after the first took; where the host pipelines, their share of all."""


class Host(ABC):
    """Executes batches and writes K and V to the arena in place. It has no state of sequences; the pager has that.

    Attributes:
        launches: how often each kernel (or, on `reference`, each kind of op) was launched, counted at the launch.
        notes: what this machine does otherwise than the plan asks, as messages for people.
        threads: how many threads run a step, the caller's among them; None on hosts whose number nobody chooses.
    """

    name: str
    target: ClassVar[str | None] = None
    """The target whose program it runs; None: it interprets the graph."""
    pipelines: bool = False
    """Whether steps are lazy MLX graphs, so that a step can start before the tokens of the previous one are known."""
    most_steps: int = 1
    """Of how many decode steps a batch may be, where it pipelines and they are short; see `decode`."""
    most_prepared: int = 0
    """Of how many steps `go_on` may be of which it gives the device only the first ones; 0: it gives all."""
    builds_late: bool = False
    """Whether the first step of each kind builds something. `warm_up` then runs such steps at load."""
    gathers_tops: bool = False
    """Whether it runs a part of a model, and exchanges only the greatest logits where `Batch.tops` allows it."""
    packs_weights: ClassVar[bool] = False
    """Whether it packs quantised weights, which it can then map from a file."""
    has_own_memory: ClassVar[bool] = False
    """Whether weights and arena are in memory of a GPU, and not in the machine's."""
    clock: Callable[[], float] = staticmethod(time.perf_counter)
    """Seconds by which steps and guesses are compared, in the thread that runs them."""
    arena_type: ClassVar[type[Arena]] = Arena
    """The arena that its steps read and write."""

    def __init__(self, artifact: Artifact, arena: Arena) -> None:
        """Stores what all hosts need.

        Args:
            artifact: the compiled model.
            arena: the KV arena that every step reads and writes.
        """
        self.artifact = artifact
        self.plan = artifact.plan
        self.program = self.plan.first if self.target is None else self.plan.program(self.target)
        self.arena = arena
        self.launches: Counter[str] = Counter()
        self.notes: tuple[str, ...] = ()
        self.threads: int | None = None
        self._tell = debug_level() >= 4

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
        """Loads what the host needs from a weight file, and prepares to execute; for every host that users name.

        Args:
            artifact: the compiled model.
            file: its weights.
            arena: the KV arena that every step reads and writes.
            threads: how many threads to run, on hosts that take a number; None: one for each usable core.
            progress: called as loading proceeds.
            lender: a host whose weights it uses where they are the same; None: it loads all.
            resident: most bytes of packed weights that are in memory, where the host `packs_weights`; the others are
                mapped from a file of the cache. None: all are in memory.

        Raises:
            WeightsError: the weights are corrupt or of another model.
            HostError: this machine cannot run the host, or a kernel cannot be built. (MLX builds Metal kernels at
                their first launch: there `read` raises it.)
        """
        raise NotImplementedError(f"{cls.__name__} is not made of a file")

    @classmethod
    def footprint(
        cls, artifact: Artifact, file: WeightFile, threads: int | None = None, *, resident: int | None = None
    ) -> Footprint:
        """What the model takes on this host besides its arena; reads nothing but the file's headers.

        Args:
            artifact: the compiled model.
            file: its weights.
            threads: as in `from_file`.
            resident: as in `from_file`.

        Raises:
            WeightsError: the weights are of another model.
        """
        memory = (artifact.plan.first if cls.target is None else artifact.plan.program(cls.target)).memory
        return Footprint(memory.weights_bytes, 0, memory.activation_bytes + cls.recorded_bytes(artifact.plan))

    @classmethod
    def recorded_bytes(cls, plan: Plan) -> int:
        """Memory that steps have to themselves which are recorded and started again; 0: none are."""
        return 0

    @classmethod
    def has_packed(cls, artifact: Artifact, file: WeightFile) -> bool:
        """Whether the file of packed weights is in the cache, so that `from_file` need not pack any.

        Args:
            artifact: the compiled model.
            file: its weights.

        Raises:
            WeightsError: the weights cannot be read.
        """
        return False

    @classmethod
    def free_memory(cls) -> FreeMemory:
        """What is free now of the memory that weights and arena will be in."""
        return MachineMemory().read()

    def batch_of(self, requests: Requests, pager: Pager, tokens: mx.array | None = None, steps: int = 1) -> Batch:
        """See `Batch.build`: a batch for the next step of this host."""
        return Batch.build(requests, pager, self.plan.query_tile, tokens, steps)

    @abstractmethod
    def step(self, batch: Batch) -> Logits:
        """Runs one batch, whose token ids may be an `mx.array` that is still being computed.

        Returns:
            Logits of the batch's logit rows for `read`, [rows, vocab] f32; lazy on hosts that pipeline.

        Raises:
            KernelFault: a kernel did something illegal (sim).
        """

    @contextmanager
    def only_preparing(self) -> Iterator[None]:
        """Where steps of prompts need not run, if the host can prepare them by themselves: only that they can."""
        yield

    def decode(self, batch: Batch) -> Callable[[npt.NDArray[np.int32] | mx.array], Logits]:
        """Prepares a batch of decode steps (`Batch.slots_of_steps`).

        Returns:
            What runs the first of them, then the next, and so on, each time given the step's token ids; see `step`.
        """
        indices = count()
        return lambda tokens: self.step(batch.step(next(indices), tokens))

    def likeliest_of(self, logits: Logits) -> Likeliest | None:
        """Starts to choose the likeliest token of each row of the last step's logits; None: ops on them are as good."""
        return None

    def likeliest_of_steps(self, batch: Batch, asked: Asked | None = None) -> LikeliestOfSteps | None:
        """Starts a batch of decode steps, each of which takes the tokens that the one before has chosen.

        `asked` says how their rows draw their tokens; None: all take the likeliest. The result is None if nothing has
        been started, since the host has no shorter way to do that than `decode`.
        """
        return None

    def go_on(self, after: LikeliestOfSteps, more: MoreSteps) -> LikeliestOfSteps | None:
        """Starts steps after others with the same sequences, in less time than a batch takes that is built.

        None: nothing has been started, and no sequence has grown: something else was given to the arena since, or the
        host does not know all that these steps need.
        """
        return None

    def run_on(self, steps: LikeliestOfSteps, count: int, until: int, called: Callable[[], bool] | None) -> int | None:
        """Gives the device more and more of steps that `go_on` has prepared, before it has nothing to do.

        Args:
            steps: they.
            count: how many it is given at once.
            until: returns once so many have ended, or they are ending.
            called: whether somebody wants this to return, which is looked at each time that some have ended; None:
                nobody can, so the device is given all at once that is to end, and then so many.

        Returns:
            How many have ended; None: something else was given to the device since, so that no more may follow.

        Raises:
            HostError: a step failed.
        """
        return None

    def use(self, exchange: Exchange) -> None:
        """Takes what steps of a part of a model exchange rows with; before the first step.

        All processes call it at the same time. Hosts that do not have it run whole models only.
        """
        raise NotImplementedError(f"{type(self).__name__} runs no part of a model")

    def use_experts(self, experts: ExpertsBeside) -> None:
        """Takes what has some layers' experts on the CPU, if the plan leaves them to it; before the first step.

        Raises:
            HostError: this host computes all experts itself.
        """
        raise HostError(f"host {self.name} leaves no experts to the CPU: set experts_on_cpu to 0")

    def shared_ids(self, ids: mx.array | None, count: int) -> mx.array:
        """Gives all processes of one stage token ids that the first may still be computing; for hosts that pipeline.

        All call it, in the same order as `step`.

        Args:
            ids: at the first one, [count], int32; None at the others.
            count: how many.

        Returns:
            The ids, [count], int32, lazy.

        Raises:
            HostError: this host does not do that.
        """
        raise HostError(f"host {self.name} takes no token ids that rank 0 is computing")

    def start(self, *results: mx.array) -> None:
        """Starts computing arrays that depend on a step's logits, without waiting; for hosts that pipeline.

        Raises:
            HostError: it cannot be started.
        """
        start_computing(results)

    def read(self, result: Logits) -> npt.NDArray[Any]:
        """Waits for a step's logits, or for an array that depends on them.

        Raises:
            HostError: the step failed on the device.
        """
        return np.array(result)

    def chain(self, batches: Sequence[Batch], width: int, ids: Int32Array | None = None) -> Chained:
        """Runs steps in turn, each with the likeliest tokens of the one before, and waits for the last one.

        Args:
            batches: at least one. Those after the first have one token of each sequence, in place of whose ids come the
                tokens of the first rows of the step before.
            width: how many columns of the logits count.
            ids: of each of them the token; None: it is the column.

        Raises:
            HostError: a step cannot be launched, or failed.
        """
        begun = [time.perf_counter()]
        found: list[Any] = []
        for batch in batches:
            ready = batch if not found else replace(batch, tokens=found[-1][: batch.num_tokens])
            logits = self.step(ready)
            found.append(likeliest(logits if self.pipelines else self.read(logits), width, ids))
            if self.pipelines:
                self.start(found[-1], self.arena.token)
            begun.append(time.perf_counter())
        tokens = self.read(mx.concatenate(found)) if self.pipelines else np.concatenate(found)
        seconds = time.perf_counter() - begun[0]
        later = seconds * (1 - 1 / len(batches)) if self.pipelines else begun[-1] - begun[1]
        ends = accumulate((batch.num_rows for batch in batches), initial=0)
        return Chained([tokens[begin:end].tolist() for begin, end in pairwise(ends)], later)

    def copy_to_read(self, result: mx.array) -> mx.array:
        """The array to `read` in place of one that a later step takes: a lazy copy where reading moves an array."""
        return result

    def to_read_together(self, results: Sequence[mx.array]) -> list[mx.array]:
        """The arrays to `read` in place of flat ones of 32-bit numbers: int32, as few as is best, in their order.

        A later step may take those that are given.
        """
        return [result.view(mx.int32) for result in results]

    def send(self, numbers: npt.NDArray[Any]) -> mx.array:
        """Numbers of 32 bits as an array that steps read."""
        return mx.array(numbers)

    def when_lost(self, listener: Callable[[RankLostError], object]) -> None:  # noqa: B027 (most hosts are whole)
        """Has a function called, in any thread, when a rank of the host was lost: a step that runs may never end."""

    def close(self) -> None:  # noqa: B027 (most hosts own nothing but arrays, which are freed with them)
        """Frees what is not freed with the host itself; the host cannot run afterwards."""

    def count(self, name: str, detail: object = "", times: int = 1) -> None:
        """Counts launches; with MLXR_DEBUG=4, prints them to standard error."""
        self.launches[name] += times
        self.tell(name, detail)

    def tell(self, name: str, detail: object) -> None:
        """Prints a launch to standard error, with MLXR_DEBUG=4."""
        if self._tell:
            print(f"{self.name}: {name} {detail}", file=sys.stderr)

    @cached_property
    def has_adapters(self) -> bool:
        """Whether the program has places for adapters."""
        return self.artifact.spec.adapters is not None

    @cached_property
    def has_types(self) -> bool:
        """Whether the program reads the types of tokens."""
        return self.artifact.spec.model.token_types is not None

    def completed(self, batch: Batch) -> Batch:
        """A batch with all that the program reads, also where no token has a type or uses an adapter."""
        batch = batch.with_types if self.has_types else batch
        return batch.with_adapters if self.has_adapters else batch

    @property
    def adapters(self) -> Adapters:
        """How many places it has for adapters, and of which rank."""
        adapters = self.artifact.spec.adapters
        assert adapters is not None, "the program has places for adapters"
        return adapters

    def write_adapter(self, slot: int, matrices: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Puts an adapter into a slot, between steps; no sequence uses the slot.

        Args:
            slot: its number.
            matrices: by name of the weight's part: [rank, columns] of the first matrix, [rank, rows] of the second one.
                Of parts that are not named, zeros.

        Raises:
            HostError: this host has no adapters.
        """
        raise HostError(f"host {self.name} has no adapters")

    @abstractmethod
    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        """Copies whole blocks, (source, target), in every store and layer of a group, before the next step."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the first group, in all stores and layers."""
        return arena_blocks.block_bytes(self.arena.geometry)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of states, in all stores and layers; 0: the model keeps none."""
        return arena_blocks.block_bytes(self.arena.geometry, None)

    @cached_property
    def block_bytes_of_groups(self) -> tuple[int, ...]:
        """By group the bytes of one block."""
        geometry = self.arena.geometry
        others = (arena_blocks.block_bytes(geometry, group) for group in range(1, len(geometry.groups)))
        return (self.block_bytes, *others)

    def read_blocks(self, block_ids: Sequence[int], group: int | None = 0) -> npt.NDArray[np.uint8]:
        """A copy of whole blocks of the arena, as all launches so far leave them; waits for these.

        Args:
            block_ids: which, at least one; an id may come twice.
            group: of the blocks; None: they are slots of states.

        Returns:
            [blocks, block_bytes]: K of each block, all layers, then V. It is the same for both layouts of the arena.

        Raises:
            HostError: a launch failed on the device.
        """
        mx.eval(self.arena.token)
        return arena_blocks.read_blocks(self.arena, block_ids, group)

    def write_blocks(self, block_ids: Sequence[int], data: npt.NDArray[np.uint8], group: int | None = 0) -> None:
        """Writes whole blocks of the arena in place, after all launches so far and before the next one.

        Args:
            block_ids: which, at least one; each once.
            data: [blocks, block_bytes], as `read_blocks` returned it.
            group: as of `read_blocks`.

        Raises:
            HostError: a launch failed on the device, or cannot be made.
        """
        mx.eval(self.arena.token)
        arena_blocks.write_blocks(self.arena, block_ids, data, group)


class ArrayHost(Host):
    """A host whose weights are MLX arrays, by the names of `artifact.plan.weights`.

    Attributes:
        reads_buffers: whether its weights are buffers as kernels read them (see `WeightPlan.layout`), not numbers.
    """

    reads_buffers: ClassVar[bool] = True

    def __init__(self, artifact: Artifact, weights: Mapping[str, mx.array], arena: Arena) -> None:
        """Prepares to execute.

        Args:
            artifact: the compiled model.
            weights: packed weights by the names of `artifact.plan.weights`.
            arena: the KV arena that every step reads and writes.

        Raises:
            HostError: this machine cannot run the host, or a kernel cannot be built.
        """
        super().__init__(artifact, arena)
        self.weights = weights

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
        """See `Host.from_file`. These hosts ignore `threads` and `resident`."""
        return cls(artifact, cls.read_arrays(artifact, file, progress, lender), arena)

    @classmethod
    def read_arrays(
        cls, artifact: Artifact, file: WeightFile, progress: Progress | None = None, lender: Self | None = None
    ) -> dict[str, mx.array]:
        """The weights of `artifact.plan.weights` in the form of this host; see `load_buffers` and `load_weights`.

        Raises:
            WeightsError: the weights are corrupt or of another model.
        """
        plan, load = artifact.plan, load_buffers if cls.reads_buffers else load_weights

        def tell(done: int, total: int) -> None:
            assert progress is not None, "only called where there is one"
            progress("weights", done, total)

        same = () if lender is None else [weight for weight in plan.weights if weight in lender.plan.weights]
        lent = {} if lender is None else {weight.name: lender.weights[weight.name] for weight in same}
        own = [weight for weight in plan.weights if weight.name not in lent]
        every = plan.all_weights or (plan.weights if lent else ())
        return lent | load(own, plan.ignored_tensors, file, tell if progress else None, cls.array_maker(), every)

    def write_adapter(self, slot: int, matrices: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """See `Host.write_adapter`: in place, so that whoever has the array's address reads the new one."""
        for weight in self.plan.weights:
            if weight.is_of_adapters:
                view = np.array(self.weights[weight.name], copy=False)
                fill_slot(view, weight.parts, slot, self.adapters.slots, matrices)

    @classmethod
    def array_maker(cls) -> MakeArray:
        """What makes weights where this host wants them."""
        return in_place
