"""Attention of a prefill step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.schedule.geometry import AttendTile
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.pending_launch import PendingLaunch
from mlxr.compiler.targets.metal.kernel_parts.attention_kernel import AttentionKernel, attention_fields
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, THREADGROUP_BYTES
from mlxr.compiler.targets.metal.kernels.attend_text import AttendTextKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class AttendPrefillKernel(AttentionKernel):
    """Attention of tiles of query tokens; their keys and values are already in the arena.

    Attributes:
        tile: query tokens per tile.
        heads: query heads per threadgroup, all of one KV head.
        keys: keys that are in threadgroup memory at once.
        rows_per_simdgroup: rows per simdgroup; a row is one query head of one token.
        batch_tile: query tokens of a tile of the batch, where layers differ and others have smaller tiles; 0: as many.
    """

    template = "attend_prefill.metal.jinja"
    tile: int
    heads: int
    keys: int
    rows_per_simdgroup: int
    batch_tile: int = 0

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The packed projection, tiles, positions, tables, the layer, the sinks, and the arena."""
        places = (
            ("query_tiles", DType.I32),
            ("positions", DType.I32),
            ("query_start", DType.I32),
            *self.table_ports,
            ("layer", DType.U32),
        )
        return (("qkv", self.activation), *places, *self.sink_ports, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The results of the heads, and the token."""
        return (("out", self.activation), ("token_out", DType.U32))

    @property
    def simdgroups(self) -> int:
        """Simdgroups that the rows of a tile need."""
        return -(-self.tile * self.heads // self.rows_per_simdgroup)

    @property
    def head_groups(self) -> int:
        """Threadgroups that share the query heads of one KV head: one, unless it has no room for all heads."""
        return -(-self.gqa_ratio // self.heads)

    @property
    def threads(self) -> int:
        """Threads of all simdgroups."""
        return self.simdgroups * SIMD_WIDTH

    @property
    def rows(self) -> int:
        """Rows per threadgroup, unused rows included."""
        return self.simdgroups * self.rows_per_simdgroup

    @property
    def chunk(self) -> str:
        """The type of a chunk; a thread copies one chunk at a time."""
        return "uint" if self.chunk_bytes == 4 else "uint4"

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk of a key: 16; in q8 and q4, whose rows are aligned to 4 bytes, 4."""
        return 4 if self.scaled or self.mixed else 16

    @property
    def chunks(self) -> int:
        """Chunks of a key; in q8 the last one is its scale, in q4 the last ones are."""
        return self.arena.row_bytes // self.chunk_bytes

    @property
    def element_chunks(self) -> int:
        """Chunks of a key that are its elements."""
        return self.head_dim * self.cache_bytes // self.chunk_bytes

    @property
    def value_chunks(self) -> int:
        """Chunks of a value; in q8 the last one is its scale, in q4 the last ones are."""
        return self.arena.value_bytes // self.chunk_bytes

    @property
    def value_stride(self) -> int:
        """Chunks from one value of a tile to the next."""
        return self.value_chunks | 1

    @property
    def quads_per_chunk(self) -> int:
        """Vectors of 4 elements of a chunk."""
        return self.chunk_bytes // (4 * self.cache_bytes)

    @property
    def stride(self) -> int:
        """Chunks from one key of a tile to the next: odd, so that lanes that read a chunk of 32 keys use all banks."""
        return self.chunks | 1

    @property
    def dims_per_lane(self) -> int:
        """Elements of a value that a lane sums."""
        return -(-self.value_dim // SIMD_WIDTH)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of the queries, of the tiles of K and V, and of the weights."""
        tiles = self.keys * (self.stride + self.value_stride) * self.chunk_bytes
        return 4 * self.rows * self.head_dim + tiles + 4 * self.rows * self.keys


def attend_prefill(lowering: MetalLowering, op: Op, g: AttendTile) -> AttendPrefillKernel:
    """The kernel of an op with the largest tiles that threadgroup memory holds: as many keys as it can, then rows.

    Tiles of fewer than 8 rows are for the longest heads alone.

    Raises:
        PlanError: not even the smallest tile fits.
    """
    fields = attention_fields(lowering, op)
    sizes = [(keys, rows) for keys in _halves(g.keys, 4) for rows in _halves(g.rows, 8)]
    for keys, rows in (*sizes, *((keys, 4) for keys in _halves(g.keys, 4))):
        kernel = AttendPrefillKernel(
            "attend_prefill",
            **fields,
            tile=1,
            heads=1,
            keys=keys,
            rows_per_simdgroup=min(g.rows_per_simdgroup, rows),
        )
        heads = min(rows, kernel.gqa_ratio)
        kernel = replace(kernel, tile=rows // heads, heads=heads)
        if kernel.threadgroup_bytes <= THREADGROUP_BYTES and kernel.threads <= 1024:
            return kernel
    head_dim = lowering.cache_of(op).head_dim
    raise PlanError(f"no prefill attention tile of heads of {head_dim} fits {THREADGROUP_BYTES} bytes")


_TILED = (AttendPrefillKernel, AttendTextKernel)
"""Kernels that take the tiles of a batch."""


def with_batch_tile(launches: Sequence[PendingLaunch]) -> tuple[tuple[PendingLaunch, ...], int | None]:
    """The launches of prefill, whose kernels take whole tiles of a batch, and the tokens of such a tile.

    Batches are laid out in the smallest tile of all kernels, so that the tiles of the others consist of several.
    """
    tiles = [launch.body.tile for launch in launches if isinstance(launch.body, _TILED)]
    least = min(tiles, default=None)
    if least is None or len(set(tiles)) == 1:
        return tuple(launches), least
    return tuple(
        replace(one, body=replace(one.body, tile=one.body.tile // least * least, batch_tile=least))
        if isinstance(one.body, _TILED)
        else one
        for one in launches
    ), least


def _halves(most: int, least: int) -> Iterator[int]:
    while most >= least:
        yield most
        most //= 2
