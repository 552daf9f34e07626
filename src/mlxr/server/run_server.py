"""Runs the server until it is told to stop."""

import asyncio
import socket
import sys
from collections.abc import Callable

import uvicorn
import uvloop

from mlxr.compiler.errors import HostError
from mlxr.server.app import make_app
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings


def run_server(make_pool: Callable[[], ModelPool], settings: ServerSettings) -> int:
    """Serves until SIGINT or SIGTERM; streams then have a time of grace to end.

    Args:
        make_pool: makes the models' pool, in the server's event loop.
        settings: of the server.

    Returns:
        The exit code.

    Raises:
        HostError: nobody can listen at the address.
    """
    listener = _listen(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # a third less time for each token
        return runner.run(_serve(make_pool, settings, listener))


async def _serve(make_pool: Callable[[], ModelPool], settings: ServerSettings, listener: socket.socket) -> int:
    pool = make_pool()
    config = uvicorn.Config(
        make_app(pool, settings),
        log_level="warning",
        access_log=False,
        limit_concurrency=settings.most_connections,
        timeout_graceful_shutdown=int(settings.grace_seconds),
        server_header=False,
        date_header=False,
    )
    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    names = ", ".join(model.name for model in pool.models)
    print(f"serving {names} at http://{shown}:{port}", file=sys.stderr, flush=True)
    server = uvicorn.Server(config)
    await server.serve([listener])
    return 0 if server.started else 1


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
