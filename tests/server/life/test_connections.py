"""Clients that are slow or many, against the limits of connections."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import RunningServer, running_server, tiny_source
from mlxr_tests.serve_process import wait_for

HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
LIMIT = 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    settings = ServerSettings(header_seconds=LIMIT, most_connections=3)
    with running_server(lambda: ModelPool([tiny_source()]), settings) as running:
        yield running


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30)


def rest(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


def error_of(answer: bytes, status: bytes) -> bytes:
    """The JSON of an answer with an error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n") and b"content-type: application/json" in head
    assert f"content-length: {len(body)}".encode() in head and json.loads(body)
    return body


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first request", "second request"])
def test_a_head_must_come_in_time(server: RunningServer, before: bytes) -> None:
    """However often a byte of it comes."""
    with connect(server) as client:
        if before:
            client.sendall(before)
            assert b'{"status":"ok"}' in client.recv(65536)

        def trickle() -> None:
            for byte in HEAD + b"x-slow: " + b"." * 2000:
                try:
                    client.send(bytes([byte]))
                except OSError:
                    return
                time.sleep(0.02)

        sending = threading.Thread(target=trickle)
        sending.start()
        with suppress(ConnectionResetError):  # a byte came after the end
            assert b"did not come within 0.3 seconds" in error_of(rest(client), b"408 Request Timeout")
        sending.join()


def test_the_rest_of_a_body_that_was_refused_is_no_head(server: RunningServer) -> None:
    """However long it is: one answer to it, and one to the next request on the connection."""
    body = b"x" * 3_000_000
    head = b"POST /tokenize HTTP/1.1\r\nhost: evil.example\r\ncontent-length: %d\r\n\r\n" % len(body)
    with connect(server) as client:
        client.sendall(head)
        told = client.recv(65536)
        assert told.startswith(b"HTTP/1.1 403 ")
        client.sendall(body)
        client.sendall(HEAD + b"connection: close\r\n\r\n")
        data = rest(client)
    assert data.startswith(b"HTTP/1.1 200 ") and data.count(b"HTTP/1.1 ") == 1


def test_the_rest_of_a_body_that_was_refused_must_come_in_time(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(b"POST /tokenize HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 9\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")
        client.sendall(b"x")
        assert rest(client) == b""


def test_a_body_may_take_longer(server: RunningServer) -> None:
    body = b'{"model": "tiny", "text": 1}'
    with connect(server) as client:
        head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        client.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        time.sleep(2 * LIMIT)
        client.sendall(body)
        assert rest(client).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("start", "begin"),
    [
        (b"GET /v1/models", b'{"error":{"message":'),
        (b"POST /v1/messages", b'{"type":"error","error":{"type":"request_too_large",'),
        (b"POST /api/chat", b'{"error":"'),
    ],
)
def test_a_head_has_a_largest_size(server: RunningServer, start: bytes, begin: bytes) -> None:
    with connect(server) as client:
        client.sendall(start + b" HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"." * (200 << 10))
        with suppress(ConnectionResetError):  # more came after the end
            body = error_of(rest(client), b"431 Request Header Fields Too Large")
            assert body.startswith(begin) and b"have more than 65536 bytes: send less" in body


def test_connections_beyond_the_limit_are_told(server: RunningServer) -> None:
    server.http.get("/health")  # its connection stays
    with connect(server) as first, connect(server) as second:
        for client in (first, second):
            client.sendall(HEAD + b"\r\n")
            assert b"200 OK" in client.recv(65536)
        with connect(server) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            told = rest(client)
            assert told.startswith(b"HTTP/1.1 503 ") and b"too_many_connections" in told and b"retry-after: 1" in told
        assert server.http.get("/v1/models").status_code == 200

    def fits() -> bool:
        with connect(server) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            return rest(client).startswith(b"HTTP/1.1 200 ")

    wait_for(fits)
