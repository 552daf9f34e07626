"""Callers that go, requests that fail, and arenas that are full: each costs its own request, and no other."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mlxr
from mlxr.compiler.errors import HostError
from mlxr.runtime.cache.block_hashes import BlockHashes, root_digest
from mlxr.runtime.cache.pager import Pager
from mlxr.runtime.cache.tiers.block_tiers import BlockTiers
from mlxr.runtime.engine import tier_link
from mlxr.runtime.engine.completion import Completion
from mlxr.runtime.engine.request import Answer as RequestAnswer
from mlxr.runtime.engine.request import Request
from mlxr.runtime.engine.sampling import Sampled
from mlxr.runtime.engine.scheduler import Scheduler
from mlxr.runtime.engine.step_times import StepTimes
from mlxr.runtime.engine.time_spent import Ledger
from mlxr.runtime.memory.free_memory import FreeMemory
from mlxr.runtime.memory.memory_watch import MemoryWatch
from mlxr_tests.specs import compiled, small_spec
from mlxr_tests.storyteller import TINY
from mlxr_tests.thread_ranks import save_canonical

LONG = mlxr.Sampling(max_tokens=400, ignore_eos=True)
SHORT = mlxr.Sampling(max_tokens=8, ignore_eos=True)
PROMPT = [1, 20, 30, 40]
TWO = mlxr.Changes(sequences=2, compute="exact", cache_dtype="f32")


@pytest.fixture(scope="module")
def engine() -> Iterator[mlxr.Engine]:
    with mlxr.Engine(TINY, max_sequences=4, host="cpu", threads=1) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(engine: mlxr.Engine) -> Iterator[None]:
    yield
    ended = time.monotonic() + 5
    while (stats := engine.stats()).running + stats.waiting and time.monotonic() < ended:
        time.sleep(0.01)
    assert stats.running + stats.waiting == 0 and stats.blocks_free == stats.blocks


@pytest.fixture
def made(engine: mlxr.Engine, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that the engine makes during a test."""
    requests: list[Request] = []
    make = engine.model.make_requests

    def record(*arguments: Any) -> list[Request]:
        requests.extend(new := make(*arguments))
        return new

    monkeypatch.setattr(engine.model, "make_requests", record)
    return requests


def wait_for(condition: Callable[[], object]) -> None:
    ended = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < ended
        time.sleep(0.005)


def test_a_task_that_is_cancelled_while_its_request_is_sent(
    engine: mlxr.Engine, made: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = engine._submit

    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(0.1)
        submit(*arguments, **options)

    monkeypatch.setattr(engine, "_submit", slow)

    async def ask() -> None:
        async for _ in engine.generate(PROMPT, LONG):
            pass

    async def leave() -> None:
        task = asyncio.create_task(ask())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not made:
            await asyncio.sleep(0.005)
        stats = await asyncio.to_thread(engine.stats)  # its message comes after the request's
        assert stats.running + stats.waiting == 0

    asyncio.run(leave())


@pytest.mark.parametrize("leave", [lambda events: events.close(), lambda events: None])
def test_a_stream_that_nobody_reads_is_cancelled(engine: mlxr.Engine, made: list[Request], leave: Any) -> None:
    leave(engine.stream(PROMPT, LONG))
    wait_for(lambda: made and made[0].answer.is_done)
    assert made[0].answer.completion.finish_reason == "cancelled"


def test_a_request_whose_text_fails_leaves_the_others_alone(engine: mlxr.Engine, made: list[Request]) -> None:
    other = engine.stream(PROMPT, LONG)
    first = next(other)
    assert first.token_id is not None

    def fail(*_: Any) -> None:
        raise ValueError("broken")

    bad = engine.stream(PROMPT[:3], LONG)
    next(bad)
    broken: Any = SimpleNamespace(push=fail, flush=str)
    made[1].text._decoder = broken
    with pytest.raises(ValueError, match="broken"):
        list(bad)
    assert len(list(other)) == 399


def test_python_ends_and_nobody_has_closed_the_engine(tmp_path: Path) -> None:
    """What its tier on disk is to keep is saved all the same."""
    tiers = mlxr.TierSizes(disk_bytes=1 << 26, folder=tmp_path)
    ask = f"""
import mlxr
tiers = mlxr.TierSizes(disk_bytes=1 << 26, folder={str(tmp_path)!r})
engine = mlxr.Engine({str(TINY)!r}, host="cpu", threads=1, tiers=tiers)
engine.generate_all([list(range(100, 160))], mlxr.Sampling(max_tokens=2))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the same code as here writes the files
    subprocess.run([sys.executable, "-c", ask], check=True, env=environment)
    with mlxr.Engine(TINY, host="cpu", threads=1, tiers=tiers) as engine:
        (answer,) = engine.generate_all([range(100, 160)], SHORT)
    assert answer.cached_tokens == 48


def request(order: float, length: int, most: int = 100) -> Request:
    sampler: Any = SimpleNamespace(needs_tokens=False)
    text: Any = None
    tokens = [int(order) * 100 + i for i in range(length)]
    return Request(
        0,
        length,
        length + most,
        (),
        sampler,
        text,
        BlockHashes(root_digest(), 4),
        lambda news: None,
        order,
        RequestAnswer(tokens, Completion(length)),
    )


def scheduler(num_blocks: int, max_tokens: int = 64, max_rows: int = 64) -> Scheduler:
    plan: Any = SimpleNamespace(max_tokens=max_tokens, max_rows=max_rows, whole_prompts=False)
    times = StepTimes()
    return Scheduler(plan, Pager(num_blocks, 4, num_blocks, 8), times, Ledger(time.monotonic, times))


def run(queue: Scheduler, read: bool = True) -> None:
    """Does what the core does with the next step: grows sequences, and samples."""
    chosen, pager = queue.schedule(), queue._pager
    chosen.decode = None
    pager.append_all([part.growth for part in chosen.parts])
    pager.take_copies()
    queue.has_launched(chosen)
    if read:
        chosen.sampled_by_part = [[Sampled(7)] * part.samples for part in chosen.parts]
        queue.has_read(chosen)
        for part in chosen.parts:
            part.request.answer.tokens += [7] * part.samples


def test_a_prompt_waits_for_blocks_that_a_request_before_it_will_give_back() -> None:
    """The step before the last token of another request is read: that one has nothing to compute, but its blocks."""
    queue = scheduler(num_blocks=10, max_tokens=6)
    ending = request(0, 16, most=2)  # blocks 0 to 3, then one more
    queue.add(ending)
    for _ in range(3):
        run(queue)
    reading = request(1, 12)
    queue.add(reading)
    assert ending.num_pending == 1
    run(queue, read=False)
    assert ending.num_pending == 0 and reading in queue.running
    while queue._pager.num_free:  # what else uses the arena
        queue._pager.append(queue._pager.add_sequence(), 4)
    assert not queue.schedule().parts
    assert queue.failures == []


def test_tiers_shrink_while_memory_is_scarce_and_work_again_afterwards(tmp_path: Path) -> None:
    now, free = [0.0], [1 << 40]
    with mlxr.load(TINY, host="cpu", threads=1, changes=TWO, tiers=mlxr.TierSizes(memory_bytes=1 << 26)) as model:
        model.core._watch = MemoryWatch(lambda: FreeMemory(free[0], 1 << 40), lambda: now[0])

        def held(first: int) -> int:
            """Bytes in the tier after prompts that push each other out of the arena."""
            now[0] += 1.0
            for prompt in range(first, first + 4):
                model.generate([1, *range(prompt, prompt + 300)], max_tokens=2)
            tiers = model.core.stats().tiers
            assert tiers is not None
            return int(tiers["memory_bytes"])

        before = held(10)
        free[0] = 1 << 30
        assert before > 0 == held(20)
        free[0] = 1 << 40
        assert held(30) > 0


def test_an_arena_gives_memory_back_while_it_is_scarce() -> None:
    now, free = [0.0], [1 << 40]
    with mlxr.load(TINY, host="cpu", threads=1, changes=TWO) as model:
        model.core._watch = MemoryWatch(lambda: FreeMemory(free[0], 1 << 40), lambda: now[0])
        whole = model.unused_bytes()
        answer = model.generate([1, *range(20, 120)], max_tokens=4).token_ids
        assert whole == model.arena.geometry.size_bytes > model.unused_bytes()
        now[0], free[0] = 1.0, 1 << 30
        assert not model.core.step() and model.unused_bytes() == whole
        again = model.generate([1, *range(20, 120)], max_tokens=4)
        assert again.token_ids == answer and again.cached_tokens == 0


@pytest.mark.parametrize("pattern", [["windowed", "full"], ["windowed"]], ids=["some", "all"])
def test_layers_with_windows_give_memory_back_too(pattern: list[str], tmp_path: Path) -> None:
    """If all layers have windows, the first group's blocks have no memory."""
    now, free = [0.0], [1 << 40]
    types = {"windowed": {"attention": {"sliding_window": 40}}, "full": {}}
    spec = small_spec(
        model__context=2048,
        model__tensor_names="canonical",
        model__layer_types={name: types[name] for name in pattern},
        model__layer_pattern=pattern,
        cache={"max_sequences": 2, "block_size": 16},
        prefill_chunk=64,
    )
    artifact = compiled(spec, target="cpu")
    with mlxr.load(artifact, save_canonical(tmp_path, artifact), host="cpu", threads=1) as model:
        model.core._watch = MemoryWatch(lambda: FreeMemory(free[0], 1 << 40), lambda: now[0])
        prompt, whole = [i % 50 for i in range(500)], model.arena.geometry.size_bytes
        assert model.arena.geometry.groups[-1].window and model.unused_bytes() == whole
        answer = model.generate(prompt, max_tokens=4).token_ids
        assert model.unused_bytes() < whole
        now[0], free[0] = 1.0, 1 << 30
        assert not model.core.step() and model.unused_bytes() == whole
        again = model.generate(prompt, max_tokens=4)
        assert again.token_ids == answer and again.cached_tokens == 0


@pytest.fixture
def always_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are fetched although this model computes them as fast."""
    monkeypatch.setattr(BlockTiers, "worth", lambda *_: True)


@pytest.mark.usefixtures("always_worth")
def test_blocks_that_cannot_be_brought_back_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with mlxr.load(TINY, host="cpu", threads=1, changes=TWO, tiers=mlxr.TierSizes(memory_bytes=1 << 26)) as model:
        prompts = [[1, *range(first, first + 300)] for first in (10, 20, 30, 40)]
        answers = [model.generate(prompt, max_tokens=4).token_ids for prompt in prompts]

        def fail(*_: Any) -> None:
            raise HostError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(model.host, "write_blocks", fail)
            assert model.generate(prompts[0], max_tokens=4).token_ids == answers[0]
        model.pager.check_integrity()
        assert model.core.stats().restored_tokens == 0
        assert model.generate(prompts[1], max_tokens=4).token_ids == answers[1]
        assert model.core.stats().restored_tokens > 0


@pytest.mark.usefixtures("always_worth")
def test_few_requests_that_wait_have_blocks_read_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read for a request is in host memory until it is admitted."""
    with mlxr.load(TINY, host="cpu", threads=1, changes=TWO, tiers=mlxr.TierSizes(memory_bytes=1 << 26)) as model:
        prompts = [[1, *range(first, first + 300)] for first in range(10, 130, 10)]
        answers = [model.generate(prompt, max_tokens=4).token_ids for prompt in prompts]
        most, fetch = 0, BlockTiers.fetch

        def count(tiers: Any, *wanted: Any) -> Any:
            nonlocal most
            result = fetch(tiers, *wanted)
            reading = [request for request in model.core.scheduler.waiting if request.fetch.blocks is not None]
            most = max(most, len(reading) + 1)
            return result

        monkeypatch.setattr(BlockTiers, "fetch", count)
        again = model.start(prompts, max_tokens=4).finish()
        assert [answer.token_ids for answer in again] == answers
        assert 1 <= most <= 2 and model.core.stats().restored_tokens > 0


@pytest.mark.parametrize("disk_bytes", [0, 1 << 26])
def test_an_arena_is_saved_a_few_blocks_at_a_time(
    disk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arena may be most of the memory: no second one fits beside it. Without a disk nothing is read."""
    tiers = mlxr.TierSizes(memory_bytes=1 << 20, disk_bytes=disk_bytes, folder=tmp_path)
    model = mlxr.load(TINY, host="cpu", threads=1, changes=TWO, tiers=tiers)
    model.generate([1, *range(10, 310)], max_tokens=2)
    sizes, read = [], model.host.read_blocks
    monkeypatch.setattr(tier_link, "_READ_BYTES", 3 * model.host.block_bytes)
    monkeypatch.setattr(model.host, "read_blocks", lambda ids: sizes.append(len(ids)) or read(ids))
    model.close()
    assert (sum(sizes), max(sizes, default=0)) == ((300 // 16, 3) if disk_bytes else (0, 0))
    assert len(list(tmp_path.rglob("*.kv"))) == sum(sizes)
