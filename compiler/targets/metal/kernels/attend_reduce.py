"""The second launch of decode attention to long contexts, which merges their partitions."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.head_gate import HeadGate
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.scores import LOG2_E


@dataclass(frozen=True)
class AttendReduceKernel(MetalKernel):
    """Merges the partitions of contexts that `AttendKernel` splits.

    Attributes:
        num_heads, head_dim: query heads, and elements of the result of each.
        partition, max_partitions, window, chunked, sinks, gate: see `AttendKernel`.
        activation: element type of the result.
    """

    template = "attend_reduce.metal.jinja"
    num_heads: int
    head_dim: int
    partition: int
    max_partitions: int
    window: int | None
    chunked: bool
    activation: DType
    sinks: DType | None
    gate: HeadGate | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Results of the partitions, the sinks, and the positions, which give the number of partitions."""
        sinks: tuple[Port, ...] = (("sinks", self.sinks),) if self.sinks else ()
        gate: tuple[Port, ...] = (("gate", self.gate.dtype),) if self.gate else ()
        return (("partial", DType.F32), ("stats", DType.F32), *sinks, *gate, ("positions", DType.I32))

    @property
    def log2_e(self) -> float:
        """Factor of the sinks: it makes them ready for exp2."""
        return LOG2_E

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads."""
        return (("out", self.activation),)

    @property
    def threads(self) -> int:
        """A thread for each element of a head."""
        return round_up(self.head_dim, SIMD_WIDTH)
