"""Streams whose every chunk has the usage so far, as guidellm asks for them."""

import json
from typing import Any

import pytest

from mlxr_tests.running_server import RunningServer

TEXTS = {"prompt": ["Once upon a time", "The fox"]}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(("path", "fields"), [("/v1/completions", TEXTS), ("/v1/chat/completions", CHAT)])
def test_usage_grows_to_that_of_the_whole_answer(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "max_tokens": 6, "ignore_eos": True, "seed": 1, "n": 2} | fields
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = server.http.post(path, json=body).json()["usage"]
    lines = server.http.post(path, json=body | {"stream": True, "stream_options": options}).text.split("\n\n")
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert last["usage"]["total_tokens"] == whole["total_tokens"] and not last["choices"]
    ends: dict[int, dict[str, int]] = {}
    for chunk in chunks:
        (choice,), usage = chunk["choices"], chunk["usage"]
        before = ends.get(choice["index"], {"completion_tokens": 0})
        assert before["completion_tokens"] <= usage["completion_tokens"] <= 6
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        ends[choice["index"]] = usage
    answers_each = 2
    assert len(ends) == answers_each * len(fields.get("prompt", [0]))
    assert sum(usage["completion_tokens"] for usage in ends.values()) == whole["completion_tokens"]
    assert sum(usage["prompt_tokens"] for usage in ends.values()) == answers_each * whole["prompt_tokens"]
