"""The engine's thread: callers of every kind, limits, ends and failures, with a host without a model."""

import asyncio
import gc
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from typing import Any

import pytest

import mlxr
from mlxr.compiler.errors import HostError, RequestError, WeightsError
from mlxr.runtime.engine.call import Call
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.runtime.engine.errors import EngineError, QueueFullError
from mlxr_tests.hash_host import HashEngine, HashModel, answer_alone
from mlxr_tests.storyteller import TINY

PROMPTS = [[3 + i % 7, *range(1, 2 + i % 11), 5 + i % 3] for i in range(30)]
LONG = mlxr.Sampling(max_tokens=300)


class Setup:
    """An engine, and what is behind it."""

    def __init__(self, pipelines: bool = False, **options: Any) -> None:
        self.hash = HashEngine(400, 4, 3, context=400, pipelines=pipelines)
        self.model = HashModel(self.hash)
        self.gate = threading.Event()
        self.gate.set()
        self.hash.host.on_step = lambda: self.gate.wait(10)
        self.engine = EngineThread(lambda: self.model, **options)  # type: ignore[arg-type, return-value]

    def wait_until_free(self) -> None:
        """Waits until no request has blocks."""
        self.gate.set()
        wait_for(lambda: (stats := self.engine.stats()).running + stats.waiting == 0)
        stats = self.engine.stats()
        assert stats.blocks_free == stats.blocks
        self.hash.check_empty()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.002)


@pytest.fixture(params=[False, True], ids=["plain", "pipelined"])
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    made = Setup(request.param, max_waiting=4)
    yield made
    if made.engine.health() is None:
        made.wait_until_free()
    made.engine.close()
    assert not made.engine._thread.is_alive() and made.model.is_closed


async def read(engine: EngineThread, prompt: list[int], sampling: mlxr.Sampling, **terms: Any) -> list[Event]:
    return [event async for event in engine.generate(prompt, sampling, **terms)]


def tokens(events: list[Event], index: int = 0) -> list[int | None]:
    return [event.token_id for event in events if event.index == index and event.token_id is not None]


def test_a_task_that_pauses_is_woken_by_its_first_event_and_by_ends(setup: Setup) -> None:
    sampling = mlxr.Sampling(n=2, max_tokens=200)

    async def ask(**terms: Any) -> tuple[list[Event], int]:
        loop, wakings = asyncio.get_running_loop(), 0
        send = loop.call_soon_threadsafe

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal wakings
            wakings += getattr(args[0], "__name__", "") == "_wake_all"
            return send(*args, **options)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        async with asyncio.timeout(20):
            return await read(setup.engine, PROMPTS[0], sampling, **terms), wakings

    events, wakings = asyncio.run(ask(pause=lambda: 1000.0))
    assert [tokens(events, i) for i in (0, 1)] == [answer_alone(PROMPTS[0], sampling)] * 2
    assert 0 < events[0].time < events[-1].time
    assert all(before.time <= after.time for before, after in pairwise(events))
    assert wakings <= 3, "the first event, and two ends"


def test_tasks_of_several_loops_and_threads_get_what_they_get_alone(setup: Setup) -> None:
    samplings = [mlxr.Sampling(temperature=float(i % 2), seed=i, n=1 + i % 2, max_tokens=9) for i in range(3)]

    async def ask(sampling: mlxr.Sampling) -> list[list[Event]]:
        return [await read(setup.engine, prompt, sampling) for prompt in PROMPTS[:8]]

    def loop(sampling: mlxr.Sampling) -> list[list[Event]]:
        return asyncio.run(ask(sampling))

    def thread(sampling: mlxr.Sampling) -> list[list[Event]]:
        return [list(setup.engine.stream(prompt, sampling)) for prompt in PROMPTS[:8]]

    setup.engine._max_waiting = 100
    with ThreadPoolExecutor() as pool:
        jobs = [(sampling, pool.submit(caller, sampling)) for sampling in samplings for caller in (loop, thread)]
    for sampling, job in jobs:
        for prompt, events in zip(PROMPTS, job.result(), strict=False):
            for index in range(sampling.n):
                assert tokens(events, index) == answer_alone(prompt, sampling, index)
                assert [e.finish_reason for e in events if e.index == index] == [None] * 8 + ["length"]


def test_generate_all_takes_any_number_of_prompts(setup: Setup) -> None:
    sampling = mlxr.Sampling(temperature=1, seed=2, n=2, max_tokens=5)
    answers = setup.engine.generate_all(PROMPTS, sampling)
    assert [answer.token_ids for answer in answers] == [answer_alone(p, sampling, i) for p in PROMPTS for i in range(2)]
    with pytest.raises(TypeError, match="expected a list of prompts"):
        setup.engine.generate_all("Once")


@pytest.mark.parametrize("how", ["break", "cancel", "aclose", "close", "forget"])
def test_who_leaves_is_no_longer_computed(setup: Setup, how: str) -> None:
    async def leave() -> None:
        events = setup.engine.generate(PROMPTS[0], LONG)
        async for _ in events:
            if how == "cancel":
                raise asyncio.CancelledError
            break
        await events.aclose()

    async def run() -> None:
        if how == "break":
            async for _ in setup.engine.generate(PROMPTS[0], LONG):
                break
            await asyncio.sleep(0)
        elif how == "cancel":
            task = asyncio.create_task(read(setup.engine, PROMPTS[0], LONG))
            while not setup.hash.host.steps:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await leave()

    setup.gate.clear()  # step 100 waits until the caller has left, however slow the caller's thread is
    setup.hash.host.on_step = lambda: len(setup.hash.host.steps) < 100 or setup.gate.wait(10)
    if how in ("close", "forget"):
        events = setup.engine.stream(PROMPTS[0], LONG)
        next(events)
        if how == "close":
            events.close()
        del events
    else:
        asyncio.run(run())
    setup.wait_until_free()
    assert setup.engine.stats().generated_tokens < 300


def test_deadlines_end_what_runs_and_what_waits(setup: Setup) -> None:
    def pass_time() -> None:
        wait_for(lambda: len(setup.engine._calls) + len(setup.engine._inbox) >= 5 or setup.hash.now)
        if len(setup.hash.host.steps) >= 20:
            setup.hash.now = 10.0

    setup.hash.host.on_step = pass_time
    setup.engine._max_waiting = 100

    async def ask() -> list[list[Event]]:
        asked = [read(setup.engine, prompt, LONG, deadline=5.0) for prompt in PROMPTS[:5]]
        return await asyncio.gather(*asked)

    for events in asyncio.run(ask()):
        assert events[-1].finish_reason == "deadline" and events[-1].token_id is None
        assert len(events) < 40
    assert [c.finish_reason for c in setup.engine.generate_all(PROMPTS[:2], mlxr.Sampling(max_tokens=4))] == [
        "length"
    ] * 2


def test_too_many_waiting_requests_are_refused(setup: Setup) -> None:
    setup.gate.clear()
    streams = [setup.engine.stream(prompt, LONG) for prompt in PROMPTS[:4]]
    with pytest.raises(QueueFullError, match="requests wait already, and at most 4 may: try again later"):
        setup.engine.stream(PROMPTS[8], mlxr.Sampling(n=4))

    async def ask() -> None:
        await read(setup.engine, PROMPTS[8], mlxr.Sampling(n=4))

    with pytest.raises(QueueFullError):
        asyncio.run(ask())
    setup.gate.set()
    for stream in streams:
        next(stream)
        stream.close()
    setup.wait_until_free()
    assert len(list(setup.engine.stream(PROMPTS[8], mlxr.Sampling(max_tokens=3)))) == 3


def test_bad_requests_are_refused_at_once(setup: Setup) -> None:
    for terms, kind in (
        ({"deadline": 0}, RequestError),
        ({"deadline": "1"}, TypeError),
        ({"priority": 1.5}, TypeError),
    ):
        with pytest.raises(kind):
            setup.engine.stream(PROMPTS[0], **terms)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the model was loaded without places for adapters"):
        setup.engine.generate_all(PROMPTS[:1], adapter="mine")
    with pytest.raises(RequestError, match="n is 5, and at most 4 requests may wait: ask for fewer answers"):
        setup.engine.stream(PROMPTS[0], mlxr.Sampling(n=5))
    with pytest.raises(RequestError, match="the prompt has 400 tokens"):
        setup.engine.stream([1] * 400)


@pytest.mark.parametrize("fails", [False, True])
def test_callers_that_wait_get_an_error_when_the_engine_ends(setup: Setup, fails: bool) -> None:
    setup.engine._max_waiting = 100

    def thread(prompt: list[int]) -> None:
        list(setup.engine.stream(prompt, LONG))

    def all_at_once(prompt: list[int]) -> None:
        setup.engine.generate_all([prompt] * 4, LONG)

    def task(prompt: list[int]) -> None:
        asyncio.run(read(setup.engine, prompt, LONG))

    with ThreadPoolExecutor() as pool:
        setup.gate.clear()
        jobs = [pool.submit(caller, prompt) for prompt in PROMPTS[:2] for caller in (thread, all_at_once, task)]
        wait_for(lambda: len(setup.engine._calls) + len(setup.engine._inbox) == 6)
        if fails:

            def broken() -> bool:
                raise ZeroDivisionError("the loop is broken")

            setup.model.core.step = broken  # type: ignore[method-assign]
            setup.gate.set()
            wait_for(setup.engine.health)
            assert setup.engine.health() == "the engine has failed: the loop is broken"
        else:
            closer = threading.Thread(target=setup.engine.close)
            closer.start()
            time.sleep(0.01)
            setup.gate.set()
            closer.join()
            assert setup.engine.health() == "the engine is closed"
        errors = [job.exception(10) for job in jobs]
    expected = (EngineError, ZeroDivisionError) if fails else EngineError
    assert all(isinstance(error, expected) for error in errors), errors
    if not fails:
        assert {str(error) for error in errors} == {"the engine was closed before the answer ended"}
    for use in (
        lambda: setup.engine.stream(PROMPTS[0]),
        lambda: setup.engine.generate_all(PROMPTS),
        lambda: asyncio.run(read(setup.engine, PROMPTS[0], LONG)),
        setup.engine.stats,
        setup.engine.save,
    ):
        with pytest.raises(EngineError, match=r"the engine (is closed|has failed: the loop is broken): make a new one"):
            use()
    assert "the engine" in repr(setup.engine)
    setup.engine.close()


def test_closing_while_requests_are_being_made(setup: Setup) -> None:
    make = setup.model.make_requests

    def closes(*arguments: Any) -> Any:
        setup.engine.close()
        return make(*arguments)

    setup.model.make_requests = closes  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="the engine is closed: make a new one"):
        setup.engine.generate_all(PROMPTS[:2])


def test_a_loop_that_fails_now_and_then_goes_on(setup: Setup) -> None:
    step, turns = setup.model.core.step, iter(range(10**9))

    def sometimes() -> bool:
        if next(turns) % 7 in (3, 4):
            raise ZeroDivisionError("now and then")
        return step()

    setup.model.core.step = sometimes  # type: ignore[method-assign]
    ended = 0
    for prompt in PROMPTS:
        try:
            (answer,) = setup.engine.generate_all([prompt], mlxr.Sampling(max_tokens=2))
        except ZeroDivisionError:
            continue
        assert answer.token_ids == answer_alone(prompt, mlxr.Sampling(max_tokens=2))
        ended += 1
    assert ended > 5 and setup.engine.health() is None


def test_a_step_that_fails_costs_its_requests_only(setup: Setup) -> None:
    setup.engine._max_waiting = 100
    setup.gate.clear()
    sampling = mlxr.Sampling(max_tokens=6)
    streams = [setup.engine.stream(prompt, sampling) for prompt in PROMPTS[:12]]
    setup.hash.host.faults.extend([None, None, "launch", None, None, None, None, "read"])
    setup.gate.set()
    errors = 0
    for prompt, stream in zip(PROMPTS, streams, strict=False):
        try:
            assert tokens(list(stream)) == answer_alone(prompt, sampling)
        except HostError as error:
            assert "the step failed" in str(error)
            errors += 1
    assert 2 <= errors <= 6 and setup.engine.health() is None


def test_a_loop_that_was_closed_does_not_stop_the_engine(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(read(setup.engine, PROMPTS[0], LONG))
    steps, pass_gate = count(), setup.hash.host.on_step

    def stop_after_five() -> None:
        if next(steps) == 5:
            setup.gate.clear()
        pass_gate()

    setup.hash.host.on_step = stop_after_five
    while setup.gate.is_set():
        loop.run_until_complete(asyncio.sleep(0.002))
    loop.close()
    setup.gate.set()
    assert len(setup.engine.generate_all(PROMPTS[:1], mlxr.Sampling(max_tokens=4))[0].token_ids) == 4
    setup.wait_until_free()
    assert setup.engine.stats().generated_tokens < 300
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # a task of a closed loop complains when it goes
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task
    gc.collect()


def test_a_loop_that_is_closed_before_it_wakes_a_task_is_found_out() -> None:
    """Nobody wakes the task any more, so that it never waits again, and its answer would go on to its end."""
    loop, to_wake = asyncio.new_event_loop(), defaultdict[asyncio.AbstractEventLoop, list[Call]](list)
    call = Call(set(), to_wake, loop)
    call.tell_all([Event(0, 7, "one")])
    call.listen(Event(0, 8, "two"))
    assert not to_wake, "the task does not wait"
    loop.close()
    call.tell_all([Event(0, 7, "one")])
    assert to_wake.pop(loop) == [call]
    call.listen(Event(0, 8, "two"))
    assert to_wake.pop(loop) == [call]


def test_errors_of_loading_are_raised_where_the_engine_is_made() -> None:
    before = threading.active_count()

    def load() -> Any:
        raise WeightsError("the file is damaged")

    with pytest.raises(WeightsError, match="the file is damaged"):
        EngineThread(load)
    wait_for(lambda: threading.active_count() == before)
    with pytest.raises(TypeError, match=r"max_sequences is 1\.5"):
        mlxr.Engine(TINY, max_sequences=1.5)  # type: ignore[arg-type]
    with pytest.raises(mlxr.MlxrError, match="no-such-model"):
        mlxr.Engine("no-such-model.gguf")


def test_a_real_model_answers_all_as_it_answers_each() -> None:
    """And text that a stop string holds back comes when a deadline ends the answer."""
    changes = mlxr.Changes(sequences=2, compute="exact", cache_dtype="f32")
    prompts = [[1, 20 + i, 30, 40 + i] for i in range(7)]
    sampling = mlxr.Sampling(max_tokens=12, ignore_eos=True)
    with mlxr.load(TINY, host="cpu", threads=1, changes=changes) as model:
        alone = [model.generate(prompt, sampling=sampling).token_ids for prompt in prompts]
        step = model.host.step

        def interrupt(batch: Any) -> Any:
            step(batch)
            raise KeyboardInterrupt

        generation = model.stream(prompts[1], sampling=sampling)
        next(generation)
        model.host.step = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            next(generation)
        model.host.step = step  # type: ignore[method-assign]
        assert model.pager.num_sequences == 0
        assert model.generate(prompts[1], sampling=sampling).token_ids == alone[1]
    with mlxr.Engine(TINY, max_sequences=2, host="cpu", threads=1, changes=changes) as engine:
        assert [answer.token_ids for answer in engine.generate_all(prompts, sampling)] == alone
        text = engine.generate_all(prompts[:1], sampling)[0].text
        now = [0.0]
        engine.model.core.clock = lambda: now[0]
        held = mlxr.Sampling(max_tokens=12, ignore_eos=True, stop=[text + "and no more"])
        events = engine.stream(prompts[0], held, deadline=5.0)
        assert [next(events).text for _ in range(2)] == ["", ""], "the second token has text"
        now[0] = 6.0
        rest = list(events)
        assert rest[-1].finish_reason == "deadline" or len(rest) == 10
        assert text.startswith("".join(event.text for event in rest)) and rest[-1].text
