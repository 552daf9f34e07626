"""A server that runs in a thread of the test's process, with the tiny model under several names."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop

from mlxr.compiler.spec.change import Changes
from mlxr.loading.options import LoadOptions
from mlxr.server.app import make_app
from mlxr.server.life.graceful_server import GracefulServer
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource
from mlxr.server.settings import ServerSettings
from mlxr.server.state import ServerState
from mlxr_tests.storyteller import TINY

EXACT = Changes(compute="exact", cache_dtype="f32")
CHATML = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HERMES = """{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>
{%- if enable_thinking is defined %}<think>{{ '' if enable_thinking else '</think>' }}{% endif %}{% endif %}"""
"""The family whose calls stand between `<tool_call>` and `</tool_call>`; it must think, must not, or may."""


def tiny_source(name: str = "tiny", template: Path | None = None, **options: Any) -> ModelSource:
    """The tiny model, in exact arithmetic, so that answers do not depend on what else runs."""
    loading = {"host": "cpu", "threads": 1, "changes": EXACT} | options
    own = {key: loading.pop(key) for key in ("max_sequences", "max_waiting", "reasoning") if key in loading}
    return ModelSource(name, str(TINY), LoadOptions(**loading), template=template, **({"max_sequences": 4} | own))


class RunningServer:
    """A server that runs.

    Attributes:
        url: where.
        pool: its models; only its own loop may call them, see `do`.
        http: a client.
    """

    def __init__(self, make_pool: Callable[[], ModelPool], settings: ServerSettings) -> None:
        """Starts it and waits until it listens."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.pool: ModelPool
        self.loop: asyncio.AbstractEventLoop
        self._server: GracefulServer
        started = threading.Event()

        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            self.pool = make_pool()
            app = make_app(self.pool, settings)
            self.state: ServerState = app.state.server
            self._server = GracefulServer(app, self.pool, settings)
            started.set()
            await self._server.serve([self._listener])

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `mlxr serve` does
                runner.run(main())

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert started.wait(30)
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self.http.get("/health").raise_for_status()

    def do(self, action: Callable[[], Any]) -> Any:
        """Calls a function, or awaits what it returns, in the server's loop."""

        async def run() -> Any:
            result = action()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(60)

    def await_quiet(self) -> None:
        """Waits until every request that was sent before has ended, for the log, too: that is after its answer."""
        for _ in range(2):  # connections are accepted in order, and by the second time each has been read from
            httpx.get(f"{self.url}/health").raise_for_status()
        until = time.monotonic() + 60
        while self.do(lambda: len(self._server.server_state.tasks)):
            assert time.monotonic() < until, "requests do not end"
            time.sleep(0.001)

    def close(self) -> None:
        """Stops it."""
        self.http.close()
        self.loop.call_soon_threadsafe(self._server.end)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the server does not end"


@contextmanager
def running_server(
    make_pool: Callable[[], ModelPool], settings: ServerSettings | None = None
) -> Iterator[RunningServer]:
    """A server for the time of a `with` block."""
    server = RunningServer(make_pool, settings or ServerSettings())
    try:
        yield server
    finally:
        server.close()
