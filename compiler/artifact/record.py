"""Records that every target's part of the plan is made of."""

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.spec.record import Record

__all__ = ["Buffer", "MemoryPlan", "Record"]


class Buffer(Record):
    """An activation of a step; `offset_bytes` is its place in the step's activation memory."""

    name: str
    shape: tuple[int | str, ...]
    dtype: DType
    offset_bytes: int
    size_bytes: int


class MemoryPlan(Record):
    """Bytes needed before anything is loaded. Activations are the larger of the two steps."""

    weights_bytes: int
    arena_bytes: int
    activation_bytes: int
    budget_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.arena_bytes + self.activation_bytes
