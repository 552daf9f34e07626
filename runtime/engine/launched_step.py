"""A step that has been launched: its parts, the rows that it samples, and its tokens where the next step takes them."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.engine.sampling import Row
from mlxr.runtime.engine.scheduler import Part
from mlxr.runtime.hosts.batch import BatchRequest
from mlxr.runtime.hosts.host import Logits


class LaunchedStep:
    """A step that has been launched, and what it will have computed when it ends.

    Attributes:
        parts: what the scheduler chose.
        begin: when it was launched, in seconds of `time.perf_counter`.
        sequences: of the parts.
        ends: tokens of each part's request that are computed when it ends, without draft tokens.
        decoding: parts of one token.
        prompt_tokens: tokens of the other parts.
        drafted: draft tokens.
        logits: its logits, where requests ask for those of their prompts.
        samples: the tokens that it samples.
    """

    __slots__ = ("begin", "decoding", "drafted", "ends", "logits", "parts", "prompt_tokens", "samples", "sequences")

    def __init__(self, parts: list[Part], begin: float) -> None:
        """Begins a step; `samples` is set when it has been launched."""
        self.parts, self.begin = parts, begin
        self.sequences = [part.request.seq_id for part in parts]
        self.ends = [part.request.computed + part.num_tokens for part in parts]
        self.decoding = sum(part.num_tokens == 1 for part in parts)
        self.prompt_tokens = sum(part.num_tokens for part in parts) - self.decoding
        self.drafted = sum(len(part.draft) for part in parts)
        self.logits: Logits | None = None
        self.samples: Samples

    @property
    def sampled(self) -> list[Request]:
        """The requests whose next token it samples, in the order of `samples`."""
        return [part.request for part in self.parts if part.samples]

    def rows(self, masks_of: Callable[[Request], Sequence[Mask | None]]) -> tuple[list[int], list[Row]]:
        """Which rows of logits it samples, and how.

        Args:
            masks_of: the tokens that a request allows next, and after its draft tokens, as far as these are allowed.
        """
        indices: list[int] = []
        rows: list[Row] = []
        index = 0
        for part, end in zip(self.parts, self.ends, strict=True):
            request = part.request
            index += part.num_rows if request.prompt_rows or part.draft else part.samples
            if part.samples:
                masks = masks_of(request)
                first, position = index - 1 - len(part.draft), end - request.prompt_length
                for i in range(1 + len(part.draft)):
                    indices.append(first + i)
                    rows.append(Row(request.sampler, position + i, masks[min(i, len(masks) - 1)]))
        return indices, rows


def with_tokens_of(before: LaunchedStep, parts: list[Part], requests: list[BatchRequest]) -> mx.array | None:
    """The token ids of a step: [tokens], int32, of which some are sampled by the step before. None if none are."""
    index = {request: i for i, request in enumerate(before.sampled)}
    num_sampled = len(index)
    known: list[int] = []
    places: list[int] = []  # in the sampled tokens with the known ones after them
    for part, request in zip(parts, requests, strict=True):
        places += range(num_sampled + len(known), num_sampled + len(known) + len(request.tokens))
        known += request.tokens
        if part.samples and part.request.in_flight:
            places[-1] = index[part.request]
    unread = sum(place < num_sampled for place in places)
    if not unread:
        return None
    tokens = before.samples.tokens
    if unread < len(places):
        tokens = mx.concatenate([tokens, mx.array(np.array(known, np.int32))])
    elif places == list(range(num_sampled)):
        return tokens
    return tokens[mx.array(np.array(places, np.int32))]
