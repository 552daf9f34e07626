"""Answers of /v1/responses: a response with its items, and what is kept of it."""

from typing import Any, Literal

from mlxr.server.documents.answers import LooseText, Told


class OutputText(Told):
    """Text of the answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class ReasoningText(Told):
    """Text that the model wrote for itself."""

    type: Literal["reasoning_text"]
    text: str


Part = OutputText | ReasoningText
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class _Item(Told):
    id: str
    status: ItemStatus


class OutputMessage(_Item):
    """What the assistant said."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(_Item):
    """What the model wrote for itself; sealed, if the client asked for that."""

    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: str | None = None


class OutputCall(_Item):
    """A call of a tool that the client runs."""

    type: str
    call_id: str


class FunctionCall(OutputCall):
    """A call of a function."""

    type: Literal["function_call"]
    name: str
    arguments: str
    namespace: str | None = None


class CustomCall(OutputCall):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    name: str
    input: LooseText
    namespace: str | None = None


class LocalShellAction(Told):
    """A command."""

    type: Literal["exec"]
    command: list[str]
    env: dict[str, str]
    timeout_ms: int | None
    user: None
    working_directory: str | None


class LocalShellCall(OutputCall):
    """A command for the client's shell."""

    type: Literal["local_shell_call"]
    action: LocalShellAction


class ShellAction(Told):
    """Lines of shell, and their limits."""

    commands: list[str]
    timeout_ms: int | None
    max_output_length: int | None


class ShellEnvironment(Told):
    """Where lines run."""

    type: Literal["local"]


class ShellCall(OutputCall):
    """Lines for the client's shell."""

    type: Literal["shell_call"]
    action: ShellAction
    environment: ShellEnvironment


class PatchOperation(Told):
    """What happens to a file."""

    type: str
    path: str
    diff: str | None = None


class PatchCall(OutputCall):
    """A change of a file."""

    type: Literal["apply_patch_call"]
    operation: PatchOperation


class SearchCall(OutputCall):
    """A search for tools."""

    type: Literal["tool_search_call"]
    execution: Literal["client"]
    arguments: dict[str, Any]


CallItem = FunctionCall | CustomCall | LocalShellCall | ShellCall | PatchCall | SearchCall
Item = OutputMessage | OutputReasoning | CallItem


class InputDetails(Told):
    """Of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Told):
    """Of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(Told):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Told):
    """Why there is no answer."""

    code: str
    message: LooseText


class Incomplete(Told):
    """Why an answer was cut short."""

    reason: Literal["max_output_tokens"]


class Reasoning(Told):
    """What was asked of reasoning."""

    effort: str | None
    summary: None


class TextForm(Told):
    """What form the text was asked to have."""

    format: dict[str, Any]


ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class Response(Told):
    """Of /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    background: bool
    error: ResponseError | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: Any
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Reasoning
    store: bool
    temperature: float
    text: TextForm
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: Any
    warnings: list[str] | None = None


class ResponseItems(Told):
    """Of /v1/responses/ID/input_items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedResponse(Told):
    """Of DELETE /v1/responses/ID."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Told):
    """Of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int
