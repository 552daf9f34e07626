"""Asks and ends servers that run in other processes."""

import http.client
import json
import os
import signal
import time
import urllib.request
from contextlib import suppress
from typing import Any

from mlxr.compiler.errors import HostError
from mlxr.server.life.program import SAVE_SECONDS
from mlxr.server.life.state_file import StateFile

_ASK_SECONDS = 2.0
_LOOK_SECONDS = 0.05


def status_of(state: StateFile) -> dict[str, Any]:
    """What a server says of itself at /status; only `state`, if it does not answer."""
    request = urllib.request.Request(f"{state.url}/status", headers={"Authorization": f"Bearer {state.token}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # nobody stands between
    try:
        with opener.open(request, timeout=_ASK_SECONDS) as answer:
            told = json.load(answer)
            return told if isinstance(told, dict) else {"state": "not answering"}
    except (OSError, ValueError, http.client.HTTPException):
        return {"state": "not answering"}


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
