"""A route that reads each body as JSON, as Ollama does: its documentation has `curl -d`, which calls bodies forms."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from starlette.responses import Response

from mlxr.server.large_body_route import LargeBodyRoute


class JsonRoute(LargeBodyRoute):
    """A route whose requests may have any Content-Type. That pages of other sites send none is the guard's affair."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `LargeBodyRoute`."""
        handle = super().get_route_handler()

        async def read_as_json(request: Request) -> Response:
            others = [header for header in request.scope["headers"] if header[0] != b"content-type"]
            headers = [*others, (b"content-type", b"application/json")]
            return await handle(Request({**request.scope, "headers": headers}, request.receive))

        return read_as_json
