"""Random requests through core, scheduler, pager and prefix cache, with faults of every kind.

Whatever happens, a request gets the tokens that it gets alone, for as long as it gets any; and when no new ones come,
all end soon, and everything is free.
"""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.sampling import Sampling
from mlxr_tests.hash_host import Answer, Guesser, HashEngine

PROMPTS = st.lists(st.sampled_from([1, 2]), max_size=20).map(lambda tail: [1] * (20 - len(tail)) + tail)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    seed=st.integers(0, 3),
    n=st.sampled_from([1, 1, 3]),
    max_tokens=st.integers(1, 12),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    logprobs=st.sampled_from([None, None, 2]),
)


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


class CoreMachine(RuleBasedStateMachine):
    pipelines = False

    @initialize(
        num_blocks=st.integers(8, 24),
        block_size=st.sampled_from([4, 4, 8]),
        max_sequences=st.integers(1, 5),
        max_tokens=st.integers(6, 24),
        drafts=st.booleans(),
    )
    def make(self, num_blocks, block_size, max_sequences, max_tokens, drafts=False):
        self.engine = HashEngine(
            num_blocks, block_size, max_sequences, context=32, max_tokens=max_tokens, pipelines=self.pipelines
        )
        if drafts:
            self.engine.core.speculator = Guesser(self.engine)
        self.open = []

    @rule(
        prompt=PROMPTS,
        cut=st.integers(0, 19),
        sampling=SAMPLINGS,
        priority=st.integers(-1, 1),
        deadline=st.sampled_from([None, None, None, 3.0]),
        salt=st.sampled_from(["", "", "", "x"]),
        raises_at=st.sampled_from([None, None, None, 1, 3]),
        times=st.sampled_from([1, 1, 2]),
    )
    def add(self, prompt, cut, sampling, priority, deadline, salt, raises_at, times):
        for _ in range(times):
            answers = [Told(raises_at) for _ in range(sampling.n)]
            requests = self.engine.requests(
                prompt[cut:],
                sampling,
                lambda news, answers=answers: None,
                priority=priority,
                deadline=deadline,
                salt=salt,
            )
            for answer, request in zip(answers, requests, strict=True):
                request.listener, answer.request = answer.listen, request
                answer.expected = self.engine.alone(request)
                self.engine.core.add(request)
            self.open += answers

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self.run_step()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), silently=st.booleans())
    def cancel(self, data, silently):
        answer = data.draw(st.sampled_from(self.open))
        if silently:
            self.engine.core.drop(answer.request)
            answer.has_raised = True
        else:
            self.engine.core.cancel(answer.request)
            assert answer.finish_reason == "cancelled" or answer.has_raised
        self.after()

    @rule(faults=st.lists(st.sampled_from([None, "copy", "launch", "read"]), min_size=1, max_size=3))
    def steps_that_fail(self, faults):
        self.engine.host.faults.extend(faults)
        while self.engine.host.faults and self.engine.core.scheduler.running + self.engine.core.scheduler.waiting:
            before = self.engine.core.stats().failed_steps
            self.run_step(may_fail=True)
            assert self.engine.core.stats().failed_steps <= before + 2
        self.engine.host.faults.clear()
        self.run_step(may_fail=True)  # a pipelined step fails when it is read

    @rule(steps=st.integers(0, 1))
    def interrupt(self, steps):
        """Ctrl-C while the host computes."""
        for _ in range(steps):
            self.run_step()
        self.engine.host.interruption = KeyboardInterrupt()
        with suppress(KeyboardInterrupt):
            self.engine.core.step()
        self.engine.host.interruption = None
        self.after()

    @rule(seconds=st.sampled_from([1.0, 4.0]))
    def wait(self, seconds):
        self.engine.now += seconds
        self.after()

    def run_step(self, may_fail=False):
        for answer in self.open:
            answer.may_fail = may_fail
        self.engine.core.step()
        self.after()

    def after(self):
        self.engine.check()
        for answer in list(self.open):
            request = answer.request
            tokens = request.completion.token_ids
            assert tokens == answer.expected[: len(tokens)], "what it gets alone"
            assert answer.tokens == tokens[: len(answer.tokens)]
            if answer.error is not None:
                assert isinstance(answer.error, HostError) and answer.may_fail, answer.error
            if answer.finish_reason == "length":
                assert tokens == answer.expected
            if answer.finish_reason == "deadline":
                assert request.deadline <= self.engine.now
            if request.is_done:
                assert answer.error or answer.has_raised or answer.finish_reason
                self.open.remove(answer)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        total = sum(len(answer.request.tokens) + len(answer.expected) for answer in self.open)
        for _ in range(20 + 4 * total):
            if not self.open:
                break
            self.run_step()
        assert not self.open, "each request ends when no others come"
        self.engine.core.step()
        self.engine.check_empty()


class PipelinedMachine(CoreMachine):
    pipelines = True


@pytest.mark.parametrize("machine", [CoreMachine, PipelinedMachine])
@pytest.mark.parametrize("examples", [20, pytest.param(1500, marks=pytest.mark.long)])
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
