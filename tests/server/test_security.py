"""Keys, names of the host, origins and limits."""

import socket

import httpx
import pytest

from mlxr.compiler.errors import RequestError
from mlxr.server.openai import completions
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.settings import ServerSettings
from mlxr_tests.running_server import RunningServer, running_server, tiny_source

SETTINGS = ServerSettings(
    api_keys=("first", "second"), origins=("https://mine.example",), hosts=("box.lan",), most_body_bytes=1000
)


def test_who_may_ask() -> None:
    with running_server(lambda: ModelPool([tiny_source()]), SETTINGS) as server:

        def get(path: str = "/v1/models", **headers: str) -> httpx.Response:
            return server.http.get(path, headers={name.replace("_", "-"): text for name, text in headers.items()})

        assert get("/health").status_code == 200
        for wrong in ({}, {"authorization": "Bearer firs"}, {"x_api_key": ""}, {"authorization": "second"}):
            refused = get(**wrong)
            assert refused.status_code == 401 and "asks for a key" in refused.json()["error"]["message"]
        assert get(authorization="Bearer second").status_code == get(x_api_key="first").status_code == 200

        key = {"authorization": "Bearer first"}
        assert get(**key, host="evil.example").status_code == 403
        assert get(**key, host="box.lan:8080").status_code == get(**key, host="localhost").status_code == 200
        assert get(**key, host="[::1]:1").status_code == get(**key, host="10.0.0.1").status_code == 200

        def post(size: int = 2, **headers: str) -> int:
            return server.http.post("/v1/completions", content=b" " * size, headers=key | headers).status_code

        assert post(origin="https://evil.example") == 403
        assert post(origin="https://mine.example") == post(origin=server.url) == post() == 400  # no JSON
        assert post(1001) == 413
        chunked = server.http.post("/v1/completions", content=iter([b" " * 600] * 3), headers=key)
        assert chunked.status_code == 413
        allowed = server.http.options(
            "/v1/models", headers={"origin": "https://mine.example", "access-control-request-method": "GET"}
        )
        assert allowed.headers["access-control-allow-origin"] == "https://mine.example"
        mine, evil = {"origin": "https://mine.example"}, {"origin": "https://evil.example"}
        for body, headers, status in (
            (b"{}", mine, 401),
            (b"{}", mine | key | {"host": "evil.example"}, 403),
            (b" " * 1001, mine | key, 413),
            (iter([b" " * 600] * 3), mine | key, 413),
            (b"{}", mine | key, 400),
        ):
            refused = server.http.post("/v1/completions", content=body, headers=headers)
            assert refused.status_code == status
            assert refused.headers["access-control-allow-origin"] == "https://mine.example"  # else no page reads it
        asked = server.http.options("/v1/completions", headers=evil | {"access-control-request-method": "POST"})
        assert asked.status_code == 403 and "access-control-allow-origin" not in asked.headers
        assert "start it with --allow-origin https://evil.example" in asked.json()["error"]["message"]
        told = server.http.get("/v1/models", headers=evil | key)
        assert told.status_code == 200 and "--allow-origin https://evil.example" in told.headers["x-mlxr-warnings"]
        for headers in (mine | key, key, key | {"origin": server.url}):
            assert "x-mlxr-warnings" not in server.http.get("/v1/models", headers=headers).headers
        assert server.http.get("/docs").status_code == 200  # of the API, which is no secret
        for headers in (evil, evil | key):
            refused = server.http.post("/v1/completions", content=b"{}", headers=headers)
            assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
        assert server.http.get("/nowhere", headers=key).json()["error"]["message"] == "there is no /nowhere here"


def test_a_page_without_a_place_is_a_stranger_also_where_there_is_no_host(server: RunningServer) -> None:
    """As pages in a sandbox are; and HTTP/1.0 needs no Host header."""
    head = b"POST /v1/completions HTTP/1.0\r\norigin: null\r\ncontent-length: 2\r\n\r\n{}"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 403 ")


@pytest.mark.long
def test_no_key_finds_what_another_has_sent() -> None:
    """Alone or with a salt of its client's."""
    with running_server(lambda: ModelPool([tiny_source()]), SETTINGS) as server:

        def cached(key: str, **more: str) -> int:
            body = {"model": "tiny", "prompt": "the fox said to the hen " * 8, "max_tokens": 1} | more
            answer = server.http.post("/v1/completions", json=body, headers={"x-api-key": key}).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert cached("first") == 0
        assert cached("first") > 0
        assert cached("second") == 0, "a stranger's prompt"
        assert cached("second") > 0
        assert cached("second", cache_salt="a") == 0 < cached("second", cache_salt="a")
        assert cached("first", cache_salt="a") == 0


def test_an_address_that_others_reach_needs_a_key() -> None:
    with pytest.raises(RequestError, match=r"0\.0\.0\.0 can be reached from other machines"):
        ServerSettings("0.0.0.0")
    assert ServerSettings("0.0.0.0", api_keys=("k",)) and ServerSettings("::", allow_open=True)
    assert ServerSettings("127.0.0.2").is_loopback and ServerSettings("::1").is_loopback


def test_pages_can_read_errors_of_the_server_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(completions, "sampling_of", broken)
    with running_server(
        lambda: ModelPool([tiny_source()]), ServerSettings(origins=("https://mine.example",))
    ) as server:
        headers = {"origin": "https://mine.example"}
        answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": "x"}, headers=headers)
    assert answer.status_code == 500 and "its log says why" in answer.json()["error"]["message"]
    assert answer.headers["access-control-allow-origin"] == "https://mine.example"
