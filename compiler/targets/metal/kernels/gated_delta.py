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
_OF_SEVERAL = 4
"""How many times as many tokens a step of several sequences has that goes by chunks: each may have a few."""


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
    whens: list[Condition | None] = [None]
    if tokens and by_chunks:
        launch_chunks(lowering, op, attrs, columns, _from(tokens), choice.sizes(DeltaChunks))
        whens = _below(tokens)
    for when in whens:
        lowering.emit(op, kernel, grid, arena_buffers(lowering, op), when=when)


def _from(tokens: int) -> list[Condition]:
    """The steps that go by chunks: those of one sequence, and of several."""
    alone, several = Condition(dim="seqs", maximum=1), Condition(dim="seqs", minimum=2)
    return [
        Condition(dim="tokens", minimum=tokens, also=alone),
        Condition(dim="tokens", minimum=_OF_SEVERAL * tokens, also=several),
    ]


def _below(tokens: int) -> list[Condition | None]:
    """All others."""
    several = Condition(dim="seqs", minimum=2)
    return [
        Condition(dim="tokens", maximum=tokens - 1),
        Condition(dim="tokens", minimum=tokens, maximum=_OF_SEVERAL * tokens - 1, also=several),
    ]
