"""The program that one target executes: kernels, and the launches of both phases, as data.

A program has two phases: `decode` (one new token for each sequence) and `prefill` (anything else, mixed batches
included). Each is a straight list of launches. A launch with a condition runs only if the condition holds, and launches
that write the same buffer exclude each other. All sizes are numbers, except where they depend on the dims of a batch.
"""

import difflib
from typing import Literal

from mlxr.compiler.artifact.c_library import CLibrary
from mlxr.compiler.artifact.kernel_entry import ChosenGeometry, KernelEntry
from mlxr.compiler.artifact.launch import Launch
from mlxr.compiler.artifact.library_call import WeightCast
from mlxr.compiler.artifact.step_kernel_entry import StepKernelEntry, StepsAsLaunches
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.spec.record import Record

PhaseName = Literal["decode", "prefill"]
"""`decode`: one new token for each sequence; `prefill`: prompts, chunks of prompts, and batches that mix both."""
PHASES: tuple[PhaseName, ...] = ("decode", "prefill")


class Buffer(Record):
    """A buffer between launches of a phase; `offset_bytes` is its place in the phase's activation memory."""

    name: str
    shape: tuple[int | str, ...]
    dtype: DType
    offset_bytes: int
    size_bytes: int


class MemoryPlan(Record):
    """The bytes that a program needs, known before anything is loaded. Activations are those of the larger phase.

    Attributes:
        handover_bytes: of a program that has a card's experts: the memory in which they give each other rows.
    """

    weights_bytes: int
    arena_bytes: int
    activation_bytes: int
    budget_bytes: int | None
    handover_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all."""
        return self.weights_bytes + self.arena_bytes + self.activation_bytes + self.handover_bytes


class TargetTypes(Record):
    """The types of one target.

    Attributes:
        target: its name: `metal` (hosts metal, cuda and sim), `cpu`, ...
        activations: the type of buffers between kernels; sums are in f32.
        cache: the type of cached keys and values.
        activations_because, cache_because: the reasons, for people.
    """

    target: str
    activations: DType
    cache: DType
    activations_because: str
    cache_because: str

    def __str__(self) -> str:
        return f"activations {self.activations} ({self.activations_because}), cache {self.cache} ({self.cache_because})"


class Phase(Record):
    """The launches of one kind of step.

    Attributes:
        launches: its launches, in order.
        buffers: the buffers between launches, with their places in the phase's activation memory.
        activation_bytes: size of that memory.
        outputs: the buffers that the phase returns: logits and, if launches bind tokens, the arena's last token.
        chosen: for decode, whether and with which geometry host cuda runs a step as a single kernel.
    """

    name: PhaseName
    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    activation_bytes: int
    outputs: tuple[str, ...]
    chosen: ChosenGeometry | None = None

    def __repr__(self) -> str:
        return f"<Phase {self.name}: {len(self.launches)} launches>"

    __str__ = __repr__


class Program(Record):
    """Everything that the hosts of one target execute.

    Attributes:
        types: the types of its activations and cache.
        phases: decode and prefill.
        kernels: every kernel, once; those of the phases come first.
        copy_blocks: copy blocks of the arena before a step that writes into shared blocks; on target metal, also
            blocks into the arena that are restored. On target metal one for each group of layers, on target cpu one for
            all; none where the runtime needs no kernel for either.
        arena: the arena as its kernels read it.
        memory: the memory that it needs; scratch memory is counted for one thread.
        step_kernels: decode steps as one kernel each, for host cuda, if the geometry asks for them.
        steps_as_launches: decode steps that the geometry asks for as one kernel, but that cannot be one.
        casts: weights in other types, for library calls.
        library: what else the runtime needs to call a C program; None for other programs.
        batch_invariant: whether a token's logits, K and V have the same bits whatever else is in its batch, and however
            its sequence is cut into steps.
    """

    types: TargetTypes
    phases: tuple[Phase, ...]
    kernels: tuple[KernelEntry, ...]
    copy_blocks: tuple[Launch, ...]
    arena: ArenaGeometry
    memory: MemoryPlan
    step_kernels: tuple[StepKernelEntry, ...] = ()
    steps_as_launches: tuple[StepsAsLaunches, ...] = ()
    casts: tuple[WeightCast, ...] = ()
    library: CLibrary | None = None
    batch_invariant: bool = False

    def __repr__(self) -> str:
        return f"<Program for {self.types.target}: {len(self.kernels)} kernels>"

    __str__ = __repr__

    @property
    def files(self) -> tuple[str, ...]:
        """The source files of its kernels, each once."""
        files = [kernel.file for kernel in self.kernels] + [kernel.file for kernel in self.step_kernels]
        return tuple(dict.fromkeys(files))

    def copy_blocks_of(self, group: int | None) -> Launch | None:
        """The launch that copies blocks of a group, on target metal; None: the group has no layers.

        Without a group, that which copies slots of states.
        """
        names = {allocation.name for allocation in self.arena.of_group(group)}
        return next((launch for launch in self.copy_blocks if names.intersection(launch.inputs)), None)

    def phase(self, name: PhaseName) -> Phase:
        """The phase of that name."""
        return next(phase for phase in self.phases if phase.name == name)

    def kernel(self, name: str) -> KernelEntry:
        """The kernel of that full name."""
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def find_kernel(self, name: str) -> KernelEntry:
        """The kernel that a user names: by its full name, or by its label if only one kernel has that label.

        Raises:
            ArtifactError: there is no such kernel, or several.
        """
        matches = [kernel for kernel in self.kernels if name in (kernel.name, kernel.label)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(kernel.name for kernel in matches)
            raise ArtifactError(f"the artifact has several kernels named {name!r}; give one's full name: {names}")
        labels = list(dict.fromkeys(kernel.label for kernel in self.kernels))
        like = difflib.get_close_matches(name, [*labels, *(kernel.name for kernel in self.kernels)], 1)
        hint = f"; did you mean {like[0]!r}?" if like else "."
        raise ArtifactError(f"the artifact has no kernel named {name!r}{hint} It has {', '.join(labels)}")
