"""A request: one answer that is to be generated, and how far it is.

Its tokens are the prompt's and then the answer's. A step computes some that are known but not in the arena yet; when it
has computed the last one, it samples the next. Prompts, answers, and what a preempted request computes again are all
the same to the scheduler.

What was asked never changes. What changes is in five records, and each of their fields is assigned in one module:

====================  ==============================================================
`Request.answer`      here, by the methods of `Request`
`Request.run`         the scheduler, and (`unread`) what knows which prompts are being read
`Request.draft`       the core (`speculates`) and the speculator
`Request.fetch`       the link to the tiers
`Request.account`     the ledger
====================  ==============================================================
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mlxr.runtime.cache.block_hashes import BlockHashes
from mlxr.runtime.cache.tiers.fetch import Fetched
from mlxr.runtime.engine.adapter_set import AdapterUse
from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.completion import Completion, Event, FinishReason, TokenLogprob
from mlxr.runtime.engine.constraint import Constraint
from mlxr.runtime.engine.pool import Pool, Vector
from mlxr.runtime.engine.sampling import Sampler
from mlxr.runtime.engine.sampling.logprobs import token_logprobs
from mlxr.runtime.engine.thought import Thought
from mlxr.runtime.engine.time_spent import Account

SECONDS_PER_PRIORITY = 10.0
"""How much later a request may have arrived and still overtake one whose priority number is greater by 1."""

Listener = Callable[[Event | BaseException], object]


@dataclass(eq=False, slots=True)
class Answer:
    """What has been generated, and what decides how it goes on.

    Attributes:
        tokens: the prompt's, then the answer's that are known.
        completion: what the caller sees.
        constraint: what its tokens must match; None: anything.
        thought: limits what it thinks; None: nothing does, or it cannot think any more.
        prompt_rows: whether rows of its prompt are wanted that have not been read: for their log probabilities, or to
            be pooled.
        is_done: whether it has ended.
    """

    tokens: list[int]
    completion: Completion
    constraint: Constraint | None = None
    thought: Thought | None = None
    prompt_rows: bool = False
    is_done: bool = False


@dataclass(eq=False, slots=True)
class RunState:
    """How far the scheduler has brought a request.

    Attributes:
        number: counts requests as they come to the scheduler; decides between those of the same order.
        seq_id: the pager's sequence; None while it waits.
        computed: tokens whose K and V are in the arena, or in a launched step.
        certain: tokens whose K and V are in the arena for certain: all steps that compute them have ended.
        told: how many of these the prefix cache was told of.
        in_flight: tokens that launched steps sample, and that nobody has read.
        has_started: whether it was admitted before.
        unread: what it is computing of its prompt and equal prompts wait for: for each block, the last ones first, the
            number of tokens up to its end, and its key.
        awaited: the key of a block that it waits for, while another request is computing it.
    """

    number: int = 0
    seq_id: int | None = None
    computed: int = 0
    certain: int = 0
    told: int = 0
    in_flight: int = 0
    has_started: bool = False
    unread: list[tuple[int, Hashable]] = field(default_factory=list)
    awaited: Hashable = None


@dataclass(eq=False, slots=True)
class Draft:
    """What a speculator guesses.

    Attributes:
        speculates: whether draft tokens may be tried.
        drafted: draft tokens for the next step.
        rests_until: tokens of the text before which none are tried.
    """

    speculates: bool = False
    drafted: list[int] = field(default_factory=list)
    rests_until: int = 0


@dataclass(eq=False, slots=True)
class TierFetch:
    """Blocks of a prompt that are being read from a tier.

    Attributes:
        blocks: they; None: none are.
        first_block: the first of them, counted from the start of the prompt.
        state_after: of a model with states: the tokens after which the state is that is read with them.
        is_read: whether they had been read when the scheduler last asked what the request begins with.
    """

    blocks: Future[Fetched] | None = None
    first_block: int = 0
    state_after: int = 0
    is_read: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """What was asked for one answer, and the records of how far it is.

    Attributes:
        index: prompt number x n + sample number, for events.
        prompt_length: tokens of the prompt.
        max_length: tokens at which the answer ends.
        stop_ids: ids that end it, and have no text.
        sampler: chooses its tokens.
        text: turns its tokens into text.
        hashes: digests of its full blocks.
        listener: called with each event, or with the error that ends the request; from the thread that runs the steps.
        order: requests with a smaller number come first: arrival plus `SECONDS_PER_PRIORITY` x priority.
        answer: what has been generated.
        deadline: when it ends at the latest, by the core's clock; None: no limit.
        pool: what it wants is its prompt's rows, pooled: it generates nothing; None: an answer.
        adapter: what is added to the model's weights for it; None: nothing.
        second: the number of the token with which the second of two texts begins, where the model tells them apart.
        late_ids: those of `stop_ids` that end nothing where a forced text or the constraint goes on after them.
        run: how far the scheduler has brought it.
        draft: what is guessed of it.
        fetch: what is being read for it.
        account: where its time goes.
    """

    index: int
    prompt_length: int
    max_length: int
    stop_ids: frozenset[int]
    sampler: Sampler
    text: AnswerText
    hashes: BlockHashes
    listener: Listener
    order: float
    answer: Answer
    deadline: float | None = None
    pool: Pool | None = None
    second: int | None = None
    late_ids: Collection[int] = ()
    adapter: AdapterUse | None = None
    run: RunState = field(default_factory=RunState)
    draft: Draft = field(default_factory=Draft)
    fetch: TierFetch = field(default_factory=TierFetch)
    account: Account = field(default_factory=Account)

    @property
    def num_pending(self) -> int:
        """Tokens that the next step could compute; the last token of an answer is never computed."""
        return min(len(self.answer.tokens) + self.run.in_flight, self.max_length - 1) - self.run.computed

    @property
    def needs_all_rows(self) -> bool:
        """Whether it asks for a row of each token of its prompt, so that none may come from a cache."""
        return self.answer.prompt_rows and (self.pool is None or self.pool.needs_all_rows)

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
        return not self.sampler.needs_tokens and not self.answer.prompt_rows

    @property
    def is_forced(self) -> bool:
        """Whether its next token is known without sampling it."""
        return self.answer.thought is not None and bool(self.answer.thought.forced)

    @property
    def asks_logits(self) -> bool:
        """Whether it is told how probable tokens are, which only a step that samples them knows."""
        return self.sampler.sampling.logprobs is not None or self.answer.prompt_rows

    @property
    def needs_token(self) -> bool:
        """Whether a token that is being sampled must be read before the next step can be launched."""
        if not self.run.in_flight:
            return False
        answer = self.answer
        if self.sampler.needs_tokens or answer.constraint is not None:
            return True
        if self.draft.speculates and len(answer.tokens) + self.run.in_flight >= self.draft.rests_until:
            return True
        return answer.thought is not None and answer.thought.is_due(self.run.in_flight)

    @property
    def reason_at_length(self) -> FinishReason:
        """Why an answer of `max_length` tokens ends there."""
        most = self.sampler.sampling.max_tokens
        return "length" if most is not None and len(self.answer.completion.token_ids) >= most else "context"

    def begin(self, computed: int, is_first: bool) -> None:
        """Its prompt is read, for the first time or again.

        Args:
            computed: tokens that need not be computed.
            is_first: whether it is read for the first time.
        """
        completion = self.answer.completion
        if is_first:
            completion.cached_tokens = computed
        if self.answer.prompt_rows:
            completion.prompt_logprobs.clear()
            if self.pool is not None:
                self.pool.clear()

    def add_prompt_rows(self, rows: npt.NDArray[np.float32], end: int) -> None:
        """Takes rows of its prompt: log probabilities of the tokens after them, or the rows to be pooled.

        Args:
            rows: [tokens, vocab] logits or [tokens, hidden], f32.
            end: tokens up to that of the last row.
        """
        if self.pool is not None:
            self.pool.add(rows, end)
            return
        tokens = self.answer.tokens[end - len(rows) + 1 : min(end + 1, self.prompt_length)]
        if tokens:
            most = self.sampler.sampling.prompt_logprobs or 0
            found = token_logprobs(rows[: len(tokens)], tokens, [most] * len(tokens))
            self.answer.completion.prompt_logprobs += [
                TokenLogprob(token, logprob, top) for token, (logprob, top) in zip(tokens, found, strict=True)
            ]

    def has_prompt(self) -> None:
        """Its prompt, and all rows of it that were wanted, have been read."""
        self.answer.prompt_rows = False

    def accept(self, token: int, logprob: TokenLogprob | None = None, is_complete: bool = False) -> Event:
        """Adds a token. If it ends the answer, `completion.finish_reason` says why.

        Args:
            token: its id, which the constraint has accepted.
            logprob: its log probability, if the request asks for it.
            is_complete: whether the constraint allows nothing after it.
        """
        answer, text_of = self.answer, self.text
        completion, tokens = answer.completion, answer.tokens
        completion.token_ids.append(token)
        tokens.append(token)
        if self.sampler.needs_tokens:
            self.sampler.accept(token)
        if answer.thought is not None:
            answer.thought.accept(token)
            if answer.thought.is_over:
                answer.thought = None
        if logprob is not None:
            completion.logprobs.append(logprob)
        reason: FinishReason | None = None
        if token in self.stop_ids and not (token in self.late_ids and self._goes_on(is_complete)):
            reason, text = "stop", text_of.flush()  # such a token has no text
        else:
            if text_of.can_stop:
                text, stopped = text_of.push(token, len(completion.token_ids) >= self.sampler.sampling.min_tokens)
            else:
                text, stopped = text_of.decode(token), False
            if stopped:
                reason, completion.stop_text = "stop", text_of.matched
            elif is_complete or len(tokens) >= self.max_length:
                reason = "stop" if is_complete else self.reason_at_length
                text += text_of.flush()
        completion.text += text
        if reason is None:
            event = Event(self.index, token, text, None, logprob)
        else:
            completion.finish_reason = reason
            event = Event(self.index, token, text, reason, logprob, completion)
        event.cached_tokens = completion.cached_tokens
        return event

    def _goes_on(self, is_complete: bool) -> bool:
        """Whether more must come: in some forms the token that ends answers also ends thoughts."""
        return self.is_forced or (self.answer.constraint is not None and not is_complete)

    def end(self, reason: FinishReason) -> Event:
        """Ends the answer without a further token; text that was held back comes with the event."""
        text, completion = self.text.flush(), self.answer.completion
        completion.text += text
        completion.finish_reason = reason
        cached = completion.cached_tokens
        return Event(self.index, None, text, reason, completion=completion, cached_tokens=cached)

    def give_up(self) -> None:
        """Ends the answer, of which nobody is told."""
        self.answer.completion.finish_reason = "cancelled"

    def leave(self) -> None:
        """Nothing more comes: the core forgets it."""
        self.answer.is_done = True
        self.answer.completion.spent = self.account.spent

    def forget_unread(self) -> None:
        """Takes the constraint back to the tokens that are known: the step that was to choose the next is given up."""
        if self.answer.constraint is not None:
            self.answer.constraint.truncate(len(self.answer.completion.token_ids))


def take_tokens(
    answers: Sequence[Answer],
    completions: Sequence[Completion],
    tokens: Sequence[Sequence[int]],
    texts: Sequence[str],
) -> None:
    """Adds tokens of several steps to answers, as `Request.accept` does where nothing is special about any of them.

    Args:
        answers: they.
        completions: of the answers.
        tokens: of each answer.
        texts: of these, of each answer.
    """
    for answer, completion, own, text in zip(answers, completions, tokens, texts, strict=True):
        answer.tokens += own
        completion.token_ids += own
        completion.text += text


def take_back(request: Request, length: int, text: str) -> None:
    """Takes the newest tokens out of an answer, whatever of `take_tokens` was done.

    Args:
        request: whose.
        length: tokens that are left, with the prompt's.
        text: the text that is left.
    """
    answer, completion = request.answer, request.answer.completion
    del answer.tokens[length:]
    del completion.token_ids[length - request.prompt_length :]
    completion.text = text
