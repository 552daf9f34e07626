"""A server that ends well: it takes no more work, lets answers end, and saves what the models have cached."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

import uvicorn
from fastapi import FastAPI

from mlxr.compiler.text import counted
from mlxr.server.life.connection import limited_connection
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings

_LOOK_SECONDS = 0.05
_LAST_SECONDS = 5
"""How long clients have to take the last bytes of their answers, once the models are closed."""


class GracefulServer(uvicorn.Server):
    """Serves until it is told to end.

    While it ends, it still listens: whoever asks /ready is told at once that it takes no more work, and other requests
    get 503. uvicorn alone would close the port, and cut answers short without a word.
    """

    def __init__(
        self,
        app: FastAPI,
        pool: ModelPool,
        settings: ServerSettings,
        *,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """Serves nothing yet.

        Args:
            app: what answers.
            pool: its models.
            settings: limits and times.
            started: called when it serves.
        """
        config = uvicorn.Config(
            app,
            http=limited_connection(settings.header_seconds, settings.most_connections),
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_LAST_SECONDS,
            server_header=False,
            date_header=False,
        )
        super().__init__(config)
        self._pool, self._grace_seconds, self._started = pool, settings.grace_seconds, started
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        self._started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends at SIGINT and SIGTERM. uvicorn's own raises the signal again at the end, and so exits with an error."""
        if threading.current_thread() is threading.main_thread():  # no other one gets signals
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._signalled, number)
        yield

    def _signalled(self, number: int) -> None:
        if self._ending is not None:
            print("ended at once", file=sys.stderr, flush=True)
            os._exit(128 + number)  # nothing durable is lost by that
        self.end()

    def end(self) -> None:
        """Begins to end; returns at once."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        loop = asyncio.get_running_loop()
        self._pool.end()
        until = loop.time() + self._grace_seconds
        if users := self._pool.num_users:
            print(
                f"ending: {counted(users, 'request')} may go on for {self._grace_seconds:g} s; a second signal ends at "
                "once",
                file=sys.stderr,
                flush=True,
            )
        while self._pool.num_users and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            await self._pool.close()  # whoever still waits gets an error, in the form of the API
        finally:
            self.should_exit = True
