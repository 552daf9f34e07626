"""The gated delta rule over the tokens of a step."""

from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.artifact.site import Site
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_delta import GatedDelta
from mlxr.compiler.schedule.geometry import DeltaChunks
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.targets.columns import Columns, columns_at
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.delta_chunk_kernel import has_chunks
from mlxr.compiler.targets.metal.kernel_parts.delta_kernel import (
    TILE,
    DeltaKernel,
    check_quads,
)
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH
from mlxr.compiler.targets.metal.kernels.delta_chunks import launch_chunks
from mlxr.compiler.targets.metal.lowering import MetalLowering, lowers

_SIMDGROUPS = 4
_FEW_SEQUENCES = 8
"""Steps of 2 to this many sequences go by chunks from the same number of tokens on."""


@dataclass(frozen=True)
class GatedDeltaKernel(DeltaKernel):
    """The rule alone, for any number of tokens of each sequence.

    Attributes:
        q, k, v, a, b: where their inputs have them.
    """

    template = "gated_delta.metal.jinja"
    q: Columns
    k: Columns
    v: Columns
    a: Columns
    b: Columns

    @property
    def columns(self) -> dict[str, Columns]:
        """Where inputs of tokens have what is read of them, by port."""
        return {"q": self.q, "k": self.k, "v": self.v, "a": self.a, "b": self.b}

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The tokens' numbers, the heads', whose tokens they are, the layer, and the states."""
        tokens = tuple((port, columns.dtype) for port, columns in self.columns.items())
        tables = (("query_start", DType.I32), ("state_table", DType.I32), ("layer", DType.U32))
        vectors = (("rate", DType.F32), ("dt_bias", DType.F32))
        return (*tokens, *vectors, *tables, (STATES, DType.F32), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The heads' results, and the token."""
        return (("out", self.v.dtype), ("token_out", DType.U32))

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return min(_SIMDGROUPS, self.tiles)

    @property
    def splits(self) -> int:
        """Threadgroups that share a head."""
        return -(-self.tiles // self.simdgroups)

    @property
    def ragged_columns(self) -> bool:
        """Whether some lanes have columns past the last one."""
        return self.heads.value_dim != self.splits * self.simdgroups * TILE

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.simdgroups * SIMD_WIDTH


@lowers(GatedDelta)
def lower_gated_delta(lowering: MetalLowering, op: Op, attrs: GatedDelta) -> None:
    """Adds the launch, which goes token by token, and those by chunks for prompts, where the geometry asks for them.

    A deterministic program has none by chunks: what a chunk gives depends on the token with which it begins.

    Raises:
        PlanError: rows of states cannot be read 4 elements at a time.
    """
    check_quads(op, attrs)
    columns = columns_at(lowering, op, {port: first for port, (first, _) in attrs.columns.items()})
    kernel = GatedDeltaKernel("gated_delta", lowering.layers_of(op, STATES), attrs, **columns)
    grid = (Extent(times=attrs.num_heads * kernel.splits), Extent(dim="seqs"))
    choice = lowering.table.choose(Site.of_delta(attrs.num_heads, attrs.key_dim, kernel.v.dtype))
    tokens = choice.geometry.delta.min_tokens
    by_chunks = lowering.phase == "prefill" and not lowering.deterministic and has_chunks(attrs, columns)
    chunks, loops = _divided(tokens if by_chunks else 0, lowering.limits["tokens"], lowering.limits["seqs"])
    if chunks:
        launch_chunks(lowering, op, attrs, columns, chunks, choice.sizes(DeltaChunks))
    for when in loops:
        lowering.emit(op, kernel, grid, arena_buffers(lowering, op), when=when)


def _divided(tokens: int, most: int, sequences: int) -> tuple[list[Condition], list[Condition | None]]:
    """The steps that go by chunks, and all others.

    A sequence takes whole chunks, however few tokens it has. So a step of several sequences goes by chunks only if it
    has at least half of `tokens` for each of them, by the most sequences of its band: 2 to 8, 9 to 16, 17 to 32...

    Args:
        tokens: the fewest that go by chunks where a step has one sequence; 0: none do.
        most: tokens of a step.
        sequences: the most of a step.
    """
    chunks, loops = list[Condition](), list[Condition | None]()
    first, last, least = 1, 1, tokens
    while tokens and least <= most and first <= sequences:
        band = Condition(dim="seqs", minimum=first, maximum=last if last < sequences else None)
        chunks.append(Condition(dim="tokens", minimum=least, also=band))
        loops += [Condition(dim="tokens", maximum=least - 1, also=band)] if least > 1 else []
        first, last = last + 1, max(_FEW_SEQUENCES, 2 * last)
        least = -(-tokens * last // 2)
    if not chunks:
        return [], [None]
    return chunks, loops if first > sequences else [*loops, Condition(dim="seqs", minimum=first)]
