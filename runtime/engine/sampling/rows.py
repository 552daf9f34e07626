"""Chooses a token for each row of logits of a step, on the CPU."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.sampling.sampler import Sampler


class Row(NamedTuple):
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


class Sampled(NamedTuple):
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
    error: HostError | None = None


def sample_rows(logits: npt.NDArray[np.float32], rows: Sequence[Row]) -> list[Sampled]:
    """Chooses a token for each row. A row's result does not depend on the other rows.

    Args:
        logits: [rows, vocab], f32; -inf for a token that must not come. It is not changed.
        rows: what belongs to each row.
    """
    assert len(logits) == len(rows), f"{len(rows)} rows for logits of shape {logits.shape}"
    return [_sample(row_logits, row) for row_logits, row in zip(logits, rows, strict=True)]


def _sample(logits: npt.NDArray[np.float32], row: Row) -> Sampled:
    assert row.mask is None, "masks are not supported yet"
    try:
        return Sampled(row.sampler.choose(logits, row.position))
    except HostError as error:
        return Sampled(0, error=error)
