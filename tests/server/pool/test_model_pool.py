"""The pool, with sources that load nothing: what is loaded when, and what goes for it."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from mlxr.compiler.errors import WeightsError
from mlxr.loading.options import NO_OPTIONS
from mlxr.loading.planned_memory import PlannedMemory
from mlxr.server.errors import ApiError
from mlxr.server.metrics.meter import Meter
from mlxr.server.pool.loaded_model import LoadedModel, Progress
from mlxr.server.pool.model_pool import FOREVER, ModelPool
from mlxr.server.pool.model_source import ReadySource

GB = 2**30


class Engine:
    def __init__(self) -> None:
        self.failure: str | None = None
        self.is_closed = False

    def health(self) -> str | None:
        return self.failure

    def close(self) -> None:
        self.is_closed = True


class Source:
    def __init__(self, name: str, size: int = 4 * GB, least: int | None = None) -> None:
        self.name, self.memory = name, PlannedMemory(size, size if least is None else least, size)
        self.engines: list[Engine] = []
        self.forms: list[Source] = []
        self.most_bytes: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.meter = Meter()
        self.options = NO_OPTIONS

    def is_encoder(self) -> bool:
        return False

    def for_embeddings(self) -> "Source":
        source = Source(f"{self.name} (embeddings)", self.memory.full, self.memory.least)
        self.forms.append(source)
        return source

    def planned_memory(self) -> PlannedMemory:
        return self.memory

    def planned_context(self) -> str:
        return "context 7"

    def load(self, progress: Progress, most_bytes: int | None = None) -> LoadedModel:
        self.most_bytes = most_bytes
        progress("weights", 1, 4)
        self.gate.wait(10)
        if self.failure:
            raise self.failure
        self.engines.append(Engine())
        return LoadedModel(cast(Any, self.engines[-1]), None)

    @property
    def is_loaded(self) -> bool:
        return bool(self.engines) and not self.engines[-1].is_closed


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(cast(Any, test()), 20))


async def use(pool: ModelPool, name: str, **options: Any) -> None:
    async with pool.use(name, **options):
        pass


def test_requests_for_a_cold_model_load_it_once() -> None:
    async def test() -> None:
        a = Source("a")
        a.gate.clear()
        pool = ModelPool([a], free=lambda: 9 * GB)
        users = [asyncio.create_task(use(pool, "a")) for _ in range(5)]
        while not pool.find("a").progress.startswith("weights"):
            await asyncio.sleep(0.001)
        assert pool.find("a").progress == "weights 25 %"
        users[0].cancel()  # who leaves does not stop the load for the others
        a.gate.set()
        await asyncio.gather(*users[1:])
        assert len(a.engines) == 1 and pool.find("a").users == 0
        await pool.close()
        assert a.engines[0].is_closed

    run(test)


def test_what_a_loaded_model_may_still_take_is_not_free() -> None:
    async def test() -> None:
        sources = [Source("a", 4 * GB), Source("b", 5 * GB)]
        pool = ModelPool(sources, free=lambda: 9 * GB)
        await use(pool, "a")
        untaken = 3 * GB
        pool.find("a").loaded = replace(pool.find("a").loaded or pytest.fail(), unused=lambda: untaken)
        async with pool.use("a"):
            await use(pool, "b")
            assert await pool.unload("b")
            untaken = 5 * GB
            with pytest.raises(ApiError, match=r"b takes 5\.0 GiB"):
                await use(pool, "b")
        await use(pool, "b")
        assert not sources[0].is_loaded, "now nobody uses a"

    run(test)


def test_the_least_recently_used_goes_for_another_but_none_in_use_or_pinned() -> None:
    async def test() -> None:
        sources = {name: Source(name) for name in "abcd"} | {
            "big": Source("big", 20 * GB, 11 * GB),
            "huge": Source("huge", 13 * GB),
        }
        pool = ModelPool(sources.values(), memory_bytes=12 * GB, pinned=["d"], free=lambda: 99 * GB)
        for name in "dab":
            await use(pool, name)
        await use(pool, "a")
        async with pool.use("a"):
            await use(pool, "c")  # b was used before a
            assert not sources["b"].is_loaded and sources["a"].is_loaded and sources["d"].is_loaded
            async with pool.use("c"):
                with pytest.raises(
                    ApiError, match=r"b takes 4\.0 GiB .* in use or pinned: .*a \(4\.0 GiB, in use\)"
                ) as no:
                    await use(pool, "b")
                assert no.value.status == 503 and "Retry-After" in no.value.headers
            await use(pool, "b")
        before = [name for name, source in sources.items() if source.is_loaded]
        with pytest.raises(ApiError, match=r"big takes 11\.0 GiB .* 8\.0 GiB of 12\.0 GiB .* d \(4\.0 GiB, pinned\)"):
            await use(pool, "big")
        with pytest.raises(
            ApiError, match=r"huge takes 13\.0 GiB .* 12\.0 GiB .* free if all others were unloaded; .* --memory"
        ) as no:
            await use(pool, "huge")
        assert "Retry-After" not in no.value.headers, "waiting would not help"
        assert [name for name, source in sources.items() if source.is_loaded] == before, "none goes in vain"
        await pool.close()

    run(test)


def test_the_form_that_gives_embeddings_is_loaded_and_counted_apart() -> None:
    async def test() -> None:
        sources = {name: Source(name) for name in "ab"}
        pool = ModelPool(sources.values(), memory_bytes=9 * GB, free=lambda: 99 * GB)
        async with pool.use("a"), pool.use("a", embeds=True):
            (form,) = sources["a"].forms
            assert sources["a"].is_loaded and form.is_loaded and pool.num_users == 2
            with pytest.raises(ApiError, match=r"b takes .* in use or pinned: .*a \(embeddings\) \(4\.0 GiB, in use\)"):
                await use(pool, "b")
        await use(pool, "a")
        await use(pool, "b")
        assert sources["a"].is_loaded and not form.is_loaded, "the form was used before"
        await use(pool, "b", embeds=True)
        await use(pool, "a", embeds=True)
        assert len(sources["a"].forms) == 1 and len(form.engines) == 2
        assert [model.name for model in pool.models] == ["a", "b"]
        assert await pool.unload("a") and not form.is_loaded and not sources["a"].is_loaded
        assert sources["b"].forms[0].is_loaded
        await pool.close()
        assert not sources["b"].forms[0].is_loaded

    run(test)


def test_a_model_may_be_loaded_with_less_cache_than_planned() -> None:
    async def test() -> None:
        big = Source("big", 20 * GB, 8 * GB)
        pool = ModelPool([big], free=lambda: 10 * GB)
        await use(pool, "big")
        assert big.is_loaded and pool.find("big").planned_bytes == big.most_bytes == 10 * GB
        await pool.close()

    run(test)


def test_models_that_nobody_uses_are_unloaded_after_their_time() -> None:
    async def test() -> None:
        a, b = Source("a"), Source("b")
        pool = ModelPool([a, b], keep_alive=0.05, free=lambda: 99 * GB)
        pool.start()
        async with pool.use("a"):
            await use(pool, "b", keep_alive=FOREVER)
            await asyncio.sleep(0.8)
            assert a.is_loaded, "it is in use"
        end = time.monotonic() + 10
        while a.is_loaded and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert not a.is_loaded and b.is_loaded
        await use(pool, "a")
        assert len(a.engines) == 2 and await pool.unload("b") and not b.is_loaded
        await pool.close()

    run(test)


def test_a_load_that_fails_and_an_engine_that_died() -> None:
    async def test() -> None:
        a = Source("a")
        pool = ModelPool([a], free=lambda: 99 * GB, load_seconds=0.1)
        a.failure = WeightsError("the file is damaged")
        with pytest.raises(ApiError, match="a cannot be loaded: the file is damaged"):
            await use(pool, "a")
        a.failure = None
        await use(pool, "a")
        a.engines[0].failure = "the engine has failed"
        await use(pool, "a")
        assert len(a.engines) == 2 and a.engines[0].is_closed
        await pool.unload("a")
        a.gate.clear()
        with pytest.raises(ApiError, match=r"a is still being loaded after 0\.1 s \(weights 25 %\)") as slow:
            await use(pool, "a")
        assert slow.value.status == 503
        a.gate.set()
        with pytest.raises(ApiError, match="there is no model 'x' here"):
            await use(pool, "x")
        await pool.close()
        with pytest.raises(ApiError, match="the server is ending"):
            await use(pool, "a")
        assert not a.is_loaded

    run(test)


def test_a_model_that_was_loaded_before_is_not_loaded_again() -> None:
    async def test() -> None:
        source = ReadySource("a", "a", loaded=LoadedModel(cast(Any, engine := Engine()), None))
        pool = ModelPool([source], free=lambda: 0, pinned=["a"])
        await use(pool, "a")
        engine.failure = "the engine has failed: rank 1 was lost"
        with pytest.raises(ApiError, match="rank 1 was lost: the server ends") as gone:
            await use(pool, "a")
        assert gone.value.status == 503 and gone.value.headers
        await pool.close()

    run(test)


class Names:
    """A catalog whose names may come and go, and come to mean other sources."""

    def __init__(self, sources: dict[str, Source]) -> None:
        self.sources = sources

    def versions(self) -> dict[str, object]:
        return {name: id(source) for name, source in self.sources.items()}

    def source(self, name: str) -> Source:
        return self.sources[name]


def test_models_of_a_catalog_come_and_go() -> None:
    async def test() -> None:
        catalog = Names({"a": Source("a"), "b": Source("b")})
        pool = ModelPool([Source("own")], catalog=catalog, pinned=["a"], free=lambda: 99 * GB)
        assert [model.name for model in pool.models] == ["own", "a", "b"]
        await use(pool, "a")
        assert not pool.find("a").is_idle, "it is pinned"
        catalog.sources = {"c": Source("c")}
        assert [model.name for model in pool.models] == ["own", "a", "c"], "a is loaded"
        assert pool.find("a").is_idle, "nobody can ask for it any more, so it need not stay"
        await use(pool, "c")
        await pool.unload("a")
        with pytest.raises(ApiError, match="there is no model 'a' here; this server has: own, c"):
            await use(pool, "a")
        await pool.close()

    run(test)


def test_a_name_that_means_another_model_now() -> None:
    """Requests that the model before has got end with it; those that come get the new one, and the old one goes."""
    old, new = Source("a"), Source("a")

    async def test() -> None:
        catalog = Names({"a": old})
        pool = ModelPool([], catalog=catalog, pinned=["a"], keep_alive=0.1, free=lambda: 99 * GB)
        pool.start()
        async with pool.use("a") as before:
            catalog.sources = {"a": new}
            async with pool.use("a") as after:
                assert cast(Any, before.engine) is old.engines[0] and cast(Any, after.engine) is new.engines[0]
            await asyncio.sleep(0.7)
            assert old.is_loaded, "a request uses it"
        while old.is_loaded:
            await asyncio.sleep(0.01)
        assert [model.name for model in pool.models] == ["a"] and new.is_loaded
        await pool.close()
        assert not new.is_loaded

    run(test)


def test_a_model_that_waits_to_be_loaded_is_not_forgotten() -> None:
    """Its one request has gone, and so has its name: the load goes on, and the pool must close what it has loaded."""
    first, late = Source("first"), Source("late")
    first.gate.clear()

    async def test() -> None:
        catalog = Names({"late": late})
        pool = ModelPool([first], catalog=catalog, free=lambda: 99 * GB, load_seconds=0.05)
        users = [asyncio.create_task(use(pool, name)) for name in ("first", "late")]
        await asyncio.gather(*users, return_exceptions=True)
        catalog.sources = {}
        assert [model.name for model in pool.models] == ["first", "late"]
        first.gate.set()
        while not late.is_loaded:
            await asyncio.sleep(0.001)
        await pool.close()
        assert not late.is_loaded and not first.is_loaded

    run(test)
