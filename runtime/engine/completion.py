"""What a request yields: an event for each token, and the completion that they add up to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

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


class EventsTogether(Sequence[Event]):
    """Events of tokens that end nothing. Each is made when it is taken, so that it lies where the one before did.

    A thousand events at once would be in no cache, and would have Python look for garbage.
    """

    __slots__ = ("_marks", "_texts", "_time", "_tokens")

    def __init__(
        self, marks: Sequence[tuple[int, int]], tokens: Sequence[int], texts: Sequence[str], time: float
    ) -> None:
        """Takes what nobody changes any more.

        Args:
            marks: what the events of each answer have in common, its index and its prompt's cached tokens.
            tokens: one of each answer, then the next of each, and so on.
            texts: of the tokens.
            time: of all.
        """
        self._marks, self._tokens, self._texts, self._time = marks, tokens, texts, time

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[Event]:
        new, time = Event.__new__, self._time
        for token, text, (index, cached) in zip(self._tokens, self._texts, cycle(self._marks), strict=False):
            event = new(Event)  # in two fifths of the time of a call
            event.index = index
            event.token_id = token
            event.text = text
            event.finish_reason = event.logprob = event.completion = None
            event.cached_tokens = cached
            event.time = time
            yield event

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return [*self][index]

    def of(self, places: Sequence[int]) -> "EventsTogether":
        """Those of some answers, step by step."""
        width, marks = len(self._marks), [self._marks[place] for place in places]
        if len(places) == width:
            return self
        if len(places) == 1:
            step = slice(places[0], None, width)
            return EventsTogether(marks, self._tokens[step], self._texts[step], self._time)
        at = [first + place for first in range(0, len(self), width) for place in places]
        tokens, texts = self._tokens, self._texts
        return EventsTogether(marks, [tokens[i] for i in at], [texts[i] for i in at], self._time)
