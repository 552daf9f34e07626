"""The smallest records of the plan."""

from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.spec.record import Record


class Buffer(Record):
    """A buffer between launches of a phase; `offset_bytes` is its place in the phase's activation memory."""

    name: str
    shape: tuple[int | str, ...]
    dtype: DType
    offset_bytes: int
    size_bytes: int


class MemoryPlan(Record):
    """The bytes that a program needs, known before anything is loaded. Activations are those of the larger phase."""

    weights_bytes: int
    arena_bytes: int
    activation_bytes: int
    budget_bytes: int | None

    @property
    def total_bytes(self) -> int:
        """The sum of weights, arena and activations."""
        return self.weights_bytes + self.arena_bytes + self.activation_bytes
