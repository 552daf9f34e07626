"""Which requests take part in the next step, and with how many tokens.

There is one rule, that of vLLM's v1 scheduler: a request has tokens that are known and tokens that are computed, and a
step computes some of the difference. There is no phase of prompts and none of decoding. Requests that decode come
first, then the rest of prompts that are being read, then requests that wait, in the order of `Request.order`.

A request that waits is admitted when there are blocks for all its tokens. If blocks run out later, the last request of
the running ones gives its blocks back and waits again (preemption). Its full blocks stay in the prefix cache, or go to
a tier, until others need the memory; what is left of them need not be computed again.

Source: vLLM, v1/core/sched/scheduler.py. Here requests also wait for a prompt that another one is reading.
"""

from bisect import insort
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from mlxr.compiler.artifact import Plan
from mlxr.compiler.errors import ArenaFullError, MlxrError
from mlxr.runtime.cache.block_hashes import Digest
from mlxr.runtime.cache.pager import Pager, Prefix
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.step_times import SHORT_DELAY, SHORT_PROMPT, StepTimes

_ORDER = attrgetter("order", "number")
_NO_PREFIX = Prefix(0, ())


class Part(NamedTuple):
    """A request's part of a step.

    Attributes:
        request: whose tokens they are.
        num_tokens: tokens, from `request.computed` on; draft tokens come after them.
        samples: whether the last of them is the last that is known, so that the next token is sampled. Requests that
            pool their rows sample none.
        draft: draft tokens, which may or may not be what is sampled.
    """

    request: Request
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def growth(self) -> tuple[int, int]:
        """The sequence, and by how many tokens it grows."""
        assert self.request.seq_id is not None, "only a request with a sequence takes part in a step"
        return self.request.seq_id, self.num_tokens + len(self.draft)

    @property
    def num_rows(self) -> int:
        """Rows of logits that it asks for."""
        if self.request.prompt_rows:
            return self.num_tokens if self.request.needs_all_rows else 1
        return int(self.samples) + len(self.draft)


class Restorer(Protocol):
    """Brings blocks of a prompt back from where evicted ones were put."""

    def fetches(self, request: Request, prefix: Prefix) -> bool:
        """Whether blocks that follow a prefix in the arena are being read now; begins that if it is worth while."""

    def restore(self, request: Request, prefix: Prefix) -> int:
        """Puts the blocks that have been read into the request's new sequence; returns how many tokens that is."""


class Scheduler:
    """The queue of requests and those that run. It decides; the core launches.

    Attributes:
        waiting: requests that have no sequence, in order.
        running: requests that have one, in the order of their admission.
        preemptions: how often a request gave its blocks back.
        prompt_tokens: tokens of the prompts that were admitted.
        cached_tokens: how many of these the arena or a tier had.
        failures: requests that cannot go on, each with its error; the core ends them.
    """

    def __init__(self, plan: Plan, pager: Pager, times: StepTimes, restorer: Restorer | None = None) -> None:
        """Starts with no requests.

        Args:
            plan: its limits are those of a step.
            pager: of the arena.
            times: how long steps take.
            restorer: finds blocks that the arena has no longer; None: nobody has them.
        """
        self._plan, self._pager, self._times, self._restorer = plan, pager, times, restorer
        self._being_read: dict[Hashable, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = self.prompt_tokens = self.cached_tokens = self._added = 0
        self.failures: list[tuple[Request, MlxrError]] = []

    def add(self, request: Request) -> None:
        """Puts a request into the queue."""
        self._added += 1
        request.number = self._added
        insort(self.waiting, request, key=_ORDER)

    def remove(self, request: Request, *, keep: bool = True) -> None:
        """Takes a request out; its sequence, if it has one, goes back to the pager. See `preempt` for `keep`."""
        if request.seq_id is not None:
            self.running.remove(request)
            self._give_back(request, keep)
        elif request in self.waiting:
            self.waiting.remove(request)

    def schedule(self, before: list[Part] | None = None) -> list[Part]:
        """The parts of the next step; none if nothing can be computed now. Admitted requests get their sequences.

        Args:
            before: what it returned last, if all of that was one token for each request without draft tokens, and each
                request has since got its next token, or has been removed. The same list comes again if nobody has been
                removed and nobody can join.
        """
        can_join = self.waiting and self._pager.can_add_sequence()
        if before is not None and not can_join and len(before) == len(self.running) <= self._pager.num_free:
            return before
        budget, rows, states = self._plan.max_tokens, self._plan.max_rows, self._pager.states
        undo = budget if states is None else states.room
        parts: list[Part] = []
        reading: list[Request] = []
        most_blocks = 0  # no token needs more than one
        for request in self.running:  # each statement here runs for each sequence of each step
            pending = len(request.tokens) + request.in_flight
            pending = (pending if pending < request.max_length else request.max_length - 1) - request.computed
            if pending == 1 and not request.prompt_rows and budget and rows:
                draft: tuple[int, ...] = ()
                if request.drafted:
                    draft = tuple(request.drafted[: min(budget, rows, undo + 1) - 1])
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
            is_long = len(reader.tokens) - reader.completion.cached_tokens > SHORT_PROMPT
            most = long_budget if is_long else budget
            if reader.seq_id is not None and (part := self._chunk(reader, most, rows, parts)):
                parts.append(part)
                budget -= part.num_tokens
                long_budget -= part.num_tokens
                rows -= part.num_rows
        if not parts and not self.running and not self.failures:
            self._fail_stuck()
        return parts

    def preempt(self, request: Request, *, keep: bool = True) -> None:
        """Takes a running request's blocks; it waits again.

        Args:
            request: it.
            keep: whether what it computed stays in the prefix cache while there is room. Full blocks that are there
                already stay in any case.
        """
        self.preemptions += 1
        self.running.remove(request)
        self._give_back(request, keep)
        insort(self.waiting, request, key=_ORDER)

    def has_computed(self, request: Request) -> None:
        """Lets the requests go on that waited for the blocks which this one has computed by now."""
        unread = request.unread
        while unread and unread[-1][0] <= request.certain:
            self._forget(request, unread.pop()[1])

    def _chunk(self, request: Request, budget: int, rows: int, chosen: Sequence[Part]) -> Part | None:
        """The next tokens of a prompt, if there is room for them. A long chunk of a longer prompt ends with a block."""
        pending = request.num_pending
        count = min(pending, budget, rows if request.prompt_rows else budget)
        if count < pending:
            end = request.computed + count
            count -= end % self._pager.block_size if count >= 4 * self._pager.block_size else 0
        if self._pager.states is not None and count > 0:
            assert request.seq_id is not None, "it runs"
            count = self._pager.states.cut(request.seq_id, count)
        part = Part(request, count, count == pending and request.pool is None)
        if count <= 0 or part.num_rows > rows:
            return None
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
            while part.request.seq_id is not None:
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
        assert request.seq_id is not None, "it runs"
        if keep:
            self._pager.free(request.seq_id, request.tokens, request.hashes, request.certain)
        else:
            self._pager.truncate(request.seq_id, 0)  # so that its last block, which may lack its copy, is not kept
            self._pager.free(request.seq_id)
        request.seq_id, request.computed, request.certain = None, 0, 0
        while request.unread:
            self._forget(request, request.unread.pop()[1])

    def _forget(self, request: Request, key: Hashable) -> None:
        if self._being_read.get(key) is request:
            del self._being_read[key]

    def _fail_stuck(self) -> None:
        """Ends the first request if nothing that the engine knows of will ever make room for it."""
        if self.waiting and not any(request.in_flight or request.fetch for request in self.waiting):
            self._fail(self.waiting[0])

    def _fail(self, request: Request) -> None:
        pager = self._pager
        tokens = len(request.tokens)
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
            if request.in_flight or request.awaited in self._being_read:
                continue
            prefix = self._prefix_of(request)
            request.awaited = self._next_key(request, max(prefix.num_tokens, prefix.num_known))
            if request.awaited in self._being_read and not request.needs_all_rows:
                continue
            if self._restorer is not None and not request.needs_all_rows and self._restorer.fetches(request, prefix):
                continue
            if not self._has_room(request, prefix):
                return None
            self._begin(request, prefix)
            return request
        return None

    def _prefix_of(self, request: Request) -> Prefix:
        """What the arena has of a request's tokens; only full blocks where blocks from a tier will follow."""
        if request.needs_all_rows:
            return _NO_PREFIX
        is_fetched = request.fetch is not None and request.fetch.done()
        return self._pager.find_prefix(request.tokens, request.hashes, whole_blocks=is_fetched)

    def _has_room(self, request: Request, prefix: Prefix) -> bool:
        """Whether there are blocks for all tokens of a request, beside what running ones still need."""
        promised = 0
        for other in self.running:
            if (pending := other.num_pending) > 0:
                assert other.seq_id is not None, "it runs"
                most = self._pager.context - other.computed
                growth = (other.seq_id, min(pending + len(other.drafted), most))
                promised += max(pending // self._pager.block_size + 1, self._pager.num_blocks_needed([growth]))
        needed = self._pager.blocks_to_begin(prefix, min(len(request.tokens) + 1, self._pager.context))
        if needed + promised <= self._pager.num_free:
            return True
        return not self.running and needed <= self._pager.num_free

    def _begin(self, request: Request, prefix: Prefix) -> None:
        request.seq_id = self._pager.add_sequence(prefix)
        request.computed = request.certain = prefix.num_tokens
        if self._pager.states is not None:
            self._pager.states.want(request.seq_id, request.prompt_length, prefix.num_known)
        self.waiting.remove(request)
        self.running.append(request)
        if self._restorer is not None:
            request.computed = request.certain = prefix.num_tokens + self._restorer.restore(request, prefix)
        if request.prompt_rows:
            request.completion.prompt_logprobs.clear()
            if request.pool is not None:
                request.pool.clear()
        if not request.has_started:
            request.has_started = True
            request.completion.cached_tokens = request.computed
            self.prompt_tokens += request.prompt_length
            self.cached_tokens += request.computed
        self._announce(request)

    def _announce(self, request: Request) -> None:
        """Tells requests with the same prompt that they can wait for this one to read it."""
        size, tokens = self._pager.block_size, request.tokens
        digests = request.hashes.of(tokens, len(tokens))
        unread: list[tuple[int, Hashable]] = [
            ((block + 1) * size, digests[block]) for block in range(request.computed // size, len(digests))
        ]
        if len(tokens) % size:
            unread.append((len(tokens), _tail_key(digests, tokens, size)))
        request.unread = [(end, key) for end, key in reversed(unread) if key not in self._being_read]
        self._being_read |= {key: request for _, key in request.unread}

    def _next_key(self, request: Request, computed: int) -> Hashable:
        """The key of the block that a request would compute first."""
        size, tokens = self._pager.block_size, request.tokens
        digests = request.hashes.of(tokens, len(tokens))
        block = computed // size
        return digests[block] if block < len(digests) else _tail_key(digests, tokens, size)


def _tail_key(digests: Sequence[Digest], tokens: Sequence[int], size: int) -> Hashable:
    """The key of the tokens after the last full block."""
    return (digests[-1] if digests else b"", *tokens[len(digests) * size :])
