"""What a model writes in the form of its template comes to every official client as what it is, streamed or not.

The engine's tokens are replaced by what the template itself writes of a message; all else is the server's own.
"""

import json
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import openai
import pytest

from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr.server.pool.model_pool import ModelPool
from mlxr_tests.few import few
from mlxr_tests.form_clients import CLIENTS, HELLO, writing
from mlxr_tests.invented_templates import INVENTED
from mlxr_tests.judged_chats import SpokenModel
from mlxr_tests.running_server import HERMES, RunningServer, running_server, tiny_source
from mlxr_tests.template_answers import KINDS, THOUGHT, call, said, written

TEMPLATES = {"Hermes": (HERMES, (), True)} | {
    name: (each.text, each.ends, each.thinks) for name, each in INVENTED.items()
}
SHORT = ("names and values in attributes and tags",)
CALLS = (call("store_items", KINDS), call("clock", {}, 2))


@pytest.mark.parametrize("name", few(TEMPLATES, SHORT))
def test_every_client_gets_what_the_template_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template, ends, thinks = TEMPLATES[name]
    expected = said("Let me see.", *CALLS, thought=THOUGHT if thinks else "")
    with SpokenModel(template) as model:
        text = written(model.template, expected, ends=ends, switched=False).answer
    if name == "Hermes":  # which writes a thought without its end
        text = text.replace(THOUGHT, f"<think>{THOUGHT}</think>")
    monkeypatch.setattr(EngineThread, "generate", writing(text))
    path = tmp_path / "chat.jinja"
    path.write_text(template)
    with running_server(lambda: ModelPool([tiny_source("m", template=path)])) as server:
        for client in CLIENTS:
            for stream in (False, True):
                got = client(server, stream)
                assert (got.content, got.reasoning) == ("Let me see.", THOUGHT if thinks else ""), client
                calls = [(name, json.loads(arguments)) for name, arguments in got.calls]
                assert calls == [(each["function"]["name"], each["function"]["arguments"]) for each in CALLS], client


SMALL: dict[str, Any] = {
    "type": "object",
    "properties": {"way": {"enum": ["up", "down"]}, "often": {"enum": [1, 2]}},
    "required": ["way", "often"],
    "additionalProperties": False,
}


def forced_chat(server: RunningServer, stream: bool) -> list[tuple[str, Any]] | None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {
            "model": "m",
            "messages": HELLO,
            "tools": [{"type": "function", "function": {"name": "go", "parameters": SMALL}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "extra_body": {"thinking_budget": 4},
        }
        if stream:
            try:
                with client.chat.completions.stream(**ask) as events:
                    told: Any = events.get_final_completion()
            except openai.LengthFinishReasonError:
                return None
        else:
            told = client.chat.completions.create(**ask)
        if told.choices[0].finish_reason == "length":
            return None
        assert told.choices[0].finish_reason == "tool_calls"
        calls = told.choices[0].message.tool_calls or ()
        return [(each.function.name, json.loads(each.function.arguments)) for each in calls]


def forced_message(server: RunningServer, stream: bool) -> list[tuple[str, Any]] | None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {
            "model": "m",
            "max_tokens": 300,
            "messages": HELLO,
            "tools": [{"name": "go", "input_schema": SMALL}],
            "tool_choice": {"type": "tool", "name": "go"},
            "thinking": {"type": "disabled"},
        }
        if stream:
            with client.messages.stream(**ask) as events:
                told: Any = events.get_final_message()
        else:
            told = client.messages.create(**ask)
        if told.stop_reason in ("max_tokens", "model_context_window_exceeded"):
            return None
        assert told.stop_reason == "tool_use"
        return [(block.name, block.input) for block in told.content if block.type == "tool_use"]


@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_model_that_must_call_calls(name: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    path.write_text(TEMPLATES[name][0])
    with running_server(lambda: ModelPool([tiny_source("m", template=path)])) as server:
        for client in (forced_chat, forced_message):
            for stream in (False, True):
                # A random model may fill its answer with the white space that JSON allows: then it is told as cut.
                tried = (client(server, stream) for _ in range(20))
                ((called, arguments),) = next(calls for calls in tried if calls is not None)
                jsonschema.validate(arguments, SMALL)
                assert called == "go"
