"""The plan: what a host executes, as data.

A plan has two steps, `decode` (one new token a sequence) and `prefill` (anything else, mixed batches included). Each is
a straight list of launches; a launch with a condition runs only when it holds, and launches that make the same buffer
exclude each other. Everything is a number except the dims of a batch.
"""

from dataclasses import replace
from typing import Literal

from mlxr.compiler.artifact.c_program import CpuProgram
from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.launch import Launch
from mlxr.compiler.artifact.padding import padded
from mlxr.compiler.artifact.record import Buffer, MemoryPlan, Record
from mlxr.compiler.artifact.step_kernel_entry import StepKernelEntry, StepsAsLaunches
from mlxr.compiler.artifact.target_types import Target, TargetTypes
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.formats.arena import ArenaGeometry


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
    `step_kernels` are decode steps as one kernel each, for host cuda, where the geometry asks for them;
    `steps_as_launches` are those of them that cannot be one.
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
    step_kernels: tuple[StepKernelEntry, ...] = ()
    steps_as_launches: tuple[StepsAsLaunches, ...] = ()
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
        """How many tokens a step of prompts has once it is filled up; see `ChunkSizes.padding`."""
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
