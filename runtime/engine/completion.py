"""What a request yields: an event for each token, and the completion that they add up to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from mlxr.runtime.engine.time_spent import TimeSpent

FinishReason = Literal["stop", "length", "context", "cancelled", "deadline"]
"""Why an answer ended: `stop` at an end-of-sequence token, at a stop string, or where a constraint allows nothing more,
`length` at max_tokens, `context` where the context was full before that, `cancelled` by its caller, `deadline` where
its time was over."""


class TokenLogprob(NamedTuple):
    """How probable the model thought a token: natural logarithms, of the distribution before any sampling option.

    Attributes:
        token_id: the token.
        logprob: its log probability.
        top: ids and log probabilities of the most probable tokens, the first ones first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Completion:
    """One answer so far.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them the prefix cache had, so that they were not computed again.
        token_ids: tokens of the answer.
        text: the text of the answer.
        finish_reason: why it ended; None while it continues.
        stop_text: the stop string that ended it; None: something else did.
        logprobs: for each token of the answer, if the request asks for them.
        prompt_logprobs: for each token of the prompt but the first, if the request asks for them.
        spent: where its time went, once it has ended.
    """

    prompt_tokens: int
    cached_tokens: int = field(default=0, kw_only=True)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_text: str | None = field(default=None, kw_only=True)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    spent: "TimeSpent | None" = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def usage(self) -> "Usage":
        """How many tokens it took."""
        return Usage(self.prompt_tokens, self.cached_tokens, len(self.token_ids))


class Usage(NamedTuple):
    """Tokens that an answer took.

    Attributes:
        prompt_tokens: of the prompt.
        cached_tokens: how many of these were not computed, since the prefix cache or a tier had them.
        completion_tokens: of the answer.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(slots=True)
class Event:
    """One generated token, or the end of an answer.

    Attributes:
        index: which answer: prompt number x n + sample number.
        token_id: the token; None for an answer that ends without one (`cancelled`, `deadline`).
        text: the text that becomes certain with it, as it continues the prompt; may be empty.
        finish_reason: why the answer ends with this event; None while it continues.
        logprob: the token's log probability and those of the most probable tokens, if the request asks for them.
        completion: the whole answer, with its usage, on the event that ends it.
        cached_tokens: how many tokens of the prompt were not computed; the same in each event of an answer.
        time: when the step ended that gave it, in seconds of `time.perf_counter`; 0 for an event of no step.
    """

    index: int
    token_id: int | None
    text: str
    finish_reason: FinishReason | None = None
    logprob: TokenLogprob | None = None
    completion: Completion | None = field(default=None, compare=False, repr=False)
    cached_tokens: int = field(default=0, compare=False, repr=False, kw_only=True)
    time: float = field(default=0.0, compare=False, repr=False, kw_only=True)


def events_of(
    marks: Sequence[tuple[int, int]], tokens: Sequence[int], texts: Sequence[str], time: float
) -> list[Event]:
    """The events of tokens that end nothing, in two fifths of the time that the calls would take.

    Args:
        marks: what the events of each answer have in common, its index and its prompt's cached tokens.
        tokens: one of each answer, then the next of each, and so on.
        texts: of the tokens.
        time: of all.
    """
    events = [*map(Event.__new__, repeat(Event, len(tokens)))]
    for event, token, text, (index, cached) in zip(events, tokens, texts, cycle(marks), strict=False):
        event.index = index
        event.token_id = token
        event.text = text
        event.finish_reason = event.logprob = event.completion = None
        event.cached_tokens = cached
        event.time = time
    return events
