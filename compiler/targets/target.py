"""The protocol of targets, and what their choices of types share.

A target is a language that the compiler writes, for the hosts that run it.

A target is one folder here and one line in registry.py. It chooses the types of a model's values, lowers graphs to
launches of its kernels, and renders the kernels' texts. All targets share the rest (`mlxr.compiler.schedule`), which
places buffers, names launches and checks them.
"""

from typing import Protocol

from mlxr.compiler.artifact.chip import HalfType
from mlxr.compiler.artifact.program import Program, TargetTypes
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.schedule.lowered import Lowered, LoweringInput
from mlxr.compiler.schedule.program import PlacedProgram
from mlxr.compiler.spec.fields import AUTO
from mlxr.compiler.spec.matrices import matrix_shapes
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.targets.early import TakeKernel
from mlxr.compiler.targets.provenance import Provenance

ASKED = "the spec says so"
"""The reason for a type that the spec states."""


class Target(Protocol):
    """A target. It holds no state."""

    @property
    def name(self) -> str:
        """Its name in commands and plans."""
        ...

    @property
    def activations(self) -> tuple[str, ...]:
        """The only element types of activations that it computes with; empty: any that a spec may name."""
        ...

    def types(self, spec: ModelSpec, half: HalfType | None) -> TargetTypes:
        """The types of activations and cache: those of the spec, or the target's choice if the spec leaves them open.

        Args:
            spec: the spec.
            half: the 16-bit type that the chip prefers; None: it has no preference.
        """
        ...

    def lower(self, inputs: LoweringInput) -> Lowered:
        """The launches of both phases.

        Raises:
            PlanError: an op has no kernel, or none for these sizes.
        """
        ...

    def render(
        self, placed: PlacedProgram, inputs: LoweringInput, origin: Provenance, take_kernel: TakeKernel
    ) -> tuple[Program, dict[str, str]]:
        """The program, whose kernels now have texts and names, and the texts by file.

        Args:
            placed: the launches, with the places of their buffers.
            inputs: the input of the lowering.
            origin: the origin that the texts state.
            take_kernel: see `Early`.

        Raises:
            PlanError: a template has a mistake, or a kernel is too large.
        """
        ...


def cache_type(spec: ModelSpec, chosen: DType, why: str) -> tuple[DType, str]:
    """The type of the cache and its reason: those of the spec if it states a type, or else those of the target."""
    return (chosen, why) if spec.cache.dtype == AUTO else (DType(spec.cache.dtype), ASKED)


def matrix_formats(spec: ModelSpec) -> set[WeightFormat]:
    """The formats of all matrices of the model, which computes the same with the head of other files as without it."""
    model = spec.model.model_copy(update={"eagle": None})
    return {spec.weights.of_tensor(name) for name in matrix_shapes(model)}
