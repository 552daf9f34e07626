"""Divides a model among its ranks: a graph, an arena and a part of each tensor for every one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mlxr.compiler.artifact.parallel.rank_plan import RankPlan
from mlxr.compiler.artifact.weight_plan import WeightPlan
from mlxr.compiler.errors import PlanError
from mlxr.compiler.formats.arena import ArenaGeometry
from mlxr.compiler.formats.stores import Store, StoreRow
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.parallel.shard import shard
from mlxr.compiler.parallel.tensor_slice import TensorSlice
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.share import Share, shares


@dataclass(frozen=True)
class DividedModel:
    """What one rank gets.

    Attributes:
        share: which part of the model.
        plan: what its plan says of that.
        graph: its source graph.
        arena: its arena.
        slices: its part of each tensor that it has anything of, by canonical name.
    """

    share: Share
    plan: RankPlan
    graph: OpGraph
    arena: ArenaGeometry
    slices: Mapping[str, TensorSlice]


@dataclass(frozen=True)
class RankPart:
    """What a plan is made from besides graphs, where it is for a part of a model.

    Attributes:
        plan: what the rank's plan says of it; None: the part is no rank's, but what one host computes beside another.
        slices: its part of each tensor of the model that it has anything of, by canonical name; None: whole tensors.
        all_weights: the weights of the whole model.
    """

    plan: RankPlan | None
    slices: Mapping[str, TensorSlice] | None
    all_weights: tuple[WeightPlan, ...]


def divide_model(spec: ModelSpec, source: OpGraph, arena: ArenaGeometry) -> list[DividedModel]:
    """The parts of all ranks.

    Args:
        spec: the spec, which says how the model is split.
        source: the source graph of the whole model.
        arena: its arena; the ranks' arenas have as many blocks.

    Raises:
        PlanError: something cannot be divided among so many ranks.
    """
    all_shares, parts = shares(spec), []
    tensor = all_shares[0].split.tensor
    if spec.output == "hidden":
        bounds = (0, *[spec.model.hidden_size] * tensor)
    else:
        bounds = (0, *(share.vocabulary[1] for share in all_shares[-tensor:]))
    for share in all_shares:
        own_arena = _arena_of(arena, share)
        split = share.split
        plan = RankPlan(rank=share.rank, tensor=split.tensor, pipeline=split.pipeline, result_bounds=bounds)
        graph, slices = shard(source, share, own_arena)
        parts.append(DividedModel(share, plan, graph, own_arena, slices))
    return parts


def _arena_of(arena: ArenaGeometry, share: Share) -> ArenaGeometry:
    """The arena of one rank: its layers, and of their rows its part, in as many blocks and slots.

    It has every group of the model, those that have none of its layers too: block tables come by the group's number.

    Raises:
        PlanError: a layer shares the rows of one that another stage has.
    """
    first, end = share.layers
    for store, layer in ((store, layer) for store in arena.stores for layer in range(first, end)):
        if (owner := store.owner(layer)) is not None and owner < first:
            raise PlanError(
                f"layer {layer} shares the rows of layer {owner}, which an earlier stage has; split the model "
                "elsewhere, or into tensor ranks alone"
            )

    def part(row: StoreRow | int | None, store: Store) -> StoreRow | int | None:
        if isinstance(row, int):
            return row - first
        if row is None or store.along is None:
            return row
        size, *others = row.shape
        count = store.count or size
        mine, after = share.range_of(store.along, count)
        return replace(row, shape=((size - store.whole) // count * (after - mine) + store.whole, *others))

    stores = tuple(
        replace(store, rows=tuple(part(row, store) for row in store.rows[first:end])) for store in arena.stores
    )
    mine = (tuple(layer - first for layer in group.layers if first <= layer < end) for group in arena.groups)
    groups = (replace(group, layers=layers) for group, layers in zip(arena.groups, mine, strict=True))
    return replace(arena, stores=stores, groups=tuple(groups))
