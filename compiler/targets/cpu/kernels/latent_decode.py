"""All of latent attention in a decode step, between its projections."""

from dataclasses import dataclass

from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.latent_decode import LatentDecode
from mlxr.compiler.targets.cpu.kernel_parts.attention_kernel import CpuAttentionKernel
from mlxr.compiler.targets.cpu.kernel_parts.kernel import CpuKernel, Param
from mlxr.compiler.targets.cpu.kernel_parts.region import Region, place_regions, regions_bytes
from mlxr.compiler.targets.cpu.kernels.attend_decode import latent_kernel
from mlxr.compiler.targets.cpu.kernels.head_product import CpuHeads, heads_kernel
from mlxr.compiler.targets.cpu.kernels.latent_write import CpuLatentWrite, write_kernel
from mlxr.compiler.targets.cpu.kernels.rope_table import rope_table_buffers
from mlxr.compiler.targets.cpu.lowering import CpuLowering, lowers


@dataclass(frozen=True)
class CpuLatentDecode(CpuKernel):
    """The parts of a decode step's latent attention in one call, which wait for each other where they must.

    Attributes:
        write: stores the rows of the new tokens.
        queries: brings queries into the space of rows.
        attend: attends to rows.
        products: makes the results of latents.
        tokens: the most tokens of a step.
    """

    template = "latent_decode.jinja"
    write: CpuLatentWrite
    queries: CpuHeads
    attend: CpuAttentionKernel
    products: CpuHeads
    tokens: int

    @property
    def calls(self) -> tuple[CpuKernel, ...]:
        """All four."""
        return (self.write, self.queries, self.attend, self.products)

    @property
    def params(self) -> tuple[Param, ...]:
        """What the parts read, and the results of the last one."""
        read = (Param("kv", "input"), Param("kv_norm", "vector"), Param("q", "input"))
        matrices = (Param("k_b", "matrix"), Param("v_b", "matrix"))
        places = (Param("rope_table", "input"), Param("layer", "layer"))
        return (*read, *matrices, *places, Param("out", "output"))

    @property
    def regions(self) -> tuple[Region, ...]:
        """What lies between the parts, in the scratch that threads share, behind the parts' own."""
        return place_regions(
            (
                ("own", "uint8_t", (max(kernel.shared_bytes for kernel in self.calls),)),
                ("rows", "float", (self.tokens, self.queries.out_width)),
                ("attended", "float", (self.tokens, self.products.x_width)),
            )
        )

    @property
    def thread_bytes(self) -> int:
        """The most that a part needs."""
        return max(kernel.thread_bytes for kernel in self.calls)

    @property
    def shared_bytes(self) -> int:
        """The most that a part needs, and what lies between them."""
        return regions_bytes(self.regions)


@lowers(LatentDecode)
def lower_latent_decode(lowering: CpuLowering, op: Op, attrs: LatentDecode) -> None:
    """Adds the call for an op.

    Raises:
        PlanError: a head's rows of a quantised weight do not fill whole panels.
    """
    k_b, v_b = lowering.value(op, "k_b"), lowering.value(op, "v_b")
    kernel = CpuLatentDecode(
        label="latent_decode",
        write=write_kernel(lowering, op, attrs.write, lowering.width(op, "kv")),
        queries=heads_kernel(lowering, attrs.queries, k_b, lowering.width(op, "q")),
        attend=latent_kernel(lowering, op, attrs),
        products=heads_kernel(lowering, attrs.products, v_b, attrs.num_heads * attrs.kv_rank),
        tokens=lowering.phase_tokens,
    )
    matrices = {"k_b": k_b.parts[0], "v_b": v_b.parts[0]}
    lowering.add_call(op, kernel, matrices | rope_table_buffers(lowering, op, attrs.rope_scale))
