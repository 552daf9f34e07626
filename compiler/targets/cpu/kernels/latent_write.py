"""The write of the rows of latent attention into the arena."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.op_kind import RopeLayout
from mlxr.compiler.ir.ops.latent import LatentNormWrite, LatentRows, LatentWrite
from mlxr.compiler.targets.cpu.kernel_parts.arena_kernel import CpuArenaKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import Param
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuLatentWrite(CpuArenaKernel):
    """Makes the rows of tokens and stores them; with `q_rank` also the norm between the projections of the queries.

    Attributes:
        x_width: columns of x.
        first: the column of x with which the latent begins.
        kv_rank, rotary_dim: elements of the latent, and of the key after it.
        q_rank: columns of x, from the first on, that are normalised; 0: none.
        rope_layout: see `Rope`.
        eps: added to mean squares.
    """

    template = "latent_write.jinja"
    x_width: int
    first: int
    kv_rank: int
    rotary_dim: int
    q_rank: int
    rope_layout: RopeLayout
    eps: float

    @property
    def params(self) -> tuple[Param, ...]:
        """x, the norms, the table of rotations, the layer, and the normalised columns."""
        q_norm = (Param("q_norm", "vector"),) if self.q_rank else ()
        out = (Param("out", "output"),) if self.q_rank else ()
        read = (Param("kv_norm", "vector"), Param("rope_table", "input"), Param("layer", "layer"))
        return (Param("x", "input"), *q_norm, *read, *out)


@lowers(LatentWrite, LatentNormWrite)
def lower_latent_write(lowering: CpuLowering, op: Op, attrs: LatentRows) -> None:
    """Adds the call for an op."""
    kernel = write_kernel(lowering, op, attrs, lowering.width(op, "x"))
    lowering.add_call(op, kernel, rope_table_buffers(lowering, op, attrs.rope_scale))


def write_kernel(lowering: CpuLowering, op: Op, attrs: LatentRows, x_width: int) -> CpuLatentWrite:
    """The kernel of an op that writes rows made of x with this many columns."""
    return CpuLatentWrite(
        label="latent_write",
        arena=lowering.cache_of(op),
        stores=lowering.stores_of(op),
        group=lowering.group_of(op),
        x_width=x_width,
        first=attrs.first,
        kv_rank=attrs.kv_rank,
        rotary_dim=attrs.rope_dim,
        q_rank=attrs.q_rank if isinstance(attrs, LatentNormWrite) else 0,
        rope_layout=attrs.rope_layout,
        eps=attrs.eps,
    )
