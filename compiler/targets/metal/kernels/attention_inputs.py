"""Context of the kernel that prepares prefill attention by MLX: queries rotated, and a sequence's K and V in a row."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernels.rope_kernel import RopeKernel


@dataclass(frozen=True)
class AttentionInputsKernel(RopeKernel):
    """What MLX's attention takes of the batch's only sequence, all in one launch.

    Queries are rotated as attention kernels rotate them, but not scaled, for MLX's attention scales them; K and V are
    copied out of the arena. Queries stay token by token, because MLX writes its result as they lie; K and V are head by
    head, as MLX takes them.

    Attributes:
        temperature: of queries, (beta, context).
    """

    template = "attention_inputs.metal.jinja"
    temperature: tuple[float, int] | None

    def __post_init__(self) -> None:
        """Checks what the vectors of 16 bytes rest on."""
        assert self.cache.is_16_bit and self.head_dim % 8 == 0, f"{self.cache} heads of {self.head_dim} for MLX"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Packed projection, where the context is, and the arena."""
        places = (("positions", DType.I32), ("context_lens", DType.I32), *self.table_ports, ("layer", DType.U32))
        return (("qkv", self.activation), *places, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Queries, K, V and the token."""
        return (("queries", self.activation), ("keys", self.cache), ("values", self.cache), ("token_out", DType.U32))

    @property
    def head_chunks(self) -> int:
        """Vectors of 16 bytes of a head's row."""
        return self.arena.row_bytes // 16

    @property
    def row_chunks(self) -> int:
        """Vectors of 16 bytes of a position's K or V."""
        return self.num_kv_heads * self.head_chunks

    @property
    def positions(self) -> int:
        """Positions of a tile: about four vectors a thread."""
        return max(1, 2 * self.threads // self.row_chunks)

    @property
    def words(self) -> int:
        """Pairs of elements of a head: each is a thread's, which turns it by one angle in every head that it takes."""
        return self.head_dim // 2

    @property
    def heads_at_once(self) -> int:
        """Heads that a threadgroup rotates at once."""
        return max(1, min(self.num_heads, self.threads // self.words))

    @property
    def threads(self) -> int:
        """Enough to fill a GPU with few threadgroups."""
        return 256
