"""The body of /v1/responses, and the conversation that it asks about."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from mlxr.runtime.engine.sampling import Sampling
from mlxr.server.chat.chat_job import ChatJob
from mlxr.server.errors import bad_field
from mlxr.server.fields import (
    BY_TYPE,
    MOST_MESSAGES,
    TEXT_OR_LIST,
    ApiModel,
    NotServed,
    WithoutEffect,
    known_types,
    type_of,
)
from mlxr.server.openai.client_tool import ClientTool, ToolKit
from mlxr.server.openai.reasoning_fields import Effort
from mlxr.server.openai.responses_calls import SearchOutputItem
from mlxr.server.openai.responses_items import Item, ToolsItem, told_items
from mlxr.server.openai.responses_tools import Tool, client_tools
from mlxr.server.openai.sampling_fields import ANY_OBJECT, all_of, check_schema, seed_of, share_of
from mlxr.server.request_record import note_warning

_NOT_RUN = "this server runs no tools of its own"
_NAMED = ("function", "custom", "local_shell", "shell", "apply_patch", "tool_search")
_REASONING = "reasoning.encrypted_content"
_OF_SERVICES = (
    "web_search_call.",
    "file_search_call.",
    "code_interpreter_call.",
    "computer_call_output.",
    "message.input_image.",
)
"""How `include` names parts of items that this server never writes."""


def _awaited(value: object) -> object:
    if value is True:
        raise ValueError("it is true, and no answer is made here while nobody waits for it: ask for a stream")
    return value


class ToolName(ApiModel):
    """A tool by its type, and by its name if it has one."""

    type: Literal["function", "custom", "local_shell", "shell", "apply_patch", "tool_search"]
    name: str | None = None
    namespace: str | None = None


class AllowedTools(ApiModel):
    """The tools that may be called this time; the others are not told to the model."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[Annotated[ToolName, known_types(*_NAMED, instead=_NOT_RUN)]]


ToolChoice = Annotated[
    Annotated[ToolName, Tag("[tool]")] | Annotated[AllowedTools, Tag("[allowed_tools]")],
    Discriminator(lambda choice: "[allowed_tools]" if type_of(choice) == "allowed_tools" else "[tool]"),
    known_types(*_NAMED, "allowed_tools", instead=_NOT_RUN),
]


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
    max_tokens: int | None = Field(None, ge=-1)
    """Not of OpenAI's API: most tokens of reasoning, after which the answer begins; -1: as many as the model wants."""
    summary: WithoutEffect = None
    generate_summary: WithoutEffect = None
    context: WithoutEffect = None
    mode: WithoutEffect = None


class StreamOptions(ApiModel):
    """Options of a stream."""

    include_obfuscation: WithoutEffect = None


class InputTokensRequest(ApiModel):
    """What is asked: the body of /v1/responses/input_tokens."""

    refused: ClassVar[dict[str, str]] = {
        "conversation": "this server keeps no conversations, but responses: use previous_response_id",
        "prompt": "this server keeps no prompts, send the text as instructions and input",
        "personality": "say it in instructions",
    }

    model: str
    input: Annotated[
        Annotated[str, Tag("str")]
        | Annotated[list[Item], Field(min_length=1, max_length=MOST_MESSAGES), Tag("[list]")],
        TEXT_OR_LIST,
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Tool] | None = Field(None, max_length=1024)
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("literal")] | Annotated[ToolChoice, Tag("[object]")],
            Discriminator(lambda choice: "literal" if isinstance(choice, str) else "[object]"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """No conversation is ever cut: one that is too long is refused."""


class ResponsesRequest(InputTokensRequest):
    """The body of /v1/responses."""

    refused: ClassVar[dict[str, str]] = InputTokensRequest.refused | {
        "top_logprobs": "ask /v1/chat/completions for log probabilities",
        "stop": "ask /v1/chat/completions for stop texts",
        "background_options": "ask for a stream",
        "image": "this server takes text only",
    }

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
    background: Annotated[Literal[False] | None, BeforeValidator(_awaited)] = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: WithoutEffect = None
    """It is told back, and kept with the response."""
    context_management: NotServed = None
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
    moderation: NotServed = None

    @property
    def wants_sealed_reasoning(self) -> bool:
        """Whether reasoning is told as clients send it back who keep only `encrypted_content`."""
        return _REASONING in (self.include or ())


def toolkit_of(request: InputTokensRequest) -> ToolKit:
    """The tools that the model is told of: those of the request, and those that came with items."""
    tools = [*client_tools(request.tools or (), "tools")]
    for place, item in enumerate(() if isinstance(request.input, str) else request.input):
        if isinstance(item, ToolsItem | SearchOutputItem):
            tools += client_tools(item.tools, f"input[{place}].tools")
    choice = request.tool_choice
    kit = ToolKit(tools)
    if isinstance(choice, AllowedTools):
        return ToolKit(_named(kit, each) for each in choice.tools)
    return kit


def job_of(request: ResponsesRequest, kit: ToolKit) -> ChatJob:
    """The conversation of a request.

    Args:
        request: the body.
        kit: its tools.

    Raises:
        ApiError: fields that contradict each other, or values that are not served.
        RequestError: a value outside its range.
    """
    for name in request.include or ():
        if name.startswith(_OF_SERVICES):
            note_warning("include is without effect on what services write: this server has no such service")
        elif name != _REASONING:
            raise bad_field("include", f"include has {name!r:.80}, which this server does not have: leave it out")
    return replace(conversation_of(request, kit), sampling=_sampling(request))


def conversation_of(request: InputTokensRequest, kit: ToolKit) -> ChatJob:
    """The same without options of sampling.

    Args:
        request: the body.
        kit: its tools.

    Raises:
        ApiError: fields that contradict each other.
    """
    items = (
        [{"role": "user", "content": request.input}] if isinstance(request.input, str) else told_items(request.input)
    )
    first = [{"role": "system", "content": request.instructions}] if request.instructions else []
    budget = None if request.reasoning is None else request.reasoning.max_tokens
    return ChatJob(
        messages=(*first, *items),
        sampling=Sampling(),
        tools=kit.functions(),
        tool_choice=_choice(request, kit),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        variables=_variables(request),
        thinking_budget=None if budget == -1 else budget,
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


def _choice(request: InputTokensRequest, kit: ToolKit) -> str:
    choice = request.tool_choice
    if isinstance(choice, AllowedTools):
        return choice.mode
    if not kit.tools:
        if choice not in (None, "none", "auto"):
            raise bad_field("tool_choice", "tool_choice needs tools that the client runs: give some, or leave it out")
        return "none"
    if isinstance(choice, ToolName):
        return f"function:{_named(kit, choice).called}"
    return choice or "auto"


def _named(kit: ToolKit, named: ToolName) -> ClientTool:
    return kit.named(named.type, named.name or named.type, named.namespace or "")


def _variables(request: InputTokensRequest) -> dict[str, Any]:
    effort = None if request.reasoning is None else request.reasoning.effort
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
