"""What an artifact for several ranks says of all of them: parallel.json."""

from pydantic import model_validator

from mlxr.compiler.artifact.phase_name import PHASES, PhaseName
from mlxr.compiler.artifact.record import MemoryPlan
from mlxr.compiler.ir.ops.collectives import CollectiveKind
from mlxr.compiler.spec.record import Record

Range = tuple[int, int]
"""[first, last)."""


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
        layers, heads, kv_heads, vocabulary: ranges of the model's layers, query heads, KV heads, and vocabulary.
        columns: columns of MLPs, by their whole width.
        experts: experts, by their whole number.
        memory: what each target's program needs.
        messages: the collectives of a step of each phase, in order.
    """

    layers: Range
    heads: Range
    kv_heads: Range
    vocabulary: Range
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
