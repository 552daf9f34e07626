"""Fetches beside all else that the server does."""

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from mlxr.server.pool import pulls
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.pulls import Pulls

MANY = 40
"""More than the event loop has threads of its own: at most 32."""


def test_many_fetches_leave_the_event_loops_threads_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are encoded in those: a server that fetches would answer nobody."""
    gate, begun = threading.Event(), threading.Semaphore(0)

    def fetch(name: str, **_: Any) -> None:
        begun.release()
        assert gate.wait(60)

    monkeypatch.setattr(pulls, "pull_model", fetch)

    async def all_of(fetches: Pulls, name: str) -> None:
        async for _ in fetches.follow(name):
            pass

    async def use() -> int:
        fetches = Pulls(ModelPool([]))
        waiting = [asyncio.create_task(all_of(fetches, f"org/{number}")) for number in range(MANY)]
        while not begun.acquire(blocking=False):
            await asyncio.sleep(0.001)
        try:
            return await asyncio.wait_for(asyncio.to_thread(lambda: 7), 20)
        finally:
            gate.set()
            await asyncio.gather(*waiting)
            await fetches.close()

    assert asyncio.run(use()) == 7


def test_whoever_comes_to_a_stalled_fetch_that_all_have_left_joins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the hub, which may take until its time limit: it has not seen yet that it was given up."""
    gate, calls = threading.Event(), []

    def fetch(name: str, *, progress: Any) -> None:
        calls.append(name)
        progress.announce("fetching")
        assert gate.wait(60)
        progress.announce("fetched")

    monkeypatch.setattr(pulls, "pull_model", fetch)

    async def first_step(fetches: Pulls) -> str:
        async with aclosing(fetches.follow("org/a")) as steps:
            return (await anext(steps)).what

    async def use() -> list[str]:
        fetches = Pulls(ModelPool([]))
        assert await first_step(fetches) == "fetching"
        assert await asyncio.wait_for(first_step(fetches), 20) == "fetching", "at once, from the one that stalls"
        async with aclosing(fetches.follow("org/a")) as steps:
            told = []
            async for step in steps:
                told.append(step.what)
                gate.set()
        await fetches.close()
        return told

    assert asyncio.run(use()) == ["fetching", "fetched"] and calls == ["org/a"]
