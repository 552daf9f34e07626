"""What changes single logits before a token is chosen: minimum length, bias, penalties, DRY, in this order.

The order is vLLM's, whose processors of logits come before its penalties. The changes are a few arrays of numbers, so
that the CPU and a device make the same changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.sampling.sampler import Row, SparseNumbers, allowed


class Adjustment(NamedTuple):
    """Changes of some logits, each at most once: a positive one is divided by `factor`, another one multiplied by it.

    Then `minus` is subtracted, which is +inf where a token must not come.

    Attributes:
        rows: [n], intp.
        ids: [n], intp.
        factor: [n], f32.
        minus: [n], f32.
    """

    rows: npt.NDArray[np.intp]
    ids: npt.NDArray[np.intp]
    factor: npt.NDArray[np.float32]
    minus: npt.NDArray[np.float32]


def adjustments(rows: Sequence[Row], vocab_size: int, later: int = 0) -> list[Adjustment]:
    """The changes of the rows' logits, to make in this order; none if all are plain. For `later` see `sample_rows`."""
    bias, penalties, dry = _Changes(), _Changes(), _Changes()
    for index, row in enumerate(rows):
        sampler = row.sampler
        if sampler.is_plain:
            continue
        ids, numbers = sampler.bias_below_minimum if _must_go_on(row, vocab_size, later) else sampler.bias
        known = ids < vocab_size  # a tokenizer may have end-of-sequence tokens that the model lacks
        bias.add(index, (ids[known], -numbers[known]))
        for minus, factor in sampler.penalties(row.draft):
            penalties.add(index, minus, factor)
        dry.add(index, sampler.dry(row.draft))
    return [changes.adjustment() for changes in (bias, penalties, dry) if changes.rows]


def adjust(logits: npt.NDArray[np.float32], changes: Sequence[Adjustment]) -> None:
    """Makes the changes in place; logits: [rows, vocab], f32."""
    flat = logits.reshape(-1)
    assert flat.base is not None, "a view: the rows stand one after the other"
    for rows, ids, factor, minus in changes:
        places = rows * logits.shape[1] + ids
        old = flat[places]
        flat[places] = np.where(old > 0, old / factor, old * factor) - minus


class _Changes:
    """The changes of one adjustment, row by row."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._numbers: list[SparseNumbers] = []
        self._factors: list[float] = []

    def add(self, row: int, minus: SparseNumbers | None, factor: float = 1.0) -> None:
        if minus is not None and len(minus[0]):
            self.rows.append(row)
            self._numbers.append(minus)
            self._factors.append(factor)

    def adjustment(self) -> Adjustment:
        lengths = [len(ids) for ids, _ in self._numbers]
        ids, minus = (np.concatenate(parts) for parts in zip(*self._numbers, strict=True))
        factor = np.repeat(np.array(self._factors, dtype=np.float32), lengths)
        return Adjustment(np.repeat(np.array(self.rows, dtype=np.intp), lengths), ids, factor, minus)


def _must_go_on(row: Row, vocab_size: int, later: int) -> bool:
    """Whether the token must not end the answer. Where a mask allows nothing else, it may: the mask comes first."""
    if not row.sampler.is_below_minimum(row.position + later):
        return False
    if row.mask is None:
        return True
    may_come = allowed(row.mask, vocab_size)
    may_come[row.sampler.stop_ids[row.sampler.stop_ids < vocab_size]] = False
    return bool(may_come.any())
