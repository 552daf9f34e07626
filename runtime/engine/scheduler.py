"""Which requests take part in the next step, and with how many tokens.

There is one rule, that of vLLM's v1 scheduler: a request has tokens that are known and tokens that are computed, and a
step computes some of the difference. There is no phase of prompts and none of decoding. Requests that decode come
first, then the rest of prompts that are being read, then requests that wait, in the order of `Request.order`.

A request that waits is admitted when there are blocks for all its tokens. If blocks run out later, the last request of
the running ones gives its blocks back and waits again (preemption). Its full blocks stay in the prefix cache, or go to
a tier, until others need the memory; what is left of them need not be computed again.

The scheduler alone writes how far a request is (`Request.run`). So it is told what becomes of the steps that it plans:
`has_launched`, `has_read`, `has_ended`.

Source: vLLM, v1/core/sched/scheduler.py. Here requests also wait for a prompt that another one is reading.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Protocol

from mlxr.compiler.artifact import Plan
from mlxr.compiler.errors import ArenaFullError, MlxrError
from mlxr.runtime.cache.pager import Pager, Prefix
from mlxr.runtime.engine.launch_lengths import LaunchLengths
from mlxr.runtime.engine.prompts_being_read import PromptsBeingRead
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.step import Decode, Part, Step
from mlxr.runtime.engine.step_times import SHORT_DELAY, SHORT_PROMPT, StepTimes
from mlxr.runtime.engine.time_spent import Ledger

_ORDER = attrgetter("order", "run.number")
_NO_PREFIX = Prefix(0, ())
_LATE_BLOCKS = 16
"""The prefix cache is told of so many blocks of an answer together, or of fewer when a request looks for blocks."""


class Restorer(Protocol):
    """Brings blocks of a prompt back from where evicted ones were put."""

    def awaited(self, request: Request) -> Prefix | None:
        """What the arena has of a prompt of which more was read (`Prefix.is_awaited`); None: nothing of use was."""

    def fetches(self, request: Request, prefix: Prefix) -> bool:
        """Whether blocks that follow a prefix in the arena are being read now; begins that if it is worth while."""

    def restore(self, request: Request, prefix: Prefix) -> None:
        """Puts what has been read into the request's new sequence, if it is awaited.

        If it cannot be, the sequence keeps what it can go on from: of a model with states, no tokens.
        """


class Scheduler:
    """The queue of requests and those that run. It decides; the core launches.

    Attributes:
        waiting: requests that have no sequence, in order.
        running: requests that have one, in the order of their admission.
        being_read: which blocks of prompts they compute.
        preemptions: how often a request gave its blocks back.
        prompt_tokens: tokens of the prompts that were admitted.
        cached_tokens: how many of these the arena or a tier had.
        failures: requests that cannot go on, each with its error; the core ends them.
        lengths: of how many steps launches are.
    """

    def __init__(
        self,
        plan: Plan,
        pager: Pager,
        times: StepTimes,
        ledger: Ledger,
        restorer: Restorer | None = None,
        most_steps: int = 1,
        most_prepared: int = 0,
    ) -> None:
        """Starts with no requests.

        Args:
            plan: its limits are those of a step.
            pager: of the arena.
            times: how long steps take.
            ledger: is told what requests do.
            restorer: finds blocks that the arena has no longer; None: nobody has them.
            most_steps: of how many short steps of decode a launch may be.
            most_prepared: likewise, where the device is given them little by little; see `Host.most_prepared`.
        """
        self._plan, self._pager, self._times, self._restorer = plan, pager, times, restorer
        self._ledger, self.lengths = ledger, LaunchLengths(plan, pager, times, most_steps, most_prepared)
        self._is_plain = not pager.others and pager.states is None  # else blocks go back, and states stay, by commits
        self._told_each = pager.block_size * (_LATE_BLOCKS if self._is_plain else 1)
        self.being_read = PromptsBeingRead(pager.block_size)
        self._last: Step | None = None  # which the next step may repeat: nobody has joined or left since its launch
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = self.prompt_tokens = self.cached_tokens = self._added = 0
        self.failures: list[tuple[Request, MlxrError]] = []

    def add(self, request: Request) -> None:
        """Puts a request into the queue."""
        self._added += 1
        request.run.number = self._added
        self._ledger.added(request)
        insort(self.waiting, request, key=_ORDER)

    def remove(self, request: Request, *, keep: bool = True) -> None:
        """Takes a request out; its sequence, if it has one, goes back to the pager. See `preempt` for `keep`."""
        self._last = None
        if request.run.seq_id is not None:
            self.running.remove(request)
            self._give_back(request, keep)
        elif request in self.waiting:
            self.waiting.remove(request)

    def schedule(self, *, has_drafts: bool = False) -> Step:
        """Plans the next step; it is empty if nothing can be computed now. Admitted requests get their sequences.

        Args:
            has_drafts: whether requests have draft tokens.
        """
        last, self._last = self._last, None
        can_join = self.waiting and self._pager.can_add_sequence()
        is_steady = not (can_join or has_drafts) and len(self.running) <= self._pager.num_free
        if last is not None and last.most_more and is_steady:
            return self._as_several(last.repeated())
        if self.waiting:
            self.tell_cache()
        budget, rows, states = self._plan.max_tokens, self._plan.max_rows, self._pager.states
        undo = budget if states is None else states.room
        parts: list[Part] = []
        reading: list[Request] = []
        most_blocks = 0  # no token needs more than one
        for request in self.running:  # each statement here runs for each sequence of each step
            answer, run = request.answer, request.run
            pending = len(answer.tokens) + run.in_flight
            pending = (pending if pending < request.max_length else request.max_length - 1) - run.computed
            if pending == 1 and not answer.prompt_rows and budget and rows:
                draft: tuple[int, ...] = ()
                if request.draft.drafted:
                    draft = tuple(request.draft.drafted[: min(budget, rows, undo + 1) - 1])
                    undo -= len(draft)
                parts.append(Part(request, 1, True, draft))
                budget -= 1 + len(draft)
                rows -= 1 + len(draft)
                most_blocks += 1 + len(draft)
            elif pending >= 1:
                reading.append(request)
        if parts:
            if most_blocks > self._pager.num_free:
                parts = self._with_blocks(parts)
            long_budget = self._times.prompt_tokens(len(parts), budget)
            budget = self._times.prompt_tokens(len(parts), budget, SHORT_DELAY)
        else:
            long_budget = budget
        reading.reverse()
        while budget > 0 and rows > 0 and (reader := reading.pop() if reading else self._admit()):
            is_long = len(reader.answer.tokens) - reader.answer.completion.cached_tokens > SHORT_PROMPT
            most = long_budget if is_long else budget
            if reader.run.seq_id is not None and (part := self._chunk(reader, most, rows, parts)):
                parts.append(part)
                budget -= part.num_tokens
                long_budget -= part.num_tokens
                rows -= part.num_rows
        if not parts and not self.running and not self.failures:
            self._fail_stuck()
        if self.waiting and not (budget > 0 and rows > 0) and not self._plan.whole_prompts:
            self._note_wait(self.waiting[0])
        return self._as_several(Step(parts))

    def _as_several(self, step: Step) -> Step:
        """The step with those after it that one launch may have, too, if nobody waits or reads a prompt."""
        if not self.waiting and len(step.parts) == len(self.running):
            self.lengths.lengthen(step)
        return step

    def goes_on(self, step: Step) -> bool:
        """Whether the device may be given more of a launched step: nobody has come or left since."""
        return self._last is step and not self.waiting

    def cut(self, step: Step) -> None:
        """A launched step ends with what the device has been given."""
        assert step.decode is not None, "only such steps are prepared"
        left = step.cut()
        for run, seq_id, end in zip(step.decode.runs, step.decode.seq_ids, step.ends, strict=True):
            run.in_flight -= left
            if run.seq_id == seq_id:
                run.computed = end
                self._pager.truncate(seq_id, end)

    def has_launched(self, step: Step) -> None:
        """A step has been launched: its tokens count as computed. So the next step can be planned before it is read."""
        self.being_read.take_new()
        if step.decode is not None:
            for run, end in zip(step.decode.runs, step.ends, strict=True):
                run.computed = end
                run.in_flight += step.count
            if len(step.parts) == len(self.running):
                self._last = step
            return
        for (request, _, samples, _), end in zip(step.parts, step.ends, strict=True):
            request.run.computed = end
            request.run.in_flight += samples

    def has_read(self, step: Step) -> None:
        """A step without `decode` has run: what it computed is certain, and others may use it.

        Its tokens are not known yet.
        """
        size = self._pager.block_size
        for part, end, seq_id, sampled in zip(step.parts, step.ends, step.sequences, step.sampled_by_part, strict=True):
            request, run = part.request, part.request.run
            if request.answer.is_done:
                continue
            run.in_flight -= part.samples
            if sampled and sampled[0].error is not None:
                continue  # nobody knows since when K and V are broken
            if seq_id is not None and run.seq_id == seq_id:
                before, run.certain = run.certain, end
                if self._is_plain and not self.waiting:
                    continue  # first the token; `has_decoded` and `tell_cache` tell of it
                if (run.unread or end // size != before // size) and not self._plan.whole_prompts:
                    self._tell_of(request)

    def has_decoded(self, decode: Decode, rows: Iterable[int], ends: Sequence[int], count: int) -> None:
        """`has_read` of some of the steps of a step with `decode`, for requests that run.

        Args:
            decode: its columns; the requests have the tokens that the last of these steps computed.
            rows: which requests.
            ends: tokens of each request, of all, that are computed.
            count: how many steps.
        """
        told_each, runs, seq_ids = self._told_each, decode.runs, decode.seq_ids
        for row in rows:
            run, end = runs[row], ends[row]
            run.in_flight -= count
            if run.seq_id == seq_ids[row]:
                run.certain = end
                if run.unread or end // told_each != run.told // told_each:
                    self._tell_of(decode.requests[row])

    def tell_cache(self) -> None:
        """Tells the prefix cache of all blocks of the running requests that are certain."""
        size = self._pager.block_size
        for request in self.running:
            run = request.run
            if run.certain // size != run.told // size or (run.unread and run.certain > run.told):
                self._tell_of(request)

    def _tell_of(self, request: Request) -> None:
        """Tells the prefix cache of what is certain of a running request, and whoever waits for it."""
        run = request.run
        assert run.seq_id is not None, "it runs"
        self._pager.commit(run.seq_id, request.answer.tokens, request.hashes, run.certain)
        run.told = run.certain
        if run.unread:
            self.being_read.has_computed(request)

    def has_accepted(self, request: Request, end: int) -> None:
        """One more draft token was right: so many tokens are computed."""
        request.run.computed = request.run.certain = end

    def take_back(self, request: Request, first: int) -> None:
        """Takes the draft tokens that were wrong out of a request's sequence.

        Args:
            request: it.
            first: tokens of it that the step computed, without draft tokens.
        """
        run, size = request.run, self._pager.block_size
        assert run.seq_id is not None, "only a step that was launched ahead takes sequences away"
        self._pager.truncate(run.seq_id, run.certain)
        if run.certain // size != first // size:
            self._tell_of(request)

    def has_ended(self, step: Step) -> None:
        """A step's requests have their tokens."""
        if (states := self._pager.states) is not None and states.keeping:
            for part, seq_id in zip(step.parts, step.sequences, strict=True):
                request, run = part.request, part.request.run
                if seq_id is not None and run.seq_id == seq_id and seq_id in states.keeping:
                    states.commit(seq_id, request.answer.tokens, request.hashes, run.certain)

    def forget(self, step: Step) -> None:
        """A step was given up: its requests wait again, and will compute it again."""
        self._last = None
        for part in step.parts:
            part.request.run.in_flight = 0
            if part.request.run.seq_id is not None:
                self.preempt(part.request, keep=False)

    def preempt(self, request: Request, *, keep: bool = True) -> None:
        """Takes a running request's blocks; it waits again.

        Args:
            request: it.
            keep: whether what it computed stays in the prefix cache while there is room. Full blocks that are there
                already stay in any case.
        """
        self._last = None
        self.preemptions += 1
        self.running.remove(request)
        self._ledger.preempted(request)
        self._give_back(request, keep)
        insort(self.waiting, request, key=_ORDER)

    def _chunk(self, request: Request, budget: int, rows: int, chosen: Sequence[Part]) -> Part | None:
        """The next tokens of a prompt, if there is room for them. A long chunk of a longer prompt ends with a block."""
        pending = request.num_pending
        count = min(pending, budget, rows if request.answer.prompt_rows else budget)
        if self._plan.whole_prompts and count < pending:
            return None  # the next step has room
        if count < pending:
            end = request.run.computed + count
            count -= end % self._pager.block_size if count >= 4 * self._pager.block_size else 0
        if self._pager.states is not None and count > 0:
            assert request.run.seq_id is not None, "it runs"
            count = self._pager.states.cut(request.run.seq_id, count)
        part = Part(request, count, count == pending and request.pool is None)
        if count <= 0 or part.num_rows > rows:
            return None
        # Of whole texts each takes, of blocks, at most one more than its tokens fill.
        most_blocks = self._plan.max_tokens // self._pager.block_size + len(chosen) + 1
        if self._plan.whole_prompts and most_blocks <= self._pager.num_free:
            return part
        growths = [other.growth for other in chosen]
        while not self._pager.can_append_all([*growths, part.growth]):
            if not self._preempt_after(request, chosen):
                if len(self.running) == 1:
                    self._fail(request)
                return None
        return part

    def _with_blocks(self, decoding: list[Part]) -> list[Part]:
        """The parts for which there are blocks, once others have been preempted if need be."""
        if self._pager.can_append_all([part.growth for part in decoding]):
            return decoding
        chosen: list[Part] = []
        growths: list[tuple[int, int]] = []
        for with_draft in sorted(decoding, key=lambda part: _ORDER(part.request)):
            part = with_draft._replace(draft=())
            while part.request.run.seq_id is not None:
                if self._pager.can_append_all([*growths, part.growth]):
                    growths.append(part.growth)
                    chosen.append(part)
                    break
                if not self._preempt_after(part.request, chosen):
                    if len(self.running) == 1:
                        self._fail(part.request)
                        break
                    self.preempt(part.request)
        return chosen

    def _preempt_after(self, request: Request, chosen: Sequence[Part]) -> bool:
        """Preempts the last running request that comes after one and is not in the step yet; False: there is none."""
        taken = {part.request for part in chosen}
        after = [other for other in self.running if _ORDER(other) > _ORDER(request) and other not in taken]
        if not after:
            return False
        self.preempt(max(after, key=_ORDER))
        return True

    def _give_back(self, request: Request, keep: bool = True) -> None:
        run = request.run
        assert run.seq_id is not None, "it runs"
        if keep and not self._plan.whole_prompts:
            self._pager.free(run.seq_id, request.answer.tokens, request.hashes, run.certain)
        else:
            full = run.certain - run.certain % self._pager.block_size
            if full > run.told and not self._plan.whole_prompts:
                self._pager.commit(run.seq_id, request.answer.tokens, request.hashes, full)
            self._pager.truncate(run.seq_id, 0)  # so that its last block, which may lack its copy, is not kept
            self._pager.free(run.seq_id)
        run.seq_id, run.computed, run.certain, run.told = None, 0, 0, 0
        self.being_read.end(request)

    def _fail_stuck(self) -> None:
        """Ends the first request if nothing that the engine knows of will ever make room for it."""
        if self.waiting and not any(request.run.in_flight or request.fetch.blocks for request in self.waiting):
            self._fail(self.waiting[0])

    def _fail(self, request: Request) -> None:
        pager = self._pager
        tokens = len(request.answer.tokens)
        error = ArenaFullError(
            f"{tokens} tokens of a request need {-(-tokens // pager.block_size)} blocks of {pager.block_size} tokens; "
            f"{pager.num_free} of {pager.num_blocks} are free, with {pager.num_sequences} of {pager.max_sequences} "
            "sequences in use: shorten the prompt or the answer, end what else uses the arena, or compile the spec "
            "with a larger cache.num_blocks or cache.memory_budget"
        )
        self.failures.append((request, error))

    def _admit(self) -> Request | None:
        """Gives the first request that can go on a sequence; None if there is none.

        No request overtakes one that waits for blocks, so that long prompts do not wait forever.
        """
        if not self.waiting or not self._pager.can_add_sequence():
            return None
        for request in self.waiting:
            run = request.run
            if run.in_flight or run.awaited in self.being_read:
                self._ledger.waits(request, "same_prompt")
                continue
            prefix = self._prefix_of(request)
            if self._plan.whole_prompts:
                if not self._has_room(request, prefix):
                    self._ledger.waits(request, "room")
                    return None
                self._begin(request, prefix)
                return request
            run.awaited = self.being_read.key_after(request, max(prefix.num_tokens, prefix.num_known))
            if run.awaited in self.being_read and not request.needs_all_rows:
                self._ledger.waits(request, "same_prompt")
                continue
            if self._restorer is not None and not request.needs_all_rows and self._restorer.fetches(request, prefix):
                self._ledger.waits(request, "tiers")
                continue
            if not self._has_room(request, prefix):
                self._ledger.waits(request, "room")
                return None
            self._begin(request, prefix)
            return request
        return None

    def _note_wait(self, request: Request) -> None:
        """Has the ledger note if a request, for which the step has no room, waits for a prompt that fills the step."""
        if request.account.doing != "queue" or request.needs_all_rows or not self.being_read:
            return
        prefix = self._pager.find_prefix(request.answer.tokens, request.hashes)
        if self.being_read.key_after(request, max(prefix.num_tokens, prefix.num_known)) in self.being_read:
            self._ledger.waits(request, "same_prompt")

    def _prefix_of(self, request: Request) -> Prefix:
        """What the arena has of a request's tokens."""
        if request.needs_all_rows:
            return _NO_PREFIX
        if self._restorer is not None and (awaited := self._restorer.awaited(request)) is not None:
            return awaited
        return self._pager.find_prefix(request.answer.tokens, request.hashes)

    def _has_room(self, request: Request, prefix: Prefix) -> bool:
        """Whether there are blocks for all tokens of a request, beside what running ones still need."""
        size, promised = self._pager.block_size, 0
        needed = self._pager.blocks_to_begin(prefix, min(len(request.answer.tokens) + 1, self._pager.context))
        # The most that they can need, which is known at once: blocks begun, and a copy of a shared one.
        most_each = [(other.num_pending + len(other.draft.drafted)) // size + 2 for other in self.running]
        if needed + sum(most_each) <= self._pager.num_free:
            return True
        for other in self.running:
            if (pending := other.num_pending) > 0:
                assert other.run.seq_id is not None, "it runs"
                most = self._pager.context - other.run.computed
                growth = (other.run.seq_id, min(pending + len(other.draft.drafted), most))
                promised += max(pending // size + 1, self._pager.num_blocks_needed([growth]))
        if needed + promised <= self._pager.num_free:
            return True
        return not self.running and needed <= self._pager.num_free

    def _begin(self, request: Request, prefix: Prefix) -> None:
        run = request.run
        differs = None if run.has_started else self._pager.first_difference(request.answer.tokens, request.hashes)
        run.seq_id = self._pager.add_sequence(prefix)
        self.waiting.remove(request)
        self.running.append(request)
        try:
            if self._restorer is not None:
                self._restorer.restore(request, prefix)
        finally:
            run.computed = run.certain = run.told = self._pager.length(run.seq_id)
        if self._pager.states is not None:
            self._pager.states.want(run.seq_id, request.prompt_length, prefix.num_known)
        request.begin(run.computed, is_first=not run.has_started)
        if not run.has_started:
            run.has_started = True
            self.prompt_tokens += request.prompt_length
            self.cached_tokens += run.computed
            missed = request.prompt_length - run.computed
            self._ledger.misses(request, missed, differs if run.computed < request.prompt_length - 1 else None)
        self._ledger.begins(request, reads=request.num_pending > 1)
        if not self._plan.whole_prompts:
            self.being_read.begin(request)
