"""The gated delta rule of prompts by chunks of tokens, with MMA."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.kernel_entry import ChosenGeometry
from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import STATES
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.gated_delta import DeltaHeads
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.columns import Columns
from mlxr.compiler.targets.metal.kernel_parts.arena_kernel import arena_buffers
from mlxr.compiler.targets.metal.kernel_parts.delta_chunk_kernel import BETWEEN, CHUNK, DeltaChunkKernel
from mlxr.compiler.targets.metal.kernel_parts.kernel import MMA_ROWS
from mlxr.compiler.targets.metal.kernels.delta_solve import DeltaSolveKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering


@dataclass(frozen=True)
class DeltaChunksKernel(DeltaChunkKernel):
    """The states and results, chunk after chunk."""

    template = "delta_chunks.metal.jinja"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The tokens' numbers, whose they are, what the other kernel made, the layer, and the states."""
        return (*self.tokens, *self.between, ("layer", DType.U32), (STATES, DType.F32), ("token", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The heads' results, and the token."""
        return (("out", DType.BF16), ("token_out", DType.U32))

    @property
    def parts(self) -> int:
        """Parts of 16 columns of a threadgroup: they share keys in the first-level cache."""
        return 1 if self.heads.value_dim % (2 * MMA_ROWS) else 2

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup: of each part one for states, and one for results."""
        return 2 * self.parts

    @property
    def splits(self) -> int:
        """Threadgroups that share a head."""
        return self.heads.value_dim // (MMA_ROWS * self.parts)

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of what a chunk adds to the states, twice."""
        return 2 * 4 * self.parts * MMA_ROWS * CHUNK


def launch_chunks(
    lowering: MetalLowering,
    op: Op,
    heads: DeltaHeads,
    columns: dict[str, Columns],
    whens: Sequence[Condition],
    chosen: ChosenGeometry,
) -> None:
    """Adds the launches of both kernels, for steps for which one of the conditions holds."""
    layers = lowering.layers_of(op, STATES)
    between = {name: f"{op.name}.{name}" for name, _, _ in BETWEEN}
    for name, dtype, numbers in BETWEEN:
        lowering.scratch.append(Scratch(between[name], ("tokens", heads.num_heads * numbers), dtype))
    solve = DeltaSolveKernel("delta_solve", layers, heads, tuple((port, columns[port]) for port in "qkab"))
    kernel = DeltaChunksKernel("delta_chunks", layers, heads, tuple((port, columns[port]) for port in "qkv"))
    most = lowering.arena.max_sequences
    chunks = (Extent(times=heads.num_heads), Extent(dim="tokens", per=CHUNK, plus=most - 1))
    parts = (Extent(times=heads.num_heads * kernel.splits), Extent(dim="seqs"))
    for when in whens:
        lowering.emit(op, solve, chunks, between | {"dims": "dims"}, when=when, chosen=chosen)
        lowering.emit(op, kernel, parts, between | arena_buffers(lowering, op), when=when, chosen=chosen)
