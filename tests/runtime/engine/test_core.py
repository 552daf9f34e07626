"""The core with a host without a model: deadlines, order, shared prompts, chunks beside decoding, faults."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from mlxr.compiler.errors import HostError
from mlxr.runtime.engine import step
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.generation import Generation
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling import Sampling
from mlxr.runtime.engine.step_times import SHORT_DELAY, StepTimes
from mlxr_tests.hash_host import Answer, Guesser, HashEngine

BOTH = pytest.mark.parametrize("pipelines", [False, True], ids=["plain", "pipelined"])


def prompt(count: int, start: int = 3) -> list[int]:
    return [(start + 7 * i + i * i // 5) % 31 for i in range(count)]


def ends(answer: Answer, engine: HashEngine) -> None:
    """Checks that an answer has ended, with the tokens that it has alone."""
    assert answer.error is None and answer.finish_reason == "length"
    assert answer.tokens == engine.alone(answer.request)


@BOTH
def test_a_deadline_ends_requests_that_wait_and_that_run(pipelines: bool) -> None:
    engine = HashEngine(max_sequences=1, pipelines=pipelines)
    running, waiting, other = (engine.add(prompt(9, i), 30, deadline=d) for i, d in enumerate((5.0, 4.0, None)))
    for _ in range(3):
        engine.core.step()
    got = len(running.tokens)
    assert got and not waiting.events
    engine.now = 4.0
    engine.core.step()
    assert (waiting.finish_reason, waiting.events[-1].token_id, running.finish_reason) == ("deadline", None, None)
    engine.now = 100.0
    engine.core.step()
    assert running.finish_reason == "deadline" and len(running.tokens) == got + 1
    assert running.request.answer.completion.finish_reason == "deadline"
    assert not other.finish_reason
    engine.run()
    ends(other, engine)
    engine.check_empty()


def test_smaller_priorities_come_first_and_waiting_makes_up_for_it() -> None:
    engine = HashEngine(max_sequences=1)
    begun: list[int] = []
    answers = []
    arrivals = [(0.0, 1), (0.0, 0), (0.0, 0), (5.0, -1), (9.0, 1), (11.0, 0), (19.0, -1)]
    for number, (seconds, priority) in enumerate(arrivals):
        engine.now = seconds
        answers.append(engine.add(prompt(5, number), 2, priority=priority))
    while len(begun) < len(arrivals):
        engine.core.step()
        begun += [i for i, answer in enumerate(answers) if answer.events and i not in begun]
    virtual = [seconds + 10 * priority for seconds, priority in arrivals]
    assert begun == sorted(range(len(arrivals)), key=lambda i: virtual[i])
    engine.run()


@BOTH
def test_an_endless_stream_of_preferred_requests_starves_nobody(pipelines: bool) -> None:
    """Each step brings one more, a second later, than can be answered meanwhile."""
    engine = HashEngine(12, 4, 2, context=40, pipelines=pipelines)
    patient = engine.add(prompt(30), 8, priority=2)
    for number in range(200):
        engine.now += 1
        engine.add(prompt(7, number), 8, priority=-1)
        engine.core.step()
        if patient.finish_reason:
            break
    ends(patient, engine)
    assert engine.now < 160, "30 requests come before it; two take 9 steps"
    assert len(engine.core.scheduler.waiting) > 5, "others must wait for this to mean anything"


@BOTH
@pytest.mark.parametrize("length", [40, 41])
def test_a_prompt_is_computed_once_for_requests_that_come_together(pipelines: bool, length: int) -> None:
    engine = HashEngine(pipelines=pipelines)
    answers = [engine.add(prompt(length), 4) for _ in range(3)]
    longer = engine.add([*prompt(length), 5, 6, 7], 4)
    engine.run()
    for answer in (*answers, longer):
        ends(answer, engine)
    assert [answer.request.answer.completion.cached_tokens for answer in answers] == [0, length - 1, length - 1]
    assert longer.request.answer.completion.cached_tokens == length
    computed = engine.core.stats().computed_tokens
    assert computed == length + 3 + 2 * (1 + 3) + 3 + 3


@BOTH
@pytest.mark.parametrize("fault", ["cancel", "preempt", "fail"])
def test_others_go_on_when_the_one_that_reads_their_prompt_ends(pipelines: bool, fault: str) -> None:
    engine = HashEngine(pipelines=pipelines)
    first, second, third = (engine.add(prompt(60), 4) for _ in range(3))
    for _ in range(2):
        engine.core.step()
    assert 0 < first.request.run.certain < 60 and engine.core.stats().running == 1
    if fault == "cancel":
        engine.core.cancel(first.request)
    elif fault == "preempt":
        engine.core.scheduler.preempt(first.request)
    else:
        engine.host.faults.append("launch")
    engine.run()
    for answer in (second, third):
        ends(answer, engine)
    if fault == "preempt":
        ends(first, engine)
    elif fault == "fail":
        assert isinstance(first.error, HostError)
    assert second.request.answer.completion.cached_tokens >= 32, "what the first has read"
    assert third.request.answer.completion.cached_tokens == 59
    engine.check_empty()


def test_samples_share_their_prompt() -> None:
    engine = HashEngine()
    answers = [Answer() for _ in range(3)]
    requests = engine.requests(prompt(30), Sampling(temperature=1, seed=4, n=3, max_tokens=9))
    for request, answer in zip(requests, answers, strict=True):
        answer.request = replace(request, listener=answer.listen)
        engine.core.add(answer.request)
    engine.run()
    for answer in answers:
        ends(answer, engine)
    assert len({tuple(answer.tokens) for answer in answers}) == 3
    assert engine.core.stats().computed_tokens == 30 + 2 * 1 + 3 * 8


def decoding(engine: HashEngine, max_tokens: int) -> list[Answer]:
    """Requests, greedy ones and one that is drawn, whose first tokens have come."""
    answers = [engine.add(prompt(5, i), max_tokens) for i in range(2)]
    drawn = Answer()
    (drawn.request,) = engine.requests(prompt(6), Sampling(temperature=1, seed=4, max_tokens=max_tokens), drawn.listen)
    engine.core.add(drawn.request)
    answers.append(drawn)
    while not all(len(answer.tokens) > 1 for answer in answers):
        engine.core.step()
    return answers


def test_steady_decoding_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = HashEngine()
    answers = decoding(engine, 30)
    before = len(answers[0].tokens)
    with monkeypatch.context() as patched:
        patched.setattr(engine.pager, "grow_all", None)
        patched.setattr(step, "_decode", None)
        for _ in range(10):  # over the ends of blocks, too
            engine.core.step()
    assert len(answers[0].tokens) == before + 10
    engine.run()
    for answer in answers:
        ends(answer, engine)


@pytest.mark.parametrize("change", ["add", "cancel", "drop", "preempt", "fail", "interrupt", "speculate", "fill"])
def test_what_changes_between_two_steps_ends_steady_decoding(change: str) -> None:
    engine = HashEngine(num_blocks=24)
    answers = decoding(engine, 20)
    first, core = answers[0], engine.core
    if change == "add":
        answers.append(engine.add(prompt(5), 20))
    elif change == "cancel":
        core.cancel(answers.pop(0).request)
    elif change == "drop":
        core.drop(answers.pop(0).request)
    elif change == "preempt":
        core.scheduler.preempt(first.request)
    elif change == "fail":
        engine.host.faults.append("launch")
    elif change == "interrupt":
        engine.host.interruption = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            core.step()
    elif change == "speculate":
        core.speculator = Guesser(engine)  # type: ignore[assignment]
        first.request.draft.speculates = True
    else:
        answers += [engine.add(prompt(30, i), 20) for i in range(3)]  # one finds no place, and blocks run out
    engine.run()
    for answer in answers:
        if change == "fail":
            assert isinstance(answer.error, HostError)
        else:
            ends(answer, engine)
    assert change not in ("fill", "preempt") or engine.core.stats().preemptions
    engine.check_empty()


def test_a_chunk_beside_decoding_is_limited_by_measured_times() -> None:
    times = StepTimes()
    assert times.prompt_tokens(0, 512) == 512, "nobody waits"
    assert times.prompt_tokens(4, 512) == 32, "nothing is known yet"
    for noise in (0, 0.030, 0.001):
        times.measured(4, 0, 0.010 + noise)
        times.measured(0, 100, 0.010 + noise)
        times.measured(4, 30, 0.025 + noise)
    assert times.prompt_tokens(4, 512) == 32, "1.6 x 10 ms, at 0.5 ms for a token"
    assert times.prompt_tokens(3, 512) == 32 and times.prompt_tokens(9, 30) == 30
    assert times.prompt_tokens(4, 512, SHORT_DELAY) == 192
    for _ in range(10):
        times.measured(4, 32, 0.110)  # after a longer text, a token takes 3.1 ms
    assert times.prompt_tokens(4, 512) == 5
    for _ in range(10):
        times.measured(4, 5, 0.110)
    assert times.prompt_tokens(4, 512) == 4, "no prompt waits forever"


@pytest.mark.parametrize(("length", "chunk"), [(3000, 16), (300, 104)])
def test_short_prompts_are_read_faster_beside_a_stream_than_long_ones(length: int, chunk: int) -> None:
    """A step takes 10 ms and 1 ms for each token; 1.6 and 9.6 steps may be added, and chunks end with blocks."""
    engine = HashEngine(num_blocks=2000, context=4000, max_tokens=512)
    engine.add(prompt(4, 11), 300)
    for _ in range(3):
        engine.core.step()
    answer = engine.add(prompt(length), 1)
    chunks = []
    while not answer.tokens:
        before = answer.request.run.computed
        engine.core.step()
        chunks.append(answer.request.run.computed - before)
    assert chunks[0] == 32, "nothing is known before the first"
    assert set(chunks[1:-1]) == {chunk}


@BOTH
def test_streams_wait_for_a_long_prompt_three_steps_at_most(pipelines: bool) -> None:
    """With a clock by which a step takes 10 ms and 1 ms for each token."""
    engine = HashEngine(num_blocks=900, context=3000, max_tokens=512, pipelines=pipelines)

    for i in range(3):
        engine.add(prompt(5, i), 400)
    engine.add(prompt(300), 2)
    for _ in range(20):
        engine.core.step()
    before = len(engine.host.steps)
    long = engine.add(prompt(2500, 9), 2)
    while not long.finish_reason:
        engine.core.step()
    engine.core.step()
    mixed = [step for step in engine.host.steps[before:] if max(step) > 1]
    assert len(mixed) > 20 and all(step[:3] == [1, 1, 1] for step in mixed), "all streams go on in each step"
    times = [0.01 + 0.001 * sum(step) for step in mixed[1 + pipelines :]]  # the others come before a measurement
    assert max(times) <= 3 * 0.0131, "a decode step takes 13 ms"
    assert max(times) > 2 * 0.013, "and the room is used"


@BOTH
@pytest.mark.parametrize("fault", ["launch", "read"])
def test_a_step_that_fails_ends_its_requests_and_no_others(pipelines: bool, fault: str) -> None:
    engine = HashEngine(max_sequences=2, pipelines=pipelines)
    answers = [engine.add(prompt(6, i), 9) for i in range(4)]
    engine.core.step()
    engine.host.faults.append(fault)
    engine.run()
    for answer in answers[:2]:
        assert isinstance(answer.error, HostError) and answer.request.answer.is_done
        assert answer.tokens == engine.alone(answer.request)[: len(answer.tokens)]
    for answer in answers[2:]:
        ends(answer, engine)
    assert engine.core.stats().failed_steps == 1
    engine.check_empty()
    again = engine.add(prompt(6), 9)  # what the failed step wrote is not used
    engine.run()
    ends(again, engine)


@BOTH
def test_a_block_that_could_not_be_copied_is_not_found_again(pipelines: bool) -> None:
    engine = HashEngine(pipelines=pipelines)
    engine.add(prompt(6), 9)
    engine.core.step()
    engine.add([*prompt(6), 9], 9)  # shares the half-filled block, which one of them copies
    engine.host.faults.append("copy")
    engine.run()
    assert engine.core.stats().failed_steps == 1
    for again in (prompt(6), [*prompt(6), 9], [*prompt(6), 10, 11]):
        answer = engine.add(again, 9)
        engine.run()
        ends(answer, engine)


@BOTH
def test_an_interruption_loses_nothing(pipelines: bool) -> None:
    engine = HashEngine(max_sequences=2, pipelines=pipelines)
    answers = [engine.add(prompt(6, i), 9) for i in range(3)]
    for _ in range(4):
        engine.core.step()
        engine.host.interruption = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            engine.core.step()
        engine.check()
    engine.run()
    for answer in answers:
        ends(answer, engine)
    engine.check_empty()


def test_a_block_that_draft_tokens_fill_can_be_found_at_once() -> None:
    engine = HashEngine()
    engine.core.speculator = Guesser(engine)  # type: ignore[assignment]
    request, size = engine.add(prompt(6), 24).request, engine.pager.block_size
    while engine.core.step() and request.run.seq_id is not None:
        known = request.run.certain // size * size
        start = [*request.answer.tokens[:known], 0]
        engine.core.scheduler.tell_cache()  # as for whoever comes
        assert engine.pager.find_prefix(start, request.hashes).num_tokens == known
    assert engine.core.stats().accepted_tokens


def test_guesses_begin_again_at_the_token_that_was_named() -> None:
    engine = HashEngine(pipelines=True)
    guesser, lengths = Guesser(engine), list[int]()
    draft = guesser.draft

    def note(requests: Any, *others: Any) -> None:
        lengths.extend(len(request.answer.tokens) for request in requests)
        draft(requests, *others)

    guesser.draft = note  # type: ignore[method-assign]
    engine.core.speculator = guesser  # type: ignore[assignment]
    engine.add(prompt(6), 24).request.draft.rests_until = 20
    engine.run()
    assert lengths[0] == 20, "steps launched ahead do not delay it"


def test_an_interruption_while_the_next_step_is_launched_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests have got their sequences and slots, and one of them is not in the step before."""
    engine = HashEngine(pipelines=True)
    answers = [engine.add(prompt(6), 9)]
    engine.core.step()
    answers.append(engine.add(prompt(9, 40), 9))
    launch = engine.host.step

    def launch_and_stop(batch: Any) -> None:
        launch(batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.host, "step", launch_and_stop)
        with pytest.raises(KeyboardInterrupt):
            engine.core.step()
    assert not engine.core.scheduler.running
    engine.check()
    engine.run()
    for answer in answers:
        ends(answer, engine)
    engine.check_empty()


def test_an_interruption_before_a_step_that_was_launched_ahead_is_read_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = HashEngine(pipelines=True)
    answer = engine.add(prompt(6), 9)
    engine.core.step()
    find = engine.core._next_ahead

    def find_and_stop() -> None:
        assert find() is not None
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.core, "_next_ahead", find_and_stop)
        with pytest.raises(KeyboardInterrupt):
            engine.core.step()
    engine.check()
    engine.run()
    ends(answer, engine)


def test_an_interruption_while_a_request_takes_the_place_of_another_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many run as before, but others, and the step before is no pattern for the next one."""
    engine = HashEngine(max_sequences=2)
    answers = [engine.add(prompt(6, i), max_tokens) for i, max_tokens in enumerate((6, 20, 9))]
    begin = engine.core.scheduler._begin

    def begin_and_stop(request: Request, prefix: Any) -> None:
        begin(request, prefix)
        if request is answers[2].request:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine.core.scheduler, "_begin", begin_and_stop)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    assert len(engine.core.scheduler.running) == 2
    engine.run()
    for answer in answers:
        ends(answer, engine)
    engine.check_empty()


@BOTH
def test_a_listener_that_raises_ends_its_own_request_only(pipelines: bool) -> None:
    engine = HashEngine(pipelines=pipelines)

    def fail(news: object) -> None:
        raise KeyError("mine")

    (broken,) = engine.requests(prompt(7, 9), Sampling(max_tokens=20), fail)
    others = [engine.add(prompt(6, i), 9) for i in range(2)]
    engine.core.add(broken)
    for _ in range(3):
        engine.core.step()
    assert broken.answer.is_done and engine.core.stats().running == 2
    engine.run()
    for answer in others:
        ends(answer, engine)
    engine.check_empty()


@BOTH
def test_of_equal_requests_those_that_came_last_give_way(pipelines: bool) -> None:
    """The prompts of one call have the same order."""
    engine = HashEngine(10, 4, 3, context=40, pipelines=pipelines)
    answers = [engine.add(prompt(8, 5 * i), 28) for i in range(5)]
    ended: list[int] = []
    while len(ended) < 5:
        engine.core.step()
        engine.check()
        ended += [i for i, answer in enumerate(answers) if answer.finish_reason and i not in ended]
    assert ended == list(range(5)) and engine.core.stats().preemptions
    assert engine.core.stats().computed_tokens < 1.5 * 5 * 35, "little is computed again"
    for answer in answers:
        ends(answer, engine)


@BOTH
def test_a_request_is_admitted_beside_draft_tokens_only_if_there_are_blocks_for_both(pipelines: bool) -> None:
    """Two of eight blocks are in use and five are idle, four of which the second request takes."""
    engine = HashEngine(8, 4, 2, context=32, pipelines=pipelines)
    engine.add(prompt(20), 1)
    engine.run()
    engine.core.speculator = Guesser(engine)  # type: ignore[assignment]
    engine.core.speculator.draft = lambda *_: None  # type: ignore[method-assign, union-attr]
    first = engine.add(prompt(4, 11), 25)
    while first.request.run.computed < 8:
        engine.core.step()
    assert (first.request.run.computed, engine.pager.num_free, engine.pager.num_idle) == (8, 6, 5)
    engine.core.speculator.draft = draft_zeros  # type: ignore[method-assign, union-attr]
    second = engine.add([*prompt(16), 9], 4)
    engine.run()
    ends(first, engine)
    ends(second, engine)
    assert engine.core.stats().failed_steps == 0


@BOTH
def test_a_request_is_admitted_only_if_others_can_copy_what_it_shares_with_them(pipelines: bool) -> None:
    """The first request uses two tokens of a cached block, of which the second uses all, and has read nothing yet."""
    engine = HashEngine(3, 4, 2, context=12, pipelines=pipelines)
    engine.add(prompt(8), 1)
    engine.run()
    first = engine.add([*prompt(2), 7, 7, 7], 2)
    second = engine.add([*prompt(6), 9], 1)
    engine.run()
    ends(first, engine)
    ends(second, engine)
    assert engine.core.stats().failed_steps == 0


def draft_zeros(requests: list[Request], tokens: int, room: int) -> None:
    for request in requests:
        request.draft.drafted = [0] * min(8, room, max(0, request.max_length - 1 - len(request.answer.tokens)))


@BOTH
def test_a_generation_that_the_garbage_collector_ends_within_a_step(pipelines: bool) -> None:
    engine = HashEngine(pipelines=pipelines)
    events: deque[Event | BaseException] = deque()
    (request,) = engine.requests(prompt(7, 9), Sampling(max_tokens=20), events.append)
    generations = [Generation(engine.core, [request], events)]
    answer = engine.add(prompt(6), 9)
    next(generations[0])
    engine.host.on_step = generations.clear  # when the scheduler has chosen its request
    engine.core.step()
    assert request.answer.is_done and request.run.seq_id is None
    engine.run()
    ends(answer, engine)
    engine.check_empty()
