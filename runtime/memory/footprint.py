"""What a model takes in memory on a host."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Bytes that a model takes besides its arena, known before it is loaded.

    Attributes:
        weights_bytes: weights in memory that the host allocates.
        mapped_bytes: weights that stay mapped from their file. The system counts their pages as free, because it can
            take them back at any time and read them again; a host that lacks memory for them is slow, but runs.
        activation_bytes: activations of the largest step, and scratch of all threads.
    """

    weights_bytes: int
    mapped_bytes: int
    activation_bytes: int
