"""The choice of experts and their first projections of one token, with weights that come through threadgroup memory."""

from dataclasses import KW_ONLY, dataclass, replace

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProduct
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.kernel import Port, round_up
from mlxr.compiler.targets.metal.kernel_parts.passes import passes_of
from mlxr.compiler.targets.metal.kernels.expert_stream import (
    UNIT,
    StreamedExperts,
    fitting,
    stream_fields,
    streams,
)
from mlxr.compiler.targets.metal.kernels.routed_projection import RoutedProjectionKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class NextWeight:
    """Where a weight has the rows of its experts, one expert after the other.

    Attributes:
        first: the byte at which they begin.
        bytes: of an expert.
    """

    first: int
    bytes: int


@dataclass(frozen=True)
class RoutedStreamKernel(StreamedExperts, RoutedProjectionKernel):
    """`RoutedProjectionKernel` with MMA, on weights that come through threadgroup memory.

    Attributes:
        next: the weight by which the results of the same experts are multiplied next, which the kernel brings near;
            None: it brings none.
    """

    template = "routed_stream.metal.jinja"
    _: KW_ONLY
    next: "NextWeight | None" = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Those of the kernel without a stream, and the next weight."""
        return (*super().inputs, *((("next_weight", DType.U8),) if self.next else ()))

    @property
    def next_share(self) -> int:
        """Bytes of the next weight that a threadgroup brings, a multiple of a vector."""
        assert self.next is not None, "there is one"
        return round_up(-(-self.next.bytes // self.expert_threadgroups), 16)


def routed_stream(kernel: RoutedProjectionKernel, sizes: OneRow) -> RoutedStreamKernel | None:
    """The kernel with its weight through threadgroup memory, if it can and the geometry asks for that."""
    plain = kernel.norm is None or (kernel.norm.kind == "rms" and not kernel.norm.bias)
    if not plain or kernel.gate or kernel.in_features % UNIT or not streams(kernel, sizes):
        return None
    made = RoutedStreamKernel(**stream_fields(kernel, sizes))
    if sizes.threadgroups:
        made = replace(made, passes=passes_of(made.top_k * made.expert_threadgroups, sizes.threadgroups))
    return fitting(made)


def next_weight(lowering: MetalLowering, op: Op) -> tuple[str, NextWeight] | None:
    """The weight by which the results of the chosen experts are multiplied next, if its experts are whole vectors."""
    readers = [reader for reader in lowering.graph.consumers(op.outputs["experts"]) if "weight" in reader.inputs]
    if len(readers) != 1 or not lowering.layouts[readers[0].inputs["weight"]].is_bytes:
        return None
    name, experts = readers[0].inputs["weight"], op.attrs_as(ExpertProduct).num_experts
    layout = lowering.layouts[name]
    bytes_of_all = layout.size_bytes - layout.segments[0].offsets[0]
    whole = len(layout.segments) == 1 and len(layout.segments[0].offsets) == 1 and bytes_of_all % (16 * experts) == 0
    return (name, NextWeight(layout.segments[0].offsets[0], bytes_of_all // experts)) if whole else None
