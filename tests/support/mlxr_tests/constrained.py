"""Answers chosen at random among the tokens that a constraint allows."""

import functools
import random
from collections.abc import Callable, Sequence

import numpy as np

from mlxr.runtime.engine.constraint import Constraint
from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.tokenizer.tokenizer import Tokenizer

_CLOSING = (b'"', b"]", b"}")
"""Tokens that begin like this, or end an answer, are chosen more often: few texts of 4,000 tokens would end."""


def tokens_of(mask: Mask) -> list[int]:
    """The ids that a mask allows."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """The bytes that tokens spell."""
    return b"".join(tokenizer.bytes_of(token_id) for token_id in ids)


@functools.lru_cache(maxsize=16)
def spelled_by(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes that each token spells."""
    return [tokenizer.bytes_of(token_id) for token_id in range(tokenizer.vocab_size)]


@functools.lru_cache(maxsize=16)
def _ending(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that end an answer, or begin like what closes a text."""
    closing = {token_id for token_id, data in enumerate(spelled_by(tokenizer)) if data[:1] in _CLOSING}
    return tokenizer.eos_ids | closing


def random_answer(
    constraint: Constraint,
    tokenizer: Tokenizer,
    seed: int,
    *,
    forced: bool = True,
    look: Callable[[list[int], list[int]], None] = lambda answer, allowed: None,
    most: int = 2000,
) -> list[int]:
    """The ids of an answer that ended, without the one that ended it.

    Args:
        constraint: at its beginning.
        tokenizer: its compiler's.
        seed: the same numbers are used for the same choices, with `forced` and without.
        forced: whether to take forced tokens without looking at masks.
        look: called with the answer so far and the allowed tokens, wherever a mask is used.
        most: an answer that is longer fails.
    """
    chance, answer = random.Random(seed), []
    while not constraint.is_complete:
        assert len(answer) < most, f"no end after {bytes_of(tokenizer, answer)!r}"
        if forced and (tokens := constraint.forced()):
            answer += tokens
            continue
        constraint.prepare()
        allowed = tokens_of(constraint.mask())
        look(answer, allowed)
        ending = _ending(tokenizer)
        ends = [token for token in allowed if token in ending]
        token = allowed[0] if len(allowed) == 1 else chance.choice(ends if ends and chance.random() < 0.2 else allowed)
        constraint.accept(token)
        if token in tokenizer.eos_ids:
            break
        answer.append(token)
    return answer
