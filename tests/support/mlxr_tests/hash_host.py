"""A host without a model: its logits are a hash of all tokens of a sequence, read from an arena of its own.

A slot holds what K and V of a token depend on: a hash of this token and of all before it. So a wrong block table, a
missing copy, a block that is found too early or restored wrongly shows as a wrong token. `answer_alone` computes what a
request must get, without an engine.

With state slots, its logits depend also on a state that is carried from token to token, and written only where
`Batch.state_table` says: so a wrong slot, a snapshot of other tokens, or a guess that was not undone shows, too.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from mlxr.compiler.artifact import LayerGroup
from mlxr.compiler.errors import HostError
from mlxr.compiler.formats.dtypes import DType
from mlxr.compiler.formats.stores import Store, StoreRow
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.core import EngineCore
from mlxr.runtime.engine.errors import ModelClosedError
from mlxr.runtime.engine.make_requests import RequestMaker, Terms
from mlxr.runtime.engine.pool import Pooling
from mlxr.runtime.engine.request import Listener, Request
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling, sample_rows
from mlxr.runtime.engine.sampling.device_sampling import sample_on_device
from mlxr.runtime.hosts.batch import Batch
from mlxr.runtime.hosts.host import Host
from mlxr_tests.kv_arena import kv_arena

VOCAB = 32
_FACTOR, _ADDEND = 6364136223846793005, 1442695040888963407


def _after(state: int, token: int) -> int:
    return ((state ^ token) * _FACTOR + _ADDEND) % 2**64


def _carried(state: int, token: int) -> int:
    """The state after a token, from the one before it."""
    return ((state + token + 1) * _FACTOR) % 2**64


def _logits(states: np.ndarray, carried: int = 0) -> np.ndarray:
    """Logits after a token, from the slots of all tokens up to it and, of a model with states, its state: [vocab]."""
    weights = np.arange(1, 2 * len(states) + 1, 2, dtype=np.uint64)
    total = np.uint64((int((states * weights).sum(dtype=np.uint64)) + carried) % 2**64)
    bits = total + np.arange(VOCAB, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (4 * ((bits ^ (bits >> np.uint64(27))) >> np.uint64(40)) / 2**24).astype(np.float32)


def is_content(block: np.ndarray, tokens: Sequence[int]) -> bool:
    """Whether a block, [block_bytes], may hold these tokens: each slot but the first follows from the one before it."""
    slots = block.view(np.uint64).tolist()
    return all(_after(before, token) == slot for before, slot, token in zip(slots, slots[1:], tokens[1:], strict=False))


def rows_alone(prompt: Sequence[int]) -> np.ndarray:
    """The row after each token of a prompt: [tokens, vocab], f32."""
    states = [0]
    for token in prompt:
        states.append(_after(states[-1], token))
    return np.stack([_logits(np.array(states[1 : end + 1], np.uint64)) for end in range(1, len(states))])


def answer_alone(
    prompt: Sequence[int],
    sampling: Sampling,
    sample: int = 0,
    context: int = 10**9,
    *,
    on_device: bool = False,
    has_state: bool = False,
) -> list[int]:
    """The tokens of an answer that no end-of-sequence token ends.

    On the device, sums of probabilities are f32: a random number on the border of two tokens may choose the other one.
    """
    sampler, states, carried = Sampler(sampling, sample, prompt), [0], 0
    for token in prompt:
        states.append(_after(states[-1], token))
        carried = _carried(carried, token)
    answer: list[int] = []
    for position in range(min(sampling.max_tokens or context, context - len(prompt))):
        logits = _logits(np.array(states[1:], np.uint64), carried if has_state else 0)
        row = Row(sampler, position, None)
        if on_device:
            token = int(sample_on_device(mx.array(logits[None]), [row]).tokens.item())
        else:
            token = sample_rows(logits[None], [row])[0].token
        sampler.accept(token)
        answer.append(token)
        states.append(_after(states[-1], token))
        carried = _carried(carried, token)
    return answer


class HashHost:
    """The part of a `Host` that an engine's core uses, and a host that has others.

    Attributes:
        pipelines: whether it is taken for a host with lazy steps.
        faults: what fails in the coming steps: `copy`, `launch`, `read`, or None; a step that fails writes nonsense.
        failing: names of methods whose next call fails: `read_blocks`, `write_blocks`.
        interruption: what the next step, read or move of blocks raises.
        steps: tokens of each sequence of each step.
        launches: as a host's; it launches no kernels.
        on_step: called at the beginning of each step.
    """

    name, artifact, program, threads, notes, builds_late = "hash", None, None, None, (), False
    gathers_tops = False
    clock = staticmethod(time.perf_counter)

    def __init__(self, geometry: Any, max_tokens: int, *, pipelines: bool = False, state_slots: int = 0) -> None:
        self.plan: Any = SimpleNamespace(
            arena=geometry,
            max_tokens=max_tokens,
            max_rows=max_tokens,
            query_tile=4,
            vocab_size=VOCAB,
            whole_prompts=False,
        )
        self.size = geometry.block_size
        self.slots = np.zeros(geometry.num_blocks * self.size, np.uint64)
        self.others = [np.zeros(group.num_blocks * self.size, np.uint64) for group in geometry.groups[1:]]
        self.states = [0] * state_slots
        self.arena = SimpleNamespace(token=mx.zeros((1,)), geometry=geometry, takes_pages=False)
        self.pipelines, self.most_steps, self.most_prepared = pipelines, 3, 0
        self.faults: deque[str | None] = deque()
        self.failing: set[str] = set()
        self.interruption: BaseException | None = None
        self.steps: list[list[int]] = []
        self.launches: Counter[str] = Counter()
        self.on_step: Callable[[], object] = lambda: None
        self._broken: list[Any] = []
        self._breaks = False

    def step(self, batch: Batch) -> Any:
        self.on_step()
        self.interrupt()
        if self.pipelines:  # each step has a token of its own: one that fails unread breaks no other
            self.arena.token = mx.zeros((1,))
        fault = self.faults.popleft() if self.faults else None
        if fault == "copy":
            fault = None
        self._breaks = fault == "read" and (self.pipelines or bool(batch.num_rows))
        if fault is not None:
            self.slots[batch.slots] = 13
            for slots, blocks in zip(self.others, batch.others, strict=True):
                slots[blocks.slots] = 13
            if batch.state_table is not None:
                for slot in batch.state_table[:, 1:].ravel().tolist():
                    self.states[slot] = 11 if slot >= 0 else self.states[slot]
            if not self._breaks:
                raise HostError("the step failed at its launch")
        tokens, rows = np.array(batch.tokens).tolist(), []
        assert len(set(batch.slots.tolist())) == len(tokens), "no slot is written twice"
        self.steps.append(np.diff(batch.query_start).tolist())
        carried = self._carry(batch, tokens)
        for sequence, length in enumerate(batch.context_lens.tolist()):
            begin, end = batch.query_start[sequence : sequence + 2].tolist()
            blocks = batch.block_tables[sequence][: -(-length // self.size)]
            slots = (blocks[:, None] * self.size + np.arange(self.size)).ravel()[:length]
            for i in range(begin, end):
                position = length - end + i
                assert batch.slots[i] == slots[position] and batch.positions[i] == position
                before = int(self.slots[slots[position - 1]]) if position else 0
                self.slots[slots[position]] = _after(before, tokens[i]) if not self._breaks else 17
            self._write_others(batch, sequence, slots)
            for row in batch.logit_rows.tolist():
                if begin <= row < end:
                    rows.append(_logits(self.slots[slots[: length - end + row + 1]], carried[row]))
        logits = np.array(rows, np.float32).reshape(-1, VOCAB)
        if self.pipelines:
            return mx.array(logits)
        if self._breaks:
            self._broken = [logits]
        return logits

    def _write_others(self, batch: Batch, sequence: int, slots: "np.ndarray[Any, Any]") -> None:
        """Writes a sequence's tokens into the groups after the first; their windows must hold what that one holds."""
        begin, end = batch.query_start[sequence : sequence + 2].tolist()
        for own, blocks, group in zip(self.others, batch.others, self.arena.geometry.groups[1:], strict=True):
            table = blocks.block_tables[sequence]
            for i, position in enumerate(batch.positions[begin:end].tolist(), begin):
                seen = np.arange(group.first_read(position), position)
                found = own[table[seen // self.size] * self.size + seen % self.size]
                assert self._breaks or (found == self.slots[slots[seen]]).all(), "a window lacks what it shows"
                assert blocks.slots[i] == table[position // self.size] * self.size + position % self.size
                own[blocks.slots[i]] = self.slots[slots[position]]

    def _carry(self, batch: Batch, tokens: Sequence[int]) -> list[int]:
        """The state after each token, 0 for a model without states; writes those that the step keeps."""
        if not self.states:
            assert batch.state_table is None
            return [0] * len(tokens)
        assert batch.state_table is not None and batch.state_table.dtype == np.int32
        table, query_start, carried = batch.state_table.tolist(), batch.query_start.tolist(), list[int]()
        written = [slot for row in table for slot in row[1:] if slot >= 0]
        assert len(written) == len({*written} - {row[0] for row in table}), "no slot is written twice, or also read"
        before = [self.states[row[0]] if row[0] >= 0 else 0 for row in table]
        for row, state, position, begin, end in zip(
            table, before, batch.positions[query_start[:-1]].tolist(), query_start, query_start[1:], strict=False
        ):
            assert (row[0] < 0) == (not position) and row[1] >= 0, "there is a state after each token but the first"
            for token in tokens[begin:end]:
                carried.append(state := _carried(state, token))
            for column, slot in enumerate(row[1:], 1):
                if slot >= 0:
                    assert column <= end - begin, "the step writes states after its own tokens"
                    self.states[slot] = carried[end - column] if not self._breaks else 23
        return carried

    chain, send, to_read_together = Host.chain, Host.send, Host.to_read_together
    batch_of, likeliest_of, likeliest_of_steps = Host.batch_of, Host.likeliest_of, Host.likeliest_of_steps
    steps_of = Host.decode

    def decode(self, batch: Batch) -> Callable[[Any], Any]:
        run, breaks = self.steps_of(batch), False  # type: ignore[misc]  # it has all that this needs of a host

        def step(tokens: Any) -> Any:
            nonlocal breaks
            logits = run(tokens)
            breaks = self._breaks = self._breaks or breaks  # what is started together fails together
            return logits

        return step

    def start(self, *results: mx.array) -> None:
        if self._breaks:
            self._broken += results

    def copy_to_read(self, result: mx.array) -> mx.array:
        return result

    def read(self, result: Any) -> np.ndarray:
        self.interrupt()
        if any(result is broken for broken in self._broken):
            self._broken.clear()
            raise HostError("the step failed on the device")
        return np.array(result)

    def copy_blocks(self, copies: Sequence[tuple[int, int]], group: int = 0) -> None:
        if self.faults and self.faults[0] == "copy":
            self.faults.popleft()
            raise HostError("blocks could not be copied")
        blocks = (self.others[group - 1] if group else self.slots).reshape(-1, self.size)
        for source, target in copies:
            blocks[target] = blocks[source]

    @property
    def block_bytes(self) -> int:
        return 8 * self.size

    @property
    def slot_bytes(self) -> int:
        return 8 * bool(self.states)

    def read_blocks(self, block_ids: Sequence[int], group: int | None = 0) -> np.ndarray:
        self.interrupt()
        if "read_blocks" in self.failing:
            self.failing.remove("read_blocks")
            raise HostError("blocks could not be read")
        if group is None:
            return np.array([[self.states[slot]] for slot in block_ids], np.uint64).view(np.uint8)
        return self.slots.reshape(-1, self.size)[list(block_ids)].view(np.uint8)

    def write_blocks(self, block_ids: Sequence[int], data: np.ndarray, group: int | None = 0) -> None:
        if group is None:
            self._write_states(block_ids, data)
            return
        blocks = self.slots.reshape(-1, self.size)
        blocks[list(block_ids)] = 19
        self.interrupt()
        if "write_blocks" in self.failing:
            self.failing.remove("write_blocks")
            raise HostError("blocks could not be written")
        blocks[list(block_ids)] = data.view(np.uint64)

    def _write_states(self, slots: Sequence[int], data: np.ndarray) -> None:
        for slot in slots:
            self.states[slot] = 19
        self.interrupt()
        if "write_blocks" in self.failing:
            self.failing.remove("write_blocks")
            raise HostError("states could not be written")
        for slot, row in zip(slots, data.view(np.uint64), strict=True):
            self.states[slot] = int(row[0])

    def when_lost(self, listener: Callable[[Any], object]) -> None:
        pass

    def close(self) -> None:
        pass

    def interrupt(self) -> None:
        """Raises what was planned."""
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            raise interruption


class HashEngine:
    """A core with a HashHost, a pager and a clock that stands still.

    Attributes:
        now: what the clock says, in seconds.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_sequences: int = 4,
        *,
        context: int = 64,
        max_tokens: int = 16,
        pipelines: bool = False,
        tiers: BlockTiers | None = None,
        make_host: Callable[..., Any] = HashHost,
        state_slots: int = 0,
        state_every: int = 0,
        window: int = 0,
    ) -> None:
        columns = -(-context // block_size)
        layers = 2 if window else 1
        self.geometry = kv_arena(
            *("block", "paged", num_blocks, layers, block_size, 1, 1, DType.F32, columns, max_sequences, context)
        )
        if state_slots:
            sums = Store("sums", "sequence", (StoreRow((2,), DType.F32), *[None] * (layers - 1)))
            self.geometry = replace(
                self.geometry,
                stores=(*self.geometry.stores, sums),
                num_slots=state_slots,
                snapshot_tokens=state_every,
            )
        if window:
            windowed = LayerGroup((1,), max_sequences * (-(-window // block_size) + 8) + max_tokens, columns, window)
            whole = replace(self.geometry.groups[0], layers=(0,))
            self.geometry = replace(self.geometry, groups=(whole, windowed))
        options = {"state_slots": state_slots} if state_slots else {}
        self.host = make_host(self.geometry, max_tokens, pipelines=pipelines, **options)
        self.pager = Pager.from_geometry(self.geometry, record_evictions=tiers is not None)
        self.now = 0.0
        self.core = EngineCore(self.host, self.pager, tiers, clock=lambda: self.now)  # type: ignore[arg-type]
        measured = self.core._times.measured
        self.core._times.measured = lambda *counts: measured(*counts[:2], self.seconds(counts))  # type: ignore[method-assign]
        self._maker = RequestMaker(self.host.plan, self.geometry, None, ("hash",))

    @staticmethod
    def seconds(counts: Sequence[float]) -> float:
        """The time that the core believes a step takes: 1 ms, and 0.1 ms for each token; several may be ahead."""
        return 0.001 + 0.0001 * sum(counts[:2])

    def requests(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        listener: Listener = lambda news: None,
        *,
        pooling: Pooling | None = None,
        **terms: Any,
    ) -> list[Request]:
        """Requests, not added yet."""
        return self._maker.make(0, prompt, sampling, listener, self.now, Terms(**terms), pooling)

    def add(self, prompt: Sequence[int], max_tokens: int = 8, **terms: Any) -> "Answer":
        """Adds a greedy request."""
        answer = Answer()
        (answer.request,) = self.requests(prompt, Sampling(max_tokens=max_tokens), answer, **terms)
        self.core.add(answer.request)
        return answer

    def alone(self, request: Request) -> list[int]:
        """What a request must get."""
        prompt, sampling = request.answer.tokens[: request.prompt_length], request.sampler.sampling
        sample, on_device = request.index % sampling.n, self.host.pipelines
        context, has_state = self.geometry.context, self.pager.states is not None
        return answer_alone(prompt, sampling, sample, context, on_device=on_device, has_state=has_state)

    def run(self, most: int = 10_000) -> int:
        """Runs steps until there is no request left; returns how many."""
        for steps in range(most):
            if not self.core.step() and not self.core.scheduler.running and not self.core.scheduler.waiting:
                return steps
            self.check()
        raise AssertionError(f"there are requests after {most} steps")

    def check(self) -> None:
        """What holds between any two steps."""
        self.pager.check_integrity()
        scheduler = self.core.scheduler
        assert all(request.run.seq_id is not None and not request.answer.is_done for request in scheduler.running)
        assert all(request.run.seq_id is None and not request.answer.is_done for request in scheduler.waiting)
        assert self.pager.num_sequences == len(scheduler.running)
        assert all(request in scheduler.running for request in scheduler.being_read.requests)

    def check_empty(self) -> None:
        """What holds when all requests have ended."""
        self.check()
        assert self.pager.num_sequences == 0 and self.pager.num_free == self.pager.num_blocks
        assert not self.core.scheduler.being_read and not self.pager.take_copies()


class HashModel:
    """The part of a `Model` that `Engine` uses."""

    def __init__(self, engine: HashEngine) -> None:
        self.core, self.host, self._engine = engine.core, engine.host, engine
        self.is_closed = False

    def make_requests(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        listener: Listener,
        terms: Terms,
        pooling: Pooling | None = None,
    ) -> list[Request]:
        make, now = self._engine._maker.make, self.running_core().clock()
        return [r for i, prompt in enumerate(prompts) for r in make(i, prompt, sampling, listener, now, terms, pooling)]

    def running_core(self) -> EngineCore:
        if self.is_closed:
            raise ModelClosedError
        return self.core

    def close(self) -> None:
        self.core.close()
        self.is_closed = True
        del self.core


class Guesser:
    """Drafts of up to four tokens, of which some are right."""

    def __init__(self, engine: HashEngine) -> None:
        self.alone = engine.alone

    def draft(self, requests: Sequence[Request], tokens: int, room: int) -> None:
        for request in requests:
            length = len(request.answer.tokens)
            count = min(length % 5, room, request.max_length - 1 - length)
            known = length - request.prompt_length
            request.draft.drafted = self.alone(request)[known : known + max(count, 0)]
            if length % 3 == 0 and request.draft.drafted:
                request.draft.drafted[-1] = (request.draft.drafted[-1] + 1) % VOCAB
            room -= len(request.draft.drafted)

    def measured(self, *times: float) -> None:
        pass

    def end(self, request: Request) -> None:
        request.draft.drafted = []


class Answer:
    """A request and what its listener was told."""

    request: Request

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.error: BaseException | None = None

    def listen(self, news: Event | BaseException) -> None:
        assert self.error is None and not (self.events and self.events[-1].finish_reason), "nothing comes after the end"
        if isinstance(news, BaseException):
            self.error = news
        else:
            self.events.append(news)

    def __call__(self, news: Event | BaseException) -> None:
        self.listen(news)

    def tell_all(self, events: Sequence[Event]) -> None:
        assert not any(event.finish_reason for event in events), "an end is told by itself"
        for event in events:
            self.listen(event)

    @property
    def tokens(self) -> list[int]:
        return [event.token_id for event in self.events if event.token_id is not None]

    @property
    def finish_reason(self) -> str | None:
        return self.events[-1].finish_reason if self.events else None
