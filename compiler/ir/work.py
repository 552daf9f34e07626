"""What an op costs for a batch: the bytes that any implementation has to move, and its arithmetic.

Each kind says what is its own (`OpKind.work`). What all have, weights that are read once and activations that are read
and written once, is counted by whoever knows how many bytes they have in a program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from mlxr.compiler.ir.tensor import BatchDim, Tensors

Dims = Mapping[BatchDim, int]
"""The numbers of a batch."""
NOT_COUNTED = 0
"""FLOPs of ops that work on each element of an activation (norms, rotations, choices): moving it costs more."""


@dataclass(frozen=True)
class Use:
    """An op's place in a graph, as its rules see it.

    Attributes:
        inputs: its inputs by port.
        behind: of an input that an op makes, the inputs of that op by their ports.
    """

    inputs: Tensors
    behind: Mapping[str, Tensors] = field(default_factory=dict)


@dataclass(frozen=True)
class OpWork:
    """What an op does for a batch.

    Attributes:
        flops: of all its arithmetic that counts, or `NOT_COUNTED`.
        store_bytes: bytes of stores that it reads and writes.
        span: tokens of a sequence's store that its last query sees; 0 for an op that attends to nothing.
        weight_tokens: how many tokens' weights it reads, where each has its own (`OpKind.weights_per_token`).
        rows: of inputs of which it reads some rows only, their number by port.
    """

    flops: int
    store_bytes: int = 0
    span: int = 0
    weight_tokens: Fraction = Fraction(1)
    rows: Mapping[str, int] = field(default_factory=dict)
