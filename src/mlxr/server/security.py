"""Who may ask: keys, and names of the host."""

import hmac
import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxr.server.bodies import Bodies
from mlxr.server.cache_owner import own_blocks_of
from mlxr.server.errors import ApiError
from mlxr.server.request_record import note_warning
from mlxr.server.settings import ServerSettings
from mlxr.server.sse import error_response, told

_OPEN_PATHS = frozenset({"/health", "/ready"})
"""Whoever watches the server may ask these without a key; they tell nothing of models."""
_OPEN_PAGES = frozenset({"/", "/docs"})
"""The page, which itself asks for the key, and that of the API, which tells nothing of this server's own."""
_READING = frozenset({"GET", "HEAD"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Origins(CORSMiddleware):
    """Lets pages of allowed origins read answers, and says to the others which option would let them."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to what a browser asks before a page's request."""
        origin = request_headers["origin"]
        if not self.is_allowed_origin(origin=origin):
            return error_response("/", unknown_origin(origin))
        return super().preflight_response(request_headers)

    async def simple_response(self, scope: Scope, receive: Receive, send: Send, request_headers: Headers) -> None:
        """Passes a page's request on; the log tells if the page may not read the answer."""
        origin = request_headers.get("origin", "")
        is_own = not origin or _place_of(origin) == request_headers.get("host", "").lower()
        if scope["method"] in _READING and not is_own and not self.is_allowed_origin(origin=origin):
            note_warning(f"pages of {origin:.200} cannot read the answer: --allow-origin {origin:.200} lets them")
        await super().simple_response(scope, receive, send, request_headers)


def unknown_origin(origin: str) -> ApiError:
    """The error for pages of a site that may not use this server."""
    return ApiError(
        403,
        f"pages of {origin:.200} may not use this server; start it with --allow-origin {origin:.200} to let them",
        "permission_error",
        "unknown_origin",
    )


class Guard:
    """Refuses requests before their bodies are read, reads these, and answers those that the app fails on.

    A page of any site can make a browser ask a server on this machine, under a name that the site's owner lets point
    here (DNS rebinding). So a request must name a host that is known, or an address.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        """Guards an app.

        Args:
            app: it.
            settings: keys, names and limits.
        """
        self._app, self._settings = app, settings
        self._keys = [key.encode() for key in settings.api_keys]
        self._names = {*_LOOPBACK, settings.address.lower(), *(name.lower() for name in settings.hosts)}
        self._origins = set(settings.origins)
        most_unfinished = max(settings.most_unfinished_bytes, 4 * settings.most_body_bytes)
        self._bodies = Bodies(settings.most_body_bytes, most_unfinished, settings.body_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def watch(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, await self._bodies.read(scope, receive), watch)
        except Exception as error:
            if has_begun:
                raise
            await error_response(scope["path"], told(error))(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        if scope.get("state", {}).get("is_beyond_limit") and scope["path"] not in _OPEN_PATHS:
            raise ApiError(
                503,
                f"this server has {self._settings.most_connections} connections already, the most that it serves: try "
                "again later",
                "server_error",
                "too_many_connections",
                headers={"Retry-After": "1", "Connection": "close"},
            )
        headers = scope["headers"]
        host = _header(headers, b"host")
        # Without a name it comes from no browser, but from a health check in HTTP/1.0.
        if not self._knows(host) and (host or scope["http_version"] != "1.0"):
            raise ApiError(
                403,
                f"the host {host!r} is not a name of this server: ask by its address, or start it with --allow-host "
                f"{_name_of(host)}",
                "permission_error",
                "unknown_host",
            )
        origin = _header(headers, b"origin")
        if origin and scope["method"] not in {"OPTIONS", *_READING} and not self._is_own(origin, host):
            raise unknown_origin(origin)
        if self._keys and scope["path"] not in _OPEN_PATHS and scope["method"] != "OPTIONS":
            own_blocks_of(self._check_key(headers, scope["path"]))

    def _check_key(self, headers: Sequence[tuple[bytes, bytes]], path: str) -> bytes | None:
        """The key that a request gives and may use; None: it needs none."""
        key = key_of(headers).encode("latin-1")  # the bytes that were sent
        matches = [hmac.compare_digest(key, known) for known in self._keys]  # all of them: no early end
        if any(matches):
            return key
        if path in _OPEN_PAGES or path.startswith("/page/"):
            return None
        raise ApiError(
            401,
            "this server asks for a key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            "authentication_error",
            "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _knows(self, host: str) -> bool:
        name = _name_of(host)
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address cannot be rebound

    def _is_own(self, origin: str, host: str) -> bool:
        # `null`, of pages that are files or in a sandbox, is no place, and nor is a missing Host header.
        return bool({origin, "*"} & self._origins) or (bool(host) and _place_of(origin) == host.lower())


def key_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The key that a request gives; empty if it gives none."""
    scheme, _, token = _header(headers, b"authorization").partition(" ")
    return (_header(headers, b"x-api-key") or (token if scheme.lower() == "bearer" else "")).strip()


def _header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def _place_of(origin: str) -> str:
    """The name and the port of an origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name_of(host: str) -> str:
    """A Host header without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
