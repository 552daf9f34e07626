"""The input and the result of lowering: launches whose kernels have no text yet and whose buffers have no place yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.c_library import CTensor
from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.library_call import WeightCast
from mlxr.compiler.artifact.parallel.rank_plan import RankPlan
from mlxr.compiler.artifact.program import PhaseName, TargetTypes
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.tensor import Shape
from mlxr.compiler.schedule.geometry_rules import GeometryTable
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.spec.model import ModelSpec


@dataclass(frozen=True)
class LoweringInput:
    """Everything that a target needs to lower a model.

    Attributes:
        spec: the spec; `types` has the types.
        graphs: the ordered graph of each phase.
        weights: every weight that a phase binds.
        arena: the arena, with the target's own cache type.
        limits: the largest batch of each phase, by symbolic dim.
        table: the geometry of each launch.
        types: the types of the target.
        shapes: shape of every tensor of the model that the graphs bind, by its canonical name.
        budget: most bytes that the program may need; None: no limit is known.
        rank: which part of a model this is; None: all of it.
    """

    spec: ModelSpec
    graphs: Mapping[PhaseName, OpGraph]
    weights: Sequence[WeightPlan]
    arena: ArenaGeometry
    limits: Mapping[PhaseName, Mapping[str, int]]
    table: GeometryTable
    types: TargetTypes
    shapes: Mapping[str, tuple[int, ...]]
    budget: int | None = None
    rank: RankPlan | None = None

    @property
    def num_sharing(self) -> int:
        """How many share each layer, and so add up what each has of it."""
        return 1 if self.rank is None else self.rank.tensor

    @property
    def sharing_index(self) -> int:
        """Which of these this is."""
        return 0 if self.rank is None else self.rank.tensor_rank

    @property
    def is_recorded(self) -> bool:
        """Whether host cuda may record its steps: only then do threadgroups of a launch read each other's memory."""
        return self.rank is None and not any(weight.is_of_adapters for weight in self.weights)

    @property
    def has_stages(self) -> bool:
        """Whether rows of one part of the layers go on to another part."""
        return self.rank is not None and self.rank.pipeline > 1


@dataclass(frozen=True)
class LoweredPhase:
    """The launches of one phase.

    Attributes:
        launches: its launches, in order.
        shapes: shape and type of every buffer in activation memory.
        outputs: the buffers that the phase returns.
        chosen: see `Phase`.
        kept: buffers that live to the end of the phase besides `outputs`: other ranks read them.
    """

    name: PhaseName
    launches: Sequence[PendingLaunch]
    shapes: Mapping[str, tuple[Shape, DType]]
    outputs: tuple[str, ...]
    chosen: ChosenGeometry | None = None
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lowered:
    """The launches of one target.

    Attributes:
        phases: decode and prefill.
        copy_blocks: see `Program`.
        query_tile: tokens in a tile of queries, if a kernel fixes the number; None if no kernel does.
        tensors: the weights as this target has them in memory; empty if they follow `WeightPlan.layout`.
        scratch_bytes: memory besides weights, arena and activations.
        casts: weights in the types that library calls take.
        batch_invariant: see `Program`.
        step_batches: how many batches a step may have, each with activations of its own: of several, one computes while
            ranks exchange rows of another.
    """

    phases: tuple[LoweredPhase, ...]
    copy_blocks: tuple[PendingLaunch, ...]
    query_tile: int | None = None
    tensors: tuple[CTensor, ...] = ()
    scratch_bytes: int = 0
    casts: tuple[WeightCast, ...] = ()
    batch_invariant: bool = False
    step_batches: int = 1
