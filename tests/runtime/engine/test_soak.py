"""An engine that many callers use at random, for a while, with faults: everything comes back, and no answer is wrong.

`MLXR_SOAK_SECONDS=600` makes the long one longer.
"""

import asyncio
import gc
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mlxr
from mlxr.compiler.driver import compile_spec
from mlxr.compiler.errors import HostError
from mlxr.runtime.engine.completion import Event
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr_tests.storyteller import TINY, tiny_spec

SHARED = [1, *range(20, 60)]
PROMPTS = [[*SHARED[: 7 * (i % 7)], 300 + i, *range(400, 400 + 9 * (i % 5)), 2 + i] for i in range(12)]
SAMPLINGS = [
    mlxr.Sampling(max_tokens=24, ignore_eos=True),
    mlxr.Sampling(max_tokens=60, ignore_eos=True, temperature=1.2, top_p=0.9, seed=3, n=2),
    mlxr.Sampling(max_tokens=9, repetition_penalty=1.3, seed=4, temperature=0.7, logprobs=2),
]
LONG_SECONDS = float(os.environ.get("MLXR_SOAK_SECONDS", "60"))
MORE_SECONDS = 60
"""How much longer a soak goes on if not all has happened that it is to see: the machine may be busy."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def holdings() -> tuple[int, int]:
    """Open files, and threads but those of pools, which begin one when all others are busy, up to a limit."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count() - pooled()


def pooled() -> int:
    """Threads of pools, those of models that other tests have not closed included."""
    return sum(thread.name.startswith(("mlxr-kv-reader", "mlxr-masks")) for thread in threading.enumerate())


class Callers:
    """Threads and tasks that ask for random answers until the time is over, and check them."""

    def __init__(self, engine: EngineThread, alone: dict[tuple[int, int, int], list[int]], seconds: float) -> None:
        self.engine, self.alone = engine, alone
        self.end = time.monotonic() + seconds
        self.finished = self.left = self.failed = self.overdue = 0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def check(self, prompt: int, sampling: int, events: list[Event]) -> None:
        """Every answer is what it is alone, as far as it goes."""
        for index in range(SAMPLINGS[sampling].n):
            mine = [event for event in events if event.index == index]
            tokens = [event.token_id for event in mine if event.token_id is not None]
            whole = self.alone[prompt, sampling, index]
            assert tokens == whole[: len(tokens)], f"prompt {prompt}, sampling {sampling}, answer {index}"
            if mine and mine[-1].finish_reason == "deadline":
                self.count("overdue")
            elif mine and mine[-1].finish_reason:
                assert tokens == whole
                self.count("finished")

    def one(self, rng: random.Random) -> dict[str, Any]:
        deadline = rng.choice([None, None, None, 0.02, 0.2])
        return {"priority": rng.randint(-1, 1), "deadline": deadline, "salt": rng.choice(["", "", "x"])}

    def thread(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end and not self.errors:
            prompt, sampling = rng.randrange(len(PROMPTS)), rng.randrange(len(SAMPLINGS))
            most, events = rng.choice([10**9, 10**9, 0, 1, 5]), []
            try:
                stream = self.engine.stream(PROMPTS[prompt], SAMPLINGS[sampling], **self.one(rng))
                for event in stream:
                    events.append(event)
                    if len(events) >= most:
                        break
                stream.close()
                if most < 10:
                    self.count("left")
            except HostError:
                self.count("failed")
            self.check(prompt, sampling, events)
            time.sleep(rng.expovariate(100))

    async def task(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end and not self.errors:
            prompt, sampling = rng.randrange(len(PROMPTS)), rng.randrange(len(SAMPLINGS))
            events: list[Event] = []

            async def ask(prompt: int = prompt, sampling: int = sampling, events: list[Event] = events) -> None:
                answer = self.engine.generate(PROMPTS[prompt], SAMPLINGS[sampling], **self.one(rng))
                async for event in answer:
                    events.append(event)

            try:
                await asyncio.wait_for(ask(), rng.choice([None, None, 0.01, 0.1]))
            except HostError:
                self.count("failed")
            except TimeoutError:
                self.count("left")
            self.check(prompt, sampling, events)
            await asyncio.sleep(rng.expovariate(100))

    def tasks(self, seed: int) -> None:
        async def run() -> None:
            await asyncio.gather(*(self.task(100 * seed + i) for i in range(4)))

        asyncio.run(run())

    def all_at_once(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end and not self.errors:
            prompts, sampling = rng.choices(range(len(PROMPTS)), k=8), rng.randrange(len(SAMPLINGS))
            n = SAMPLINGS[sampling].n
            try:
                answers = self.engine.generate_all([PROMPTS[prompt] for prompt in prompts], SAMPLINGS[sampling])
            except HostError:
                self.count("failed")
                continue
            wanted = [self.alone[prompt, sampling, index] for prompt in prompts for index in range(n)]
            assert [answer.token_ids for answer in answers] == wanted

    def run(self) -> None:
        def guarded(caller: Any, seed: int) -> None:
            try:
                caller(seed)
            except BaseException as error:
                self.errors.append(error)

        callers = [self.thread, self.thread, self.tasks, self.all_at_once]
        threads = [threading.Thread(target=guarded, args=(caller, seed)) for seed, caller in enumerate(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.end - time.monotonic() + 60)
            assert not thread.is_alive(), "a caller hangs"
        if self.errors:
            raise self.errors[0]


def used(engine: EngineThread, alone: dict[tuple[int, int, int], list[int]], seconds: float) -> tuple[Callers, bool]:
    """Has an engine used for so long, or until all has happened that is to; whether it has."""
    latest = time.monotonic() + seconds + MORE_SECONDS
    callers = Callers(engine, alone, seconds)
    while True:
        callers.run()
        end = time.monotonic() + 10
        while (stats := engine.stats()).running + stats.waiting and time.monotonic() < end:
            time.sleep(0.01)
        is_enough = callers.finished > 10 and callers.left and stats.preemptions and stats.restored_tokens
        if is_enough or time.monotonic() > latest:
            return callers, bool(is_enough)
        callers.end = time.monotonic() + seconds


@pytest.mark.long
@pytest.mark.parametrize("seconds", [3.0, pytest.param(LONG_SECONDS, id="long")])
def test_an_engine_in_use(seconds: float, tmp_path: Path) -> None:
    spec = tiny_spec(model={"context": 160}, cache={"num_blocks": 14, "max_sequences": 4}, compute="exact")
    artifact = compile_spec(spec).artifact
    sizes = mlxr.TierSizes(memory_bytes=1 << 20, disk_bytes=1 << 22, folder=tmp_path)

    def load(**options: Any) -> mlxr.Model:
        return mlxr.load(artifact, TINY, host="cpu", threads=1, **options)

    alone = {}
    with load() as model:
        for prompt, ids in enumerate(PROMPTS):
            for sampling, options in enumerate(SAMPLINGS):
                for index, answer in enumerate(model.start([ids], sampling=options).finish()):
                    alone[prompt, sampling, index] = answer.token_ids
    engine = EngineThread(lambda: load(tiers=sizes, prompt_lookup=True))
    step, rng = engine.model.host.step, random.Random(5)

    def sometimes_fails(batch: Any) -> Any:
        fault = rng.random()
        if fault < 0.004:
            raise HostError("an injected fault")
        logits = step(batch)
        if fault > 0.996:
            raise HostError("an injected fault after the step")
        return logits

    engine.model.host.step = sometimes_fails  # type: ignore[method-assign]
    used(engine, alone, seconds / 4)  # after which it has opened what it opens once
    gc.collect()
    before, bytes_before, pooled_before = holdings(), resident_bytes(), pooled()
    callers, is_enough = used(engine, alone, seconds * 3 / 4)
    gc.collect()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_free) == (0, 0, 14)
    engine.model.pager.check_integrity()
    assert engine.health() is None
    end = time.monotonic() + 30
    while (now := holdings()) > before or now[1] > before[1]:  # threads that end may need a while on a busy machine
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.05)
    assert pooled() <= pooled_before + 4 + 2
    assert resident_bytes() - bytes_before < 24 << 20
    told = (
        f"{callers.finished} finished, {callers.left} left, {callers.failed} failed, {callers.overdue} overdue: {stats}"
    )
    assert is_enough, told
    if seconds > 10:
        assert callers.failed and callers.overdue and stats.failed_steps, told
    print(told)
    engine.close()
