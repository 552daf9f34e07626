"""The body of /v1/chat/completions, and the conversation that it asks about."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.errors import ApiError, bad_field
from mlxr.server.fields import MOST_MESSAGES, ApiModel, NotServed, WithoutEffect, known_types
from mlxr.server.openai.chat_tools import Tool, ToolCall, kit_of
from mlxr.server.openai.client_tool import ToolKit
from mlxr.server.openai.reasoning_fields import ReasoningFields
from mlxr.server.openai.sampling_fields import ResponseFormat, SamplingFields, response_schema, sampling_of

_MOST_TOP = 20


class ContentPart(ApiModel):
    """A part of a message's content; this server knows text only."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str | None = None
    refusal: str | None = None
    cache_control: WithoutEffect = None
    prompt_cache_breakpoint: WithoutEffect = None


_TextPart = Annotated[
    ContentPart, known_types("text", "input_text", "output_text", "refusal", instead="this server takes text only")
]


class Message(ApiModel):
    """A message of a conversation."""

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    annotations: WithoutEffect = None
    audio: WithoutEffect = None
    function_call: None = None


class ToolName(ApiModel):
    """The name of a tool."""

    name: str


class ToolChoice(ApiModel):
    """The one tool that the model must call."""

    type: Literal["function", "custom"]
    function: ToolName | None = None
    custom: ToolName | None = None


class ChatRequest(SamplingFields, ReasoningFields):
    """The body of /v1/chat/completions."""

    refused: ClassVar[dict[str, str]] = {
        "functions": "use tools",
        "function_call": "use tool_choice",
        "audio": "there is no speech",
    }

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = Field(None, max_length=1024)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: WithoutEffect = None
    web_search_options: NotServed = None
    moderation: NotServed = None
    prediction: NotServed = None
    """A guess of the answer, which would make it come faster; the text is the same without."""
    prompt_cache_options: NotServed = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    add_generation_prompt: bool | None = None
    """vLLM's: whether an answer is begun; only where the last message is continued, none is."""


def job_of(request: ChatRequest) -> ChatJob:
    """The conversation of a request.

    Raises:
        ApiError: fields that contradict each other, or a message without its text.
        RequestError: a value outside its range.
    """
    if None not in (request.max_tokens, request.max_completion_tokens):
        raise bad_field("max_tokens", "max_tokens and max_completion_tokens are given: they mean the same, drop one")
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_field("top_logprobs", "top_logprobs needs logprobs: set it, or leave top_logprobs out")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= _MOST_TOP:
        raise bad_field("top_logprobs", f"top_logprobs is {request.top_logprobs}, expected 0 to {_MOST_TOP}")
    check_prompt_end(request.add_generation_prompt, request.continue_final_message)
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    sampling = sampling_of(
        request,
        max_tokens=most,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        json_schema=response_schema(request.response_format),
    )
    kit = kit_of(request.tools)
    return ChatJob(
        messages=tuple(told_message(i, message) for i, message in enumerate(request.messages)),
        sampling=sampling,
        tools=kit.functions(),
        tool_choice=_choice(request, kit),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        variables=request.variables,
        thinking_budget=request.budget,
        continue_final=request.continue_final_message or False,
        begins_answer=request.add_generation_prompt is not False,
    )


def check_prompt_end(begins: bool | None, continues: bool | str | None) -> None:
    """Checks that an answer is not both begun and continued, as vLLM and llama-server do."""
    if begins and continues:
        raise bad_field(
            "add_generation_prompt",
            "add_generation_prompt begins an answer, and continue_final_message continues one: drop one of them",
        )


def told_message(place: int, message: Message) -> dict[str, Any]:
    """A message as chat templates read it.

    Raises:
        ApiError: content that is missing, or a part of it without its text.
    """
    if message.content is None and message.role != "assistant":
        name = f"messages[{place}].content"
        raise ApiError(400, f"{name} is missing: it is required", param=name, code="missing_field")
    told = message.model_dump(exclude_none=True, by_alias=True)
    told["role"] = "system" if message.role == "developer" else message.role
    told["content"] = text_of(f"messages[{place}].content", message.content)
    for name in ("annotations", "audio", "refusal", "reasoning"):
        told.pop(name, None)
    if message.reasoning_content is None and message.reasoning is not None:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        told["tool_calls"] = [call.told(f"messages[{place}].tool_calls[{number}]") for number, call in calls]
    if message.refusal and not told["content"]:
        told["content"] = message.refusal
    return told


def text_of(place: str, content: str | list[ContentPart] | None) -> str:
    """The text of a message's content.

    Raises:
        ApiError: a part without its text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise bad_field(f"{place}[{i}].text", f"{place}[{i}].text is missing: it is required")
        texts.append(text)
    return "\n".join(texts) if len(texts) > 1 else "".join(texts)


def _choice(request: ChatRequest, kit: ToolKit) -> str:
    choice, names = request.tool_choice, [tool.name for tool in kit.tools]
    if choice is None or (choice == "auto" and not names and request.tools):
        return "auto" if names else "none"
    if choice != "none" and not names:
        raise bad_field("tool_choice", "tool_choice needs tools that the client runs: give some, or leave it out")
    if isinstance(choice, str):
        return choice
    named = choice.custom if choice.type == "custom" else choice.function
    if named is None:
        name = f"tool_choice.{choice.type}"
        raise ApiError(400, f"{name} is missing: it is required", param=name, code="missing_field")
    if named.name not in names:
        raise bad_field("tool_choice", f"tool_choice names {named.name!r:.80}; tools has {', '.join(names)}")
    return f"function:{named.name}"
