"""The body of /v1/responses, and the conversation that it asks about."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.errors import bad_field
from mlxr.server.fields import BY_TYPE, TEXT_OR_LIST, ApiModel, NotServed, WithoutEffect, known_types
from mlxr.server.openai.reasoning_fields import Effort
from mlxr.server.openai.responses_items import Item, told_items
from mlxr.server.openai.sampling_fields import ANY_OBJECT, all_of, check_schema, seed_of, share_of

_INCLUDED = frozenset({"reasoning.encrypted_content"})
"""Reasoning is told as text, which clients may send back: there is nothing to encrypt."""


class FunctionTool(ApiModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(ApiModel):
    """The one function that the model must call."""

    type: Literal["function"]
    name: str


class TextFormat(ApiModel):
    """Any text."""

    type: Literal["text"]


class JsonFormat(ApiModel):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(ApiModel):
    """JSON of a schema."""

    type: Literal["json_schema"]
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


Format = Annotated[
    Annotated[TextFormat, Tag("[text]")]
    | Annotated[JsonFormat, Tag("[json_object]")]
    | Annotated[SchemaFormat, Tag("[json_schema]")],
    BY_TYPE,
    known_types("text", "json_object", "json_schema", instead="choose one of these"),
]


class TextConfig(ApiModel):
    """The form of the answer."""

    format: Format | None = None
    verbosity: WithoutEffect = None


class ReasoningConfig(ApiModel):
    """How much the model thinks, if its chat template knows of that."""

    effort: Effort | None = None
    max_tokens: int | None = Field(None, ge=0)
    """Not of OpenAI's API: most tokens of reasoning, after which the answer begins."""
    summary: WithoutEffect = None
    generate_summary: WithoutEffect = None
    context: WithoutEffect = None
    mode: WithoutEffect = None


class StreamOptions(ApiModel):
    """Options of a stream."""

    include_obfuscation: WithoutEffect = None


class ResponsesRequest(ApiModel):
    """The body of /v1/responses."""

    refused: ClassVar[dict[str, str]] = {
        "previous_response_id": "this server keeps no responses, send the whole conversation as input",
        "conversation": "this server keeps no conversations, send the whole one as input",
        "prompt": "this server keeps no prompts, send the text as instructions and input",
        "top_logprobs": "ask /v1/chat/completions for log probabilities",
        "stop": "ask /v1/chat/completions for stop texts",
        "context_management": "make the conversation shorter before you send it",
        "moderation": "there is no moderation",
        "background_options": "ask for a stream",
        "image": "this server takes text only",
        "tools[].defer_loading": "give only the tools that the model shall know",
        "tools[].allowed_callers": "only the model itself calls tools here",
    }

    model: str
    input: Annotated[
        Annotated[str, Tag("str")] | Annotated[list[Item], Field(min_length=1), Tag("[list]")],
        TEXT_OR_LIST,
    ]
    instructions: str | None = None
    tools: (
        list[Annotated[FunctionTool, known_types("function", instead="this server has no tools of its own")]] | None
    ) = Field(None, max_length=1024)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """Not of OpenAI's API, as are those up to `priority`; sglang-router sends some of them with each request."""
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    include: list[str] | None = None
    store: WithoutEffect = None
    """Responses are never kept."""
    metadata: WithoutEffect = None
    max_tool_calls: WithoutEffect = None
    """Counts calls of tools that a server has."""
    service_tier: NotServed = None
    user: WithoutEffect = None
    safety_identifier: WithoutEffect = None
    prompt_cache_key: NotServed = None
    prompt_cache_options: NotServed = None
    prompt_cache_retention: NotServed = None
    access_programs: NotServed = None
    client_metadata: NotServed = None


def job_of(request: ResponsesRequest) -> ChatJob:
    """The conversation of a request.

    Raises:
        ApiError: fields that contradict each other, or values that are not served.
        RequestError: a value outside its range.
    """
    for name in request.include or ():
        if name not in _INCLUDED:
            raise bad_field("include", f"include has {name!r:.80}, which this server does not have: leave it out")
    items = (
        [{"role": "user", "content": request.input}] if isinstance(request.input, str) else told_items(request.input)
    )
    first = [{"role": "system", "content": request.instructions}] if request.instructions else []
    tools = tuple(
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in request.tools or ()
    )
    return ChatJob(
        messages=(*first, *items),
        sampling=_sampling(request),
        tools=tools,
        tool_choice=_choice(request),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        variables=_variables(request),
        thinking_budget=None if request.reasoning is None else request.reasoning.max_tokens,
    )


def _sampling(request: ResponsesRequest) -> Sampling:
    given = {
        "temperature": request.temperature,
        "top_p": share_of(request.top_p),
        "top_k": all_of(request.top_k),
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "seed": seed_of(request.seed),
        "ignore_eos": request.ignore_eos,
        "json_schema": _schema(request.text.format if request.text is not None else None),
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if request.text is not None and isinstance(request.text.format, SchemaFormat):
        options["strict"] = bool(request.text.format.strict)
    return Sampling.of_model(max_tokens=request.max_output_tokens, **options)


def _schema(form: TextFormat | JsonFormat | SchemaFormat | None) -> dict[str, Any] | None:
    if isinstance(form, SchemaFormat):
        check_schema("text.format.schema", form.schema_, strict=bool(form.strict))
        return form.schema_
    return ANY_OBJECT if isinstance(form, JsonFormat) else None


def _choice(request: ResponsesRequest) -> str:
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise bad_field("tool_choice", "tool_choice needs tools: give tools, or leave it out")
        return "none"
    if isinstance(choice, ToolChoice):
        return f"function:{choice.name}"
    return choice or "auto"


def _variables(request: ResponsesRequest) -> dict[str, Any]:
    effort = None if request.reasoning is None else request.reasoning.effort
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
