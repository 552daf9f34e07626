"""One question, as each API of the server asks it, and what it answers, in one form."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mlxr

RENDERED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
"""What `running_server.CHATML` makes of a text."""


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        text: of the prompt, or of the user's message.
        earlier: texts of user and assistant before it, for APIs that have conversations.
    """

    text: str
    model: str = "tiny"
    max_tokens: int | None = 8
    temperature: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    stream: bool = False
    earlier: tuple[str, ...] = ()

    def messages(self) -> list[dict[str, str]]:
        """The conversation."""
        texts = [*self.earlier, self.text]
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    def sampling(self) -> mlxr.Sampling:
        """The engine's options; the model's own are for the others."""
        own = {"stop": self.stop} if self.stop else {}
        return mlxr.Sampling.of_model(temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens, **own)


@dataclass
class Answer:
    """What came back.

    Attributes:
        finish: `stop` or `length`; None: nothing said why it ended.
        finishes: how many times it was said that the answer has ended.
        cached: prompt tokens that were in the prefix cache; None: the API does not tell.
        error: the message of an error that ended a stream.
    """

    text: str = ""
    finish: str | None = None
    finishes: int = 0
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    model: str = ""
    error: str | None = None

    def end(self, reason: str | None, *, stop: Iterable[str] = ("stop",)) -> None:
        """Notes why it ended."""
        if reason is not None:
            self.finishes += 1
            self.finish = "stop" if reason in stop else "length"


@dataclass(frozen=True)
class Api:
    """One API.

    Attributes:
        body: of a request.
        read: adds a response, or a part of a streamed one, to an answer.
        is_chat: whether the text becomes a message of a conversation.
        has_stop: whether it has stop texts.
    """

    name: str
    path: str
    body: Callable[[Question], dict[str, Any]]
    read: Callable[[Answer, Mapping[str, Any]], None]
    is_chat: bool = True
    has_stop: bool = True

    def prompt(self, text: str, model: mlxr.Model) -> list[int]:
        """The token ids that the model gets for a text."""
        if not self.is_chat:
            return model.encode(text)
        return model.require_tokenizer().encode(RENDERED.format(text), add_special=False, parse_special=True)

    def answer(self, lines: Iterable[str], stream: bool) -> Answer:
        """The answer in a body's lines."""
        answer = Answer()
        if not stream:
            self.read(answer, json.loads("\n".join(lines)))
            return answer
        for line in lines:
            data = line.removeprefix("data:").strip()
            if data.startswith("{"):
                part = json.loads(data)
                failed = part.get("response", {}) if part.get("type") == "response.failed" else part
                if error := failed.get("error", part if part.get("type") == "error" else None):
                    answer.error = error if isinstance(error, str) else error["message"]
                else:
                    self.read(answer, part)
        return answer


def _openai(question: Question) -> dict[str, Any]:
    body: dict[str, Any] = {"model": question.model, "temperature": question.temperature, "stream": question.stream}
    body |= {"max_tokens": question.max_tokens, "seed": question.seed, "stop": list(question.stop) or None}
    if question.stream:
        body["stream_options"] = {"include_usage": True}
    if question.schema is not None:
        form = {"name": "x", "schema": question.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def _read_openai(answer: Answer, part: Mapping[str, Any]) -> None:
    answer.model = part["model"]
    for choice in part["choices"]:
        message = choice.get("message", choice.get("delta", {}))
        answer.text += choice.get("text") or message.get("content") or ""
        answer.end(choice["finish_reason"])
    if part.get("usage"):
        answer.prompt, answer.completion = part["usage"]["prompt_tokens"], part["usage"]["completion_tokens"]
        answer.cached = part["usage"]["prompt_tokens_details"]["cached_tokens"]


def _anthropic(question: Question) -> dict[str, Any]:
    body: dict[str, Any] = {"model": question.model, "temperature": question.temperature, "stream": question.stream}
    body |= {"max_tokens": question.max_tokens or 4096, "seed": question.seed, "messages": question.messages()}
    if question.stop:
        body["stop_sequences"] = list(question.stop)
    if question.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
    return body


def _read_anthropic(answer: Answer, part: Mapping[str, Any]) -> None:
    ended = ("end_turn", "stop_sequence")
    match part["type"]:
        case "message":
            answer.text = "".join(block["text"] for block in part["content"])
            answer.model = part["model"]
            answer.end(part["stop_reason"], stop=ended)
        case "message_start":
            answer.model = part["message"]["model"]
        case "content_block_delta":
            answer.text += part["delta"]["text"]
        case "message_delta":
            answer.end(part["delta"]["stop_reason"], stop=ended)
    if "usage" in part:
        usage = part["usage"]
        answer.cached, answer.completion = usage["cache_read_input_tokens"], usage["output_tokens"]
        answer.prompt = usage["input_tokens"] + answer.cached


def _ollama(question: Question) -> dict[str, Any]:
    options: dict[str, Any] = {"temperature": question.temperature}
    options |= {"seed": -1 if question.seed is None else question.seed, "num_predict": question.max_tokens or -1}
    options |= {"stop": list(question.stop)}
    return {"model": question.model, "stream": question.stream, "options": options, "format": question.schema}


def _read_ollama(answer: Answer, part: Mapping[str, Any]) -> None:
    answer.model = part["model"]
    answer.text += part["message"]["content"] if "message" in part else part["response"]
    if part["done"]:
        answer.end(part["done_reason"])
        answer.prompt, answer.completion = part["prompt_eval_count"], part["eval_count"]


def _responses(question: Question) -> dict[str, Any]:
    body: dict[str, Any] = {"model": question.model, "temperature": question.temperature, "stream": question.stream}
    body |= {"max_output_tokens": question.max_tokens, "seed": question.seed, "input": question.messages()}
    if question.schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": question.schema}}
    return body


def _read_responses(answer: Answer, part: Mapping[str, Any]) -> None:
    if part.get("type") == "response.output_text.delta":
        answer.text += part["delta"]
    whole = part if part.get("object") == "response" else part.get("response", {})
    if whole.get("status") in {"completed", "incomplete"}:
        if whole is part:
            answer.text = "".join(text["text"] for item in whole["output"] for text in item["content"])
        answer.model = whole["model"]
        answer.end(whole["status"], stop=("completed",))
        usage = whole["usage"]
        answer.prompt, answer.completion = usage["input_tokens"], usage["output_tokens"]
        answer.cached = usage["input_tokens_details"]["cached_tokens"]


CHAT = Api("chat", "/v1/chat/completions", lambda asked: _openai(asked) | {"messages": asked.messages()}, _read_openai)
COMPLETIONS = Api(
    "completions", "/v1/completions", lambda asked: _openai(asked) | {"prompt": asked.text}, _read_openai, is_chat=False
)
MESSAGES = Api("messages", "/v1/messages", _anthropic, _read_anthropic)
OLLAMA_CHAT = Api(
    "ollama chat", "/api/chat", lambda asked: _ollama(asked) | {"messages": asked.messages()}, _read_ollama
)
OLLAMA_GENERATE = Api(
    "ollama generate", "/api/generate", lambda asked: _ollama(asked) | {"prompt": asked.text}, _read_ollama
)
RESPONSES = Api("responses", "/v1/responses", _responses, _read_responses, has_stop=False)
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE)
"""Every API that gives answers."""
