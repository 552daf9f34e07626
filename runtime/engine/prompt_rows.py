"""What requests want of the rows of their prompts: log probabilities of the tokens, or the rows pooled."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.completion import TokenLogprob
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling.logprobs import token_logprobs
from mlxr.runtime.engine.scheduler import Part


def add_prompt_rows(rows: npt.NDArray[np.float32], parts: Sequence[Part], ends: Sequence[int]) -> None:
    """Gives the rows of a step to the requests that ask for them.

    Args:
        rows: [rows, vocab] logits or [rows, hidden], f32: all rows of the step.
        parts: of the step.
        ends: tokens that each request had computed after it.
    """
    first = 0
    for part, end in zip(parts, ends, strict=True):
        request = part.request
        if request.is_done or not request.prompt_rows:
            pass
        elif request.pool is not None:
            request.pool.add(rows[first : first + part.num_rows], end)
        else:
            start = end - part.num_tokens
            tokens = request.tokens[start + 1 : min(end + 1, request.prompt_length)]
            if tokens:
                _add(request, rows[first : first + len(tokens)], tokens)
        first += part.num_rows


def _add(request: Request, logits: npt.NDArray[np.float32], tokens: list[int]) -> None:
    most = request.sampler.sampling.prompt_logprobs or 0
    logprobs = token_logprobs(logits, tokens, [most] * len(tokens))
    request.completion.prompt_logprobs += [
        TokenLogprob(token, logprob, top) for token, (logprob, top) in zip(tokens, logprobs, strict=True)
    ]
