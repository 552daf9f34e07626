"""Processes that connect to where ranks meet, and say nothing."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def strangers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two of them connect to every socket that listens from now on, before anyone else."""
    create, links = socket.create_server, list[socket.socket]()

    def create_server(*arguments: Any, **options: Any) -> socket.socket:
        listener = create(*arguments, **options)
        links.extend(socket.create_connection(listener.getsockname()) for _ in range(2))
        return listener

    monkeypatch.setattr(socket, "create_server", create_server)
    yield
    for link in links:
        link.close()
