"""Which weights a token reads, and how fast it can be where they do not all stay in memory.

Weights that every token needs are read from first to last, again and again: the system, which drops what was not used
for longest, would keep none of them until they are needed again. So as many of them as there is room for are in memory
of the process. Of experts, the system keeps those that are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import CTensor

_TABLES = frozenset(("embedding", "position_embedding", "layer_embedding"))
"""Tensors of which a token reads a row."""


@dataclass(frozen=True)
class TokenReads:
    """Bytes of packed weights.

    Attributes:
        always: of those that every token reads.
        routed: of the experts that a token goes through.
        experts: of all experts.
    """

    always: int
    routed: int
    experts: int

    @classmethod
    def of(cls, tensors: Sequence[CTensor]) -> "TokenReads":
        """What a program's tokens read."""
        experts = [tensor for tensor in tensors if tensor.layout == "packed" and tensor.matrices > 1]
        return cls(
            sum(tensor.size_bytes for tensor in always_read(tensors)),
            sum(tensor.stride * tensor.chosen for tensor in experts),
            sum(tensor.size_bytes for tensor in experts),
        )

    def missing(self, resident: int, cached: int) -> float:
        """Bytes that a token reads from the disk.

        Args:
            resident: bytes in memory of those that every token reads.
            cached: bytes that the system can keep besides. Experts are taken to be chosen evenly: there are fewer
                misses where some are chosen more often.
        """
        streamed = max(0, self.always - resident)
        if streamed > cached:  # it is all that the system keeps
            return streamed + self.routed
        kept = min(1.0, (cached - streamed) / self.experts) if self.experts else 1.0
        return self.routed * (1 - kept)

    def seconds(self, missing: float, disk_rate: float, memory_rate: float) -> float:
        """How long a token takes, if it misses so many bytes; rates are in bytes a second."""
        return missing / disk_rate + (self.always + self.routed) / memory_rate


def always_read(tensors: Sequence[CTensor]) -> list[CTensor]:
    """The packed tensors that every token reads whole: not experts, nor tables that are not the output's matrix too."""
    tables = _TABLES if any(tensor.name == "output" for tensor in tensors) else _TABLES - {"embedding"}
    return [t for t in tensors if t.layout == "packed" and t.matrices == 1 and t.name not in tables]


def resident_tensors(tensors: Sequence[CTensor], most_bytes: int) -> set[CTensor]:
    """As many of these as fit into so many bytes, in the program's order."""
    kept: set[CTensor] = set()
    for tensor in always_read(tensors):
        if tensor.size_bytes <= most_bytes:
            kept.add(tensor)
            most_bytes -= tensor.size_bytes
    return kept
