"""What one target executes: kernels, and the launches of both phases, as data.

A program has two phases, `decode` (one new token for each sequence) and `prefill` (anything else, mixed batches
included). Each is a straight list of launches. A launch with a condition runs only when it holds, and launches that
make the same buffer exclude each other. Everything is a number except the dims of a batch.
"""

import difflib

from mlxr.compiler.artifact.c_library import CLibrary
from mlxr.compiler.artifact.chosen_geometry import ChosenGeometry
from mlxr.compiler.artifact.kernel_entry import KernelEntry
from mlxr.compiler.artifact.launch import Launch
from mlxr.compiler.artifact.library_call import WeightCast
from mlxr.compiler.artifact.phase_name import PhaseName
from mlxr.compiler.artifact.record import Buffer, MemoryPlan
from mlxr.compiler.artifact.step_kernel_entry import StepKernelEntry, StepsAsLaunches
from mlxr.compiler.artifact.target_types import TargetTypes
from mlxr.compiler.errors import ArtifactError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.spec.record import Record


class Phase(Record):
    """The launches of one kind of step.

    Attributes:
        buffers: what passes between launches, and its places in the phase's activation memory.
        activation_bytes: size of that memory.
        outputs: what the phase returns: logits, and the last token of the arena where launches bind tokens.
        chosen: of decode, whether and with which geometry host cuda runs one token of one sequence as a single kernel.
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
        types: of its activations and cache.
        phases: decode and prefill.
        kernels: every kernel, once, those of the phases first.
        copy_blocks: copies blocks of the arena before a step that writes into shared ones; None where there is one
            sequence, which shares none.
        arena: the arena as its kernels read it.
        memory: what it needs; of threads, one is counted.
        step_kernels: decode steps as one kernel each, for host cuda, where the geometry asks for them.
        steps_as_launches: decode steps that it asks for, and that cannot be one kernel.
        casts: weights in the types that library calls take.
        library: of programs in C, what else the runtime needs to call them; None of others.
    """

    types: TargetTypes
    phases: tuple[Phase, ...]
    kernels: tuple[KernelEntry, ...]
    copy_blocks: Launch | None
    arena: ArenaGeometry
    memory: MemoryPlan
    step_kernels: tuple[StepKernelEntry, ...] = ()
    steps_as_launches: tuple[StepsAsLaunches, ...] = ()
    casts: tuple[WeightCast, ...] = ()
    library: CLibrary | None = None

    def __repr__(self) -> str:
        return f"<Program for {self.types.target}: {len(self.kernels)} kernels>"

    __str__ = __repr__

    @property
    def files(self) -> tuple[str, ...]:
        """The sources of its kernels, each once."""
        files = [kernel.file for kernel in self.kernels] + [kernel.file for kernel in self.step_kernels]
        return tuple(dict.fromkeys(files))

    def phase(self, name: PhaseName) -> Phase:
        """The phase of that name."""
        return next(phase for phase in self.phases if phase.name == name)

    def kernel(self, name: str) -> KernelEntry:
        """The kernel of that full name."""
        return next(kernel for kernel in self.kernels if kernel.name == name)

    def find_kernel(self, name: str) -> KernelEntry:
        """The kernel of a name that a user gave: its full name, or its label where only one kernel has that.

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
