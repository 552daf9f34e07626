"""Asks and ends servers that run in other processes."""

import http.client
import json
import os
import signal
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

from mlxr.compiler.errors import HostError
from mlxr.server.life.state_file import StateFile

SAVE_SECONDS = 60.0
"""How long a server may take to save what its models have cached, after the time of grace."""
_ASK_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Nobody stands between."""


def status_of(state: StateFile) -> dict[str, Any]:
    """What a server says of itself at /status; only `state`, if it does not answer."""
    request = urllib.request.Request(f"{state.url}/status", headers={"Authorization": f"Bearer {state.token}"})
    try:
        with _DIRECT.open(request, timeout=_ASK_SECONDS) as answer:
            told = json.load(answer)
            return told if isinstance(told, dict) else {"state": "not answering"}
    except (OSError, ValueError, http.client.HTTPException):
        return {"state": "not answering"}


def ask(state: StateFile, path: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a server answers to a request that it answers at once, or when it is done.

    Args:
        state: of the server.
        path: of the request.
        body: of the request.
        seconds: how long to wait.

    Raises:
        AnswerError: it refuses, or does not answer.
    """
    headers = {"Authorization": f"Bearer {state.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{state.url}{path}", json.dumps(body).encode(), headers)
    try:
        with _DIRECT.open(request, timeout=seconds) as answer:
            told = json.load(answer)
            return told if isinstance(told, dict) else {}
    except urllib.error.HTTPError as error:
        raise AnswerError(_said(error), error.code) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AnswerError(f"the server at {state.url} does not answer: {error}", 0) from error


class AnswerError(HostError):
    """A request that a server refuses, or does not answer.

    Attributes:
        status: of HTTP; 0: there was no answer.
    """

    def __init__(self, message: str, status: int) -> None:
        """Keeps both."""
        super().__init__(message)
        self.status = status


def _said(error: urllib.error.HTTPError) -> str:
    with suppress(OSError, ValueError, http.client.HTTPException):
        told = json.load(error)
        if isinstance(told, dict) and isinstance(told.get("error"), str):
            return str(told["error"])
    return f"the server answers with status {error.code}"


def end_server(state: StateFile) -> None:
    """Ends a server, and waits until it has ended. Its answers may go on for its time of grace.

    Raises:
        HostError: it may not be ended, or does not end.
    """
    try:
        os.kill(state.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except OSError as error:
        raise HostError(f"cannot end the server at {state.url}, process {state.pid}: {error.strerror}") from error
    until = time.monotonic() + state.grace_seconds + SAVE_SECONDS
    while state.is_running:
        if time.monotonic() > until:
            raise HostError(
                f"the server at {state.url} was told to end, and still runs as process {state.pid}; kill -9 "
                f"{state.pid} ends it, and nothing that was saved is lost by that"
            )
        time.sleep(_LOOK_SECONDS)
    with suppress(OSError):
        state.path.unlink()
