"""Decode steps that a host runs together with the choice of their tokens: see `Host.likeliest_of_steps`."""

from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt


class LikeliestOfSteps(Protocol):
    """Steps that have been started, each of which takes the likeliest tokens of the one before."""

    @property
    def tokens(self) -> mx.array:
        """The last step's tokens, [seqs] int32, on the device: for the batch that is launched next, and no other."""
        ...

    def read(self) -> npt.NDArray[np.int32]:
        """Waits: [2, steps, seqs], tokens, and the bits of each row's greatest logit, which is NaN if any is.

        Raises:
            HostError: a step failed.
        """
        ...
