"""The plan: what a host executes, as data.

A plan has two steps, `decode` (one new token a sequence) and `prefill` (anything else, mixed batches included). Each is
a straight list of launches; a launch with a condition runs only when it holds, and launches that make the same buffer
exclude each other. Everything is a number except the dims of a batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.cpu import CpuProgram
from mlxr.compiler.schedule.geometry import padded
from mlxr.compiler.schedule.geometry_rules import ChosenGeometry
from mlxr.compiler.schedule.record import Buffer, MemoryPlan, Record
from mlxr.compiler.schedule.target_types import Target, TargetTypes
from mlxr.compiler.schedule.weights import WeightPlan

BatchDim = Literal["tokens", "seqs", "rows", "tiles", "copies", "context"]


class Extent(Record):
    """Threadgroups along one axis: `times` x ceil(dim / per), or `times` alone."""

    times: int = 1
    dim: BatchDim | None = None
    per: int = 1

    def value(self, dims: Mapping[BatchDim, int]) -> int:
        """The number of threadgroups for a batch."""
        return self.times if self.dim is None else self.times * -(-dims[self.dim] // self.per)

    def __str__(self) -> str:
        if self.dim is None:
            return str(self.times)
        text = self.dim if self.per == 1 else f"ceil({self.dim}/{self.per})"
        return text if self.times == 1 else f"{self.times}*{text}"


class Condition(Record):
    """Holds when minimum <= dim <= maximum, and `also` does."""

    dim: BatchDim
    minimum: int = 0
    maximum: int | None = None
    also: "Condition | None" = None

    def holds(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether it holds for a batch."""
        here = self.minimum <= dims[self.dim] and (self.maximum is None or dims[self.dim] <= self.maximum)
        return here and (self.also is None or self.also.holds(dims))

    @property
    def parts(self) -> "tuple[Condition, ...]":
        """It, and what must hold also."""
        return (self, *(self.also.parts if self.also else ()))

    def __str__(self) -> str:
        return " and ".join(map(Condition._range, self.parts))

    def _range(self) -> str:
        if self.maximum is None:
            return f"{self.dim} >= {self.minimum}"
        if self.maximum == self.minimum:
            return f"{self.dim} == {self.minimum}"
        return f"{self.dim} <= {self.maximum}" if not self.minimum else f"{self.minimum}..{self.maximum} {self.dim}"


class KernelPort(Record):
    """A buffer parameter of a kernel."""

    name: str
    dtype: DType


class KernelEntry(Record):
    """A generated kernel: its file holds the complete Metal text.

    Attributes:
        chosen: its launch geometry; None of kernels that have none to choose.
    """

    name: str
    label: str
    file: str
    inputs: tuple[KernelPort, ...]
    outputs: tuple[KernelPort, ...]
    threads: int
    threadgroup_bytes: int
    chosen: ChosenGeometry | None = None


class Launch(Record):
    """One launch of a kernel.

    Attributes:
        op: the graph's op that it computes, wholly or in part; of one that feeds several ops the first of them.
        inputs, outputs: buffers for the kernel's ports, in order.
        when: runs only if it holds.
        mlx: when all of these hold, hosts whose kernels MLX launches run the op as MLX ops instead (large matmuls and
            attention of long chunks, where MLX's matrix kernels win); empty: always the kernel.
        mlx_inputs: what these ops take, beyond the graph op's inputs or instead of them, by port.
        feeds_mlx: makes such inputs, and runs only when `mlx` holds.
    """

    op: str
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    threadgroups: tuple[Extent, Extent, Extent]
    when: Condition | None = None
    mlx: tuple[Condition, ...] = ()
    mlx_inputs: tuple[tuple[str, str], ...] = ()
    feeds_mlx: bool = False

    def runs_as_mlx(self, dims: Mapping[BatchDim, int]) -> bool:
        """Whether MLX ops take its place, on hosts that have them; of one that feeds them, whether it runs."""
        return bool(self.mlx) and all(condition.holds(dims) for condition in self.mlx)


class Step(Record):
    """One of the two programs of an artifact.

    Attributes:
        chosen: of decode, whether and with which geometry host cuda runs one token of one sequence as a single kernel.
    """

    name: Literal["decode", "prefill"]
    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    activation_bytes: int
    outputs: tuple[str, ...]
    chosen: ChosenGeometry | None = None

    def __repr__(self) -> str:
        return f"<Step {self.name}: {len(self.launches)} launches>"

    __str__ = __repr__


class Plan(Record):
    """Everything a host and the runtime need besides the weights themselves.

    `steps`, `copy_blocks` and `kernels` are the metal target's, and empty without it; `cpu` is the cpu target's.
    `types` are those of each target. `arena` has the type of the first target's cache; `arena_of` gives each one's.
    `chunk` says how steps of prompts are filled up, and by what `max_tokens` was chosen where that was open.
    `arena_chosen` is by what the arena is contiguous or paged, where that was open.
    `memory` is the metal target's where there is one; the hosts of each target hold the weights as theirs says.
    Contexts of up to `whole_context` tokens are attended to in one launch in decode; all are in batches of as many
    sequences as the geometry calls many.
    """

    targets: tuple[Target, ...]
    types: tuple[TargetTypes, ...]
    chunk: ChosenGeometry
    steps: tuple[Step, ...]
    copy_blocks: Launch | None
    kernels: tuple[KernelEntry, ...]
    cpu: CpuProgram | None
    weights: tuple[WeightPlan, ...]
    ignored_tensors: tuple[str, ...]
    arena: ArenaGeometry
    arena_chosen: ChosenGeometry | None = None
    memory: MemoryPlan
    vocab_size: int
    num_layers: int
    query_tile: int
    whole_context: int
    max_tokens: int
    max_rows: int

    def __repr__(self) -> str:
        return f"<Plan for {', '.join(self.targets)}: {len(self.kernels)} kernels, {len(self.weights)} weights>"

    __str__ = __repr__

    @property
    def largest_memory(self) -> MemoryPlan:
        """What the target needs that needs most."""
        memories = (self.memory, self.cpu.memory) if self.cpu else (self.memory,)
        return max(memories, key=lambda memory: memory.total_bytes)

    def types_of(self, target: Target) -> TargetTypes:
        """The types of a target, of those that the plan has."""
        return next(types for types in self.types if types.target == target)

    def arena_of(self, target: Target) -> ArenaGeometry:
        """The arena as a target's code reads it."""
        return replace(self.arena, dtype=self.types_of(target).cache)

    def padded_tokens(self, tokens: int) -> int:
        """How many tokens a step of prompts has once it is filled up; see `Geometry.chunk_padding`."""
        return padded(tokens, self.chunk.sizes["chunk_padding"], self.max_tokens)

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Every number of tokens that such a step may have, ascending; empty where nothing is filled up."""
        if not self.chunk.sizes["chunk_padding"]:
            return ()
        return tuple(dict.fromkeys(map(self.padded_tokens, range(1, self.max_tokens + 1))))

    def step(self, name: str) -> Step:
        """The step of that name."""
        return next(step for step in self.steps if step.name == name)

    def kernel(self, name: str) -> KernelEntry:
        """The kernel of that name."""
        return next(kernel for kernel in self.kernels if kernel.name == name)
