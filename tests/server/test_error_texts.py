"""What clients are told of errors: models by their names, and nothing of the server's folders, which its log has."""

import logging
from pathlib import Path
from typing import Any

import pytest

from mlxr.compiler.errors import HostError, RequestError
from mlxr.server.errors import api_error
from mlxr.server.pool.model_pool import ModelPool
from mlxr.server.pool.model_source import ModelSource
from mlxr_tests.running_server import RunningServer, running_server, tiny_source
from mlxr_tests.storyteller import TINY


def test_paths_are_in_the_log_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "strict.jinja").write_text("{{ raise_exception('no') }}")
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    sources = [
        ModelSource("absent", str(tmp_path / "absent.gguf")),
        ModelSource("damaged", str(tmp_path / "damaged.gguf")),
        tiny_source("plain"),
        tiny_source("strict", template=tmp_path / "strict.jinja"),
    ]
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    caplog.set_level(logging.INFO, "mlxr.server")
    with running_server(lambda: ModelPool(sources)) as server:
        for path, body, message in (
            ("/v1/chat/completions", {"model": "absent"} | chat, "absent cannot be loaded: "),
            ("/v1/messages", {"model": "damaged", "max_tokens": 1} | chat, "damaged cannot be loaded: damaged.gguf: "),
            ("/api/chat", {"model": "plain"} | chat, "the model comes without a chat template"),
            ("/v1/chat/completions", {"model": "strict"} | chat, "chat template of strict, line 1: it refuses this"),
            ("/v1/chat/completions", {"model": "plain", "tools": [1]} | chat, "tools[0]: input should be an object"),
            ("/detokenize", {"model": "plain", "tokens": [1 << 40]}, "is outside the vocabulary of 640"),
        ):
            text = server.http.post(path, json=body).text
            assert message in text and str(tmp_path) not in text and str(TINY.parent) not in text, text
    for file in (tmp_path / "damaged.gguf", TINY.parent):
        assert str(file) in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (HostError("[Errno 2] no file: '/root/.cache/mlxr/ab/host.so'"), "no file: 'host.so'"),
        (RequestError("too long (--context N; in Python changes=mlxr.Changes(context=N))"), "too long (--context N)"),
        (
            HostError("a cache of 5 KiB (mlxr.Changes(cache_memory=5), cache.num_blocks 3)"),
            "a cache of 5 KiB (cache.num_blocks 3)",
        ),
        (
            HostError("context 8 (--context 8, mlxr.Changes(context=8)) or 5 MiB (mlxr.Changes(cache_memory=9))"),
            "context 8 (--context 8) or 5 MiB",
        ),
        (HostError("~/.cache/mlxr/x.c: see https://a.example/b/c or org/repo, 1/2"), None),
        (RequestError("text needs a tokenizer: /models/a/b.gguf: none"), "text needs a tokenizer: b.gguf: none"),
        (RequestError("the pattern '/api/v1/.*' is not known"), "the pattern '/api/v1/.*' is not known"),
    ],
)
def test_names_of_files_without_their_folders(error: Exception, told: str | None) -> None:
    assert api_error(error).message == (told or str(error).removeprefix("~/.cache/mlxr/"))


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/api/chat", "/api/chat"),
        ("/v1//models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/images/generations", None),
        ("/v1/", None),
    ],
)
def test_a_base_url_with_too_much_or_too_little_is_told(server: RunningServer, path: str, near: str | None) -> None:
    answer = server.http.post(path, json={})
    assert answer.status_code == 404
    assert (
        f'"there is no {path} here' + (f", but {near}: correct the client's base URL" if near else '"') in answer.text
    )
