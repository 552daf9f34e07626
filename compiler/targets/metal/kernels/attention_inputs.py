"""Prepares the inputs of MLX's attention in a prefill step."""

from dataclasses import dataclass

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.ops.rope import Temperature
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.metal.kernel_parts.rope_kernel import RopeKernel


@dataclass(frozen=True)
class AttentionInputsKernel(RopeKernel):
    """Prepares the inputs of MLX's attention, for the batch's only sequence, in one launch.

    It rotates queries as attention kernels do, but does not scale them, since MLX's attention does that. It copies K
    and V out of the arena. Queries stay token by token, because MLX writes its result in their order; K and V become
    head by head, as MLX takes them.

    Attributes:
        temperature: see `AttentionKernel`; None: queries have none.
    """

    template = "attention_inputs.metal.jinja"
    temperature: Temperature | None

    def __post_init__(self) -> None:
        """Checks that rows consist of vectors of 16 bytes."""
        assert self.cache.is_16_bit and self.head_dim % 8 == 0, f"{self.cache} heads of {self.head_dim} for MLX"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The packed projection, positions and tables of the context, the layer, and the arena."""
        places = (("positions", DType.I32), ("context_lens", DType.I32), *self.table_ports, ("layer", DType.U32))
        return (("qkv", self.activation), *places, *self.arena_ports)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Queries, K, V, and the token."""
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
        """Pairs of elements of a head; a thread rotates one pair in each head that it takes."""
        return self.head_dim // 2

    @property
    def heads_at_once(self) -> int:
        """Heads that a threadgroup rotates at once."""
        return max(1, min(self.num_heads, self.threads // self.words))

    @property
    def threads(self) -> int:
        """Enough to fill a GPU with few threadgroups."""
        return 256
