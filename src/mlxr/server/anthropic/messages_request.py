"""The bodies of /v1/messages and /v1/messages/count_tokens."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from mlxr.server.anthropic.content import Message, Texts
from mlxr.server.anthropic.tools import AnyTool
from mlxr.server.fields import BY_TYPE, MOST_MESSAGES, TEXT_OR_LIST, ApiModel, NotServed, WithoutEffect, known_types

_MOST_TOOLS = 1024


class AutoChoice(ApiModel):
    """The model decides."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(ApiModel):
    """The model must call a tool."""

    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class NamedChoice(ApiModel):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(ApiModel):
    """The model may call no tool."""

    type: Literal["none"]


ToolChoice = Annotated[
    Annotated[AutoChoice, Tag("[auto]")]
    | Annotated[AnyChoice, Tag("[any]")]
    | Annotated[NamedChoice, Tag("[tool]")]
    | Annotated[NoChoice, Tag("[none]")],
    BY_TYPE,
    known_types("auto", "any", "tool", "none", instead="choose one of these"),
]


class ThinkingOn(ApiModel):
    """The model thinks before it answers, if its chat template knows of that: at most so many tokens."""

    type: Literal["enabled"]
    budget_tokens: int | None = Field(None, ge=0)
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: WithoutEffect = None


class ThinkingAdaptive(ApiModel):
    """The model decides how much it thinks."""

    type: Literal["adaptive"]
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: WithoutEffect = None


class ThinkingOff(ApiModel):
    """The model answers at once, if its chat template knows of that."""

    type: Literal["disabled"]


Thinking = Annotated[
    Annotated[ThinkingOn, Tag("[enabled]")]
    | Annotated[ThinkingAdaptive, Tag("[adaptive]")]
    | Annotated[ThinkingOff, Tag("[disabled]")],
    BY_TYPE,
    known_types("enabled", "adaptive", "disabled", instead="choose one of these"),
]


class OutputFormat(ApiModel):
    """JSON that the answer must be."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(ApiModel):
    """How much work the answer is worth, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: NotServed = None


class CountTokensRequest(ApiModel):
    """What is asked: the body of /v1/messages/count_tokens."""

    refused: ClassVar[dict[str, str]] = {
        "thread": "send the whole conversation as messages",
        "compaction": "make the conversation shorter before you send it",
    }

    model: str
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    system: Annotated[Texts, TEXT_OR_LIST] | None = None
    tools: list[AnyTool] | None = Field(None, max_length=_MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """What `output_config.format` was called before."""
    cache_control: WithoutEffect = None
    """Prompts are cached here without being told."""
    context_management: NotServed = None
    """Its edits make long conversations shorter; here nothing is cut, and what does not fit is refused."""
    speed: NotServed = None
    betas: NotServed = None
    user_profile_id: NotServed = None
    workspace_id: NotServed = None
    billing_policy: NotServed = None
    container: NotServed = None
    mcp_servers: NotServed = None
    fallbacks: NotServed = None


class MessagesRequest(CountTokensRequest):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=0)
    """0: the prompt is read, so that the prefix cache has it, and the answer is empty."""
    stop_sequences: list[str] | None = Field(None, max_length=64)
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    """Not of Anthropic's API: the same seed gives the same answer."""
    stream: bool | None = None
    metadata: NotServed = None
    service_tier: NotServed = None
    inference_geo: NotServed = None
    diagnostics: NotServed = None
    fallback_credit_token: NotServed = None
