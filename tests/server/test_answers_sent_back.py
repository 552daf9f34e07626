"""What clients got they send back, with all the fields of their own types: most of them null."""

from collections.abc import Callable
from typing import Any

import anthropic
import ollama
import openai
import pytest

from mlxr.server.anthropic import messages
from mlxr.server.ollama import chat as ollama_chat
from mlxr.server.openai import chat as openai_chat
from mlxr.server.openai import responses
from mlxr_tests.running_server import RunningServer
from mlxr_tests.scripted_answer import scripted_answer

HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
FUNCTIONS: list[Any] = [
    {"name": name, "description": "Tells it.", "parameters": SCHEMA} for name in ("weather", "time")
]
TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]


def chat(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        ask = client.chat.completions.create
        message = ask(model="tools", messages=HELLO, tools=TOOLS).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in message.tool_calls or ()]
        assert len(results) == 2
        again: list[Any] = [*HELLO, message.model_dump(), *results]
        assert ask(model="tools", messages=again, tools=TOOLS).choices[0].message.content == message.content


def respond(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        tools: Any = [{"type": "function", "strict": False, **function} for function in FUNCTIONS]
        told = client.responses.create(model="tools", input=HELLO, tools=tools)
        items: list[Any] = [item.model_dump(by_alias=True) for item in told.output]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "x", "name": None, "caller": None}
            for item in items
            if item["type"] == "function_call"
        ]
        assert len(results) == 2
        body = {"model": "tools", "input": [*HELLO, *items, *results], "tools": tools}
        assert server.http.post("/v1/responses", json=body).status_code == 200


def message(server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        ask = client.beta.messages.create
        tools: Any = [{"name": tool["name"], "input_schema": SCHEMA, "allowed_callers": None} for tool in FUNCTIONS]
        told = ask(model="tools", max_tokens=9, messages=HELLO, tools=tools)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "x", "toolset_name": None}
            for block in told.content
            if block.type == "tool_use"
        ]
        assert len(results) == 2
        blocks = [block.model_dump() for block in told.content]
        again: list[Any] = [*HELLO, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
        assert ask(model="tools", max_tokens=9, messages=again, tools=tools, mcp_servers=[]).stop_reason == "tool_use"


def ollama_message(server: RunningServer) -> None:
    client = ollama.Client(server.url)
    told = client.chat("tools", HELLO, tools=TOOLS).message
    body = [*HELLO, told.model_dump(), *({"role": "tool", "content": "x", "images": []} for _ in told.tool_calls or ())]
    assert len(body) == 4
    again = server.http.post("/api/chat", json={"model": "tools", "messages": body, "tools": TOOLS, "stream": False})
    assert again.status_code == 200, again.text


@pytest.mark.parametrize("client", [chat, respond, message, ollama_message])
def test_answers_with_calls_are_taken_back(
    server: RunningServer, client: Callable[[RunningServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (openai_chat, responses, messages, ollama_chat):
        monkeypatch.setattr(module, "answer", scripted_answer)
    client(server)
