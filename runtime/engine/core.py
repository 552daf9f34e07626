"""The engine's core: the one loop that runs steps. It owns host, pager and scheduler, and runs in one thread.

A `Step` is planned by the scheduler, launched and read; then each request takes its token and tells its listener. On
hosts that pipeline, the next step is launched before the tokens of this one are read: it takes them where they are, on
the device. Short decode steps are launched several at a time, as one `Step`: then the device has work while this thread
does not run. Requests join and leave at each step there too. `EngineCore._step` is all of this, in its order.

What the core promises: a request's failure ends that request; a step's failure ends the requests of that step; in both
cases the others go on, and the blocks go back. An interruption (Ctrl-C) leaves it ready to go on: requests of the
interrupted step compute it again.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from mlxr.compiler.errors import HostError, RequestError
from mlxr.runtime.cache.pager import Evicted, Pager
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.engine.adapter_set import AdapterSet, LoadedAdapter
from mlxr.runtime.engine.answers import Answers
from mlxr.runtime.engine.completion import FinishReason
from mlxr.runtime.engine.core_stats import CoreStats, StepRecord
from mlxr.runtime.engine.launch_lengths import AHEAD_SECONDS, LONG_SECONDS
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.scheduler import Scheduler
from mlxr.runtime.engine.speculation.speculator import Speculator
from mlxr.runtime.engine.step import Step
from mlxr.runtime.engine.step_times import StepTimes
from mlxr.runtime.engine.tier_link import TierLink
from mlxr.runtime.engine.time_spent import Ledger
from mlxr.runtime.hosts.host import Host
from mlxr.runtime.memory.memory_watch import MemoryWatch

_LONGEST_WAIT = 0.1
"""Seconds that the thread waits at most when all requests wait for something other than a step."""
_WATCH_SECONDS = 1.0
"""Seconds between two looks at the machine's memory while there are no requests, but what could be given back."""
_MEASURED_EACH = 8
"""Steps of which one is measured for guesses while all texts rest: there, each microsecond is for nothing."""


class EngineCore:
    """Requests in, events out, one `step` at a time. Only one thread may use it.

    Attributes:
        scheduler: the requests.
        launched_steps: how many were given to the host.
        adapters: that requests may use; None: the model has no places for any.
        wake: set when something has ended that requests wait for; whoever runs the steps may wait for it.
        has_callers: whether `wake` is also set when a request comes, which then joins others soon.
    """

    def __init__(
        self,
        host: Host,
        pager: Pager,
        tiers: BlockTiers | None = None,
        clock: Callable[[], float] = time.monotonic,
        adapters: AdapterSet | None = None,
    ) -> None:
        """Starts without requests.

        Args:
            host: runs the steps.
            pager: of the host's arena.
            tiers: where evicted blocks go; None: they are lost. The core closes them.
            clock: seconds, for deadlines and the order of arrival.
            adapters: that requests may use; None: there are no places for any.
        """
        self._host, self._pager, self.clock = host, pager, clock
        self._times = StepTimes()
        self._ledger = Ledger(clock, self._times)
        self.wake, self.has_callers = threading.Event(), False
        self.adapters = adapters
        self._link = None if tiers is None else TierLink(host, pager, tiers, self.wake)
        self._save = None if self._link is None else self._link.save
        self._watch = MemoryWatch()
        self.scheduler = Scheduler(
            host.plan,
            pager,
            self._times,
            self._ledger,
            self._link,
            host.most_steps if host.pipelines else 1,
            host.most_prepared,
        )
        self._stats = CoreStats()
        self._answers = Answers(self.scheduler, self._stats, self._ledger, self.wake, host.plan.vocab_size)
        self._ahead: Step | None = None  # launched while the step before it was not read
        self._untold = 0  # last steps of that one of which nobody was told
        self._told = 0  # first steps of `_ahead` of which everybody was
        self._next_deadline = float("inf")
        self._recent: deque[tuple[StepRecord, int]] = deque(maxlen=512)  # with how many steps were read together
        self.launched_steps = 0
        self._used = 0.0  # by the host's clock, at the newest launch
        self._measured = 0  # for how many steps the time of the newest one counts
        self._is_guessing = False  # or would, if it paid
        self._is_stepping = False
        self._dropped: list[Request] = []

    @property
    def recent_steps(self) -> list[StepRecord]:
        """The newest steps, at most 512, the newest one last."""
        later = ((step, i) for step, count in self._recent for i in range(count - 1, -1, -1))
        return [step._replace(end=step.end - i * step.seconds) for step, i in later][-512:]

    @property
    def speculator(self) -> Speculator | None:
        """Guesses tokens for the requests that are added from now on; None: nobody does."""
        return self._answers.speculator

    @speculator.setter
    def speculator(self, speculator: Speculator | None) -> None:
        self._answers.speculator = speculator

    def save_evicted(self, blocks: Sequence[Evicted]) -> None:
        """Gives blocks that the prefix cache gave up to the tiers, if there are any."""
        if self._save is not None:
            self._save(blocks)

    def add(self, request: Request) -> None:
        """Takes a request."""
        if request.deadline is not None:
            self._next_deadline = min(self._next_deadline, request.deadline)
        if request.adapter is not None and (self.adapters is None or not self.adapters.is_there(request.adapter)):
            self._answers.fail(request, RequestError(f"the adapter {request.adapter.adapter.name!r} was unloaded"))
            return
        request.draft.speculates = self.speculator is not None and request.can_speculate
        self.scheduler.add(request)

    def used_adapters(self) -> set[LoadedAdapter]:
        """Those that requests use which run or wait."""
        requests = (*self.scheduler.running, *self.scheduler.waiting)
        return {request.adapter.adapter for request in requests if request.adapter is not None}

    def cancel(self, request: Request, reason: FinishReason = "cancelled") -> None:
        """Ends a request, if it has not ended; its listener gets a last event."""
        if not request.answer.is_done:
            self._answers.remove(request)
            self._answers.tell(request, request.end(reason))

    def drop(self, request: Request) -> None:
        """Ends a request whose listener has gone: nobody is told. The garbage collector may call it within a step."""
        if self._is_stepping:
            self._dropped.append(request)
        else:
            self._answers.abandon(request)

    def step(self) -> bool:
        """Runs one step; its events go to the listeners.

        Returns:
            Whether there was one. If not, there are no requests, or all of them wait for what sets `wake`.
        """
        self._is_stepping = True
        try:
            return self._step()
        finally:
            self._is_stepping = False
            while self._dropped:
                self.drop(self._dropped.pop())

    def _step(self) -> bool:
        if self.clock() >= self._next_deadline:
            self._end_overdue()
        scarce_bytes = self._watch.poll()
        if self._host.arena.takes_pages:
            self._save_memory(scarce_bytes)
        if self._link is not None:
            self._link.is_paused = self._watch.is_low
            if scarce_bytes:
                self._link.tiers.shrink(scarce_bytes)
        step = self._next_ahead() or self._plan()
        if not step.parts:
            return False
        try:
            if step.state == "launched":
                self._ahead = None
            elif not self._launch(step):
                return True  # others may go on
            if self._host.pipelines:
                if (step.first and self._goes_on(step)) or self._is_called(step):
                    self._ahead = step
                    return True
                untold, told = self._untold, self._told  # a launch that fails forgets them
                self._launch_ahead(step)
                self._untold = self._told = 0
                if told and self._ahead is not None and self._ahead.goes_on:
                    self._untold = step.count - told  # they are told with the first ones of that one
                    return True
                if step.decode is None:  # the device computes: what its tokens will need is made meanwhile
                    for part in step.parts:
                        if part.samples:
                            part.request.text.prepare()
                if told:
                    self._ledger.resumed()
                step = step.part(untold - told, step.count)
            self._complete(step)
        except BaseException:
            self._forget(step)
            raise
        return True

    def _goes_on(self, step: Step) -> bool:
        """Gives the device more and more of a launch's steps, until their tokens are to be told, and tells them.

        When a request comes or ends, what the device has not been given is left out. To give more costs little, but
        after each wait nothing is in the processor's cache, so all else is done seldom.

        Returns:
            Whether it has told some, or was called. The caller then takes new requests, and comes back to this step.
        """
        samples, scheduler, told = step.prepared, self.scheduler, self._told
        if samples.is_ending or (scheduler.waiting and not samples.left):
            return False
        until = told + max(1, scheduler.lengths.num_told(step, told) - self._untold)
        try:
            may_go_on = scheduler.goes_on(step) or not samples.left
            called, left = self.wake.is_set if self.has_callers else None, samples.left
            ended = samples.run_on(step.first, until, called) if may_go_on else None
        except HostError as error:
            self._fail_step(step, error)
            return True
        self.launched_steps += left - samples.left
        if ended is None:
            scheduler.cut(step)
            return False
        self.wake.clear()
        if ended > told and (ended >= until or samples.is_ending):
            if told:
                self._ledger.resumed()
            self._complete(step.part(self._untold - told, ended))
            self._untold, self._told = 0, ended
        return True

    def _save_memory(self, scarce_bytes: int) -> None:
        """Gives memory of the arena back that nobody uses, once the machine lacks it."""
        given = self._pager.save_memory(self._watch.is_low, scarce_bytes, self._host.block_bytes_of_groups)
        for group, blocks in enumerate(given):
            if blocks:
                self._host.arena.give_back(blocks, group)

    def wait(self) -> None:
        """Waits after a step that was none, until another may be one; without requests, until `wake` is set."""
        caches = self._link is not None or (self._host.arena.takes_pages and self._pager.is_caching)
        longest = _WATCH_SECONDS if caches else None
        if self.scheduler.running or self.scheduler.waiting:
            longest = max(0.0, min(_LONGEST_WAIT, self._next_deadline - self.clock()))
        self.wake.wait(longest)
        self.wake.clear()

    def fail_all(self, error: Exception) -> None:
        """Ends all requests with an error."""
        self._ahead, self._untold, self._told = None, 0, 0
        self._ledger.forgot()
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            with suppress(Exception):  # the error may have left the scheduler or the pager in disorder
                self._answers.fail(request, error, keep=False)

    @property
    def is_memory_low(self) -> bool:
        """Whether the machine lacks memory, so that nothing new should take any."""
        return self._watch.is_low

    def save(self) -> int:
        """Writes the blocks and states that the prefix cache has to disk, so that they outlive the process.

        Returns:
            How many of them are on disk.

        Raises:
            RequestError: there is no disk tier.
        """
        if self._link is None:
            raise RequestError("there are no tiers to save to: load the model with tiers=mlxr.TierSizes(disk_bytes=N)")
        self.scheduler.tell_cache()
        return self._link.save_all()

    def close(self) -> None:
        """Drops all requests, and saves what the prefix cache has as far as the tiers take it."""
        self._ahead, self._untold, self._told = None, 0, 0
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            self.drop(request)
        link, self._link, self._save = self._link, None, None
        if link is not None:
            try:
                link.save_all()
            finally:
                link.tiers.close()

    def stats(self) -> CoreStats:
        """The counters, and the state now."""
        pager, scheduler = self._pager, self.scheduler
        return replace(
            self._stats,
            preemptions=scheduler.preemptions,
            prompt_tokens=scheduler.prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            restored_tokens=self._link.restored_tokens if self._link else 0,
            tiers=asdict(self._link.tiers.stats()) if self._link else None,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks=pager.num_blocks,
            blocks_free=pager.num_free,
            blocks_cached=pager.num_idle,
            blocks_shared=pager.num_shared,
            launches=dict(self._host.launches),
        )

    def _plan(self) -> Step:
        """The next step, planned; it has no parts if there is nothing to compute."""
        speculator = self._answers.speculator
        has_drafts = speculator is not None and self._draft(speculator)
        step = self.scheduler.schedule(has_drafts=has_drafts)
        while self.scheduler.failures:
            self._answers.fail(*self.scheduler.failures.pop())
        return step

    def _launch(self, step: Step, before: Step | None = None) -> bool:
        """Launches a planned step and the sampling of its tokens; whether that succeeded.

        Args:
            step: it.
            before: the step before, if its tokens have not been read.
        """
        self._ledger.launched()
        if self._answers.speculator is not None and not self._host.pipelines:
            self._measured = 1 if self._is_guessing else 0 if self._stats.steps % _MEASURED_EACH else _MEASURED_EACH
            if self._measured:
                self._used = self._host.clock()
        try:
            step.launch(self._host, self._pager, self._answers.masks, before, self._save)
            self.scheduler.has_launched(step)
            self.launched_steps += step.count - (step.prepared.left if step.first else 0)
        except Exception as error:
            self._fail_step(step, error)
            return False
        return True

    def _next_ahead(self) -> Step | None:
        """The step that was launched ahead, if anybody still waits for it.

        It stays in `_ahead` until `_step` would forget it: if Ctrl-C comes in between, the next call finds it again.
        """
        step = self._ahead
        if step is not None and all(part.request.answer.is_done for part in step.parts):
            self._ahead = step = None
            self._untold = self._told = 0
            self._ledger.skipped()
        return step

    def _is_called(self, step: Step) -> bool:
        """Waits in a long launch before the next is given to the host, so that a new request waits for one, not two.

        Returns:
            Whether a call came meanwhile. The caller then takes it, and comes back to this step.
        """
        if step.decode is None or step.count == 1 or step.first or self.scheduler.waiting:
            return False
        seconds = step.count * (self._times.decode_seconds(step.num_decoding) or 0.0)
        left = max(step.begin, self._answers.step_end) + seconds - AHEAD_SECONDS - time.perf_counter()
        if seconds < LONG_SECONDS or left <= 0 or not self.wake.wait(left):
            return False
        self.wake.clear()
        return True

    def _launch_ahead(self, step: Step) -> None:
        """Launches the step after one whose tokens have not been read, unless these decide what it is."""
        is_plain = step.decode is not None and self._answers.speculator is None  # its tokens decide nothing
        if not is_plain and any(part.request.needs_token for part in step.parts):
            return
        ahead = self._plan()
        if ahead.parts:
            self._ahead = ahead  # before its launch: who forgets the step before forgets it, too
            self._launch(ahead, step)

    def _draft(self, speculator: Speculator) -> bool:
        """Lets requests that decode and speculate have draft tokens in the next step; whether any have some."""
        running = self.scheduler.running
        requests = [
            r
            for r in running
            if r.draft.speculates
            and len(r.answer.tokens) >= r.draft.rests_until
            and r.num_pending == 1
            and not (r.is_forced or r.run.in_flight)
        ]
        self._is_guessing = bool(requests)
        if not requests:
            return False
        decoding = [request for request in running if request.num_pending == 1]
        plan, begun = self._host.plan, self.clock()
        try:
            speculator.draft(requests, len(decoding), min(plan.max_tokens, plan.max_rows) - len(decoding))
        except Exception as error:
            for request in requests:
                self._answers.fail(request, error)
        self._ledger.guessed(self.clock() - begun)
        return any(request.draft.drafted for request in requests)

    def _complete(self, step: Step) -> None:
        """Waits for a launched step and gives its tokens to their requests."""
        begun = self.clock()
        try:
            step.read()
            if not self._host.pipelines:  # else it waits for the device
                self._ledger.sampled(self.clock() - begun)
            if step.decode is None:
                for request, rows, end in step.prompt_rows(self._host):
                    request.add_prompt_rows(rows, end)
        except Exception as error:
            self._fail_step(step, error)
            return
        self._record(step)
        if step.decode is not None:
            self._answers.give(step, step.decode)
        else:
            self.scheduler.has_read(step)
            self._answer_parts(step)
        self.scheduler.has_ended(step)

    def _answer_parts(self, step: Step) -> None:
        """Gives requests the tokens of any step."""
        answers = self._answers
        for part, end, seq_id, sampled in zip(step.parts, step.ends, step.sequences, step.sampled_by_part, strict=True):
            request, answer = part.request, part.request.answer
            if answer.is_done:
                continue
            if sampled and sampled[0].error is not None:
                answers.fail(request, sampled[0].error, keep=False)
                continue
            if answer.prompt_rows and end >= request.prompt_length and request.run.seq_id == seq_id:
                request.has_prompt()
                if request.pool is not None:
                    self.cancel(request, "length")
            if sampled:
                self._ledger.has_token(request)
                answers.accept(request, sampled[0])
                self._stats.speculating_parts += request.draft.speculates
                if part.draft:
                    answers.accept_draft(part, end, sampled)
                if answer.constraint is not None or answer.thought is not None:
                    answers.take_forced(request)

    def _record(self, step: Step) -> None:
        """Counts what a step has computed, and tells those who plan steps how long it has taken."""
        now, count = time.perf_counter(), step.count
        seconds = (now - max(step.begin, self._answers.step_end)) / count
        self._answers.step_end = now
        decoding, prompt_tokens, drafted = step.num_decoding, step.num_prompt_tokens, step.num_drafted
        stats = self._stats
        stats.steps += count
        stats.batch_sequences = len(step.parts)
        stats.batch_tokens = decoding + prompt_tokens + drafted
        stats.computed_tokens += stats.batch_tokens * count
        stats.draft_tokens += drafted
        if not drafted:
            self._times.measured(decoding, prompt_tokens, seconds)
        self._ledger.step(step)
        if self._link and prompt_tokens and not decoding:
            self._link.tiers.computed(prompt_tokens, seconds)
        if (speculator := self._answers.speculator) is not None and not prompt_tokens:
            if self._host.pipelines:
                speculator.measured(decoding, drafted, seconds, count)
            elif self._measured:
                speculator.measured(decoding, drafted, self._host.clock() - self._used, self._measured)
        self._recent.append((StepRecord(now, seconds, decoding, prompt_tokens, drafted), count))

    def _end_overdue(self) -> None:
        now, self._next_deadline = self.clock(), float("inf")
        for request in [*self.scheduler.running, *self.scheduler.waiting]:
            if request.deadline is None:
                continue
            if request.deadline <= now:
                self.cancel(request, "deadline")
            else:
                self._next_deadline = min(self._next_deadline, request.deadline)

    def _fail_step(self, step: Step, error: Exception) -> None:
        """Ends the requests of a step that failed."""
        self._stats.failed_steps += 1
        for part in step.parts:
            self._answers.fail(part.request, error, keep=False)  # copies into its blocks may not have been made
        self._forget(step)

    def _forget(self, step: Step) -> None:
        """Forgets a step and one launched after it: their requests compute them again."""
        forgotten = [step] if self._ahead in (None, step) else [step, self._ahead]
        self._ahead, self._untold, self._told = None, 0, 0
        self._ledger.forgot()
        for one in forgotten:
            self.scheduler.forget(one)
            for part in one.parts:
                part.request.forget_unread()
