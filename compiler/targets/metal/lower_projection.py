"""Lowers projections: a launch for each kernel that makes one, and calls of MLX's matmul in their place."""

from collections.abc import Callable, Mapping

from mlxr.compiler.artifact.launch import ONE, BatchDim, Condition, Extent
from mlxr.compiler.artifact.library_call import LibraryPort, MatmulCall
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.weight_layout import WeightLayout
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import OpKind
from mlxr.compiler.ir.ops import linear
from mlxr.compiler.ir.ops.product import Product
from mlxr.compiler.schedule.geometry import MatrixTiles
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.schedule.size_record import SizeRecord
from mlxr.compiler.targets.metal.kernels.norm import NormKernel
from mlxr.compiler.targets.metal.kernels.unpack_kernel import UnpackKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering
from mlxr.compiler.targets.metal.projection_variants import (
    Projection,
    Variant,
    divided,
    library_ranges,
    variants_of,
)

_NORM_PORTS = ("norm", "norm_bias")
"""The ports of an op that take the weights of its norm."""


class ProjectionLowering:
    """The rules of projections; launches go to a `MetalLowering`.

    Attributes:
        layouts: of the weights, by name.
        limits: the largest batch.
    """

    def __init__(self, lowering: MetalLowering, layouts: Mapping[str, WeightLayout], limits: Mapping[str, int]) -> None:
        self._to = lowering
        self.layouts = layouts
        self.limits = limits

    @property
    def rules(self) -> Mapping[type[OpKind], Callable[[Op], None]]:
        """The rule of each op kind."""
        return {linear.Linear: self._projection, linear.Projection: self._projection}

    def _projection(self, op: Op) -> None:
        p = self._described(op)
        variants = divided(variants_of(p), p.most_rows)
        first_row_of = {last: first for first, last in library_ranges(p, variants)}
        for variant in variants:
            if variant.first == p.least_rows and first_row_of:
                self._unpack_for_library(op, p)
            self._emit(op, p, variant)
            if variant.last in first_row_of:
                self._call_library(op, p, first_row_of[variant.last], variant.last)

    def _described(self, op: Op) -> Projection:
        gather, layout = "rows" in op.inputs, self.layouts[op.inputs["weight"]]
        dim: BatchDim = "rows" if gather else "tokens"
        out_features = self._to.graph.value(op.out).shape[1]
        assert isinstance(out_features, int), "weights have no symbolic dims"
        label = "logits" if op.out in self._to.graph.outputs else op.inputs["weight"].rpartition(".")[2]
        return Projection(
            label=label,
            out_features=out_features,
            layout=layout,
            activation=self._to.value(op, "x").dtype,
            norm=self._to.norm_of(op),
            epilogue=self._to.epilogue_of(op),
            gather=gather,
            one_row_alone=self._to.phase == "decode" or gather,
            dim=dim,
            most_rows=self.limits[dim],
            choice=self._to.table.choose(Site.of_weight(label, layout)),
        )

    def _emit(self, op: Op, p: Projection, variant: Variant) -> None:
        """Adds a variant's launch, and the one that normalises x before it where the variant wants that."""
        kernel, first, last = variant.kernel, variant.first, variant.last
        # A kernel that takes every number of rows has no condition.
        when = None
        if first > 1 or last < p.most_rows:
            maximum = None if last == p.most_rows else last
            when = Condition(dim=p.dim, minimum=first if first > 1 else 0, maximum=maximum)
        grid: tuple[Extent, ...] = (Extent(times=kernel.threadgroups), Extent(dim=p.dim, per=kernel.tile))
        if kernel.tile == 1:
            # A step of prompts has one row of logits, or none.
            grid = (Extent(times=kernel.threadgroups, dim=None if self._to.phase == "decode" else p.dim),)
        x = self._normalised(op, p, kernel.tile, when) if variant.normalises_before else op.inputs["x"]
        sizes: list[type[SizeRecord] | str] = [*variant.sizes]
        yields = None
        if variant.yields and p.library_rows is not None and p.library_rows <= last:
            yields = Condition(dim=p.dim, minimum=p.library_rows)
            sizes.append(p.library_size)
        self._to.emit(
            op,
            kernel,
            grid,
            {"x": x, "out": op.out, "dims": "dims"},
            when=when,
            yields=yields,
            chosen=p.choice.sizes(*sizes, without=variant.unused),
        )

    def _normalised(self, op: Op, p: Projection, tile: int, when: Condition | None) -> str:
        """The buffer of x after its norm, for which there is a launch under the same condition."""
        x, norm = self._to.value(op, "x"), p.norm
        if norm is None:
            return op.inputs["x"]
        normalised, width = f"{op.name}.normalised{tile}", x.shape[1]
        assert isinstance(width, int), "only rows are symbolic"
        self._to.scratch.append(Scratch(normalised, x.shape, x.dtype))
        kernel = NormKernel(
            "normalise",
            width=width,
            groups=1,
            kind=norm.kind,
            eps=norm.eps,
            shared=False,
            weight=norm.weight,
            bias=norm.bias,
            residual=False,
            residual_scale=1.0,
            activation=x.dtype,
        )
        names = {"weight": op.inputs["norm"], "bias": op.inputs.get("norm_bias", ""), "out": normalised}
        rows: BatchDim = "tokens" if x.shape[0] == "tokens" else "rows"
        self._to.emit(op, kernel, (ONE, Extent(dim=rows)), names, when=when, chosen=p.choice.sizes(MatrixTiles))
        return normalised

    def _unpack_for_library(self, op: Op, p: Projection) -> None:
        """Adds the launch that unpacks a quantised weight for MLX's matmul."""
        if p.library_rows is None or not p.is_quantised:
            return
        layout = p.layout
        self._to.scratch.append(Scratch(_unpacked(op), (layout.rows, layout.columns), p.activation))
        kernel = UnpackKernel(f"{p.label}_unpack", (layout,), p.activation, p.many_rows.library.unpack_unroll)
        self._to.emit(
            op,
            kernel,
            (Extent(times=kernel.threadgroups),),
            {"out": _unpacked(op)},
            when=Condition(dim=p.dim, minimum=p.library_rows),
            needs_library=True,
            chosen=p.choice.sizes(p.library_size, "unpack_unroll"),
        )

    def _call_library(self, op: Op, p: Projection, first: int, last: int) -> None:
        """Adds the call of MLX's matmul for a range of rows."""
        product, buffers = op.attrs_as(Product), dict(op.inputs)
        ports: list[LibraryPort] = []
        for port, name in op.inputs.items():
            dtype = self.layouts[name].dtype if name in self.layouts else self._to.value(op, port).dtype
            if port == "weight" and p.is_quantised:
                buffers[port], dtype = _unpacked(op), p.activation
            elif port in _NORM_PORTS and dtype is not p.activation:
                buffers[port], dtype = self._to.cast(name, p.activation), p.activation
            ports.append(LibraryPort(name=port, dtype=dtype, shape=self._to.value(op, port).shape))
        call = MatmulCall(
            function="matmul",
            label=f"mlx.{op.kind}",
            ports=tuple(ports),
            dtype=p.epilogue.out,
            norm=product.norm,
            finish=product.finish,
        )
        maximum = None if last == p.most_rows else last
        self._to.call_library(op, call, buffers, when=Condition(dim=p.dim, minimum=first, maximum=maximum))


def _unpacked(op: Op) -> str:
    """The buffer of an op's weight, unpacked for MLX's matmul."""
    return f"{op.name}.unpacked"
