"""Runs the server until it is told to stop."""

import asyncio
import resource
import secrets
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import uvloop

from mlxr.compiler.errors import HostError, MlxrError
from mlxr.server.app import make_app
from mlxr.server.life.graceful_server import GracefulServer
from mlxr.server.life.state_file import StateFile
from mlxr.server.log_output import LogOutput
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.served_model import ModelSource
from mlxr.server.settings import ServerSettings

_OTHER_FILES = 512
"""Files that may be open besides connections."""
_PLAN_SECONDS = 10.0
"""How long the first line waits for the contexts of models that are not compiled yet."""


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
        telling.append(asyncio.create_task(_tell(pool, state.url)))

    server = GracefulServer(make_app(pool, settings), pool, settings, started=started)
    try:
        await server.serve([listener])
    finally:
        state.remove()
    return 0 if server.started else 1


async def _tell(pool: ModelPool, url: str) -> None:
    """Says what is served, where, and how long prompts may be: as soon as that is known, or after some seconds."""
    planning = asyncio.create_task(asyncio.to_thread(_contexts, [model.source for model in pool.fixed]))
    done, _ = await asyncio.wait({planning}, timeout=_PLAN_SECONDS)
    contexts = planning.result() if done else {}
    names = ", ".join(model.name for model in pool.models)
    if len(pool.models) == 1 and len(contexts) == 1:
        print(f"serving {names} at {url} with {next(iter(contexts.values()))}", file=sys.stderr)
    else:
        print(f"serving {names} at {url}", file=sys.stderr)
        for name, context in contexts.items():
            print(f"{name} has {context}", file=sys.stderr)
    print(f"open that in a browser, or point OpenAI's clients at {url}/v1", file=sys.stderr, flush=True)


def _contexts(sources: Iterable[ModelSource]) -> dict[str, str]:
    """How long sequences may be, by the names of models. Whoever asks for one that has none is told why."""
    contexts = {}
    for source in sources:
        with suppress(MlxrError, OSError):
            contexts[source.name] = source.planned_context()
    return contexts


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
