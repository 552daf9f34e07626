"""Prompts as callers give them: text, or token ids."""

import operator
from collections.abc import Iterable, Sequence

from mlxr.runtime.argument_types import described

Prompt = str | Sequence[int]


def list_of(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Several prompts.

    Raises:
        TypeError: it is one, or none.
    """
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is {described(prompts)}; expected a list of prompts; generate and stream take one")
    return list(prompts)


def token_ids(prompt: Sequence[int]) -> list[int]:
    """The ids of a prompt that is no text.

    Raises:
        TypeError: these are no whole numbers.
    """
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError("bytes hold numbers, not token ids")
        return [operator.index(i) for i in prompt]
    except TypeError as error:
        raise TypeError(
            f"a prompt is text or a list of token ids, not {described(prompt)}; start() takes several prompts"
        ) from error
