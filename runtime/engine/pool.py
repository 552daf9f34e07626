"""Pools the hidden rows of a prompt into one vector, as steps give them."""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from mlxr.compiler.artifact import Plan
from mlxr.compiler.errors import HostError, RequestError

Pooling = Literal["mean", "last", "cls"]
"""`mean`: the mean of the rows of all tokens; `last`, `cls`: the row of the last or of the first token."""
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Vector = npt.NDArray[np.float32]


class Pool:
    """The rows of one prompt so far. Of a long prompt, no more rows are kept than one.

    Means are summed in f64, row by row: they do not depend on the steps that the prompt was read in.
    """

    def __init__(self, pooling: Pooling, prompt_length: int, whole: bool = False) -> None:
        """Starts without rows.

        Args:
            pooling: how they are pooled.
            prompt_length: tokens of the prompt.
            whole: whether a step reads the whole prompt.
        """
        self.pooling, self._length, self._whole = pooling, prompt_length, whole
        self._count = 0
        self._sum: npt.NDArray[np.float64] | None = None

    @property
    def needs_all_rows(self) -> bool:
        """Whether each token's row is needed; if not, the start of the prompt may come from the prefix cache."""
        return self._whole or self.pooling != "last"

    def clear(self) -> None:
        """Forgets all rows: the prompt is read again."""
        self._count, self._sum = 0, None

    def add(self, rows: npt.NDArray[np.float32], end: int) -> None:
        """Takes rows of a step; those of a step that was given up are ignored.

        Args:
            rows: [n, hidden], f32: of n neighbouring tokens.
            end: tokens of the prompt up to and with the last of these.
        """
        if self.pooling == "last":
            if end == self._length:
                self._count, self._sum = 1, rows[-1].astype(np.float64)
            return
        if self.pooling == "cls":
            if end == len(rows):
                self._count, self._sum = 1, rows[0].astype(np.float64)
            return
        if end - len(rows) != self._count:
            return
        if self._sum is None:
            self._sum = np.zeros(rows.shape[1])
        for row in rows:  # in order; NumPy's sum adds in another order for each number of rows
            self._sum += row
        self._count = end

    @property
    def vector(self) -> Vector:
        """The pooled rows, [hidden].

        Raises:
            HostError: they are not finite numbers.
        """
        assert self._sum is not None, "the prompt has been read"
        vector = self._sum / self._count
        if not np.isfinite(vector).all():
            raise HostError(
                "the model's hidden rows of this prompt are not finite numbers: the weights are damaged, or an "
                "activation is beyond its type's range (activation_dtype: f32 has the largest)"
            )
        return vector.astype(np.float32)


def check_dimensions(dimensions: int | None, hidden: int) -> None:
    """Refuses a number of dimensions that embeddings cannot have.

    Raises:
        RequestError: it is not 1 to `hidden`.
    """
    if dimensions is not None and not 1 <= dimensions <= hidden:
        raise RequestError(f"dimensions is {dimensions}; this model's embeddings have {hidden}: ask for 1 to {hidden}")


def finished(vector: Vector, dimensions: int | None = None, normalize: bool = True) -> Vector:
    """A pooled vector as an embedding: cut to its first `dimensions`, then of length 1 if `normalize`."""
    cut = vector[:dimensions]
    if not normalize:
        return cut
    length = float(np.sqrt(np.sum(cut.astype(np.float64) ** 2)))
    return cut if length == 0.0 else (cut / length).astype(np.float32)


def check_output(plan: Plan, pooling: Pooling | None) -> None:
    """Refuses what a step of a model does not give.

    Args:
        plan: of the model.
        pooling: how rows are to be pooled; None: logits are wanted.

    Raises:
        RequestError: the model was loaded for the other thing.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise RequestError(f"pooling is {pooling!r}, expected {' or '.join(POOLINGS)}")
    if (plan.hidden_size is None) == (pooling is None):
        return
    if pooling is None:
        if plan.whole_prompts:
            raise RequestError(
                "the model is an encoder, which makes vectors of texts and writes none: ask for embeddings"
            )
        raise RequestError(
            "the model was loaded for embeddings, and gives no logits: ask embed, or load it without output=hidden"
        )
    raise RequestError(
        'the model was loaded to generate, and gives no hidden rows: load it with changes=mlxr.Changes(output="hidden")'
    )
