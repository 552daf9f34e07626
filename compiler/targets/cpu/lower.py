"""Lowers the ops of one phase to calls of C functions."""

from collections.abc import Mapping
from typing import Literal, TypedDict

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import PANEL_ROWS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import NormKind, OpKind, RopeLayout
from mlxr.compiler.ir.ops.attention import PackedAttention, RopeAttention, RopeWriteAttention
from mlxr.compiler.ir.ops.cache import RopeCacheWrite
from mlxr.compiler.ir.ops.experts import ExpertCombine, ExpertProduct, ExpertProjection, Route
from mlxr.compiler.ir.ops.linear import Linear, Projection
from mlxr.compiler.ir.ops.packed_heads import PackedHeads
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.ir.ops.rows import Embed
from mlxr.compiler.schedule.lowering import Rule
from mlxr.compiler.targets.cpu.kernels.attention import CpuAttendDecode, CpuAttendPrefill, CpuCacheWrite, CpuRopeTable
from mlxr.compiler.targets.cpu.kernels.experts import CpuExperts
from mlxr.compiler.targets.cpu.kernels.kernel import CpuKernel
from mlxr.compiler.targets.cpu.kernels.projection import CpuEmbed, CpuProjection, Segment
from mlxr.compiler.targets.cpu.lowering import CpuLowering
from mlxr.compiler.targets.epilogue import Epilogue, epilogue_of

ROPE_TABLE = "rope_table"
"""The buffer of the first table of rotations; a model with several has more, numbered from 2."""


class _MatrixFields(TypedDict):
    """Fields of the kernels that multiply with a weight."""

    in_features: int
    segments: tuple[Segment, ...]
    max_rows: int
    norm: NormKind | None
    norm_bias: bool
    eps: float | None
    epilogue: Epilogue


class _RotaryFields(TypedDict):
    """Fields of the kernels that rotate."""

    arena: ArenaGeometry
    num_heads: int
    rotary_dim: int
    rope_layout: RopeLayout


class _AttentionFields(_RotaryFields):
    """Fields of the attention kernels."""

    scale: float
    window: int | None
    softcap: float | None
    compute: Literal["exact", "fast"]
    sinks: bool
    temperature: tuple[float, int] | None


class OpLowering(CpuLowering):
    """Lowers the ops whose kernels do not have their rules beside them yet."""

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """See `Lowering.rules`."""
        return {
            **super().rules,
            Embed: self._embed,
            Linear: self._projection,
            Projection: self._projection,
            RopeWriteAttention: self._attend_decode,
            RopeCacheWrite: self._cache_write,
            RopeAttention: self._attend_prefill,
            ExpertProjection: self._expert_projection,
            ExpertCombine: self._expert_combine,
        }

    def _embed(self, op: Op) -> None:
        table = self.value(op, "table")
        vocab, hidden = table.shape
        assert isinstance(vocab, int) and isinstance(hidden, int), "weights have no symbolic dims"
        held = self.spec.weights.of_tensor(table.parts[0])
        layout: Literal["packed", "rows"] = "packed" if held.is_quantised else "rows"
        self.add_call(op, CpuEmbed("embed", vocab, hidden, held, layout, op.attrs_as(Embed).scale))

    def _matrix_fields(self, op: Op, experts: int = 1) -> _MatrixFields:
        """Fields of the kernels that multiply with a weight of `experts` matrices."""
        weight, attrs = self.value(op, "weight"), op.attrs_as(Product)
        norm = attrs.norm
        return {
            "in_features": self.width(op, "weight"),
            "segments": tuple(
                Segment(self.spec.weights.of_tensor(p), self.shapes[p][0] // experts) for p in weight.parts
            ),
            "max_rows": self.max_tokens,
            "norm": norm.kind if norm else None,
            "norm_bias": "norm_bias" in op.inputs,
            "eps": norm.eps if norm else None,
            "epilogue": epilogue_of(op, DType.F32, lambda port: DType.F32 if port in op.inputs else None),
        }

    def _label(self, op: Op) -> str:
        """The last word of a weight's name."""
        return self.value(op, "weight").name.rpartition(".")[2]

    def _weights(self, op: Op) -> dict[str, str]:
        return {f"w{index}": part for index, part in enumerate(self.value(op, "weight").parts)}

    def _projection(self, op: Op) -> None:
        logits = op.out in self.graph.outputs
        # Where two experts are nearly as good, rounding would choose.
        routes = any(isinstance(reader.attrs, Route) for reader in self.graph.consumers(op.out))
        kernel = CpuProjection(
            label="logits" if logits else self._label(op),
            compute="exact" if routes else self.spec.compute,
            gather="rows" in op.inputs,
            logits=logits,
            **self._matrix_fields(op),
        )
        self.add_call(op, kernel, self._weights(op))

    def _experts(self, op: Op, *, combine: bool) -> None:
        attrs = op.attrs_as(ExpertProduct)
        fields = self._matrix_fields(op, attrs.num_experts)
        for part, segment in zip(self.value(op, "weight").parts, fields["segments"], strict=True):
            if segment.format.is_quantised and segment.rows % PANEL_ROWS:
                raise PlanError(
                    f"{part} has {segment.rows} rows an expert in {segment.format}; target cpu packs {PANEL_ROWS} rows "
                    f"together: make them a multiple of that, or the format a float one"
                )
        kernel = CpuExperts(
            label=f"experts_{self._label(op)}",
            compute=self.spec.compute,
            num_experts=attrs.num_experts,
            top_k=attrs.top_k,
            inputs_of_pairs=combine or self.width(op, "x") != fields["in_features"],
            combine=combine,
            **fields,
        )
        self.add_call(op, kernel, self._weights(op))

    def _expert_projection(self, op: Op) -> None:
        self._experts(op, combine=False)

    def _expert_combine(self, op: Op) -> None:
        self._experts(op, combine=True)

    def _rotary_fields(self, op: Op) -> _RotaryFields:
        attrs = op.attrs_as(PackedHeads)
        return {
            "arena": self.arena,
            "num_heads": attrs.num_heads,
            "rotary_dim": attrs.rotary_dim,
            "rope_layout": attrs.rope_layout,
        }

    def _attention_fields(self, op: Op) -> _AttentionFields:
        attrs = op.attrs_as(PackedAttention)
        return {
            **self._rotary_fields(op),
            "scale": attrs.scale,
            "window": attrs.window,
            "softcap": attrs.softcap,
            "compute": self.spec.compute,
            "sinks": "sinks" in op.inputs,
            "temperature": attrs.temperature,
        }

    def _rotated(self, op: Op, kernel: CpuKernel) -> None:
        """Adds a call that reads the table of its op's rotations, which those with the same ones share."""
        buffers = {}
        if "frequencies" in op.inputs:
            frequencies = self.value(op, "frequencies").data
            scale = op.attrs_as(PackedHeads).rope_scale
            table = CpuRopeTable(label=ROPE_TABLE, frequencies=frequencies, scale=scale)
            buffers["rope_table"] = self.table(table, ("tokens", table.rotary_dim))
        self.add_call(op, kernel, buffers)

    def _cache_write(self, op: Op) -> None:
        self._rotated(op, CpuCacheWrite(label="cache_write", **self._rotary_fields(op)))

    def _attend_decode(self, op: Op) -> None:
        self._rotated(op, CpuAttendDecode(label="attend_decode", **self._attention_fields(op)))

    def _attend_prefill(self, op: Op) -> None:
        self._rotated(op, CpuAttendPrefill(label="attend_prefill", **self._attention_fields(op)))
