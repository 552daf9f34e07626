"""Gives requests what steps computed for them, tokens and ends and errors, and tells their listeners.

A request whose listener, tokenizer or constraint fails ends; the others go on.
"""

import threading
from collections.abc import Sequence

from mlxr.runtime.engine.completion import Event, TokenLogprob
from mlxr.runtime.engine.constraint.constraint import Mask
from mlxr.runtime.engine.core_stats import CoreStats
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling import Sampled
from mlxr.runtime.engine.scheduler import Scheduler
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.step import Decode, Part, Step
from mlxr.runtime.engine.time_spent import Ledger
from mlxr.runtime.engine.together import Together


class Answers:
    """The answers of a core's requests. It refers to nothing that refers back to it.

    Attributes:
        speculator: see `EngineCore`; it forgets requests that end.
        step_end: when the newest step ended, in seconds of `time.perf_counter`; events get it as their time.
    """

    def __init__(
        self, scheduler: Scheduler, stats: CoreStats, ledger: Ledger, wake: threading.Event, vocab_size: int
    ) -> None:
        """Takes what all requests share.

        Args:
            scheduler: has the requests.
            stats: counts what they get.
            ledger: divides their time.
            wake: is set when a request fails, since others may then go on.
            vocab_size: how many logits the model has.
        """
        self._scheduler, self._stats, self._ledger, self._wake = scheduler, stats, ledger, wake
        self._together = Together()
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
        if (constraint := request.answer.constraint) is not None:
            try:
                constraint.accept(sampled.token)
                is_complete = constraint.is_complete
            except Exception as error:
                self.fail(request, error)
                return
        self._add_token(request, sampled.token, logprob, is_complete)

    def give(self, step: Step, decode: Decode) -> None:
        """Gives requests the tokens of a step with `decode` that was read.

        Tokens come step by step, as they would from several launches.
        """
        if step.num_repeats == 0:
            for request in decode.requests:  # the last token of a prompt may be computed beside answers
                self._ledger.has_token(request)
        chosen = step.chosen
        if chosen is None or chosen.errors or self.speculator is not None:
            for index in range(step.count):
                self._give_each(step, decode, index)
            return
        finished = self._stats.finished
        given = self._together.give(step, decode, chosen.tokens, self.step_end, self.abandon)
        self._stats.generated_tokens += len(given) * step.count
        going = given if self._stats.finished == finished else self._going(decode, given)
        self._scheduler.has_decoded(decode, going, step.ends, step.count)
        if len(given) < len(decode.requests):
            self._together.forget()
            others = sorted({*range(len(decode.requests))}.difference(given))
            self._give_rows(step, decode, chosen.tokens.tolist(), others)

    def _give_rows(self, step: Step, decode: Decode, tokens: Sequence[Sequence[int]], rows: Sequence[int]) -> None:
        """Gives some of the requests the tokens of a step, one by one."""
        for index, of_step in enumerate(tokens):
            going = self._going(decode, rows)
            self._scheduler.has_decoded(decode, going, [start + 1 + index for start in step.starts], 1)
            for row in going:
                request = decode.requests[row]
                if not request.answer.is_done:  # a listener may end others
                    self._add_token(request, of_step[row], None)

    @staticmethod
    def _going(decode: Decode, rows: Sequence[int]) -> list[int]:
        """Those of some requests that have not ended."""
        return [row for row in rows if not decode.requests[row].answer.is_done]

    def _give_each(self, step: Step, decode: Decode, index: int) -> None:
        """Gives requests the tokens of one of the steps, about which anything may be special."""
        for row, (request, sampled) in enumerate(zip(decode.requests, step.sampled[index], strict=True)):
            if request.answer.is_done:
                continue
            if sampled.error is not None:  # nobody knows since when K and V are broken
                self.fail(request, sampled.error, keep=False)
                continue
            self._scheduler.has_decoded(decode, [row], [start + 1 + index for start in step.starts], 1)
            self._stats.speculating_parts += request.draft.speculates
            self.accept(request, sampled)

    def accept_draft(self, part: Part, end: int, sampled: Sequence[Sampled]) -> None:
        """Gives a request the tokens sampled after its draft tokens, as long as these were what was sampled.

        Args:
            part: the request's part of a step; it has been given the first sampled token.
            end: tokens of the request that the step has computed, without draft tokens.
            sampled: the token after the last of these, then those after each draft token.
        """
        request, first = part.request, end
        for draft, before, after in zip(part.draft, sampled, sampled[1:], strict=False):
            if request.answer.is_done or before.token != draft or request.is_forced:
                break
            end += 1
            self._scheduler.has_accepted(request, end)
            self._stats.accepted_tokens += 1
            self.accept(request, after)
        if not request.answer.is_done:
            self._scheduler.take_back(request, first)

    def take_forced(self, request: Request) -> None:
        """Gives a request the tokens that there is no choice for. The next step computes all of them.

        They end a thought that has become too long, or are all that its constraint allows.
        """
        answer, constraint = request.answer, request.answer.constraint
        if answer.is_done or request.asks_logits:
            return
        try:
            while not answer.is_done and answer.thought is not None and answer.thought.forced:
                token = answer.thought.forced[0]
                if constraint is not None:
                    constraint.accept(token)
                self._add_forced(request, token)
            if constraint is None or answer.is_done:
                return
            begun = self._ledger.clock()
            tokens = constraint.forced()
            self._ledger.masked(request, self._ledger.clock() - begun)
            is_complete = constraint.is_complete
        except Exception as error:
            self.fail(request, error)
            return
        for i, token in enumerate(tokens):
            if not answer.is_done:
                self._add_forced(request, token, is_complete and i == len(tokens) - 1)

    def _add_forced(self, request: Request, token: int, is_complete: bool = False) -> None:
        self._stats.forced_tokens += 1
        self._add_token(request, token, None, is_complete)

    def masks(self, request: Request) -> Sequence[Mask | None]:
        """The tokens that are forced or that its constraint allows next, and after draft tokens.

        There are masks up to the first draft token that is not allowed.
        If there are no masks, the request ends with the error.
        """
        thought, constraint = request.answer.thought, request.answer.constraint
        if thought is not None and thought.forced:
            return [thought.mask(self._num_words)]
        if constraint is None:
            return [None]
        begun = self._ledger.clock()
        try:
            return constraint.masks()
        except Exception as error:
            self.fail(request, error)
            return [None]
        finally:
            self._ledger.masked(request, self._ledger.clock() - begun)

    def remove(self, request: Request, *, keep: bool = True) -> None:
        """Takes a request that has ended out of the core; see `Scheduler.preempt` for `keep`."""
        self._ledger.ended(request)
        request.leave()
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
        if not request.answer.is_done:
            request.give_up()
            self.remove(request)

    def fail(self, request: Request, error: Exception, *, keep: bool = True) -> None:
        """Ends a request with an error; see `Scheduler.preempt` for `keep`."""
        self._wake.set()  # others may go on now
        if not request.answer.is_done:
            request.give_up()
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
        self._stats.generated_tokens += 1
        event.time = self.step_end
        if event.finish_reason:
            self.remove(request)
        self.tell(request, event)
