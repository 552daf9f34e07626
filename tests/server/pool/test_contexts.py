"""Requests that count on a longer context than a model was loaded with."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.request_record import RECORD, RequestRecord
from mlxr_tests.running_server import EXACT, running_server, tiny_source

GB = 1 << 30


def source(context: int) -> Any:
    return tiny_source(changes=replace(EXACT, context=context))


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(cast(Any, test()), 60))


async def context_for(pool: ModelPool, wanted: int | None) -> tuple[int, list[str]]:
    """The context that a request gets, and its warnings."""
    RECORD.set(record := RequestRecord("POST", "/api/chat"))
    async with pool.use("tiny", context=wanted) as model:
        return model.context, record.warnings


def test_a_model_is_loaded_again_with_a_longer_context() -> None:
    async def test() -> None:
        pool = ModelPool([source(128)], free=lambda: 9 * GB)
        assert await context_for(pool, 64) == (128, []), "less changes nothing"
        assert await context_for(pool, 256) == (256, ["tiny was loaded again, with a context of 256"])
        assert await context_for(pool, 200) == (256, []) and await context_for(pool, None) == (256, [])
        told, warnings = await context_for(pool, 4096)
        assert told == 512, "the model's own"
        assert warnings[0] == "a context of 4,096 was asked for, and tiny has at most 512" and len(warnings) == 2
        await pool.unload("tiny")
        assert await context_for(pool, 256) == (256, []), "a cold one is loaded once"
        await pool.close()

    run(test)


def test_answers_end_before_a_model_is_loaded_again_and_others_wait() -> None:
    async def test() -> None:
        pool = ModelPool([source(128)], free=lambda: 9 * GB)
        async with pool.use("tiny") as first:
            longer = asyncio.create_task(context_for(pool, 256))
            await asyncio.sleep(0.1)
            other = asyncio.create_task(context_for(pool, None))
            await asyncio.sleep(0.1)
            assert not longer.done() and not other.done() and first.engine.health() is None
        assert (await longer)[0] == (await other)[0] == 256
        await pool.close()

    run(test)


def test_where_memory_has_no_room_the_model_stays_as_it_is() -> None:
    async def test() -> None:
        needed = source(128).planned_memory().full - 1
        assert source(512).planned_memory().least > needed
        pool = ModelPool([source(128)], memory_bytes=needed, free=lambda: 9 * GB)
        for is_cold in (True, False, False):
            assert (pool.find("tiny").state == "cold") == is_cold
            told, warnings = await context_for(pool, 512)
            assert told == 128
            assert warnings == ["a context of 512 was asked for, and memory has no room for it: tiny has 128"]
        await pool.close()

    run(test)


def test_clients_ask_for_it_by_num_ctx() -> None:
    with running_server(lambda: ModelPool([source(128)])) as server:
        assert server.http.post("/api/generate", json={"model": "tiny"}).json()["done_reason"] == "load"
        for stream in (True, False):
            body = {"model": "tiny", "prompt": "Once", "options": {"num_ctx": 512, "num_predict": 2}, "stream": stream}
            told = server.http.post("/api/generate", json=body)
            assert told.status_code == 200
            assert ("tiny was loaded again, with a context of 512" in told.text) == stream, "once is enough"
        assert server.http.get("/api/ps").json()["models"][0]["context_length"] == 512
        longer = {"model": "tiny", "prompt": "Once", "options": {"num_ctx": 9999, "num_predict": 2}, "stream": False}
        told = server.http.post("/api/generate", json=longer)
        assert told.json()["warnings"] == ["a context of 9,999 was asked for, and tiny has at most 512"]
        assert told.headers["x-mlxr-warnings"] == told.json()["warnings"][0]
        embedded = server.http.post("/api/embed", json={"model": "tiny", "input": "a", "options": {"num_ctx": 512}})
        assert embedded.status_code == 200
