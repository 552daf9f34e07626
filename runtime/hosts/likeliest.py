"""Decode steps that a host runs together with the choice of their tokens: see `Host.likeliest_of_steps`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.equal_growth import Slots


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
        early: how many of the steps can be waited for before all have ended; 0: none.
    """

    steps: int
    starts: Sequence[int]
    grow: Callable[[], Grown | None]
    early: int = 0


class LikeliestOfSteps(Protocol):
    """Steps that have been started, each of which takes the likeliest tokens of the one before."""

    @property
    def tokens(self) -> mx.array:
        """The last step's tokens, [seqs] int32, on the device: for the batch that is launched next, and no other."""
        ...

    def wait_early(self) -> None:
        """Waits for the first steps, those of `MoreSteps.early`.

        Raises:
            HostError: a step failed.
        """
        ...

    def read(self, before: int = 0, early: int = 0) -> npt.NDArray[np.int32]:
        """Waits: [2, steps, seqs], tokens, and the bits of each row's greatest logit, which is NaN if any is.

        Args:
            before: how many of the steps that these went on after are read with them.
            early: how many of these, as `MoreSteps` had it; 0: all.

        Raises:
            HostError: a step failed.
        """
        ...
