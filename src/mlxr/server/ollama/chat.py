"""/api/chat."""

from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from mlxr.server.chat.answer import answer
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.documents.answers import answers
from mlxr.server.documents.json_form import Form, json_form
from mlxr.server.documents.ollama_answers import OllamaChat, OllamaChatLine, OllamaMessage
from mlxr.server.errors import bad_field, quoted_json
from mlxr.server.fields import MOST_MESSAGES, ApiModel, WithoutEffect
from mlxr.server.large_body_route import JsonRoute, made
from mlxr.server.ollama.answers import Ask, PartialAnswer, Records, answered, loaded_or_not
from mlxr.server.ollama.named_models import KeepAlive
from mlxr.server.ollama.options import Options, sampling_of
from mlxr.server.ollama.outer_fields import OuterFields
from mlxr.server.request_record import note_warning
from mlxr.server.state import ServerState

router = APIRouter(route_class=JsonRoute)
_LEVELS = ("low", "medium", "high", "max")


def _thought(value: object) -> object:
    if value is None or value in _LEVELS or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError(
        f"{quoted_json(value)} is none of true, false, {', '.join(_LEVELS)}, and no number of tokens from 0"
    )


Think = Annotated[bool | Literal["low", "medium", "high", "max"] | int | None, BeforeValidator(_thought)]
"""A number is ours: most tokens of reasoning."""
Format = Literal["", "json"] | dict[str, Any] | None


class CalledFunction(ApiModel):
    """A function that the assistant has called."""

    name: str
    arguments: dict[str, Any]
    index: WithoutEffect = None


class ToolCall(ApiModel):
    """A call of a tool by the assistant."""

    id: str | None = None
    type: WithoutEffect = None
    function: CalledFunction


class Message(ApiModel):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Function(ApiModel):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(ApiModel):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: Function


class CommonRequest(ApiModel):
    """The fields that chat and generate share."""

    model: str
    options: Options | None = None
    format: Format = None
    stream: bool | None = None
    keep_alive: KeepAlive = None
    think: Think = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None

    def check(self) -> None:
        """Warns where a prompt might be cut: here one that is too long is refused."""
        for name in ("truncate", "shift"):
            if getattr(self, name):
                note_warning(
                    f"{name} is without effect: this server never cuts a prompt, but refuses one that is too long"
                )

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens of reasoning."""
        return self.think if isinstance(self.think, int) and not isinstance(self.think, bool) else None

    def variables(self) -> dict[str, Any]:
        """For the chat template."""
        if self.think is None:
            return {}
        if self.thinking_budget is not None:
            return {"enable_thinking": True} if self.thinking_budget else {}
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) else {}
        return {"enable_thinking": self.think is not False} | effort


class ChatRequest(CommonRequest, OuterFields):
    """The body of /api/chat."""

    refused: ClassVar[dict[str, str]] = {"messages[].images": "this server takes text only"}

    messages: list[Message] | None = Field(None, max_length=MOST_MESSAGES)
    tools: list[Tool] | None = Field(None, max_length=1024)


@router.post("/api/chat", tags=["Ollama"], responses=answers(OllamaChat, "application/x-ndjson"))
async def chat(body: ChatRequest, request: Request) -> Response:
    """Answers a conversation; without messages it loads the model, or unloads it if keep_alive is 0."""
    state = ServerState.of(request)
    body.check()
    job = await made(request, lambda: _job(body)) if body.messages else None
    if job is None:
        return await loaded_or_not(Ask(state, body.model, body.keep_alive, body.options, _no_pieces, _RECORDS))
    ask = Ask(state, body.model, body.keep_alive, body.options, lambda model: answer(model, job), _RECORDS)
    return await answered(request, ask, body.stream)


def _no_pieces(model: Any) -> Any:
    raise AssertionError("nothing is asked")


def _job(body: ChatRequest) -> ChatJob:
    tools = tuple(tool.model_dump(exclude_none=True) for tool in body.tools or ())
    messages = told_messages(body.messages or [])
    return ChatJob(
        messages=messages,
        sampling=sampling_of(body.all_options(body.options), body.format, body.logprobs, body.top_logprobs),
        tools=tools,
        tool_choice=body.chosen([tool["function"]["name"] for tool in tools]),
        variables=body.variables(),
        thinking_budget=body.thinking_budget,
        continue_final=messages[-1]["role"] == "assistant",
    )


def told_messages(messages: list[Message]) -> tuple[dict[str, Any], ...]:
    """Messages as chat templates read them. Calls get names, and results of tools the names of their calls.

    Raises:
        ApiError: the result of a tool that was not called.
    """
    told: list[dict[str, Any]] = []
    waiting: dict[str, str] = {}  # calls without a result: the tool's name by the call's
    for place, message in enumerate(messages):
        item: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            item["reasoning_content"] = message.thinking
        if message.tool_calls:
            item["tool_calls"] = []
            for number, call in enumerate(message.tool_calls):
                call_id = call.id or f"call_{place}_{number}"
                waiting[call_id] = call.function.name
                function = {"name": call.function.name, "arguments": call.function.arguments}
                item["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if message.role == "tool":
            item["tool_call_id"] = _answered_call(place, message, waiting)
            item["name"] = waiting.pop(item["tool_call_id"])
        told.append(item)
    return tuple(told)


def _answered_call(place: int, message: Message, waiting: dict[str, str]) -> str:
    """The call that a tool's result belongs to: the one it names, else the first of its tool."""
    if message.tool_call_id:
        fitting = [call for call in waiting if call == message.tool_call_id]
    else:
        fitting = [call for call, name in waiting.items() if message.tool_name in (None, "", name)]
    if not fitting:
        what = message.tool_call_id or message.tool_name or "any tool"
        raise bad_field(
            f"messages[{place}]",
            f"messages[{place}] is a tool's result, and no call of {what} before it waits for one: send the "
            "assistant's message with its tool_calls, too",
        )
    return fitting[0]


def _fields(part: PartialAnswer) -> dict[str, Any]:
    message = OllamaMessage(role="assistant", content=part.text)
    if part.thinking:
        message.thinking = part.thinking
    if part.calls:
        message.tool_calls = part.calls
    return {"message": message}


def _line_form(*holes: str, **more: Any) -> Form:
    message = OllamaMessage(role="assistant", content="")
    example = OllamaChatLine(model="", created_at="", message=message, done=False, **more)
    return json_form(example, "model", "created_at", "content", *holes, after="\n")


_RECORDS = Records(_fields, OllamaChat, OllamaChatLine, _line_form(), _line_form("logprobs", logprobs=[]))
