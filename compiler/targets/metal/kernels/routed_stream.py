"""The choice of experts and their first projections of one token, with weights that come through threadgroup memory."""

from dataclasses import dataclass, replace

from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.targets.metal.kernel_parts.passes import passes_of
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    UNIT,
    StreamedExperts,
    fitting,
    stream_fields,
    streams,
)
from mlxr.compiler.targets.metal.kernels.routed_projection import RoutedProjectionKernel


@dataclass(frozen=True)
class RoutedStreamKernel(StreamedExperts, RoutedProjectionKernel):
    """`RoutedProjectionKernel` with MMA, on weights that come through threadgroup memory."""

    template = "routed_stream.metal.jinja"

    @property
    def threadgroup_bytes(self) -> int:
        """Those of all streams, and of the choice."""
        return super().threadgroup_bytes + self.choice_bytes


def routed_stream(kernel: RoutedProjectionKernel, sizes: OneRow) -> RoutedStreamKernel | None:
    """The kernel with its weight through threadgroup memory, if it can and the geometry asks for that."""
    plain = kernel.norm is None or (kernel.norm.kind == "rms" and not kernel.norm.bias)
    if not plain or kernel.gate or kernel.in_features % UNIT or not streams(kernel, sizes):
        return None
    made = RoutedStreamKernel(**stream_fields(kernel, sizes))
    if sizes.threadgroups:
        made = replace(made, passes=passes_of(made.top_k * made.expert_threadgroups, sizes.threadgroups))
    return fitting(made)
