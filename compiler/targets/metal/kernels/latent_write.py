"""The write of the rows of latent attention into the arena."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.latent import LatentNormWrite, LatentRows, LatentWrite
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import ArenaKernel, arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers, num_columns


@dataclass(frozen=True)
class LatentWriteKernel(ArenaKernel):
    """Makes the rows of tokens and stores them; with `q_norm` also the norm between the projections of the queries.

    Attributes:
        activation: element type of x and of the result.
        x_width, first: columns of x, and the one with which the latent begins.
        kv_rank: elements of the latent.
        kv_norm, q_norm: element types of the norms' weights; None: there is no such norm.
        q_rank: columns of x, from the first on, that are normalised; 0: none.
        frequencies, rope_layout, rope_scale: see `RopeKernel`.
        eps: added to mean squares.
    """

    template = "latent_write.metal.jinja"
    activation: DType
    x_width: int
    first: int
    kv_rank: int
    kv_norm: DType
    q_norm: DType | None
    q_rank: int
    frequencies: tuple[float, ...]
    rope_layout: RopeLayout
    rope_scale: float
    eps: float

    @property
    def inputs(self) -> tuple[Port, ...]:
        """x, the norms, positions and slots of the tokens, the layer, and the arena."""
        norms: list[Port] = [("q_norm", self.q_norm)] if self.q_norm else []
        places = (("positions", DType.I32), ("slots", DType.I32), ("layer", DType.U32))
        arena = ((LATENTS, self.cache), ("token", DType.U32))
        return (("x", self.activation), *norms, ("kv_norm", self.kv_norm), *places, *arena)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The normalised columns, and the token."""
        out: tuple[Port, ...] = (("out", self.activation),) if self.q_rank else ()
        return (*out, ("token_out", DType.U32))

    @property
    def rotary_dim(self) -> int:
        """Elements of the key."""
        return 2 * len(self.frequencies)

    @property
    def head_dim(self) -> int:
        """Elements of what is rotated: all of the key."""
        return self.rotary_dim

    @property
    def row_dim(self) -> int:
        """Elements of a row."""
        return self.arena.head_dim

    @property
    def threads(self) -> int:
        """A simdgroup for the row, and one for the norm of the queries."""
        return SIMD_WIDTH * (2 if self.q_rank else 1)

    @property
    def of_lane(self) -> int:
        """Elements of a row that a lane has at most."""
        return -(-self.row_dim // SIMD_WIDTH)


@lowers(LatentWrite, LatentNormWrite)
def lower_latent_write(lowering: MetalLowering, op: Op, attrs: LatentRows) -> None:
    """Adds the launch of a write into the arena."""
    x = lowering.value(op, "x")
    kernel = LatentWriteKernel(
        "latent_write",
        arena=lowering.cache_of(op),
        activation=x.dtype,
        x_width=num_columns(x),
        first=attrs.first,
        kv_rank=attrs.kv_rank,
        kv_norm=lowering.value(op, "kv_norm").dtype,
        q_norm=lowering.optional_dtype(op, "q_norm"),
        q_rank=attrs.q_rank if isinstance(attrs, LatentNormWrite) else 0,
        frequencies=lowering.value(op, "frequencies").data,
        rope_layout=attrs.rope_layout,
        rope_scale=attrs.rope_scale,
        eps=attrs.eps,
    )
    out = {"out": op.out} if kernel.q_rank else {}
    lowering.emit(op, kernel, (Extent(dim="tokens"),), arena_buffers(lowering, op) | out)
