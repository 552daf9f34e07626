"""Steps that a host runs together with the choice of their tokens: see `Host.likeliest_of` and `likeliest_of_steps`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.equal_growth import Slots

Asked = npt.NDArray[np.uint32]
"""How rows draw their tokens: [steps, rows, NUM_ASKED], the bits of each number."""
NUM_ASKED = 8
"""A random number in [0, 1), temperature, min_p, top_p (f32); top_k; whether the row takes its likeliest token."""


class Grown(NamedTuple):
    """Where the tokens of steps are, by the names of the plan's buffers.

    Attributes:
        slots: of the tokens of the first step, then of those of the second, and so on.
        tables: of blocks and states, [seqs, columns in use].
    """

    slots: Mapping[str, Slots]
    tables: Mapping[str, npt.NDArray[np.int32]]


class MoreSteps(NamedTuple):
    """Steps of the same sequences, each with one more token, that follow others: see `Host.go_on`.

    Attributes:
        steps: how many.
        starts: tokens of each sequence that are in the arena before them.
        grow: has the sequences grow; None: they do not grow plainly, and have not grown.
        first: how many of the steps are given to the device at once; the others by `Host.run_on`; 0: all.
        asked: how their rows draw their tokens, see `Asked`; None: all take the likeliest.
    """

    steps: int
    starts: Sequence[int]
    grow: Callable[[], Grown | None]
    first: int = 0
    asked: Asked | None = None


class Likeliest(Protocol):
    """The likeliest token of each row of a step's logits, which is being chosen: see `Host.likeliest_of`."""

    @property
    def tokens(self) -> mx.array:
        """They, [rows] int32, lazy, on the device; to be started before another step is."""
        ...

    def read(self) -> npt.NDArray[np.int32]:
        """Waits: [2, rows], tokens, and the bits of each row's greatest logit, which is NaN if any is.

        Raises:
            HostError: the step failed.
        """
        ...


class LikeliestOfSteps(Protocol):
    """Steps that have been started, each of which takes the tokens that the one before has chosen."""

    @property
    def tokens(self) -> mx.array:
        """The last step's tokens, [seqs] int32, on the device: for the batch that is launched next, and no other."""
        ...

    @property
    def left(self) -> int:
        """How many of them the device has not been given."""
        ...

    @property
    def is_ending(self) -> bool:
        """Whether all were given, and of what was given only the last part may still run."""
        ...

    def read(self, before: int = 0, early: int = 0) -> npt.NDArray[np.int32]:
        """Waits: [2, steps, seqs], tokens, and the bits of each row's greatest logit, which is NaN if any is.

        Args:
            before: how many of the steps that these went on after are read with them.
            early: how many of these, which have ended; 0: all that were given.

        Raises:
            HostError: a step failed.
        """
        ...
