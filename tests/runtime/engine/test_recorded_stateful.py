"""Random requests on a card that records steps: those of the same requests go on without a batch, several to a launch.

Whatever happens in between, a request gets the tokens that it gets alone, and when all have ended, all blocks are free.
"""

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from mlxr.compiler.errors import HostError
from mlxr.compiler.formats import stores
from mlxr.runtime.engine import launch_lengths
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.hosts.cuda.device import has_cuda
from mlxr_tests.hash_card import HashCard, use_hash_card
from mlxr_tests.hash_host import Answer, HashEngine, answer_alone

CONTEXT = 40
REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(lambda tokens, tail: [1] * tokens + tail, st.integers(1, 9), st.sampled_from([[], [2]])),
        "max_tokens": st.sampled_from([30, 24, 17, 3]),
        "stop": st.sampled_from([None, None, None, 3, 11]),
        "temperature": st.sampled_from([0.0] * 7 + [1.0]),
    }
)


class RecordedMachine(RuleBasedStateMachine):
    options: ClassVar[dict[str, int]] = {}
    engines: ClassVar[list[HashEngine]] = []

    @initialize(
        num_blocks=st.integers(10, 20),
        max_sequences=st.integers(1, 3),
        seconds=st.sampled_from([1e-3, 3e-4]),
        ahead=st.sampled_from([3e-4, 6e-4, 1.0]),
        told=st.sampled_from([1e-3, 4e-3, 1.0]),
        has_callers=st.booleans(),
        requests=st.lists(REQUESTS, min_size=1, max_size=3),
    )
    def make(self, num_blocks, max_sequences, seconds, ahead, told, has_callers, requests):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(launch_lengths, "LONG_SECONDS", 0.0)
        self.patch.setattr(launch_lengths, "AHEAD_SECONDS", ahead)  # so much of a launch is given at once
        self.patch.setattr(launch_lengths, "_LAUNCH_SECONDS", min(ahead, 8e-3))
        for name in ("_TOLD_SECONDS", "_LONGEST_TOLD_SECONDS"):
            self.patch.setattr(launch_lengths, name, told)
        use_hash_card(self.patch)
        self.patch.setattr(stores, "MOST_TILE_KEYS", 1)  # so that windows begin where layers do
        options = {"context": CONTEXT, "pipelines": True, "make_host": HashCard}
        self.engine = HashEngine(num_blocks, 4, max_sequences, **options, **self.options)
        self.engine.seconds = lambda counts: seconds
        self.engine.core.has_callers = has_callers
        self.engines.append(self.engine)
        self.open = []
        self.come(requests, 4)

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=2), steps=st.integers(2, 9))
    def come(self, requests, steps):
        for terms in requests:
            self.add(**terms)
        self.run(steps)

    def add(self, prompt, max_tokens, stop, temperature):
        answer = Answer()
        sampling = Sampling(
            temperature=temperature, seed=1, max_tokens=max_tokens, stop_tokens=() if stop is None else (stop,)
        )
        (answer.request,) = self.engine.requests(prompt, sampling, answer.listen)
        has_state = "state_slots" in self.options
        alone = answer_alone(prompt, sampling, context=CONTEXT, on_device=temperature > 0, has_state=has_state)
        answer.expected = alone[: alone.index(stop) + 1] if stop in alone else alone
        self.engine.core.add(answer.request)
        self.open.append(answer)

    @rule(steps=st.integers(4, 14))
    def run(self, steps, may_fail=False):
        for _ in range(steps):
            self.engine.core.step()
            self.after(may_fail)

    @rule(number=st.integers(0, 5), silently=st.booleans(), steps=st.integers(0, 3))
    def leave(self, number, silently, steps):
        if self.open:
            answer = self.open.pop(number % len(self.open))
            (self.engine.core.drop if silently else self.engine.core.cancel)(answer.request)
            self.run(steps)

    @rule(faults=st.lists(st.sampled_from([None, "launch", "read"]), min_size=1, max_size=5))
    def fail(self, faults):
        self.engine.host.faults.extend(faults)
        self.run(4, may_fail=True)
        self.engine.host.faults.clear()
        self.run(1, may_fail=True)  # what was launched ahead

    @rule(patience=st.integers(0, 12))
    def interrupt(self, patience):
        """Ctrl-C: before a step or after it, between the steps of a launch, once sequences have grown, or at the read.

        It ends a step of the engine, after which the next one begins.
        """
        host = self.engine.host
        host.interruption, host.patience = KeyboardInterrupt(), patience
        try:
            self.run(6)
        except KeyboardInterrupt:
            self.after()
        finally:
            host.interruption, host.patience = None, 0
        self.run(2)

    def after(self, may_fail=False):
        self.engine.check()
        for answer in list(self.open):
            tokens = answer.request.answer.completion.token_ids
            assert answer.tokens == tokens == answer.expected[: len(tokens)], "what it gets alone"
            if answer.error is not None:
                assert isinstance(answer.error, HostError) and may_fail, answer.error
            elif answer.request.answer.is_done:
                assert answer.finish_reason in ("length", "stop") and tokens == answer.expected
            if answer.request.answer.is_done:
                self.open.remove(answer)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        try:
            self.run(sum(len(answer.expected) + 20 for answer in self.open) + 1)
            assert not self.open, "each request ends when no others come"
            self.engine.check_empty()
        finally:
            self.engine.core.close()
            self.patch.undo()


class WindowMachine(RecordedMachine):
    """Of a model with layers that see a few tokens."""

    options: ClassVar = {"window": 6}


class StateMachine(RecordedMachine):
    """Of a model with a state of each sequence: each launch is of one step."""

    options: ClassVar = {"state_slots": 10, "state_every": 8}


@pytest.mark.skipif(has_cuda(), reason="its kernels, which do nothing, would be kept for the real card")
@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        (RecordedMachine, 8),
        *[
            pytest.param(machine, 400, marks=pytest.mark.long)
            for machine in (RecordedMachine, WindowMachine, StateMachine)
        ],
    ],
)
def test_random_requests_get_what_they_get_alone(machine, examples):
    machine.engines.clear()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    hosts = [engine.host for engine in machine.engines]
    assert sum(host.gone_on for host in hosts) >= sum(host.renewed for host in hosts) > 0, "they come to new blocks"
    assert machine is StateMachine or sum(host.num_together for host in hosts) > 0, "several are launched together"
    assert machine is StateMachine or sum(host.num_early for host in hosts) > 0, "some are read before their last steps"
    if machine is not StateMachine and examples > 8:
        assert sum(host.num_more for host in hosts) > 0, "some are given little by little"
        assert sum(host.num_cut for host in hosts) > 0, "and not to their end"
    assert sum(engine.core.stats().preemptions for engine in machine.engines) > 0, "the arena was full"
