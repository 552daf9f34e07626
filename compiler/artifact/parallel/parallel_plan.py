"""What an artifact for several ranks says of all of them: parallel.json."""

from collections.abc import Mapping, Sequence

from pydantic import model_validator

from mlxr.compiler.artifact.plan import Plan
from mlxr.compiler.artifact.program import PHASES, MemoryPlan, PhaseName
from mlxr.compiler.ir.graph import OpGraph
from mlxr.compiler.ir.ops.collectives import Collective, CollectiveKind
from mlxr.compiler.spec.divide_counts import Range
from mlxr.compiler.spec.model import ModelSpec
from mlxr.compiler.spec.record import Record
from mlxr.compiler.spec.share import shares


class Message(Record):
    """A collective of a step, as one rank takes part in it.

    Attributes:
        op: its op in the graph.
        kind: see `CollectiveKind`.
        columns: columns of what the rank gives, or of what it gets if it gives nothing; 0: neither.
        row_bytes: bytes of a row of these.
        dim: how many rows: `tokens` of the batch, or `rows` of its result.
    """

    op: str
    kind: CollectiveKind
    columns: int
    row_bytes: int
    dim: str


class RankShare(Record):
    """What one rank has.

    Attributes:
        layers, vocabulary: ranges of the model's layers and vocabulary.
        heads, kv_heads: query heads and KV heads, by how many a layer has.
        columns: columns of MLPs, by their whole width.
        experts: experts, by their whole number.
        memory: what each target's program needs.
        messages: the collectives of a step of each phase, in order.
    """

    layers: Range
    vocabulary: Range
    heads: dict[int, Range]
    kv_heads: dict[int, Range]
    columns: dict[int, Range]
    experts: dict[int, Range]
    memory: dict[str, MemoryPlan]
    messages: dict[PhaseName, tuple[Message, ...]]


class ParallelPlan(Record):
    """How a model is split over ranks. Rank r is rank r % tensor of stage r // tensor.

    Attributes:
        tensor: ranks that share each layer.
        pipeline: stages.
        ranks: what each rank has.
    """

    tensor: int
    pipeline: int
    ranks: tuple[RankShare, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @model_validator(mode="after")
    def _check(self) -> "ParallelPlan":
        if min(self.tensor, self.pipeline) < 1 or self.size < 2 or self.size != self.tensor * self.pipeline:
            raise ValueError(f"tensor {self.tensor} x pipeline {self.pipeline}, but {self.size} ranks")
        targets = set(self.ranks[0].memory)
        if any(set(rank.memory) != targets or set(rank.messages) != set(PHASES) for rank in self.ranks):
            raise ValueError("ranks differ in their targets, or lack a phase")
        return self


def parallel_plan(spec: ModelSpec, plans: Sequence[Plan], graphs: Sequence[Mapping[str, OpGraph]]) -> ParallelPlan:
    """The record of all ranks. The reader of an artifact computes it again, and compares.

    Args:
        spec: the spec, which says how the model is split.
        plans: the plan of each rank.
        graphs: its graphs by name.

    Raises:
        PlanError: the model cannot be split as the spec says.
    """
    assert spec.parallel is not None, "the model is split"
    ranks = tuple(
        RankShare(
            layers=share.layers,
            heads=share.heads,
            kv_heads=share.kv_heads,
            vocabulary=share.vocabulary,
            columns=share.columns,
            experts=share.experts,
            memory={target: program.memory for target, program in plan.programs.items()},
            messages={phase: _messages(own[phase]) for phase in PHASES},
        )
        for share, plan, own in zip(shares(spec), plans, graphs, strict=True)
    )
    return ParallelPlan(tensor=spec.parallel.tensor, pipeline=spec.parallel.pipeline, ranks=ranks)


def _messages(graph: OpGraph) -> tuple[Message, ...]:
    messages = []
    for op in graph.ops:
        if not isinstance(op.attrs, Collective):
            continue
        kind = op.attrs.exchange
        name = op.inputs.get("x") if kind != "receive" else op.out
        value = None if name is None else graph.value(name)
        columns = 0 if value is None else value.shape[1]
        assert isinstance(columns, int), "only rows have symbolic dims"
        row_bytes = 0 if value is None else columns * value.dtype.size_bytes
        dim = "rows" if kind == "gather" else "tokens"
        messages.append(Message(op=op.name, kind=kind, columns=columns, row_bytes=row_bytes, dim=dim))
    return tuple(messages)
