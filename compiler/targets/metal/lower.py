"""Lowers ops to launches: chooses kernels, geometry and conditions."""

from collections.abc import Mapping
from typing import TypedDict

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.artifact.phase_name import PhaseName
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops.experts import ExpertCombine, ExpertProduct, ExpertProjection
from mlxr.compiler.schedule.geometry import OneRow
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.schedule.lowered import LoweringInput
from mlxr.compiler.schedule.lowering import Rule
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernels.expert_kernels import ExpertCombineKernel, ExpertProjectionKernel
from mlxr.compiler.targets.metal.lower_attention import AttentionLowering
from mlxr.compiler.targets.metal.lower_projection import ProjectionLowering
from mlxr.compiler.targets.metal.lowering import MetalLowering


class _ExpertFields(TypedDict):
    """Fields of the experts' kernels."""

    in_features: int
    out_features: int
    layout: WeightLayout
    activation: DType
    epilogue: Epilogue
    outs: int
    simdgroups: int
    num_experts: int
    top_k: int


class OpLowering(MetalLowering):
    """Lowers every op of a phase; attention and projections have rules in files of their own."""

    def __init__(self, given: LoweringInput, phase: PhaseName, *, one_kernel: bool) -> None:
        super().__init__(given, phase, one_kernel=one_kernel)
        self._rules: dict[type[OpKind], Rule] = {
            **super().rules,
            ExpertProjection: self._expert_projection,
            ExpertCombine: self._expert_combine,
            **ProjectionLowering(self, self.layouts, self.limits).rules,
            **AttentionLowering(self, self.limits["tokens"]).rules,
        }

    @property
    def rules(self) -> Mapping[type[OpKind], Rule]:
        """See `Lowering.rules`."""
        return self._rules

    def _expert_projection(self, op: Op) -> None:
        choice = self._expert_choice("experts", op)
        kernel = ExpertProjectionKernel("experts", norm=self.norm_of(op), **self._expert_fields(op, choice))
        grid = (Extent(times=kernel.threadgroups), Extent(times=kernel.top_k, dim="tokens"))
        self.emit(op, kernel, grid, {"out": op.out}, chosen=choice.sizes(OneRow, without=OneRow.names("mma")))

    def _expert_combine(self, op: Op) -> None:
        choice = self._expert_choice("experts_down", op)
        kernel = ExpertCombineKernel("experts_down", norm=None, **self._expert_fields(op, choice))
        grid = (Extent(times=kernel.threadgroups), Extent(dim="tokens"))
        self.emit(op, kernel, grid, {"out": op.out}, chosen=choice.sizes(OneRow, without=OneRow.names("mma")))

    def _expert_choice(self, label: str, op: Op) -> Choice:
        layout = self.layouts[op.inputs["weight"]]
        return self.table.choose(Site.of_weight(label, layout, op.attrs_as(ExpertProduct).num_experts))

    def _expert_fields(self, op: Op, choice: Choice) -> _ExpertFields:
        if choice.geometry.one_row.mma:
            raise PlanError(
                f"geometry: matvec_mma is 1 for {choice.site}, but experts have no such kernel; set it to 0"
            )
        layout, epilogue, g = self.layouts[op.inputs["weight"]], self.epilogue_of(op), choice.geometry.one_row
        experts = op.attrs_as(ExpertProduct)
        return {
            "in_features": layout.columns,
            "out_features": layout.rows // epilogue.halves // experts.num_experts,
            "layout": layout,
            "activation": self.value(op, "x").dtype,
            "epilogue": epilogue,
            "outs": max(1, g.outputs // epilogue.halves),
            "simdgroups": g.simdgroups,
            "num_experts": experts.num_experts,
            "top_k": experts.top_k,
        }
