"""What goes into sampling besides logits, and what comes out: one of each for each row of logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import MlxrError
from mlxr.runtime.engine.sampling.sampler import Sampler


@dataclass(slots=True)
class Row:
    """What is needed besides its logits to choose the token of a row.

    Attributes:
        sampler: of the request.
        position: which token of the answer it is, from 0.
        mask: the tokens that may come, a bit each, the lowest bit first: int32 [ceil(vocab / 32)]; None: all.
        draft: tokens that this row takes as accepted, after those that `sampler` has accepted.
    """

    sampler: Sampler
    position: int
    mask: npt.NDArray[np.int32] | None = None
    draft: Sequence[int] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the logits are taken as they are: no mask, no bias and no penalty."""
        return self.mask is None and self.sampler.is_plain


@dataclass(slots=True)
class Sampled:
    """The token of a row.

    Attributes:
        token: its id.
        logprob: its log probability by the logits as the model gave them; None where nobody asked.
        top: ids and log probabilities of the most probable tokens, as many as were asked for.
        error: why there is no token: the row has a NaN or +inf, or nothing but -inf. `token` is 0 then.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: MlxrError | None = None


def allowed(mask: npt.NDArray[np.int32], vocab_size: int) -> npt.NDArray[np.bool_]:
    """The bits of a mask: [vocab], bool."""
    return np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)
