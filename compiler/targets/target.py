"""What a target is: a language that the compiler writes, for the hosts that run it.

A target is one folder here and one line in registry.py. It says which types a model's values have, lowers graphs to
launches of its kernels, and renders the kernels' texts. The rest is the same for all targets: buffers are placed,
launches are named and checked (`mlxr.compiler.schedule`).
"""

from typing import Protocol

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.program import Program
from mlxr.compiler.artifact.target_types import TargetTypes
from mlxr.compiler.schedule.lowered import Lowered, LoweringInput
from mlxr.compiler.schedule.program import PlacedProgram
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.provenance import Provenance


class Target(Protocol):
    """A target. It holds no state."""

    @property
    def name(self) -> str:
        """What users and plans call it."""
        ...

    def types(self, spec: ModelSpec, half: HalfType | None) -> TargetTypes:
        """The types of activations and cache, where the spec leaves them open.

        Args:
            spec: the spec.
            half: the 16-bit type that the chip prefers; None: it has no preference.
        """
        ...

    def lower(self, given: LoweringInput) -> Lowered:
        """The launches of both phases.

        Raises:
            PlanError: an op has no kernel, or none for these sizes.
        """
        ...

    def render(self, placed: PlacedProgram, given: LoweringInput, origin: Provenance) -> tuple[Program, dict[str, str]]:
        """The program, whose kernels have texts and names now, and the texts by file.

        Args:
            placed: its launches, with the places of their buffers.
            given: what was lowered.
            origin: what texts say of their origin.

        Raises:
            PlanError: a template has a mistake, or a kernel is too large.
        """
        ...
