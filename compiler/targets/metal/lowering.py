"""What the rules that lower ops to Metal kernels share."""

from mlxr.compiler.artifact.phase_name import PhaseName
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.schedule.lowering import Lowering


class MetalLowering(Lowering):
    """Lowers the graph of one phase to Metal kernels.

    Attributes:
        arena: the KV arena.
        table: the geometry of each launch.
        layouts: the buffers of the weights, by name.
        limits: the largest batch of the phase.
        one_kernel: whether a decode step of one token may be one kernel, whose parts share their registers.
    """

    def __init__(self, given: LoweringInput, phase: PhaseName, *, one_kernel: bool) -> None:
        super().__init__(given.graphs[phase], phase)
        self.arena = given.arena
        self.table = given.table
        self.layouts = {weight.name: weight.layout for weight in given.weights}
        self.limits = given.limits[phase]
        self.one_kernel = one_kernel
