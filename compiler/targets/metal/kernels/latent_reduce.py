"""The last launch of latent attention to long contexts, which merges their partitions."""

from dataclasses import dataclass
from typing import ClassVar

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.kernels.head_product import HeadProductKernel


@dataclass(frozen=True)
class LatentReduceKernel(MetalKernel):
    """Merges the partitions of long contexts, and multiplies the results of heads.

    Attributes:
        products: the products.
        simdgroups: simdgroups of a threadgroup, which has outputs of one head of a sequence.
        partition, max_partitions: see `AttendKernel`.
    """

    template = "latent_reduce.metal.jinja"
    products: HeadProductKernel
    simdgroups: int
    partition: int
    max_partitions: int
    window: ClassVar[None] = None
    chunked: ClassVar[bool] = False

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Results of the partitions, the matrices, and the positions, which give the number of partitions."""
        parts = (("partial", DType.F32), ("stats", DType.F32))
        return (*parts, ("v_b", self.products.layout.dtype), ("positions", DType.I32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads."""
        return (("out", self.products.epilogue.out),)

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.products.heads.num_heads

    @property
    def shares(self) -> int:
        """Threadgroups of a head: each simdgroup multiplies once."""
        return -(-self.products.out_features // (self.products.outs * self.simdgroups))

    @property
    def kv_rank(self) -> int:
        """Elements of a head's result before the product."""
        return self.products.in_features

    @property
    def matrix_table(self) -> str:
        """The lines on the matrices, for the head of the kernel."""
        return "".join(f"//   {row}\n" for row in self.products.rows_of("v_b"))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of a head's result and of the partitions' factors."""
        return 4 * (self.kv_rank + self.max_partitions)
