"""Fetches beside all else that the server does."""

import asyncio
import threading
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
