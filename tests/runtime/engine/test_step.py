"""A step is planned, launched and read, once each; it repeats the one before where nothing else is new, and changes it
in nothing."""

from itertools import cycle
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxr.runtime.engine import launch_lengths
from mlxr.runtime.engine.samples import ChosenByHost, Samples
from mlxr.runtime.engine.sampling import Row, Sampler, Sampling
from mlxr.runtime.engine.step import Step
from mlxr_tests.hash_host import VOCAB, Answer, HashEngine

BOTH = pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])


def planned(engine: HashEngine) -> list[Step]:
    """The steps that the scheduler will have planned."""
    steps: list[Step] = []
    schedule = engine.core.scheduler.schedule

    def recorded(**options: bool) -> Step:
        steps.append(schedule(**options))
        assert steps[-1].state == "planned"
        return steps[-1]

    engine.core.scheduler.schedule = recorded  # type: ignore[method-assign]
    return steps


def facts(step: Step) -> dict[str, Any]:
    """All that a step says of itself; of its columns, the rows as they are now."""
    found = {name: getattr(step, name, None) for name in Step.__slots__}
    rows = None if step.decode is None else [(row.sampler, row.position, row.mask) for row in step.decode.rows]
    return found | {"ends": [*step.ends], "sequences": [*step.sequences], "rows": rows}


def add(engine: HashEngine, first: int, **options: Any) -> Answer:
    """Adds a request whose tokens are drawn, so that their positions matter."""
    answer = Answer()
    sampling = Sampling(**{"temperature": 1.0, "seed": first, "max_tokens": 12} | options)
    (answer.request,) = engine.requests([first, 7, 3, 9], sampling, answer.listen)
    engine.core.add(answer.request)
    return answer


@BOTH
def test_no_step_changes_one_that_has_been_read(pipelines: bool) -> None:
    engine = HashEngine(pipelines=pipelines)
    steps = planned(engine)
    answers = [add(engine, i) for i in range(3)]
    known: list[dict[str, Any]] = []
    while engine.core.step():
        if len(known) == 5:
            answers.append(add(engine, 9, max_tokens=4))
        read = [step for step in steps if step.state == "read"]
        known += [facts(step) for step in read[len(known) :]]
        assert [facts(step) for step in read] == known
    assert all(answer.tokens == engine.alone(answer.request) for answer in answers)
    assert {step.state for step in steps if step.parts} == {"read"}


def test_repeated_steps_share_their_columns_until_a_request_joins_or_leaves() -> None:
    engine = HashEngine()
    steps = planned(engine)
    first, second = add(engine, 1), add(engine, 2, max_tokens=6)
    for _ in range(4):
        engine.core.step()
    assert [step.num_repeats for step in steps] == [0, 0, 1, 2] and steps[0].decode is None
    assert steps[1].decode is steps[2].decode is steps[3].decode
    assert [step.ends for step in steps[1:]] == [[5, 5], [6, 6], [7, 7]]
    third = add(engine, 3)
    engine.run()
    repeats = [step.num_repeats for step in steps if step.parts][4:]
    assert repeats[0] == 0 and repeats.count(0) >= 4, "the third joins and decodes, the second leaves, then the first"
    assert all(answer.tokens == engine.alone(answer.request) for answer in (first, second, third))


@BOTH
def test_a_step_is_launched_and_read_once(pipelines: bool) -> None:
    engine = HashEngine(pipelines=pipelines)
    engine.add([3, 5, 7], 4)
    step = engine.core.scheduler.schedule()

    def launch() -> None:
        step.launch(engine.host, engine.pager, lambda request: [None])  # type: ignore[arg-type]

    with pytest.raises(AssertionError, match="the step is planned"):
        step.read()
    launch()
    with pytest.raises(AssertionError, match="the step is launched"):
        launch()
    step.read()
    with pytest.raises(AssertionError, match="the step is read"):
        step.read()
    assert len(step.sampled) == 1


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_logits_of_a_launch_are_limited(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """They all wait to be read; of two sequences here."""
    monkeypatch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1e9)
    monkeypatch.setattr(launch_lengths, "_LAUNCH_LOGITS", 2 * VOCAB * most)
    engine = HashEngine(pipelines=True)
    steps = planned(engine)
    answers = [add(engine, first) for first in (1, 2)]
    engine.run()
    assert all(answer.request.answer.is_done for answer in answers)
    assert max(step.count for step in steps) == most


def test_launches_are_longer_once_the_same_requests_have_decoded_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_lengths.StepTimes, "launch_seconds", lambda *_: 0.75 * launch_lengths._LAUNCH_SECONDS)
    monkeypatch.setattr(launch_lengths, "_STEADY_SECONDS", 4 * launch_lengths._LAUNCH_SECONDS)
    engine = HashEngine(pipelines=True)
    steps = planned(engine)
    add(engine, 1, max_tokens=44)
    engine.run()
    assert {step.count for step in steps if step.decode and step.num_repeats < 8} == {1}
    assert {step.count for step in steps if 8 <= step.num_repeats < 12} == {2}
    assert {step.count for step in steps if 12 <= step.num_repeats < 41} == {3}, "as the host takes them"
    add(engine, 2, max_tokens=8)
    first = len(steps)
    engine.run()
    assert max(step.count for step in steps[first:]) == 1


def test_a_step_that_is_read_late_makes_no_launch_long() -> None:
    """The one after it seems short, also where it is the first: a launch of 16 would take 0.8 s, not 40 ms."""
    engine = HashEngine(pipelines=True)
    steps, seconds = planned(engine), cycle([0.002, 0.05, 0.05, 0.098, 0.002, 0.05])
    engine.seconds = lambda counts: next(seconds)  # type: ignore[method-assign]
    add(engine, 1, max_tokens=40)
    engine.run()
    assert {step.count for step in steps if step.parts} == {1}
    engine.seconds = lambda counts: 0.001  # type: ignore[method-assign]
    add(engine, 2, max_tokens=40)
    engine.run()
    assert max(step.count for step in steps) == 3


def test_first_launches_of_many_sequences_are_not_as_long_as_steps_of_few_allow() -> None:
    engine = HashEngine(pipelines=True)
    steps = planned(engine)
    engine.seconds = lambda counts: 0.001 if counts[0] == 1 else 0.05  # type: ignore[method-assign]
    add(engine, 1, max_tokens=20)
    engine.run()
    assert max(step.count for step in steps) == 3
    for first in range(4):
        add(engine, first, max_tokens=6)
    engine.run()
    assert {step.count for step in steps if len(step.parts) == 4} == {1}


def test_rows_of_a_pipelined_step_are_the_chosen_ones() -> None:
    """Two of three rows, the first of which is nobody's."""
    host: Any = SimpleNamespace(
        pipelines=True, copy_to_read=lambda x: x, start=mx.eval, arena=SimpleNamespace(token=mx.array(0))
    )
    rows = [Row(Sampler(Sampling(temperature=0)), 0)] * 2
    samples = Samples(host, mx.eye(3), [1, 2], rows)
    assert np.array(samples.tokens).tolist() == [1, 2]


def test_who_comes_while_a_long_launch_runs_is_in_the_one_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next launch is given to the host late, and at once if somebody calls; short launches are not waited for."""
    monkeypatch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1e9)
    seconds = [100.0]
    for name in ("decode_seconds", "launch_seconds"):
        monkeypatch.setattr(launch_lengths.StepTimes, name, lambda *_: seconds[0])
    engine, others, waits = HashEngine(pipelines=True), list[Any](), list[float]()
    steps = planned(engine)

    def wait(left: float) -> bool:
        waits.append(left)
        if len(waits) == 3:
            others.append(add(engine, 2, max_tokens=4))
        return len(waits) == 3

    engine.core.wake = SimpleNamespace(wait=wait, clear=lambda: None, set=lambda: None)  # type: ignore[assignment]
    first = add(engine, 1, max_tokens=30)
    while not others and engine.core.step():
        pass
    before, running = len(steps), [step for step in steps if step.state == "launched"]
    assert len(running) == 1 and running[0].count == 3, "nothing is launched after it yet"
    assert all(250 < left < 300 for left in waits), "most of its time"
    engine.core.step()
    assert running[0].state == "read" and steps[before].state == "launched"
    assert [part.request for part in steps[before].parts] == [first.request, others[0].request]
    seconds[0] = 0.002
    num_waits = len(waits)
    engine.run()
    assert len(waits) == num_waits
    assert all(answer.tokens == engine.alone(answer.request) for answer in (first, *others))


def test_ctrl_c_while_a_long_launch_runs_loses_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_lengths, "_LAUNCH_SECONDS", 1e9)
    for name in ("decode_seconds", "launch_seconds"):
        monkeypatch.setattr(launch_lengths.StepTimes, name, lambda *_: 100.0)
    engine, waits = HashEngine(pipelines=True), cycle([False, True, None])

    def wait(left: float) -> bool:
        if (is_called := next(waits)) is None:
            raise KeyboardInterrupt
        return is_called

    engine.core.wake = SimpleNamespace(wait=wait, clear=lambda: None, set=lambda: None)  # type: ignore[assignment]
    answers = [add(engine, first, max_tokens=30) for first in (1, 2)]
    interruptions = 0
    while engine.core.scheduler.running or engine.core.scheduler.waiting:
        try:
            engine.core.step()
        except KeyboardInterrupt:
            interruptions += 1
        engine.check()
    assert interruptions > 2
    engine.check_empty()
    assert all(answer.tokens == engine.alone(answer.request) for answer in answers)


def test_what_hosts_choose_of_broken_logits_is_an_error_of_its_row() -> None:
    """Tokens are kept: later steps of the host write to the same place. Great numbers are right ones."""
    numbers = np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    greatest = numbers[1].view(np.float32)
    greatest[...], greatest[0, 1], greatest[2, 0] = 1, np.nan, np.inf
    host: Any = SimpleNamespace(plan=SimpleNamespace(vocab_size=9))
    chosen = ChosenByHost(host, SimpleNamespace(read=lambda before, early: numbers))  # type: ignore[arg-type]
    found = chosen.read()
    assert {place: str(error).split(";")[0] for place, error in found.errors.items()} == {
        (0, 1): "the model produced a NaN logit (token 1 of 9)",
        (2, 0): "the model produced an infinite logit (token 4 of 9)",
    }
    greatest[...] = 3e38
    with np.errstate(over="ignore"):
        assert not chosen.read().errors
    numbers[...] = 0
    assert found.tokens.tolist() == [[0, 1], [2, 3], [4, 5]]
