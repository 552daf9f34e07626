"""What the server says when it has started, and when a model is loaded."""

import asyncio
import logging
import threading
from typing import Any, cast

import pytest

from mlxr.compiler.errors import SpecError
from mlxr.server.first_lines import tell_first_lines
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.served_model import Catalog
from mlxr_tests.running_server import tiny_source

URL = "http://127.0.0.1:1"


class Source:
    """One whose context is known, is not known in time (an Event), or cannot be planned."""

    def __init__(self, name: str, context: "str | threading.Event | Exception") -> None:
        self.name, self._context = name, context

    def planned_context(self) -> str:
        if isinstance(self._context, Exception):
            raise self._context
        if isinstance(self._context, threading.Event):
            self._context.wait(10)
            return "context 1"
        return self._context


class Registered:
    """A catalog of such models."""

    def __init__(self, *sources: Source) -> None:
        self._sources = {source.name: source for source in sources}

    def versions(self) -> dict[str, object]:
        return dict.fromkeys(self._sources, 1)

    def source(self, name: str) -> Source:
        return self._sources[name]

    def admit(self, name: str) -> None:
        raise AssertionError(name)


def told(pool: ModelPool, capsys: pytest.CaptureFixture[str], *slow: threading.Event) -> list[str]:
    async def tell() -> None:
        await tell_first_lines(pool, URL, 0.05 if slow else 60.0)
        for event in slow:
            event.set()

    asyncio.run(tell())
    *lines, last = capsys.readouterr().err.splitlines()
    assert last == f"open that in a browser, or point OpenAI's clients at {URL}/v1"
    return lines


def pool(*registered: Source, fixed: tuple[Source, ...] = ()) -> ModelPool:
    return ModelPool(cast(Any, fixed), catalog=cast(Catalog, Registered(*registered)))


def test_the_contexts_of_registered_models_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(pool(Source("a", "context 7")), capsys) == [f"serving a at {URL} with context 7"]
    two = pool(Source("b", "context 8"), fixed=(Source("a", "context 7"),))
    assert told(two, capsys) == [f"serving a, b at {URL}", "a has context 7", "b has context 8"]
    assert told(pool(), capsys) == [f"serving no models yet at {URL}"]


def test_what_is_known_is_told_in_time_and_where_the_rest_will_be(capsys: pytest.CaptureFixture[str]) -> None:
    slow = threading.Event()
    lines = told(pool(Source("a", "context 7"), Source("b", slow)), capsys, slow)
    assert lines[1:] == ["a has context 7", "the log tells the context of each model that is loaded"]
    lines = told(pool(Source("a", SpecError("it is faulty"))), capsys)
    assert lines == [f"serving a at {URL}", "the log tells the context of each model that is loaded"]


def test_the_log_tells_the_context_of_a_model_that_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mlxr.server"):
        tiny_source().load(lambda *_: None).engine.close()
    (line,) = [record.getMessage() for record in caplog.records if "is loaded" in record.getMessage()]
    assert line.startswith("tiny is loaded: context 512, as the model was compiled; the cache takes ")
