"""Gives requests what steps computed for them, tokens and ends and errors, and tells their listeners.

A request whose listener, tokenizer or constraint fails ends; the others go on.
"""

import threading
from collections.abc import Sequence

from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.engine.completion import Event, TokenLogprob
from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.engine.core_stats import CoreStats
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling import Sampled
from mlxr.runtime.engine.scheduler import Part, Scheduler
from mlxr.runtime.engine.speculation.speculator import Speculator


class Answers:
    """The answers of a core's requests. It refers to nothing that refers back to it.

    Attributes:
        speculator: see `EngineCore`; it forgets requests that end.
        step_end: when the newest step ended, in seconds of `time.perf_counter`; events get it as their time.
    """

    def __init__(
        self, pager: Pager, scheduler: Scheduler, stats: CoreStats, wake: threading.Event, vocab_size: int
    ) -> None:
        """Takes what all requests share.

        Args:
            pager: has their sequences.
            scheduler: has the requests.
            stats: counts what they get.
            wake: is set when a request fails, since others may then go on.
            vocab_size: how many logits the model has.
        """
        self._pager, self._scheduler, self._stats, self._wake = pager, scheduler, stats, wake
        self._num_words = -(-vocab_size // 32)  # of a mask
        self.speculator: Speculator | None = None
        self.step_end = 0.0

    def accept(self, request: Request, sampled: Sampled) -> None:
        """Gives a request the token that was sampled for it, or its error."""
        if sampled.error is not None:
            self.fail(request, sampled.error)
            return
        logprob = None
        if sampled.logprob is not None:
            logprob = TokenLogprob(sampled.token, sampled.logprob, sampled.top)
        is_complete = False
        if request.constraint is not None:
            try:
                request.constraint.accept(sampled.token)
                is_complete = request.constraint.is_complete
            except Exception as error:
                self.fail(request, error)
                return
        self._add_token(request, sampled.token, logprob, is_complete)

    def accept_draft(self, part: Part, end: int, sampled: Sequence[Sampled]) -> None:
        """Gives a request the tokens sampled after its draft tokens, as long as these were what was sampled.

        Args:
            part: the request's part of a step; it has been given the first sampled token.
            end: tokens of the request that the step has computed, without draft tokens.
            sampled: the token after the last of these, then those after each draft token.
        """
        request, size, first = part.request, self._pager.block_size, end
        for draft, before, after in zip(part.draft, sampled, sampled[1:], strict=False):
            if request.is_done or before.token != draft or request.is_forced:
                break
            end += 1
            request.computed = request.certain = end
            self._stats.accepted_tokens += 1
            self._stats.generated_tokens += 1
            self.accept(request, after)
        if request.is_done:
            return
        assert request.seq_id is not None, "only a step that was launched ahead takes sequences away"
        self._pager.truncate(request.seq_id, end)
        if end // size != first // size:
            self._pager.commit(request.seq_id, request.tokens, request.hashes, end)

    def take_forced(self, request: Request) -> None:
        """Gives a request the tokens that there is no choice for. The next step computes all of them.

        They end a thought that has become too long, or are all that its constraint allows.
        """
        if request.is_done or request.asks_logits:
            return
        constraint = request.constraint
        try:
            while not request.is_done and request.thought is not None and request.thought.forced:
                token = request.thought.forced[0]
                if constraint is not None:
                    constraint.accept(token)
                self._add_forced(request, token)
            if constraint is None or request.is_done:
                return
            tokens = constraint.forced()
            is_complete = constraint.is_complete
        except Exception as error:
            self.fail(request, error)
            return
        for i, token in enumerate(tokens):
            if not request.is_done:
                self._add_forced(request, token, is_complete and i == len(tokens) - 1)

    def _add_forced(self, request: Request, token: int, is_complete: bool = False) -> None:
        self._stats.forced_tokens += 1
        self._stats.generated_tokens += 1
        self._add_token(request, token, None, is_complete)

    def masks(self, request: Request) -> Sequence[Mask | None]:
        """The tokens that are forced or that its constraint allows next, and after draft tokens.

        There are masks up to the first draft token that is not allowed.
        If there are no masks, the request ends with the error.
        """
        if request.thought is not None and request.thought.forced:
            return [request.thought.mask(self._num_words)]
        try:
            return [None] if request.constraint is None else request.constraint.masks()
        except Exception as error:
            self.fail(request, error)
            return [None]

    def remove(self, request: Request, *, keep: bool = True) -> None:
        """Takes a request that has ended out of the core; see `Scheduler.preempt` for `keep`."""
        request.is_done = True
        self._stats.finished += 1
        self._scheduler.remove(request, keep=keep)
        if self.speculator is not None:
            self.speculator.end(request)

    def tell(self, request: Request, news: Event | BaseException) -> None:
        """Calls its listener; if that fails, the request ends."""
        try:
            request.listener(news)
        except Exception:
            self.abandon(request)

    def abandon(self, request: Request) -> None:
        """Ends a request whose listener has gone or failed: nobody is told."""
        if not request.is_done:
            request.completion.finish_reason = "cancelled"
            self.remove(request)

    def fail(self, request: Request, error: Exception, *, keep: bool = True) -> None:
        """Ends a request with an error; see `Scheduler.preempt` for `keep`."""
        self._wake.set()  # others may go on now
        if not request.is_done:
            request.completion.finish_reason = "cancelled"
            try:
                self.remove(request, keep=keep)
            finally:
                self.tell(request, error)

    def _add_token(self, request: Request, token: int, logprob: TokenLogprob | None, is_complete: bool = False) -> None:
        try:
            event = request.accept(token, logprob, is_complete)
        except Exception as error:
            self.fail(request, error)
            return
        event.time = self.step_end
        if event.finish_reason:
            self.remove(request)
        self.tell(request, event)
