"""The choices of all tokens by expert, for the kernels that multiply the tokens of an expert together."""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact.launch import Condition, Extent
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.ir.graph import Op
from mlxr.compiler.ir.ops.experts import ExpertProduct
from mlxr.compiler.schedule.kernel import Port
from mlxr.compiler.schedule.lowering import Scratch
from mlxr.compiler.targets.metal.kernel_parts.kernel import SIMD_WIDTH, MetalKernel
from mlxr.compiler.targets.metal.lowering import MetalLowering

TILE_FIELDS = 3
"""Numbers of a tile: its expert, and the places of its first choice and after its last."""


@dataclass(frozen=True)
class ExpertOrderKernel(MetalKernel):
    """The choices of an expert one after the other, cut into tiles.

    Attributes:
        num_experts: experts that choices are counted from.
        top_k: experts of a token.
        tile: the most choices of a tile.
        skips: whether a choice may be -1, an expert of another rank.
    """

    template = "expert_order.metal.jinja"
    num_experts: int
    top_k: int
    tile: int
    skips: bool

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The choices, and the dims."""
        return (("experts", DType.I32), ("dims", DType.U32))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The order, and its tiles."""
        return (("order", DType.I32), ("tiles", DType.I32))

    @property
    def threads(self) -> int:
        """Those that take one expert: enough for the choices of a long prompt."""
        return 256

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return self.threads // SIMD_WIDTH

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of two numbers for each simdgroup."""
        return 8 * self.simdgroups

    @property
    def per(self) -> int:
        """Tokens for which there are `times` tiles."""
        return max(1, self.tile // self.top_k)

    @property
    def times(self) -> int:
        """See `per`."""
        return -(-self.top_k // self.tile)

    @property
    def grid_of_tiles(self) -> Extent:
        """The tiles: as many as the choices fill, and one for each expert that may not be full."""
        return Extent(times=self.times, dim="tokens", per=self.per, plus=self.num_experts)


@dataclass(frozen=True)
class ExpertOrder:
    """The buffers of an order, and the grid of its tiles."""

    order: str
    tiles: str
    grid: Extent


def order_choices(lowering: MetalLowering, readers: Sequence[Op], tile: int, when: Condition) -> ExpertOrder:
    """The order of a choice; adds its launch, unless there is one for these tiles and tokens.

    Args:
        lowering: of the phase.
        readers: the products that read the choice, in order.
        tile: the most choices of a tile.
        when: when the tiles are needed.
    """
    op, kernel = readers[0], order_kernel(lowering, readers[0], tile)
    attrs = op.attrs_as(ExpertProduct)
    order, tiles = f"{op.name}.order{tile}", f"{op.name}.tiles{tile}"
    made = [launch.when.minimum for launch in lowering.pending if launch.when and order in launch.outputs]
    if not made:
        most = kernel.grid_of_tiles.value({"tokens": lowering.limits["tokens"]})
        lowering.scratch.append(Scratch(order, ("tokens", attrs.top_k), DType.I32))
        lowering.scratch.append(Scratch(tiles, (most, TILE_FIELDS), DType.I32))
    if not made or when.minimum < min(made):
        # The first product of a shared expert may leave more tokens to one launch of both than the last one does.
        when = when.model_copy(update={"maximum": min(made) - 1}) if made else when
        buffers = {"dims": "dims", "order": order, "tiles": tiles}
        buffers |= {} if "experts" in op.inputs else {"experts": op.outputs["experts"]}
        lowering.emit(op, kernel, (Extent(times=kernel.num_experts),), buffers, when=when)
    return ExpertOrder(order, tiles, kernel.grid_of_tiles)


def order_kernel(lowering: MetalLowering, op: Op, tile: int) -> ExpertOrderKernel:
    """The kernel that orders the choices of an op's experts in tiles of so many."""
    attrs = op.attrs_as(ExpertProduct)
    skips = attrs.routed(lowering.graph.use(op)) > attrs.num_experts
    return ExpertOrderKernel("expert_order", attrs.num_experts, attrs.top_k, tile, skips)
