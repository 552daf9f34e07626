"""Projections to whose sums low-rank adapters add, before the steps after the sums."""

from dataclasses import dataclass, fields, replace

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.adapter import FINISH_STEPS, AdapterUp, adapted
from mlxr.compiler.targets.cpu.kernel_parts.kernel import ADAPTERS, CpuHelper, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import weight_buffers
from mlxr.compiler.targets.cpu.kernels.projection import CpuProjection, projection_kernel
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True, kw_only=True)
class CpuAdaptedProjection(CpuProjection):
    """out = the epilogue of x @ W.T + low @ lift[part, adapter].

    Attributes:
        widths: columns of each part.
        rank, slots: see `AdapterUp`.
    """

    template = "adapted_projection.jinja"
    widths: tuple[int, ...]
    rank: int
    slots: int

    @property
    def params(self) -> tuple[Param, ...]:
        """Those of the projection, low, and the second matrices of all adapters; ids and scales are in the batch."""
        return (*super().params, Param("low", "input"), Param("lift", "matrix"))

    @property
    def buffer_table(self) -> str:
        """See `CpuProjection.buffer_table`."""
        rows = f"//   low      [tokens, {len(self.widths)} * {self.rank}] f32; anything of tokens without an adapter\n"
        parts = ", ".join(f"[{self.slots}, {self.rank} * {width}]" for width in self.widths)
        return f"{super().buffer_table}{rows}//   lift     by part: {parts} f16, in panels\n"

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """Those of the projection, and each token's adapter."""
        return (*super().helpers, ADAPTERS)


@lowers(AdapterUp)
def lower_adapter_up(lowering: CpuLowering, op: Op, attrs: AdapterUp) -> None:
    """Adds one call for the op and for the projection that gives it sums, which has no call of its own."""
    product = lowering.graph.producer(op.inputs["x"])
    assert product is not None and lowering.graph.sole_consumer(product.out) is op, "SplitAdapters has made both"
    steps = {name: getattr(attrs, name) for name in FINISH_STEPS}
    whole = replace(
        product,
        attrs=replace(product.attrs, **steps),
        inputs=product.inputs | {port: name for port, name in op.inputs.items() if port != "x"},
        outputs={"out": op.out},
    )
    kernel = projection_kernel(lowering, whole)
    own = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    own["label"] = f"{adapted(op, 'lift')}_adapted"
    assert [segment.rows for segment in kernel.segments] == [*attrs.part_widths], "a part is a tensor"
    joined = CpuAdaptedProjection(**own, widths=attrs.part_widths, rank=attrs.rank, slots=attrs.slots)
    lowering.add_call(whole, joined, weight_buffers(lowering, whole))
