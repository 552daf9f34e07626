"""Random requests through core, scheduler, pager, prefix cache and tiers, with faults of every kind.

Whatever happens, a request gets the tokens that it gets alone, for as long as it gets any; and when no new ones come,
all end soon, and everything is free.
"""

import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mlxr.compiler.errors import HostError
from mlxr.compiler.formats import stores
from mlxr.runtime.cache import group_blocks
from mlxr.runtime.engine.sampling import Sampling
from mlxr_tests.hash_host import Answer, Guesser, HashEngine
from mlxr_tests.hash_tiers import DAMAGES, HashTiers

PROMPTS = st.builds(
    lambda first, tail, cut: ([first] * (20 - len(tail)) + tail)[cut:],
    st.sampled_from([1, 1, 1, 3, 4]),
    st.lists(st.sampled_from([1, 2]), max_size=20),
    st.sampled_from([0, 0, 0, 1, 4, 13, 19]),
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    seed=st.integers(0, 3),
    n=st.sampled_from([1, 1, 3]),
    max_tokens=st.integers(1, 12),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    logprobs=st.sampled_from([None, None, 2]),
)
ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": PROMPTS,
            "sampling": SAMPLINGS,
            "priority": st.integers(-1, 1),
            "deadline": st.sampled_from([None, None, None, 3.0]),
            "salt": st.sampled_from(["", "", "", "x"]),
            "raises_at": st.sampled_from([None, None, None, 1, 3]),
        }
    ),
    max_size=2,
)
TIERS = [None, (2, 0), (40, 0), (0, 40), (2, 4), (3, 40)]
"""Most blocks in host memory and on disk."""


def holdings():
    """Open files, and threads."""
    return sum(1 for _ in Path("/dev/fd").iterdir()), set(threading.enumerate())


class Told(Answer):
    """An answer whose listener may raise."""

    def __init__(self, raises_at):
        super().__init__()
        self.raises_at, self.has_raised, self.may_fail = raises_at, False, False

    def listen(self, news):
        assert not self.has_raised, "a listener that failed is not called again"
        super().listen(news)
        if len(self.events) == self.raises_at:
            self.has_raised = True
            raise KeyError("a listener failed")


def event(**strategies):
    """A rule that begins with arrivals and steps: so each run of the machine has some, whatever its rules are."""

    def decorate(function):
        def run(self, arrivals, steps, **drawn):
            for arrival in arrivals:
                self.add(**arrival)
            for _ in range(steps):
                self.run_step()
            function(self, **drawn)

        run.__name__ = run.__qualname__ = function.__name__
        return rule(arrivals=ARRIVALS, steps=st.integers(0, 4), **strategies)(run)

    return decorate


class CoreMachine(RuleBasedStateMachine):
    pipelines = False
    spare_states = st.none()
    windows = st.just(0)
    """Tokens that layers with a window see; 0: there are none."""
    """State slots beyond those that sequences need; None: the model has no states."""

    @initialize(
        num_blocks=st.integers(8, 24),
        block_size=st.sampled_from([4, 4, 8]),
        max_sequences=st.integers(1, 5),
        max_tokens=st.integers(6, 24),
        drafts=st.booleans(),
        tiers=st.sampled_from(TIERS),
        hour_blocks=st.sampled_from([6, 1000, 1000]),
        worth_period=st.sampled_from([0, 0, 3]),
        data=st.data(),
    )
    def make(
        self, num_blocks, block_size, max_sequences, max_tokens, drafts, tiers, data, hour_blocks=1000, worth_period=0
    ):
        spare = data.draw(self.spare_states)
        self.states = {}
        if window := data.draw(self.windows):
            tiers = None  # which have no windows
            self.states = {"window": window}
        if spare is not None:
            self.states = {
                "state_slots": 2 * max_sequences + spare,
                "state_every": data.draw(st.sampled_from([0, 3, 8])),
            }
        self.before = holdings()
        self.sizes = num_blocks, block_size, max_sequences
        self.max_tokens, self.drafts, self.tier_blocks = max_tokens, drafts, tiers
        self.tier_options = {"hour_blocks": hour_blocks, "worth_period": worth_period}
        self.folder = tempfile.TemporaryDirectory()
        self.reads, self.newest_first, self.writes = 1, False, True
        self.open = []
        self.now = 0.0
        self.load()

    def load(self):
        self.tiers = None
        if self.tier_blocks is not None:
            options = {"clock": lambda: self.engine.now, "state_bytes": 8 * ("state_slots" in self.states)}
            folder = Path(self.folder.name)
            self.tiers = HashTiers(self.sizes[1], *self.tier_blocks, folder, **options, **self.tier_options)
        self.engine = HashEngine(
            *self.sizes,
            context=32,
            max_tokens=self.max_tokens,
            pipelines=self.pipelines,
            tiers=self.tiers,
            **self.states,
        )
        self.engine.now = self.now
        self.memory = SimpleNamespace(wanted=0, is_low=False)
        self.memory.poll = lambda: self.memory.wanted
        self.engine.core._watch = self.memory
        if self.drafts:
            self.engine.core.speculator = Guesser(self.engine)

    def add(self, prompt, sampling, raises_at=None, **terms):
        answers = [Told(raises_at) for _ in range(sampling.n)]
        requests = self.engine.requests(prompt, sampling, lambda news: None, **terms)
        for answer, request in zip(answers, requests, strict=True):
            answer.request = replace(request, listener=answer.listen)
            answer.expected = self.engine.alone(request)
            self.engine.core.add(answer.request)
        self.open += answers

    @event()
    def step(self):
        """Only that."""

    @event(number=st.integers(0, 20), silently=st.booleans())
    def cancel(self, number, silently):
        if not self.open:
            return
        answer = self.open[number % len(self.open)]
        if silently:
            self.engine.core.drop(answer.request)
            answer.has_raised = True
        else:
            self.engine.core.cancel(answer.request)
            assert answer.finish_reason == "cancelled" or answer.has_raised
        self.after()

    @event(faults=st.lists(st.sampled_from([None, "copy", "launch", "read"]), min_size=1, max_size=3))
    def steps_that_fail(self, faults):
        self.engine.host.faults.extend(faults)
        goes_on = True
        while self.engine.host.faults and goes_on:  # it does not while all requests wait for blocks of a tier
            before = self.engine.core.stats().failed_steps
            goes_on = self.run_step(may_fail=True)
            assert self.engine.core.stats().failed_steps <= before + 2
        self.engine.host.faults.clear()
        self.run_step(may_fail=True)  # a pipelined step fails when it is read

    @event()
    def interrupt(self):
        """Ctrl-C while the host computes."""
        self.engine.host.interruption = KeyboardInterrupt()
        with suppress(KeyboardInterrupt):
            self.engine.core.step()
        self.engine.host.interruption = None
        self.after()

    @event(seconds=st.sampled_from([1.0, 4.0]))
    def wait(self, seconds):
        self.engine.now += seconds
        self.after()

    @precondition(lambda self: self.tiers)
    @event(reads=st.integers(0, 3), newest_first=st.booleans(), writes=st.booleans())
    def tiers_are_slow(self, reads, newest_first, writes):
        """So many blocks are read between two steps, and none or all are written."""
        self.reads, self.newest_first, self.writes = reads, newest_first, writes

    @precondition(lambda self: self.tiers)
    @event(
        trouble=st.sampled_from(["read_blocks", "write_blocks", "memory", "full", *DAMAGES, *DAMAGES]),
        number=st.integers(0, 40),
        count=st.integers(0, 4),
    )
    def tiers_in_trouble(self, trouble, number, count):
        if trouble in DAMAGES:
            if files := self.tiers.files():
                DAMAGES[trouble](files[number % len(files)])
        elif trouble == "memory":
            self.memory.wanted, self.memory.is_low = 8 * number, number % 2 > 0
        elif trouble == "full" and number < 10:
            self.tiers.is_full = True
        elif trouble != "full":
            self.engine.host.failing.add(trouble)
        for _ in range(count):
            self.run_step(may_fail=True)
            self.memory.wanted = 0
        self.engine.host.failing.clear()

    @precondition(lambda self: self.tiers)
    @event()
    def save(self):
        if self.tier_blocks[1]:
            assert self.engine.core.save() <= self.sizes[0] + self.states.get("state_slots", 0)
            self.after()

    @precondition(lambda self: self.tiers)
    @event(fails=st.sampled_from([False, False, True]))
    def restart(self, fails):
        """Another process goes on with the files of this one, which may have died in trouble."""
        self.now = self.engine.now
        if fails:
            self.engine.host.failing.add("read_blocks")
        for answer in self.open:
            answer.has_raised = True
        with suppress(HostError):
            self.engine.core.close()
        self.tiers.check_closed()
        assert all(answer.request.answer.is_done for answer in self.open)
        self.open.clear()
        self.load()

    def run_step(self, may_fail=False):
        for answer in self.open:
            answer.may_fail = may_fail
        core, tiers = self.engine.core, self.tiers
        core.wake.clear()
        goes_on = core.step()
        if not goes_on and (core.scheduler.running or core.scheduler.waiting):
            reads = [request.fetch.blocks for request in core.scheduler.waiting if request.fetch.blocks]
            assert core.wake.is_set() or not all(read.done() for read in reads), "they wait for something"
        if tiers:
            tiers.readers.run(self.reads, newest=self.newest_first)
            if self.writes:
                tiers.flush()
                tiers.check()
        self.after()
        return goes_on

    def after(self):
        self.engine.check()
        for answer in list(self.open):
            request = answer.request
            tokens = request.answer.completion.token_ids
            assert tokens == answer.expected[: len(tokens)], "what it gets alone"
            assert answer.tokens == tokens[: len(answer.tokens)]
            if answer.error is not None:
                assert isinstance(answer.error, HostError) and answer.may_fail, answer.error
            if answer.finish_reason == "length":
                assert tokens == answer.expected
            if answer.finish_reason == "deadline":
                assert request.deadline <= self.engine.now
            if request.answer.is_done:
                assert answer.error or answer.has_raised or answer.finish_reason
                self.open.remove(answer)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        total = sum(len(answer.request.answer.tokens) + len(answer.expected) for answer in self.open)
        self.reads, self.writes = 10, True
        for _ in range(20 + 4 * total):
            if not self.open:
                break
            self.run_step()
        assert not self.open, "each request ends when no others come"
        self.engine.core.step()
        self.engine.check_empty()
        self.engine.core.close()
        if self.tiers:
            self.tiers.check_closed()
        self.folder.cleanup()
        assert all(after <= before for after, before in zip(holdings(), self.before, strict=True))


class PipelinedMachine(CoreMachine):
    pipelines = True


class WindowMachine(CoreMachine):
    """Of a model with layers that see a few tokens, whose kernels begin where these do."""

    windows = st.integers(1, 7)

    def load(self):
        if not hasattr(self, "patch"):
            self.patch = pytest.MonkeyPatch()
        self.patch.setattr(stores, "MOST_TILE_KEYS", 1)
        self.patch.setattr(group_blocks, "MOST_TAKEN_BACK", 8)
        super().load()

    def teardown(self):
        super().teardown()
        if hasattr(self, "patch"):
            self.patch.undo()


class PipelinedWindowMachine(WindowMachine):
    pipelines = True


class StateMachine(CoreMachine):
    """Of a model with states, of which there are many, or so few that snapshots and guesses lack slots."""

    spare_states = st.sampled_from([0, 1, 2, 20, 40])


class PipelinedStateMachine(StateMachine):
    pipelines = True


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        (CoreMachine, 6),
        (PipelinedStateMachine, 5),
        (PipelinedWindowMachine, 4),
        *[
            pytest.param(machine, 1500, marks=LONG)
            for machine in (
                *(CoreMachine, PipelinedMachine, StateMachine, PipelinedStateMachine),
                *(WindowMachine, PipelinedWindowMachine),
            )
        ],
    ],
)
def test_random_requests(machine, examples):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
