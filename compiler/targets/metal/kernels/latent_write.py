"""The write of the rows of latent attention into the arena."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent import LatentNormWrite, LatentRows, LatentWrite
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import ArenaKernel, arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.latent_row import LatentRow, latent_row
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers


@dataclass(frozen=True)
class LatentWriteKernel(ArenaKernel):
    """Makes the rows of tokens and stores them; with `q_norm` also the norm between the projections of the queries.

    Attributes:
        row: how rows are made of x.
        q_norm: element type of the weights of the queries' norm; None: there is no such norm.
        q_rank: columns of x, from the first on, that are normalised; 0: none.
    """

    template = "latent_write.metal.jinja"
    row: LatentRow
    q_norm: DType | None
    q_rank: int

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the norms, positions and slots of the tokens, the layer, and the arena."""
        norms: list[Port] = [("q_norm", self.q_norm)] if self.q_norm else []
        kv_norm, slots = self.row.places
        places = (("positions", DType.I32), slots, ("layer", DType.U32))
        return (("x", self.row.activation), *norms, kv_norm, *places, (LATENTS, self.cache), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The normalised columns, and the token."""
        out: tuple[Port, ...] = (("out", self.row.activation),) if self.q_rank else ()
        return (*out, ("token_out", DType.U32))

    @property
    def threads(self) -> int:
        """A simdgroup for the row, and one for the norm of the queries."""
        return SIMD_WIDTH * (2 if self.q_rank else 1)


@lowers(LatentWrite, LatentNormWrite)
def lower_latent_write(lowering: MetalLowering, op: Op, attrs: LatentRows) -> None:
    """Adds the launch of a write into the arena."""
    kernel = LatentWriteKernel(
        "latent_write",
        arena=lowering.cache_of(op),
        row=latent_row(lowering, op, attrs, "x"),
        q_norm=lowering.optional_dtype(op, "q_norm"),
        q_rank=attrs.q_rank if isinstance(attrs, LatentNormWrite) else 0,
    )
    out = {"out": op.out} if kernel.q_rank else {}
    lowering.emit(op, kernel, (Extent(dim="tokens"),), arena_buffers(lowering, op) | out)
