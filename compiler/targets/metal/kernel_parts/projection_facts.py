"""Facts about a projection that do not depend on the kernel that computes it."""

from dataclasses import dataclass, replace
from typing import TypedDict

from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.linear import Projection
from mlxr.compiler.ir.tensor import BatchDim
from mlxr.compiler.schedule.geometry import LibraryMatmul, ManyRows
from mlxr.compiler.schedule.geometry_rules import Choice
from mlxr.compiler.targets.epilogue import Epilogue
from mlxr.compiler.targets.metal.kernel_parts.fused_block import FusedBlock, fused_block_of
from mlxr.compiler.targets.metal.kernel_parts.fused_norm import FusedNorm, fused_norm_of
from mlxr.compiler.targets.metal.lowering import MetalLowering, num_columns

_LAST = "last_"


@dataclass(frozen=True)
class ProjectionFacts:
    """The facts that all kernels of a projection share.

    Attributes:
        label: the readable part of the kernels' names.
        out_features: columns of the result.
        layout: where the rows of the weight lie, and in which formats.
        activation: element type of x.
        norm: the norm of x; None: no norm.
        epilogue: the steps after the sums.
        gather: whether the input `rows` selects rows of x.
        one_row_alone: whether a single row has a kernel of its own: in decode, and for the logits of a prompt.
        dim: the dim that counts the rows.
        most_rows: the most rows of a step.
        deterministic: whether every number of rows has the same arithmetic.
        choice: the geometry.
        added: what a block adds to x before its norm; None: nothing.
        x_columns: columns of x, of which some, the first ones, are multiplied; 0: all are.
    """

    label: str
    out_features: int
    layout: WeightLayout
    activation: DType
    norm: FusedNorm | None
    epilogue: Epilogue
    gather: bool
    one_row_alone: bool
    dim: BatchDim
    most_rows: int
    deterministic: bool
    choice: Choice
    added: FusedBlock | None = None
    x_columns: int = 0

    @property
    def is_quantised(self) -> bool:
        """Whether the weight is quantised."""
        return self.layout.is_bytes

    @property
    def alone(self) -> "ProjectionFacts":
        """The same for a kernel of one row, which does not count rows: all products by a weight share it."""
        return self if self.gather else replace(self, dim="tokens", label=self.label.removeprefix(_LAST))

    @property
    def least_rows(self) -> int:
        """The fewest rows of the kernels for several rows."""
        return 2 if self.one_row_alone else 1

    @property
    def many_rows(self) -> ManyRows:
        """The geometry of more than one row."""
        return self.choice.geometry.many_rows

    @property
    def library_rows(self) -> int | None:
        """Rows from which MLX's matmul takes the projection, on hosts that have it; None: it never does.

        MLX multiplies matrices of one type. We do not unpack weights to f32: MLX is no faster with f32, and less exact
        if it uses TF32. We do not unpack the weight of logits either: it is the largest, and logits have few rows. The
        order of MLX's sums is unknown, so deterministic programs do without.
        """
        if self.deterministic or self.epilogue.times:  # MLX's have no such step
            return None
        g, out = self.many_rows.library, self.epilogue.out
        minimum = 0
        if self.layout.dtype == self.activation == out:
            minimum = g.min_rows
        elif self.is_quantised and self.activation == out and out.is_16_bit and self.dim == "tokens":
            minimum = g.quantised_min_rows
        rows = max(minimum, self.least_rows)
        return rows if minimum and rows <= self.most_rows else None

    @property
    def library_size(self) -> str:
        """The flat name of the size that decides `library_rows`."""
        (name,) = LibraryMatmul.names("quantised_min_rows" if self.is_quantised else "min_rows")
        return name

    @property
    def fields(self) -> "ProjectionFields":
        """The fields that are the same in all of its kernels."""
        return {
            "in_features": self.layout.columns,
            "out_features": self.out_features,
            "layout": self.layout,
            "activation": self.activation,
            "epilogue": self.epilogue,
            "gather": self.gather,
            "of_rows": self.dim == "rows",
        }


class ProjectionFields(TypedDict):
    """Fields of `ProjectionKernel`."""

    in_features: int
    out_features: int
    layout: WeightLayout
    activation: DType
    epilogue: Epilogue
    gather: bool
    of_rows: bool


def facts_of(lowering: MetalLowering, op: Op) -> ProjectionFacts:
    """The facts of an op."""
    gather, layout = "rows" in op.inputs, lowering.layouts[op.inputs["weight"]]
    dim: BatchDim = "rows" if gather or lowering.value(op, "x").shape[0] == "rows" else "tokens"
    label = "logits" if op.out in lowering.graph.outputs else op.inputs["weight"].rpartition(".")[2]
    return ProjectionFacts(
        label=_label(label, is_chosen_before=dim == "rows" and not gather),
        out_features=num_columns(lowering.graph.value(op.out)),
        layout=layout,
        activation=lowering.value(op, "x").dtype,
        norm=fused_norm_of(lowering, op),
        added=fused_block_of(lowering, op),
        epilogue=lowering.epilogue_of(op),
        gather=gather,
        one_row_alone=(lowering.phase == "decode" or dim == "rows") and not lowering.deterministic,
        dim=dim,
        most_rows=lowering.limits[dim],
        deterministic=lowering.deterministic,
        choice=lowering.table.choose(Site.of_weight(label, layout)),
        x_columns=num_columns(lowering.value(op, "x")) if isinstance(op.attrs, Projection) and op.attrs.columns else 0,
    )


def _label(label: str, *, is_chosen_before: bool) -> str:
    """The label of kernels. Those for rows that were chosen before have their own, of the logits even that for one."""
    if not is_chosen_before:
        return label
    return "logits_of_chosen" if label == "logits" else f"{_LAST}{label}"
