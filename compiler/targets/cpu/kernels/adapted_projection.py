"""Projections to whose sums low-rank adapters add, before the steps after the sums."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import dropwhile, islice

from mlxr.compiler.artifact.adapter_bytes import LIFT_RANKS
from mlxr.compiler.artifact.c_library import LATER
from mlxr.compiler.formats.weight_format import WeightFormat
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.adapter import FINISH_STEPS, AdapterDown, AdapterUp, adapted
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.schedule.kernel import round_up
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.cpu.kernel_parts.adapted import adapted_norm
from mlxr.compiler.targets.cpu.kernel_parts.kernel import ADAPTERS, CpuHelper, Param
from mlxr.compiler.targets.cpu.kernel_parts.matrix_kernel import weight_buffers
from mlxr.compiler.targets.cpu.kernels.projection import CpuProjection, projection_kernel
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers

_TOGETHER = 4  # tokens of an adapter that are multiplied at a time


@dataclass(frozen=True)
class Later:
    """First matrices of the next projection with adapters, which come closer to the CPU meanwhile.

    Attributes:
        parts: of how many projections.
        split: into how many pieces, shared by threads, each matrix is divided.
        piece_bytes: of a piece.
    """

    parts: int
    split: int
    piece_bytes: int


@dataclass(frozen=True, kw_only=True)
class CpuAdaptedProjection(CpuProjection):
    """out = the epilogue of x @ W.T + scale * x @ down[part, adapter].T @ lift[part, adapter].

    Attributes:
        widths: columns of each part.
        rank, slots: see `AdapterUp`.
        later: what comes closer; None: there is no next one.
    """

    template = "adapted_projection.jinja"
    widths: tuple[int, ...]
    rank: int
    slots: int
    later: Later | None = None

    @property
    def pairs(self) -> bool:
        """Whether matrices are bf16: where products may round their inputs, and the weights are not f32."""
        return self.rounding == "fast" and not self.tiles_f32 and not self.bytes

    @property
    def bytes(self) -> bool:
        """Whether matrices are 8-bit integers with scales: where the inputs of products are."""
        whole = self.rank % LIFT_RANKS == 0
        return whole and self.rounding == "fast" and all(segment.format.is_quantised for segment in self.segments)

    @property
    def adapter_format(self) -> WeightFormat:
        """What its matrices of adapters are in memory."""
        return WeightFormat.Q8_0 if self.bytes else WeightFormat.BF16 if self.pairs else WeightFormat.F16

    @property
    def down_pieces(self) -> Later:
        """Its first matrices."""
        size, split = self.adapter_format.row_bytes(self.in_features) * self.rank, 1 if self.bytes else self.rank // 4
        return Later(len(self.widths), split, size // split)

    @property
    def params(self) -> tuple[Param, ...]:
        """Those of the projection, and the matrices of all adapters; ids and scales are in the batch."""
        later = (Param(LATER, "matrix"),) if self.later else ()
        return (*super().params, Param("down", "matrix"), Param("lift", "matrix"), *later)

    @property
    def buffer_table(self) -> str:
        """See `CpuProjection.buffer_table`."""
        kind = self.adapter_format
        down = f"[{len(self.widths)}, {self.slots}, {self.rank}, {self.in_features}] {kind}"
        lift = ", ".join(f"[{self.slots}, {self.rank} * {width}]" for width in self.widths)
        later = f"//   {LATER}    first matrices of the next call\n" if self.later else ""
        return f"{super().buffer_table}//   down     {down}\n//   lift     by part: {lift} {kind}, in panels\n{later}"

    @property
    def helpers(self) -> tuple[CpuHelper, ...]:
        """Those of the projection, and each token's adapter."""
        return (*super().helpers, ADAPTERS)

    @property
    def low_offset(self) -> int:
        """Where rows in low rank begin, in the scratch that threads share."""
        return round_up(super().shared_bytes, 64)

    @property
    def shared_bytes(self) -> int:
        """That of the projection, and after it the rows in low rank."""
        return self.low_offset + self.max_rows * len(self.widths) * self.rank * 4

    @property
    def thread_bytes(self) -> int:
        """That of the projection, or, before it, some rows after the norm."""
        return max(super().thread_bytes, _TOGETHER * (round_up(self.in_features, 32) + 32) * 4)


@lowers(AdapterDown)
def lower_adapter_down(lowering: CpuLowering, op: Op, _: AdapterDown) -> None:
    """Adds nothing: the projection's call multiplies by these matrices, too."""


@lowers(AdapterUp)
def lower_adapter_up(lowering: CpuLowering, op: Op, attrs: AdapterUp) -> None:
    """Adds one call for the op, for what gives it low rows, and for the projection that gives it sums, with a norm."""
    whole, joined, down = _joined(lowering, op, attrs)
    buffers = weight_buffers(lowering, whole) | {"down": down.inputs["down"]}
    if (later := _next(lowering, op)) is not None:
        _, kernel, later_down = _joined(lowering, later, later.attrs_as(AdapterUp))
        joined = replace(joined, later=kernel.down_pieces)
        buffers[LATER] = later_down.inputs["down"]
    lowering.add_call(whole, joined, buffers)


def _joined(lowering: CpuLowering, op: Op, attrs: AdapterUp) -> tuple[Op, CpuAdaptedProjection, Op]:
    """The op of all, its kernel, and what gives it low rows."""
    graph = lowering.graph
    product, down = (graph.producer(op.inputs[port]) for port in ("x", "low"))
    assert product is not None and down is not None, "SplitAdapters has made them"
    assert product.inputs["x"] == down.inputs["x"], "both read the same rows"
    whole = replace(
        product,
        attrs=replace(product.attrs, **{name: getattr(attrs, name) for name in FINISH_STEPS}),
        inputs=product.inputs | {port: name for port, name in op.inputs.items() if port not in ("x", "low")},
        outputs={"out": op.out},
    )
    if (norm := adapted_norm(graph, product.inputs["x"])) is not None:
        whole = _normed(whole, norm)
    kernel = projection_kernel(lowering, whole)
    own = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    own["label"] = f"{adapted(op, 'lift')}_adapted"
    assert [segment.rows for segment in kernel.segments] == [*attrs.part_widths], "a part is a tensor"
    joined = CpuAdaptedProjection(**own, widths=attrs.part_widths, rank=attrs.rank, slots=attrs.slots)
    return whole, joined, down


def adapter_formats(launches: Iterable[PendingLaunch]) -> dict[str, WeightFormat]:
    """What the weights of adapters are in memory."""
    return {
        name: launch.body.adapter_format
        for launch in launches
        if isinstance(launch.body, CpuAdaptedProjection)
        for (port, _), name in zip(launch.body.inputs, launch.inputs, strict=True)
        if port in ("down", "lift")
    }


def _next(lowering: CpuLowering, op: Op) -> Op | None:
    after = dropwhile(lambda other: other is not op, lowering.graph.ops)
    return next((other for other in islice(after, 1, None) if isinstance(other.attrs, AdapterUp)), None)


def _normed(op: Op, norm: Op) -> Op:
    attrs = norm.attrs_as(Norm)
    inputs = op.inputs | {"x": norm.inputs["x"]}
    inputs |= {
        port: norm.inputs[own] for port, own in (("norm", "weight"), ("norm_bias", "bias")) if own in norm.inputs
    }
    return replace(op, attrs=replace(op.attrs_as(Projection), eps=attrs.eps, norm_kind=attrs.kind), inputs=inputs)
