"""Attention of a prefill step with MMA."""

from dataclasses import dataclass, fields

from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS
from mlxr.compiler.targets.metal.kernels.attend_prefill import AttendPrefillKernel

_TILE_ELEMENTS = 4096
"""Elements of a tile of K, and of V."""


@dataclass(frozen=True)
class AttendPrefillMmaKernel(AttendPrefillKernel):
    """Prefill attention with MMA: 16 rows per simdgroup, and as many keys as fill 16 KiB with K and V.

    Attributes:
        shares: simdgroups that have the same rows, each a share of their elements.
    """

    template = "attend_prefill_mma.metal.jinja"
    shares: int = 1

    @staticmethod
    def can_replace(kernel: AttendPrefillKernel) -> bool:
        """Whether matrix instructions can do the work of a kernel."""
        return kernel.suits_mma

    @staticmethod
    def replacing(kernel: AttendPrefillKernel, rows: int) -> "AttendPrefillMmaKernel":
        """The MMA kernel that does the work of a kernel, with tiles of this many rows."""
        heads = min(rows, kernel.gqa_ratio)
        sizes = {"tile": rows // heads, "heads": heads, "keys": _TILE_ELEMENTS // kernel.head_dim}
        same = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
        return AttendPrefillMmaKernel(**same | sizes | {"label": f"{kernel.label}_mma", "rows_per_simdgroup": MMA_ROWS})

    @property
    def columns(self) -> int:
        """Elements of a row of queries that a simdgroup has."""
        return self.head_dim // self.shares

    @property
    def value_columns(self) -> int:
        """Elements of a row of results that a simdgroup sums."""
        return self.value_dim // self.shares

    @property
    def turns(self) -> int:
        """Pairs of cosine and sine of the tile's tokens, in threadgroup memory that keys fill later; 0: no room."""
        turns = self.tile * self.rotary_dim // 2
        return turns if 8 * turns <= self.threadgroup_bytes else 0

    @property
    def loads(self) -> int:
        """Chunks of 16 bytes of a tile of K that a thread loads, and as many of V."""
        return -(-self.keys * self.head_dim // (8 * self.threads))

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the tiles of K and V."""
        return 2 * _TILE_ELEMENTS * self.cache_bytes
