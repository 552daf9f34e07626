"""Requests from prompts and options: everything that can be refused is refused here, before a step is run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from mlxr.compiler.artifact import ArenaGeometry, Plan
from mlxr.compiler.errors import RequestError
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.engine.adapter_set import AdapterSet, AdapterUse
from mlxr.runtime.engine.answer_text import AnswerText
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.constraint import ConstraintCompiler
from mlxr.runtime.engine.pool import Pool, Pooling
from mlxr.runtime.engine.request import SECONDS_PER_PRIORITY, Answer, Listener, Request
from mlxr.runtime.engine.sampling import Sampler, Sampling
from mlxr.runtime.engine.thought import Thought
from mlxr.runtime.engine.time_spent import Account
from mlxr.runtime.engine.too_long import too_long
from mlxr.runtime.memory.fitting_arena import ContextLimit
from mlxr.runtime.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Terms:
    """How the engine treats a request.

    Attributes:
        priority: requests with a smaller number come first, unless others have waited long.
        deadline: seconds from now after which it ends; None: no limit.
        adapter: the name of the LoRA adapter that it uses; None: none.
        adapter_scale: by what that is multiplied; None: what it was loaded with.
        salt: prompts share the prefix cache only with prompts of the same salt.
    """

    priority: int = 0
    deadline: float | None = None
    adapter: str | None = None
    salt: str = ""
    adapter_scale: float | None = None

    def __post_init__(self) -> None:
        """Checks all of them."""
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"priority is {self.priority!r}, expected a whole number; smaller ones come first")
        if abs(self.priority) > 1_000_000:
            raise RequestError(f"priority is {self.priority}, expected -1000000 to 1000000")
        if self.deadline is not None and not (
            isinstance(self.deadline, int | float) and not isinstance(self.deadline, bool)
        ):
            raise TypeError(f"deadline is {self.deadline!r}, expected a number of seconds from now, or None")
        if self.deadline is not None and not 0 < self.deadline < float("inf"):
            raise RequestError(f"deadline is {self.deadline}, expected a number of seconds greater than 0")
        if self.adapter is not None and not isinstance(self.adapter, str):
            raise TypeError(f"adapter is {self.adapter!r}, expected the name of a loaded adapter, or None")
        if not isinstance(self.salt, str):
            raise TypeError(f"salt is {self.salt!r}, expected text")


TERMS = Terms()
"""The terms of a request without any."""


class RequestMaker:
    """Makes the requests of one model."""

    def __init__(
        self,
        plan: Plan,
        arena: ArenaGeometry,
        tokenizer: Tokenizer | None,
        identity: Sequence[str],
        limit: ContextLimit | None = None,
        adapters: AdapterSet | None = None,
    ) -> None:
        """Keeps what all requests share.

        Args:
            plan: of the model.
            arena: its limits are those of a request.
            tokenizer: None: answers have no text.
            identity: what makes blocks of the cache differ between models: they go into every digest.
            limit: of the arena's context; None: nothing is known of it but the number.
            adapters: that requests may use; None: there are no places for any.
        """
        self._plan, self._arena, self._tokenizer = plan, arena, tokenizer
        self._limit = limit or ContextLimit(arena.context, arena.context)
        self._identity, self._adapters = tuple(identity), adapters
        self._eos_ids = frozenset() if tokenizer is None else frozenset(tokenizer.eos_ids)
        self._constraints = ConstraintCompiler(tokenizer, plan.vocab_size, self._eos_ids)

    def check(self, prompt: Sequence[int], answered: bool = True) -> None:
        """Refuses a prompt that can never be answered, or read.

        Args:
            prompt: its token ids.
            answered: whether there will be an answer; else the prompt may fill the context.

        Raises:
            PromptTooLongError: it leaves no token of the context for the answer, or is longer than the context.
            RequestError: the arena cannot hold it even alone.
        """
        arena, limit = self._arena, self._limit
        if len(prompt) >= limit.tokens + (not answered):
            raise too_long(f"the prompt has {len(prompt)} tokens", limit, answered=answered)
        if len(prompt) > arena.num_blocks * arena.block_size:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, and the KV arena holds {arena.num_blocks * arena.block_size} in "
                "all: shorten it, or compile the spec with a larger cache.num_blocks or cache.memory_budget"
            )

    def make(
        self,
        number: int,
        prompt: Sequence[int],
        sampling: Sampling,
        listener: Listener,
        now: float,
        terms: Terms,
        pooling: Pooling | None = None,
        second: int | None = None,
    ) -> list[Request]:
        """The requests for one prompt: as many as samples.

        Args:
            number: of the prompt; its answers have the numbers from number x n on.
            prompt: its token ids, of the vocabulary.
            sampling: how tokens are chosen.
            listener: is told of events and errors.
            now: by the core's clock.
            terms: priority, deadline and the like.
            pooling: how the prompt's rows are pooled, by a request that generates nothing; None: it is answered.
            second: where the second of two texts begins; None: there is one.

        Raises:
            PromptTooLongError: it leaves no token of the context for the answer, or is longer than the context.
            RequestError: an option that contradicts others or the model, or a constraint that cannot be used.
        """
        self.check(prompt, pooling is None)
        context, most = self._limit.tokens, sampling.max_tokens
        max_length = context if most is None else min(context, len(prompt) + most)
        if pooling is not None:
            max_length = len(prompt) + 1  # the last token is computed, too
        ends = self._eos_ids.union(sampling.stop_tokens)
        stop_ids = frozenset(sampling.stop_tokens) if sampling.ignore_eos else ends
        sampling.check_vocabulary(self._plan.vocab_size)
        if sampling.stop and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer, and the model has none: leave stop out")
        order = now + SECONDS_PER_PRIORITY * terms.priority
        deadline = None if terms.deadline is None else now + terms.deadline
        adapter = self._adapter(terms)
        root = root_digest(*self._identity, adapter.identity if adapter else "", terms.salt)
        requests: list[Request] = []
        for sample in range(sampling.n):
            begun = time.perf_counter()
            constraint = self._constraints.compile(sampling)
            account = Account()
            if constraint is not None:
                account.spent.add("grammar", time.perf_counter() - begun)
            answer = Answer(
                list(prompt),
                Completion(len(prompt)),
                constraint,
                self._thought(sampling),
                prompt_rows=sampling.prompt_logprobs is not None or pooling is not None,
            )
            requests.append(
                Request(
                    index=number * sampling.n + sample,
                    prompt_length=len(prompt),
                    max_length=max_length,
                    stop_ids=stop_ids,
                    late_ids=self._eos_ids.difference(sampling.stop_tokens),
                    sampler=Sampler(sampling, sample, prompt, ends, self._tokenizer),
                    text=AnswerText(self._tokenizer, prompt, sampling),
                    hashes=BlockHashes(root, self._arena.block_size),
                    listener=listener,
                    order=order,
                    answer=answer,
                    deadline=deadline,
                    account=account,
                    pool=None if pooling is None else Pool(pooling, len(prompt), self._plan.whole_prompts),
                    adapter=adapter,
                    second=second,
                )
            )
        return requests

    def _adapter(self, terms: Terms) -> AdapterUse | None:
        if terms.adapter is None:
            return None
        if self._adapters is None:
            raise RequestError(
                f"adapter is {terms.adapter!r}, and the model was loaded without places for adapters: load it with "
                "some (--adapter, or mlxr.Adapters)"
            )
        return self._adapters.use(terms.adapter, terms.adapter_scale)

    def _thought(self, sampling: Sampling) -> Thought | None:
        if sampling.thought is None:
            return None
        if self._tokenizer is None:
            raise RequestError("a limit on thoughts needs a tokenizer, and the model has none: leave thought out")
        return Thought(sampling.thought, self._tokenizer)

    def close(self) -> None:
        """Ends what constraints need; no request can be made afterwards."""
        self._constraints.close()
        self._adapters = None
