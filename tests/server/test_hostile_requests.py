"""Requests that no client of today sends: each gets an error that says what is wrong, or its answer."""

import json
import socket
from typing import Any

import pytest

from mlxr_tests.running_server import RunningServer

COMPLETION = {"model": "tiny", "prompt": "Once", "max_tokens": 2, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
DEEP = "[" * 200_000 + "]" * 200_000


def raw(server: RunningServer, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes the connection."""
    address, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address, int(port)), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer


def request(version: str = "1.1", *headers: str, **fields: Any) -> bytes:
    body = json.dumps(COMPLETION | fields).encode()
    lines = [f"POST /v1/completions HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v1/completions", {"max_tokens": -5}, "max_tokens: input should be greater than or equal to 0"),
        ("/v1/completions", {"logit_bias": {"9" * 5000: 1}}, "expected token ids"),
        ("/v1/completions", {"logit_bias": {"700": 1}}, "outside the vocabulary of 640"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt[1]: input should be a valid integer"),
        ("/v1/completions", {"prompt": [[1], [2, "a"]]}, "prompt[1][1]: input should be a valid integer"),
        ("/v1/completions", {"prompt": "\ud800"}, "lone surrogate"),
        ("/v1/completions", {"prompt": ["a"] * 129}, "129 answers are asked for"),
        ("/v1/completions", {"prompt": "word " * 20000}, "so 16667 tokens or more; the context is 512"),
        ("/v1/completions", {"stop": ["a"] * 65}, "stop: list should have at most 64 items"),
        (
            "/v1/completions",
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "needs include",
        ),
        ("/v1/completions", {"model": "\ud800"}, r"there is no model '\ud800' here"),
        ("/v1/chat/completions", {"add_generation_prompt": True, "continue_final_message": True}, "drop one of them"),
        ("/v1/chat/completions", {"chat_template_kwargs": {"messages": 1}}, "not a variable of the template's own"),
        ("/tokenize", {"max_tokens": None}, "max_tokens is not a field"),
        ("/tokenize", {"messages": CHAT["messages"]}, "expected either prompt or messages"),
        ("/tokenize", {"tools": []}, "tools has no meaning with prompt"),
        ("/tokenize", {"continue_final_message": False}, "continue_final_message has no meaning with prompt"),
    ],
)
def test_values_that_cannot_be_served(server: RunningServer, path: str, fields: dict[str, Any], message: str) -> None:
    base = {"model": "tiny", "prompt": "x"} if path == "/tokenize" else CHAT if "chat" in path else COMPLETION
    answer = server.http.post(path, content=json.dumps(base | fields), headers={"content-type": "application/json"})
    assert answer.status_code in {400, 404} and message in answer.json()["error"]["message"], answer.text


def test_variables_of_templates_may_have_any_name(server: RunningServer) -> None:
    body = json.dumps(CHAT | {"chat_template_kwargs": {"self": 1, "": 2, "a b": "\ud800"}})
    json_type = {"content-type": "application/json"}
    assert server.http.post("/v1/chat/completions", content=body, headers=json_type).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f'{{"model": "tiny", "prompt": "x", "metadata": {DEEP}}}'.encode(), "not UTF-8, or too deeply nested"),
        (b'{"model": "tiny", "prompt": "\xff"}', "not UTF-8"),
        (b'{"model": "tiny", "prompt": "x"', "the body is not JSON: Expecting ',' delimiter"),
        (b"", "body is missing"),
    ],
)
def test_bodies_that_cannot_be_read(server: RunningServer, body: bytes, message: str) -> None:
    answer = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_headers(server: RunningServer) -> None:
    def error(**headers: str) -> tuple[int, str]:
        headers = {"content-type": "application/json"} | {
            name.replace("_", "-"): text for name, text in headers.items()
        }
        answer = server.http.post("/v1/completions", content=json.dumps(COMPLETION), headers=headers)
        return answer.status_code, answer.json()["error"]["message"]

    assert error(content_type="text/plain") == (
        400,
        "the body was not read as JSON: send it with the header Content-Type: application/json",
    )
    for wrong in ({"origin": "http://["}, {"host": "["}, {"host": "evil.example"}):
        assert error(**wrong)[0] == 403
    wrong_method = server.http.get("/v1/completions")
    assert wrong_method.status_code == 405 and wrong_method.headers["allow"] == "POST"
    assert server.http.head("/v1/completions").status_code == 405
    for path in ("/", "/health", "/ready", "/api/tags", "/api/version"):  # probes, and clients of Ollama
        answer = server.http.head(path)
        assert answer.status_code == 200 and not answer.content
    missing = server.http.get("/tokenizer_info").json()["error"]["message"]
    assert missing.startswith("model is missing: it is required where there are several: tiny")


def test_old_clients_get_whole_answers(server: RunningServer) -> None:
    """HTTP/1.0 has no chunks, and needs no Host header."""
    head, _, body = raw(server, request("1.0", stream=True)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and f"content-length: {len(body)}".encode() in head
    assert body.endswith(b"data: [DONE]\n\n") and body.count(b'"text"') == 2
    assert b'{"status":"ok"}' in raw(server, b"GET /health HTTP/1.0\r\n\r\n")
    assert b" 403 " in raw(server, b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")


def test_requests_that_do_not_wait_for_answers(server: RunningServer) -> None:
    """Pipelined requests are answered in their order."""
    prompts = ["Once", "The fox", "A hill", "Rain"]
    sent = [request("1.1", prompt=prompt, stream=prompt == "A hill") for prompt in prompts]
    answer = raw(server, b"".join(sent) + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    texts = [server.http.post("/v1/completions", json=COMPLETION | {"prompt": p}).json() for p in prompts]
    places = [answer.index(json.dumps(text["choices"][0]["text"], ensure_ascii=False).encode()) for text in texts[:2]]
    assert answer.count(b"HTTP/1.1 200 OK") == 5 and places == sorted(places)
    assert answer.index(b"[DONE]") < answer.index(
        json.dumps(texts[3]["choices"][0]["text"], ensure_ascii=False).encode()
    )
    assert answer.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x00\xff\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n"]
)
def test_bytes_that_are_no_http(server: RunningServer, data: bytes) -> None:
    assert raw(server, data).startswith(b"HTTP/1.1 400 ")
