"""A step that has been launched: its parts, the rows that it samples, and its tokens where the next step takes them."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.samples import Samples
from mlxr.runtime.engine.sampling import Row
from mlxr.runtime.engine.scheduler import Part
from mlxr.runtime.hosts.batch import MOST_TOPS, BatchRequest, DecodeRequests, Rows
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
        decode: what the host is asked for if each part has one known token and nothing special; else None.
        requests: of the parts, if there is `decode`.
        logits: its logits, where requests ask for those of their prompts.
        samples: the tokens that it samples.
    """

    __slots__ = (
        "_rows",
        "begin",
        "decode",
        "decoding",
        "drafted",
        "ends",
        "logits",
        "parts",
        "prompt_tokens",
        "requests",
        "samples",
        "sequences",
    )

    def __init__(self, parts: list[Part], begin: float, before: "LaunchedStep | None" = None) -> None:
        """Begins a step; `samples` is set when it has been launched.

        Args:
            parts: what the scheduler chose.
            begin: now, in seconds of `time.perf_counter`.
            before: a step with `decode` and the same parts, after which each request has got one more token.
        """
        self.parts, self.begin = parts, begin
        self.logits: Logits | None = None
        self.samples: Samples
        self.sequences: Sequence[int | None]
        self.requests: list[Request] = []
        self._rows: list[Row] = []
        self.decode = self._plain_decode() if before is None else self._decode_after(before)
        if self.decode is not None:
            self.decoding, self.prompt_tokens, self.drafted = len(parts), 0, 0
            return
        self.sequences = [request.seq_id for request, _, _, _ in parts]
        self.ends = [request.computed + num_tokens for request, num_tokens, _, _ in parts]
        counts = [num_tokens for _, num_tokens, _, _ in parts]
        self.decoding = counts.count(1)
        self.prompt_tokens = sum(counts) - self.decoding
        self.drafted = sum([len(draft) for _, _, _, draft in parts])

    def _plain_decode(self) -> DecodeRequests | None:
        """`decode`; if there is one, `sequences`, `ends`, `requests` and `_rows` are set, too."""
        sequences: list[int] = []
        tokens: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        rows: list[Row] = []
        for request, num_tokens, samples, draft in self.parts:  # for each sequence of each step
            start, seq_id = request.computed, request.seq_id
            if num_tokens != 1 or not samples or draft or seq_id is None or request.in_flight:
                return None
            if request.constraint is not None or request.prompt_rows or request.thought is not None:
                return None
            sequences.append(seq_id)
            tokens.append(request.tokens[start])
            starts.append(start)
            ends.append(start + 1)
            rows.append(Row(request.sampler, start + 1 - request.prompt_length))
        self.sequences, self.ends, self._rows = sequences, ends, rows
        self.requests = [request for request, _, _, _ in self.parts]
        return DecodeRequests(sequences, tokens, starts)

    def _decode_after(self, before: "LaunchedStep") -> DecodeRequests:
        """`decode`, and what `_plain_decode` sets, of the step after one with the same parts."""
        assert before.decode is not None, "the step before decodes"
        starts, self.requests, self.sequences = before.ends, before.requests, before.sequences
        self.ends = [start + 1 for start in starts]
        self._rows = before._rows
        for row in self._rows:  # nobody needs them any more as they were
            row.position += 1
        tokens = [request.tokens[start] for request, start in zip(self.requests, starts, strict=True)]
        return DecodeRequests(before.decode.seq_ids, tokens, starts)

    @property
    def sampled(self) -> list[Request]:
        """The requests whose next token it samples, in the order of `samples`."""
        return [part.request for part in self.parts if part.samples]

    def tops(self) -> int:
        """How many of the greatest logits of each row are enough to sample its tokens; 0: all. See `Batch.tops`."""
        most = 0
        for request, _, samples, _ in self.parts:
            if request.prompt_rows:
                return 0
            if samples:
                enough = 0 if request.constraint is not None or request.is_forced else request.sampler.tops
                if not 0 < enough <= MOST_TOPS:
                    return 0
                most = max(most, enough)
        return most

    def rows(self, masks_of: Callable[[Request], Sequence[Mask | None]]) -> tuple[Sequence[int], list[Row]]:
        """Which rows of logits it samples, and how.

        Args:
            masks_of: the tokens that a request allows next, and after its draft tokens, as far as these are allowed.
        """
        if self._rows:
            return range(len(self._rows)), self._rows
        indices: list[int] = []
        rows: list[Row] = []
        index = 0
        for part, end in zip(self.parts, self.ends, strict=True):
            request, _, samples, draft = part
            index += part.num_rows if request.prompt_rows or draft else samples
            if not samples:
                continue
            position = end - request.prompt_length
            if not draft and request.constraint is None and not request.is_forced:  # nearly every row of each step
                indices.append(index - 1)
                rows.append(Row(request.sampler, position))
                continue
            masks = masks_of(request)
            for i in range(1 + len(draft)):
                indices.append(index - 1 - len(draft) + i)
                rows.append(Row(request.sampler, position + i, masks[min(i, len(masks) - 1)]))
        return indices, rows


def batch_requests(parts: Sequence[Part]) -> list[BatchRequest]:
    """What a step asks the host for; ids that are on the device are 0. Constraints prepare their masks."""
    requests = []
    for request, num_tokens, samples, draft in parts:
        assert request.seq_id is not None, "only a request with a sequence takes part in a step"
        start = request.computed
        tokens = request.tokens[start : start + num_tokens]
        if len(tokens) < num_tokens:
            tokens.append(0)  # it is on the device
        wants_one = samples or request.prompt_rows
        rows: Rows = "all" if draft or request.needs_all_rows else "last" if wants_one else "none"
        requests.append(BatchRequest(request.seq_id, [*tokens, *draft], start, rows, len(draft)))
        if request.constraint is not None and samples:
            request.constraint.prepare(draft)
    return requests


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
