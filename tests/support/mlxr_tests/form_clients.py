"""Official clients that ask a server with tools, and an engine whose answer is given."""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anthropic
import ollama
import openai

from mlxr.runtime.engine.completion import Completion, Event
from mlxr.runtime.engine.engine_thread import EngineThread
from mlxr_tests.judged_chats import Answer
from mlxr_tests.running_server import RunningServer
from mlxr_tests.template_answers import TOOLS, USER

HELLO: list[Any] = [USER]
FUNCTIONS: list[dict[str, Any]] = [tool["function"] for tool in TOOLS]
ANTHROPIC: list[Any] = [
    {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]} for each in FUNCTIONS
]
RESPONSES: list[Any] = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]


def chat(server: RunningServer, stream: bool) -> Answer:
    """OpenAI's chat completions, of the model `m`."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": list(TOOLS)}
        if stream:
            with client.chat.completions.stream(**ask) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**ask).choices[0].message
        calls = tuple((each.function.name, each.function.arguments) for each in message.tool_calls or ())
        return Answer(message.content or "", message.model_dump().get("reasoning_content") or "", calls)


def respond(server: RunningServer, stream: bool) -> Answer:
    """OpenAI's responses, of the model `m`."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            with client.responses.stream(model="m", input=HELLO, tools=RESPONSES) as events:
                told: Any = events.get_final_response()
        else:
            told = client.responses.create(model="m", input=HELLO, tools=RESPONSES)
        content = "".join(part.text for item in told.output if item.type == "message" for part in item.content)
        thought = "".join(part.text for item in told.output if item.type == "reasoning" for part in item.content or ())
        calls = tuple((item.name, item.arguments) for item in told.output if item.type == "function_call")
        return Answer(content, thought, calls)


def message(server: RunningServer, stream: bool) -> Answer:
    """Anthropic's messages, of the model `m`."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {"model": "m", "max_tokens": 999, "messages": HELLO, "tools": ANTHROPIC}
        if stream:
            with client.messages.stream(**ask) as events:
                told: Any = events.get_final_message()
        else:
            told = client.messages.create(**ask)
        calls = tuple((block.name, json.dumps(block.input)) for block in told.content if block.type == "tool_use")
        content = "".join(block.text for block in told.content if block.type == "text")
        return Answer(content, "".join(block.thinking for block in told.content if block.type == "thinking"), calls)


def ollama_chat(server: RunningServer, stream: bool) -> Answer:
    """Ollama's chat, of the model `m`."""
    client = ollama.Client(server.url)
    told = client.chat("m", HELLO, tools=TOOLS, stream=stream)
    messages = [part.message for part in told] if stream else [told.message]
    calls = [each.function for part in messages for each in part.tool_calls or ()]
    return Answer(
        "".join(part.content or "" for part in messages),
        "".join(part.thinking or "" for part in messages),
        tuple((each.name, json.dumps(each.arguments)) for each in calls),
    )


CLIENTS: tuple[Callable[[RunningServer, bool], Answer], ...] = (chat, respond, message, ollama_chat)


def writing(text: str) -> Callable[..., AsyncGenerator[Event]]:
    """An engine's `generate` that gives this text, three characters at a time."""

    async def generate(self: EngineThread, prompt: Any, params: Any = None, **options: Any) -> AsyncGenerator[Event]:
        pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
        for piece in pieces:
            yield Event(0, 300, piece)
        completion = Completion(9, token_ids=[300] * len(pieces), text=text, finish_reason="stop")
        yield Event(0, self.model.require_tokenizer().eos_id, "", "stop", None, completion)

    return generate
