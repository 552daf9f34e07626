"""Attention to rows of latents in a prefill step with MMA."""

import math
from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import LATENTS
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS, SIMD_WIDTH
from mlxr.compiler.targets.metal.kernel_parts.latent_kernel import LatentKernel
from mlxr.compiler.targets.metal.kernels.attend_latent import AttendLatentKernel

_SIMDGROUPS = 4
_COLUMNS = 32
"""Columns of queries and keys that two matrix instructions multiply."""
_VALUE_COLUMNS = 64
"""Columns of values that a simdgroup reads at once."""
_MOST_TOKENS = 8


@dataclass(frozen=True)
class AttendLatentMmaKernel(LatentKernel):
    """Attention of 16 rows of queries, which are heads of neighbouring tokens, to the rows of their sequence.

    Attributes:
        num_heads, kv_rank: see `AttendLatentKernel`.
    """

    template = "attend_latent_mma.metal.jinja"
    num_heads: int
    kv_rank: int

    @staticmethod
    def replacing(kernel: AttendLatentKernel) -> "AttendLatentMmaKernel | None":
        """The MMA kernel that does the work of a kernel; None: types or sizes do not suit it."""
        one_type = kernel.activation.is_16_bit and kernel.cache is kernel.activation
        whole = kernel.row_dim % _COLUMNS == 0 and kernel.kv_rank % (_SIMDGROUPS * _VALUE_COLUMNS) == 0
        if not (one_type and whole):
            return None
        return AttendLatentMmaKernel(
            f"{kernel.label}_mma",
            arena=kernel.arena,
            num_heads=kernel.num_heads,
            kv_rank=kernel.kv_rank,
            activation=kernel.activation,
            scale=kernel.scale,
            temperature=kernel.temperature,
        )

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The queries, tiles, positions, tables, the layer, and the arena."""
        tables: tuple[Port, ...] = (("block_tables", DType.I32),) if self.arena.mode == "paged" else ()
        places = (("query_tiles", DType.I32), ("positions", DType.I32), ("query_start", DType.I32), *tables)
        return (("q", self.activation), *places, ("layer", DType.U32), (LATENTS, self.cache), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads, and the token."""
        return (("out", self.activation), ("token_out", DType.U32))

    @property
    def tile(self) -> int:
        """Query tokens of a tile: as many as fill threadgroups with their heads."""
        return min(_MOST_TOKENS, MMA_ROWS // math.gcd(MMA_ROWS, self.num_heads))

    @property
    def head_groups(self) -> int:
        """Threadgroups of a tile."""
        return -(-self.tile * self.num_heads // MMA_ROWS)

    @property
    def num_kv_heads(self) -> int:
        """All heads read the same rows."""
        return 1

    @property
    def value_dim(self) -> int:
        """Elements of a head's result."""
        return self.kv_rank

    @property
    def simdgroups(self) -> int:
        """Simdgroups that share the columns of queries, keys and values."""
        return _SIMDGROUPS

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def steps(self) -> int:
        """Times 32 columns of the queries that a simdgroup has, the last of some past the end."""
        return -(-self.row_dim // (_COLUMNS * self.simdgroups))

    @property
    def columns(self) -> int:
        """Columns of the values that a simdgroup sums."""
        return self.kv_rank // self.simdgroups

    @property
    def loads(self) -> int:
        """Times 16 bytes of the keys that a thread brings."""
        return -(-MMA_ROWS * self.row_dim // (8 * self.threads))

    @property
    def weight_exponent(self) -> int:
        """See `AttentionKernel`."""
        return 14 if self.activation is DType.F16 else 0

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the keys, and of the parts of scores."""
        return 16 * (MMA_ROWS * (self.row_dim // 8 + 1) + 2 * SIMD_WIDTH * self.simdgroups)
