"""What a model is asked: texts, token ids, and pairs of texts that a model tells apart."""

import operator
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mlxr.compiler.errors import RequestError
from mlxr.runtime.argument_types import described


class Pair(NamedTuple):
    """Token ids of two texts that a model reads as one.

    Attributes:
        ids: of both, with what stands around them.
        second: the number of the first token of the second, where the model tells them apart by types; else None.
    """

    ids: list[int]
    second: int | None


Prompt = str | Sequence[int] | Pair


def list_of(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts.

    Raises:
        TypeError: they are no list.
    """
    if isinstance(prompts, str | bytes | Pair) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is {described(prompts)}; expected a list of prompts; generate and stream take one")
    return list(prompts)


def token_ids(prompt: Sequence[int]) -> list[int]:
    """The numbers of a prompt.

    Raises:
        TypeError: it is something else.
    """
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError("bytes hold numbers, not token ids")
        return list(map(operator.index, prompt))
    except TypeError as error:
        raise TypeError(
            f"a prompt is text or a list of token ids, not {described(prompt)}; start() takes several prompts"
        ) from error


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Refuses ids outside the vocabulary.

    Raises:
        RequestError: there is one; the first one is named.
    """
    try:
        greatest = int(np.frombuffer(struct.pack(f"={len(ids)}I", *ids), np.uint32).max())  # faster than `max`
    except struct.error:  # of one below 0, too
        greatest = vocab_size
    if greatest >= vocab_size:
        outside = next(i for i in ids if not 0 <= i < vocab_size)
        raise RequestError(f"token id {outside} is outside the vocabulary of {vocab_size}")
