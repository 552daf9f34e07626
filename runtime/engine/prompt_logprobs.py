"""Log probabilities of the tokens of prompts, by the logits of the steps that read them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxr.runtime.engine.completion import TokenLogprob
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling.logprobs import token_logprobs
from mlxr.runtime.engine.scheduler import Part


def add_prompt_logprobs(logits: npt.NDArray[np.float32], parts: Sequence[Part], ends: Sequence[int]) -> None:
    """Adds those of a step to the completions of the requests that ask for them.

    Args:
        logits: [rows, vocab], f32: all rows of the step.
        parts: of the step.
        ends: tokens that each request had computed after it.
    """
    first = 0
    for part, end in zip(parts, ends, strict=True):
        request = part.request
        if request.prompt_rows and not request.is_done:
            start = end - part.num_tokens
            tokens = request.tokens[start + 1 : min(end + 1, request.prompt_length)]
            if tokens:
                _add(request, logits[first : first + len(tokens)], tokens)
        first += part.num_rows


def _add(request: Request, logits: npt.NDArray[np.float32], tokens: list[int]) -> None:
    most = request.sampler.sampling.prompt_logprobs or 0
    told = token_logprobs(logits, tokens, [most] * len(tokens))
    request.completion.prompt_logprobs += [
        TokenLogprob(token, logprob, top) for token, (logprob, top) in zip(tokens, told, strict=True)
    ]
