"""A request: one answer that is to be generated, and how far it is.

Its tokens are the prompt's and then the answer's. A step computes some that are known but not in the arena yet; when it
has computed the last one, it samples the next. Prompts, answers, and what a preempted request computes again are all
the same to the scheduler.
"""

from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field

from mlxr.runtime.cache.block_hashes import BlockHashes
from mlxr.runtime.cache.tiers.fetch import Fetched
from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.completion import Completion, Event, FinishReason, TokenLogprob
from mlxr.runtime.engine.constraint import Constraint
from mlxr.runtime.engine.pool import Pool, Vector
from mlxr.runtime.engine.sampling import Sampler
from mlxr.runtime.engine.thought import Thought

SECONDS_PER_PRIORITY = 10.0
"""How much later a request may have arrived and still overtake one whose priority number is greater by 1."""

Listener = Callable[[Event | BaseException], object]


@dataclass(eq=False, slots=True)
class Request:
    """One answer. The core changes all fields that are not the caller's own.

    Attributes:
        index: prompt number x n + sample number, for events.
        prompt_length: tokens of the prompt.
        tokens: the prompt's, then the answer's that are known.
        max_length: tokens at which the answer ends.
        stop_ids: ids that end it, and have no text.
        late_ids: those of them that end nothing where a forced text or the constraint goes on after them.
        sampler: chooses its tokens.
        text: turns its tokens into text.
        hashes: digests of its full blocks.
        completion: what the caller sees of it.
        listener: called with each event, or with the error that ends the request; from the thread that runs the steps.
        order: requests with a smaller number come first: arrival plus `SECONDS_PER_PRIORITY` x priority.
        number: counts requests as they come to the scheduler; decides between those of the same order.
        deadline: when it ends at the latest, by the core's clock; None: no limit.
        constraint: what its tokens must match; None: anything.
        thought: limits what it thinks; None: nothing does, or it cannot think any more.
        prompt_rows: whether it asks for the log probabilities of its prompt, or for its rows pooled.
        pool: what it wants is its prompt's rows, pooled: it generates nothing; None: an answer.
        speculates: whether draft tokens may be tried.
        seq_id: the pager's sequence; None while it waits.
        computed: tokens whose K and V are in the arena, or in a launched step.
        certain: tokens whose K and V are in the arena for certain: all steps that compute them have ended.
        in_flight: tokens that launched steps sample, and that nobody has read: 0 or 1.
        has_started: whether it was admitted before.
        is_done: whether it has ended.
        unread: what it is computing of its prompt and equal prompts wait for: for each block, the last ones first, the
            number of tokens up to its end, and its key.
        awaited: the key of a block that it waits for, while another request is computing it.
        fetch: blocks of its prompt that are being read from a tier.
        fetched_from: the first block that `fetch` reads, counted from the start of the prompt.
        drafted: draft tokens for the next step.
    """

    index: int
    prompt_length: int
    tokens: list[int]
    max_length: int
    stop_ids: Collection[int]
    sampler: Sampler
    text: AnswerText
    hashes: BlockHashes
    completion: Completion
    listener: Listener
    order: float
    number: int = 0
    deadline: float | None = None
    constraint: Constraint | None = None
    thought: Thought | None = None
    prompt_rows: bool = False
    pool: Pool | None = None
    late_ids: Collection[int] = ()
    speculates: bool = False
    seq_id: int | None = None
    computed: int = 0
    certain: int = 0
    in_flight: int = 0
    has_started: bool = False
    is_done: bool = False
    unread: list[tuple[int, Hashable]] = field(default_factory=list)
    awaited: Hashable = None
    fetch: Future[Fetched] | None = None
    fetched_from: int = 0
    drafted: list[int] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        """Tokens that the next step could compute; the last token of an answer is never computed."""
        return min(len(self.tokens) + self.in_flight, self.max_length - 1) - self.computed

    @property
    def needs_all_rows(self) -> bool:
        """Whether it asks for a row of each token of its prompt, so that none may come from a cache."""
        return self.prompt_rows and (self.pool is None or self.pool.needs_all_rows)

    @property
    def pooled(self) -> Vector:
        """The prompt's pooled rows, [hidden], of a request that has ended and asked for them.

        Raises:
            HostError: they are not finite numbers.
        """
        assert self.pool is not None, "it asked for them"
        return self.pool.vector

    @property
    def can_speculate(self) -> bool:
        """Whether its tokens depend on logits and positions alone, so that several can be sampled in a step."""
        return not self.sampler.needs_tokens and not self.prompt_rows

    @property
    def is_forced(self) -> bool:
        """Whether its next token is known without sampling it."""
        return self.thought is not None and bool(self.thought.forced)

    @property
    def asks_logits(self) -> bool:
        """Whether it is told how probable tokens are, which only a step that samples them knows."""
        return self.sampler.sampling.logprobs is not None or self.prompt_rows

    @property
    def needs_token(self) -> bool:
        """Whether a token that is being sampled must be read before the next step can be launched."""
        return self.in_flight > 0 and (
            self.sampler.needs_tokens
            or self.constraint is not None
            or self.speculates
            or (self.thought is not None and self.thought.is_due)
        )

    def accept(self, token: int, logprob: TokenLogprob | None = None, is_complete: bool = False) -> Event:
        """Adds a token. If it ends the answer, `completion.finish_reason` says why.

        Args:
            token: its id, which the constraint has accepted.
            logprob: its log probability, if the request asks for it.
            is_complete: whether the constraint allows nothing after it.
        """
        completion, tokens, answer = self.completion, self.tokens, self.text
        completion.token_ids.append(token)
        tokens.append(token)
        if self.sampler.needs_tokens:
            self.sampler.accept(token)
        if self.thought is not None:
            self.thought.accept(token)
            if self.thought.is_over:
                self.thought = None
        if logprob is not None:
            completion.logprobs.append(logprob)
        reason: FinishReason | None = None
        if token in self.stop_ids and not (token in self.late_ids and self._goes_on(is_complete)):
            reason, text = "stop", answer.flush()  # such a token has no text
        else:
            if answer.can_stop:
                text, stopped = answer.push(token, len(completion.token_ids) >= self.sampler.sampling.min_tokens)
            else:
                text, stopped = answer.decode(token), False
            if stopped:
                reason, completion.stop_text = "stop", answer.matched
            elif is_complete or len(tokens) >= self.max_length:
                reason = "stop" if is_complete else self.reason_at_length
                text += answer.flush()
        completion.text += text
        if reason is None:
            return Event(self.index, token, text, None, logprob, cached_tokens=completion.cached_tokens)
        completion.finish_reason = reason
        return Event(self.index, token, text, reason, logprob, completion, cached_tokens=completion.cached_tokens)

    def _goes_on(self, is_complete: bool) -> bool:
        """Whether more must come: in some forms the token that ends answers also ends thoughts."""
        return self.is_forced or (self.constraint is not None and not is_complete)

    @property
    def reason_at_length(self) -> FinishReason:
        """Why an answer of `max_length` tokens ends there."""
        most = self.sampler.sampling.max_tokens
        return "length" if most is not None and len(self.completion.token_ids) >= most else "context"

    def end(self, reason: FinishReason) -> Event:
        """Ends the answer without a further token; text that was held back comes with the event."""
        text = self.text.flush()
        self.completion.text += text
        self.completion.finish_reason = reason
        cached = self.completion.cached_tokens
        return Event(self.index, None, text, reason, completion=self.completion, cached_tokens=cached)
