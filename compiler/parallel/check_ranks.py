"""Verifies a split model as a whole: the rules that no rank can check alone.

1. Every row and column of every tensor is owned once, or copied by all ranks of a stage; a KV head is copied by the
   ranks whose queries read it, and by no other.
2. Only linear ops read a partial sum, only partial sums are summed, and only one rank adds a whole value to one.
3. Norms over columns that ranks divide take the mean squares of all columns, which count each KV head once.
4. All ranks issue the same collectives in the same order, so that none waits for another for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxr.compiler.errors import PlanError
from mlxr.compiler.ir.graph import Op, OpGraph
from mlxr.compiler.ir.ops.collectives import AllSum, Collective
from mlxr.compiler.ir.ops.elementwise import Add, Scale
from mlxr.compiler.ir.ops.experts import ExpertSum
from mlxr.compiler.ir.ops.norm import Norm
from mlxr.compiler.ir.ops.rows import Embed, GateRows, GatherRows
from mlxr.compiler.ir.ops.shared_norm import MeanSquares
from mlxr.compiler.parallel.tensor_slice import WHOLE, TensorSlice
from mlxr.compiler.spec.family import layer_of
from mlxr.compiler.spec.model import Latent, ModelSpec
from mlxr.compiler.spec.parallel import Parallel

_SUMMED_ONCE = ("o_bias", "down_bias")


@dataclass(frozen=True)
class Rank:
    """What one rank of the split has: its source graph, and its part of each tensor."""

    graph: OpGraph
    slices: Mapping[str, TensorSlice]


def check_ranks(spec: ModelSpec, source: OpGraph, ranks: Sequence[Rank]) -> None:
    """Checks all rules.

    Args:
        spec: the spec of the model.
        source: its source graph.
        ranks: all ranks.

    Raises:
        PlanError: a rule is broken; the message names the rank, and the tensor or op.
    """
    split = spec.parallel
    assert split is not None, "the model is split"
    for rank, part in enumerate(ranks):
        try:
            _check_shapes(source, part)
            _check_sums(part, rank % split.tensor)
            _check_norms(source, part)
        except PlanError as error:
            raise PlanError(f"rank {rank}: {error}") from None
    _check_tensors(spec, source, ranks, split)
    _check_heads(spec, ranks)
    _check_keys_counted(spec, ranks)
    check_order([collectives(part.graph) for part in ranks], split)


def _check_shapes(source: OpGraph, part: Rank) -> None:
    """Checks that each weight of the graph has the shape of the rank's part of it."""
    for value in part.graph.values:
        if value.role != "weight":
            continue
        if value.name not in part.slices:
            raise PlanError(f"{value.name} is in the graph, but the rank has nothing of it")
        cut, whole = part.slices[value.name], source.value(value.name).shape
        shape = [
            (number[1] - number[0]) * cut.tiles if number else size
            for number, size in zip((cut.rows, cut.columns), whole, strict=False)
        ]
        if tuple(shape) != value.shape:
            raise PlanError(f"{value.name} is {list(value.shape)}; its part is {shape}")


def _check_tensors(spec: ModelSpec, source: OpGraph, ranks: Sequence[Rank], split: Parallel) -> None:
    for value in source.values:
        if value.role != "weight":
            continue
        name = value.name
        owners = [rank for rank, part in enumerate(ranks) if name in part.slices]
        stages = sorted({rank // split.tensor for rank in owners})
        tied = name == "embedding" and spec.model.tie_embeddings and split.pipeline > 1 and spec.output == "logits"
        if len(stages) != (2 if tied else 1):
            raise PlanError(f"{name} is in {len(stages)} stages; expected {2 if tied else 1}")
        for stage in stages:
            cuts = [ranks[rank].slices[name] for rank in owners if rank // split.tensor == stage]
            _check_tensor(name, value.shape, cuts, split.tensor)


def _check_tensor(name: str, shape: Sequence[int | str], cuts: Sequence[TensorSlice], ranks: int) -> None:
    """Checks that the ranks of a stage together have a tensor once, or that all have a copy of it."""
    if all(cut == WHOLE for cut in cuts):
        if len(cuts) != (1 if name.endswith(_SUMMED_ONCE) and ranks > 1 else ranks) and len(cuts) != ranks:
            raise PlanError(f"{name} is copied by {len(cuts)} of {ranks} ranks")
        return
    axis = 0 if cuts[0].rows is not None else 1
    pieces = [cut.rows if axis == 0 else cut.columns for cut in cuts]
    if len(cuts) != ranks or any(piece is None for piece in pieces):
        raise PlanError(f"{name} is divided by {len(cuts)} of {ranks} ranks")
    ordered = sorted({piece for piece in pieces if piece is not None})
    copied_heads = ".attention.k" in name or ".attention.v" in name
    if len(ordered) != len(pieces) and not copied_heads:
        raise PlanError(f"{name}: two ranks have {'columns' if axis else 'rows'} {list(ordered[0])}")
    end = 0
    for first, last in ordered:
        if first != end:
            what = "nobody has" if first > end else "two ranks have"
            raise PlanError(f"{name}: {what} {'column' if axis else 'row'} {min(first, end)}")
        end = last
    whole = shape[axis]
    assert isinstance(whole, int), "weights have no symbolic dims"
    if end != whole // cuts[0].tiles:
        raise PlanError(f"{name}: nobody has {'column' if axis else 'row'} {end}")


def _check_heads(spec: ModelSpec, ranks: Sequence[Rank]) -> None:
    """Checks that each rank has the KV heads that its queries read, and the columns of o that they make."""
    for latent in {attention.latent for attention in spec.model.attentions if attention.latent is not None}:
        _check_latent_heads(latent, ranks)
    for number, part in enumerate(ranks):
        for name, cut in part.slices.items():
            if not name.endswith(".attention.q") or cut.rows is None:
                continue
            attention = spec.model.layer(layer_of(name) or 0).own_attention
            if attention.latent is not None:
                continue
            heads = range(cut.rows[0] // attention.head_dim, cut.rows[1] // attention.head_dim)
            needed = {head // attention.gqa_ratio for head in heads}
            for role in ("k", "v"):
                if name[:-1] + role not in part.slices:
                    continue  # keys of an earlier layer, or values that are made of keys
                rows = part.slices[name[:-1] + role].rows
                assert rows is not None, "keys are divided where queries are"
                size = attention.head_dim if role == "k" else attention.result_dim
                owned = set(range(rows[0] // size, rows[1] // size))
                if owned != needed:
                    layer = layer_of(name)
                    raise PlanError(
                        f"rank {number}: the queries of layer {layer} read KV heads {sorted(needed)}, and the rank has "
                        f"{role} of {sorted(owned)}"
                    )
            for projection in (name, name[:-1] + "k"):
                norm = part.slices.get(f"{projection}_norm", TensorSlice()).rows
                if norm is not None and norm != part.slices[projection].rows:
                    raise PlanError(f"rank {number}: {projection}_norm is of other columns than {projection}")
            made = (heads.start * attention.result_dim, heads.stop * attention.result_dim)
            if part.slices[name[:-1] + "o"].columns != made:
                raise PlanError(f"rank {number}: {name} makes other columns than those that attention.o reads")


def _check_latent_heads(latent: Latent, ranks: Sequence[Rank]) -> None:
    """Checks that each rank has the same heads of all that latent attention divides."""
    sizes = {"q": latent.qk_dim, "q_b": latent.qk_dim, "k_b": latent.kv_rank, "v_b": latent.v_dim}
    for number, part in enumerate(ranks):
        for name, cut in part.slices.items():
            if not name.endswith(".attention.o") or cut.columns is None:
                continue
            heads = [column // latent.v_dim for column in cut.columns]
            for role, size in sizes.items():
                own = part.slices.get(f"{name[:-1]}{role}")
                if own is not None and own.rows != (heads[0] * size, heads[1] * size):
                    raise PlanError(f"rank {number}: {name[:-1]}{role} is of other heads than {name}")


def _check_norms(source: OpGraph, part: Rank) -> None:
    """Checks that no norm takes the mean square of only a part of its columns."""
    wholes = {op.inputs.get("weight"): norm for op, norm in source.ops_of(Norm)}
    for op, _ in part.graph.ops_of(Norm):
        weight = op.inputs.get("weight")
        if weight is None:
            continue
        rows, whole = part.slices[weight].rows, source.value(weight).shape[0]
        if rows not in (None, (0, whole)) and wholes[weight].groups == 1:
            raise PlanError(f"{op.name} normalises columns {list(rows or ())} as if they were all {whole}")


def _check_keys_counted(spec: ModelSpec, ranks: Sequence[Rank]) -> None:
    """Checks that the mean squares of a layer count the keys of each KV head once."""
    counted: dict[str, list[int]] = {}
    for part in ranks:
        for op, attrs in part.graph.ops_of(MeanSquares):
            if "k" not in op.inputs:
                continue
            heads = counted.setdefault(op.name, [])
            rows = part.slices[f"{op.name.rpartition('.')[0]}.k"].rows
            if attrs.counts_keys and rows is not None:
                head_dim = spec.model.layer(op.layer or 0).own_attention.head_dim
                heads += range(rows[0] // head_dim, rows[1] // head_dim)
    for name, heads in counted.items():
        if sorted(heads) != list(range(spec.model.layer(layer_of(name) or 0).own_attention.num_kv_heads)):
            raise PlanError(f"{name} has the keys of KV heads {sorted(heads)}; expected each of all once")


def _check_sums(part: Rank, tensor_rank: int) -> None:
    """Follows partial sums through the graph."""
    partial: set[str] = set()
    for op in part.graph.ops:
        of_partial = [name for name in op.inputs.values() if name in partial]
        if isinstance(op.attrs, AllSum):
            if not of_partial:
                raise PlanError(f"{op.name} sums what every rank has already")
            continue
        if isinstance(op.attrs, Add):
            if len(of_partial) == 1 and tensor_rank != 0:
                raise PlanError(f"{op.name} adds to a partial sum what the first rank adds, too")
        elif of_partial and not (isinstance(op.attrs, Scale | GateRows | GatherRows) and op.inputs["x"] in partial):
            raise PlanError(f"{op.name} ({op.kind}) reads the partial sum {of_partial[0]}")
        if of_partial or _makes_partial(op, part.slices):
            bias = op.inputs.get("bias")
            if bias is not None and tensor_rank != 0 and part.slices[bias].rows is None:
                raise PlanError(f"{op.name} adds a bias that the first rank adds, too")
            partial.update(op.outputs.values())
    for name in part.graph.outputs:
        if name in partial:
            raise PlanError(f"the graph returns the partial sum {name}")


def _makes_partial(op: Op, slices: Mapping[str, TensorSlice]) -> bool:
    if isinstance(op.attrs, MeanSquares):
        return True
    if isinstance(op.attrs, Embed):
        return op.attrs.first_row is not None
    if isinstance(op.attrs, ExpertSum):
        return op.name.endswith(".experts.summed") and any(
            cut.rows is not None for name, cut in slices.items() if ".mlp.experts." in name
        )
    weight = op.inputs.get("weight")
    return weight in slices and slices[weight].columns is not None if weight is not None else False


@dataclass(frozen=True)
class Exchange:
    """A collective of a rank: its kind and its op, and the columns that all who take part must agree on."""

    kind: str
    op: str
    columns: int


def collectives(graph: OpGraph) -> list[Exchange]:
    """The collectives of a rank, in order."""
    events = []
    for op in graph.ops:
        if isinstance(op.attrs, Collective):
            width = graph.value(op.out).shape[1]
            assert isinstance(width, int), "only rows have symbolic dims"
            events.append(Exchange(op.kind, op.name, width))
    return events


def check_order(events: Sequence[Sequence[Exchange]], split: Parallel) -> None:
    """Runs the collectives of all ranks without data.

    Raises:
        PlanError: some ranks wait for ever, or those that meet do not agree.
    """
    at = [0] * len(events)
    sent = [[0] for _ in range(split.pipeline + 1)]

    def now(rank: int) -> Exchange | None:
        return events[rank][at[rank]] if at[rank] < len(events[rank]) else None

    def group(stage: int) -> range:
        return range(stage * split.tensor, (stage + 1) * split.tensor)

    def advance(ranks: Sequence[int]) -> bool:
        first = now(ranks[0])
        for rank in ranks:
            event = now(rank)
            if event != first:
                raise PlanError(f"rank {ranks[0]} is at {_name(first)}, and rank {rank} at {_name(event)}")
            at[rank] += 1
        return True

    moved = True
    while moved:
        moved = False
        for stage in range(split.pipeline):
            first = now(group(stage)[0])
            if first is None or first.kind == "gather_result":
                continue
            if first.kind == "receive":
                if not sent[stage][0]:
                    continue
                sent[stage][0] -= 1
            moved = advance(group(stage))
            if first.kind == "send":
                sent[stage + 1][0] += 1
        everyone = [now(rank) for rank in range(len(events))]
        if not moved and all(event is not None and event.kind == "gather_result" for event in everyone):
            moved = advance(range(len(events)))
    for rank in range(len(events)):
        if now(rank) is not None:
            raise PlanError(f"rank {rank} would wait for ever at {_name(now(rank))}")
    if any(count for (count,) in sent):
        raise PlanError("a stage sends what no stage receives")


def _name(event: Exchange | None) -> str:
    return "its end" if event is None else f"{event.op} of {event.columns} columns"
