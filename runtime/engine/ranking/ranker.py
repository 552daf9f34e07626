"""What any way to rank has: how query and document become a prompt, and the score of what the model makes of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlxr.compiler.errors import RequestError
from mlxr.runtime.engine.pool import Pooling, Vector
from mlxr.runtime.engine.prompts import Pair

Array = npt.NDArray[np.float32]


class Ranked(NamedTuple):
    """A document's number in the list that was given, and its score: from 0 to 1, the greater the better."""

    document: int
    score: float


class Ranker(ABC):
    """Ranks by one model.

    Attributes:
        pooling: which of a prompt's rows has what is needed.
    """

    pooling: Pooling

    def __init__(self, context: int) -> None:
        """Takes the most tokens of a prompt."""
        self._context = context

    def pair(self, query: str, document: str, most: int | None = None) -> Pair:
        """The prompt of a document. One that is too long is cut at its end.

        Args:
            query: what is looked for.
            document: what may answer it.
            most: most tokens of a document; None: as many as there is room for.

        Raises:
            RequestError: the query leaves no room for a document.
        """
        before, ids, after, second = self._parts(query, document)
        room = self._context - len(before) - len(after)
        if room < 1:
            whole = len(before) + len(after)
            raise RequestError(
                f"the query takes {whole} tokens with what stands around it; the context is {self._context}: shorten it"
            )
        return Pair([*before, *ids[: room if most is None else min(room, most)], *after], second)

    @abstractmethod
    def _parts(self, query: str, document: str) -> tuple[list[int], list[int], list[int], int | None]:
        """Token ids before a document, of it, and after it; and where the second of two texts begins, if it counts."""

    @abstractmethod
    def score(self, vector: Vector) -> float:
        """The score of the pooled row of a pair."""


def in_order(scores: Sequence[float], most: int | None = None) -> list[Ranked]:
    """The best ones, the best one first; of equal ones the first."""
    ranked = sorted((Ranked(i, score) for i, score in enumerate(scores)), key=lambda one: -one.score)
    return ranked[:most]


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), without overflow."""
    return float(1 / (1 + np.exp(-x))) if x >= 0 else float(np.exp(x) / (1 + np.exp(x)))
