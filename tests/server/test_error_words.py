"""Errors show the values of requests in JSON's words: clients are written in any language."""

import json
import re
from typing import Any

import pytest

from mlxr.server.errors import quoted_json
from mlxr_tests.running_server import RunningServer

OF_PYTHON = re.compile(r"\b(None|True|False)\b|<class|[\[{(]'|\b(dict|inf)\b|or None")
WRONG: list[Any] = [None, True, False, ["a", None], {"a": "b"}]
HELLO = [{"role": "user", "content": "hi"}]
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def fields(path: str, wrong: Any) -> list[dict[str, Any]]:
    """Bodies, without the model, in which a value that errors may show is wrong."""
    if path == "/v1/responses":
        others: list[dict[str, Any]] = [
            {"input": [{"type": wrong}]},
            {"input": [{"role": "user", "content": [{"type": wrong}]}]},
            {"tools": [{"type": wrong}]},
            {"background": wrong},
            {"text": {"format": {"type": wrong}}},
        ]
        return [{"input": "hi"} | other for other in others]
    called = [{"tool_calls": [CALL | {"id": wrong}]}, {"tool_calls": wrong}, {"tool_calls": [wrong]}]
    messages = [*called, {"content": wrong}, {"content": [{"type": wrong}]}, {"role": wrong}]
    bodies = [{"messages": [{"role": "assistant", "content": "a"} | message]} for message in messages]
    bodies += [{"messages": [*HELLO, {"role": "tool", "content": "a", "tool_call_id": wrong}]}]
    places = ["thinking", "think", "tool_choice", "keep_alive", "deadline", "skip_special_tokens", "system"]
    bodies += [{"messages": HELLO, place: value} for place in places for value in (wrong, {"type": wrong})]
    function = [TOOL["function"] | {name: wrong} for name in ("name", "parameters", "description", "strict")]
    tools = [{"type": wrong}, TOOL | {"type": wrong}, *({"type": "function", "function": part} for part in function)]
    tools += [{"name": "f", "input_schema": wrong}, {"name": "f", "input_schema": {}, "type": wrong}]
    bodies += [{"messages": HELLO, "tools": [tool]} for tool in tools]
    if path == "/api/chat":
        bodies += [{"options": {"penalize_newline": wrong, "repeat_penalty": 1.1}, "messages": HELLO}]
    return bodies


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_errors_have_the_words_of_json(server: RunningServer, path: str) -> None:
    most = {} if path in ("/v1/responses", "/api/chat") else {"max_tokens": 1}
    refused = 0
    for wrong in WRONG:
        for body in fields(path, wrong):
            answer = server.http.post(path, json={"model": "absent"} | most | body)
            error = answer.json()["error"]
            message = error if isinstance(error, str) else error["message"]
            assert not OF_PYTHON.search(message), message
            refused += answer.status_code == 400
    assert refused > 20


def test_values_are_quoted_as_json_and_cut() -> None:
    for value in (None, True, 1.5, 'it\'s "so"\n', "é", [], {}, [None, {"a": [False, "'"]}]):
        assert json.loads(quoted_json(value)) == value
    deep: list[Any] = []
    deep.append(deep)
    assert quoted_json(["a"] * 1_000_000) == ('["a"' + ', "a"' * 20)[:60]
    assert quoted_json("a" * 100) == '"' + "a" * 59 and quoted_json(deep) == "[" * 60
