"""Runs the server until it is told to stop."""

import asyncio
import gc
import os
import resource
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace

import uvloop

from mlxr.compiler.errors import HostError
from mlxr.server.app import make_app
from mlxr.server.first_lines import tell_first_lines
from mlxr.server.life.graceful_server import GracefulServer
from mlxr.server.life.state_file import StateFile, url_for_others
from mlxr.server.log_output import LogOutput
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings

_OTHER_FILES = 512
"""Files that may be open besides connections."""


def run_server(make_pool: Callable[[], ModelPool], settings: ServerSettings, log: LogOutput | None = None) -> int:
    """Serves until SIGINT or SIGTERM; streams then have a time of grace to end.

    Args:
        make_pool: makes the models' pool, in the server's event loop.
        settings: of the server.
        log: where the log goes; None: requests are not logged.

    Returns:
        The exit code.

    Raises:
        HostError: nobody can listen at the address.
        RequestError: the log cannot be written.
    """
    if log is not None:
        log.open()
    _allow_files(settings.most_connections + _OTHER_FILES)
    listener = _listen(settings)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # texts are encoded in threads of ours
    gc.freeze()  # what was imported stays: to look for garbage in it again and again holds all threads
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # a third less time for each token
        return runner.run(_serve(make_pool, settings, listener))


async def _serve(make_pool: Callable[[], ModelPool], settings: ServerSettings, listener: socket.socket) -> int:
    pool = make_pool()
    address, port = listener.getsockname()[:2]
    state = StateFile.of_this_process(address, port, settings.grace_seconds, secrets.token_urlsafe())
    if settings.api_keys:  # so that `mlxr ps` of the same user can ask without one
        settings = replace(settings, api_keys=(*settings.api_keys, state.token))

    telling: list[asyncio.Task[None]] = []

    def started() -> None:
        state.write()
        telling.append(asyncio.create_task(tell_first_lines(pool, state.url, others=url_for_others(address, port))))

    server = GracefulServer(make_app(pool, settings), pool, settings, started=started)
    try:
        await server.serve([listener])
    finally:
        state.remove()
    return 0 if server.started else 1


def _allow_files(count: int) -> None:
    """Lets the process open so many files, as far as it may: systems begin with 256 or 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(settings: ServerSettings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
        return socket.create_server((settings.address, settings.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HostError(
            f"cannot listen at {settings.address} port {settings.port}: {reason}; choose another with --port, or 0 for "
            "any free one"
        ) from error
