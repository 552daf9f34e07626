"""The sum of two products."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.projection_sum import ProjectionSum, parts_of
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import weight_buffers
from mlxr.compiler.targets.cpu.kernels.projection import CpuProjection, projection_kernel
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuProjectionSum(CpuKernel):
    """Two projections, one after the other. The second one's residual is the result of the first one.

    Attributes:
        first, second: the projections, each of one tensor.
    """

    template = "projection_sum.jinja"
    first: CpuProjection
    second: CpuProjection

    @property
    def calls(self) -> tuple[CpuKernel, ...]:
        """Both."""
        return self.first, self.second

    @property
    def params(self) -> tuple[Param, ...]:
        """What the projections read, that of the second one with `second_` before its name, and the result."""
        return (*self._read(self.first), *self._read(self.second), Param("out", "output"))

    def _read(self, kernel: CpuProjection) -> Iterator[Param]:
        own = (param for param in kernel.params if param.kind != "output")
        if kernel is not self.second:
            return own
        return (replace(param, name=f"second_{param.name}") for param in own if param.name != "residual")

    @property
    def arguments(self) -> tuple[str, str]:
        """The arguments of each call, before its result."""
        first, second = (", ".join(param.name for param in self._read(kernel)) for kernel in (self.first, self.second))
        return first, f"{second}, out"

    @property
    def thread_bytes(self) -> int:
        """The most that one of them needs."""
        return max(self.first.thread_bytes, self.second.thread_bytes)

    @property
    def shared_bytes(self) -> int:
        """The most that one of them needs."""
        return max(self.first.shared_bytes, self.second.shared_bytes)


@lowers(ProjectionSum)
def lower_projection_sum(lowering: CpuLowering, op: Op, _: ProjectionSum) -> None:
    """Adds the call for an op."""
    parts = parts_of(op, op.out)
    first, second = (projection_kernel(lowering, part) for part in parts)
    kernel = CpuProjectionSum(label=f"{second.label}_sum", first=first, second=second)
    of_first, of_second = (weight_buffers(lowering, part) for part in parts)
    lowering.add_call(op, kernel, of_first | {f"second_{name}": part for name, part in of_second.items()})
