"""The items of /v1/responses that tell of tools which the client ran: calls, and what these gave back.

Each call tells the function that the model has called (`told`: its name, and its arguments or their JSON), and each
output the text that the model reads.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mlxr.server.fields import ApiModel, WithoutEffect
from mlxr.server.openai.client_tool import called_name
from mlxr.server.openai.responses_text import Text, joined_text
from mlxr.server.openai.responses_tools import Tool, without_deferring

Told = tuple[str, dict[str, Any] | str]


class _Item(ApiModel):
    id: str | None = None
    status: str | None = None
    caller: WithoutEffect = None
    created_by: WithoutEffect = None


class _Call(_Item):
    call_id: str = Field(min_length=1)


class _Named(_Call):
    name: str
    namespace: str | None = None
    async_: WithoutEffect = Field(None, alias="async")


class CallItem(_Named):
    """A call of a function by the assistant."""

    type: Literal["function_call"]
    arguments: str

    def told(self) -> Told:
        """The function, and its arguments."""
        return called_name(self.name, self.namespace), self.arguments


class CustomCallItem(_Named):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    input: str

    def told(self) -> Told:
        """The tool, and its text."""
        return called_name(self.name, self.namespace), {"input": self.input}


class LocalShellAction(ApiModel):
    """A command."""

    type: Literal["exec"] = "exec"
    command: list[str]
    env: WithoutEffect = None
    timeout_ms: int | None = None
    user: WithoutEffect = None
    working_directory: str | None = None


class LocalShellCallItem(_Call):
    """A command for the client's shell."""

    type: Literal["local_shell_call"]
    action: LocalShellAction

    def told(self) -> Told:
        """The command, and where it runs."""
        kept = {"command", "working_directory", "timeout_ms"}
        return "local_shell", self.action.model_dump(include=kept, exclude_none=True)


class ShellAction(ApiModel):
    """Lines of shell."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCallItem(_Call):
    """Lines for the client's shell."""

    type: Literal["shell_call"]
    action: ShellAction
    environment: WithoutEffect = None

    def told(self) -> Told:
        """The lines, and their limits."""
        return "shell", self.action.model_dump(exclude_none=True)


class PatchOperation(ApiModel):
    """What happens to a file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


class PatchCallItem(_Call):
    """A change of a file."""

    type: Literal["apply_patch_call"]
    operation: PatchOperation

    def told(self) -> Told:
        """The change."""
        return "apply_patch", self.operation.model_dump() | {"diff": self.operation.diff or ""}


class SearchCallItem(_Call):
    """A search for tools, which the client does."""

    type: Literal["tool_search_call"]
    arguments: Any
    execution: Literal["client"]

    def told(self) -> Told:
        """What was searched for."""
        return "tool_search", self.arguments if isinstance(self.arguments, dict | str) else {"query": self.arguments}


class OutputItem(_Call):
    """What a function or a custom tool gave back."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Text
    name: WithoutEffect = None
    """Its call says it, too."""
    namespace: WithoutEffect = None

    def text(self) -> str:
        """As the model reads it."""
        return joined_text(self.output)


class LocalShellOutputItem(_Item):
    """What a command printed. It names its call by `id`, or as others do."""

    type: Literal["local_shell_call_output"]
    call_id: str | None = None
    output: str

    def text(self) -> str:
        """As the model reads it."""
        return self.output


class ShellOutcome(ApiModel):
    """How a line of shell ended."""

    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class ShellOutput(ApiModel):
    """What a line of shell printed."""

    stdout: str
    stderr: str
    outcome: ShellOutcome
    created_by: WithoutEffect = None


class ShellOutputItem(_Call):
    """What lines of shell printed."""

    type: Literal["shell_call_output"]
    output: list[ShellOutput]
    max_output_length: WithoutEffect = None

    def text(self) -> str:
        """As the model reads it: what each line printed, and how it ended where that is not well."""
        told = []
        for part in self.output:
            code = part.outcome.exit_code
            end = "timed out" if part.outcome.type == "timeout" else f"exit code {code}" if code else ""
            told += [text.rstrip("\n") for text in (part.stdout, part.stderr, end) if text]
        return "\n".join(told)


class PatchOutputItem(_Call):
    """What became of a change."""

    type: Literal["apply_patch_call_output"]
    output: str | None = None

    def text(self) -> str:
        """As the model reads it."""
        return "\n".join(text for text in (self.status, self.output) if text)


class SearchOutputItem(_Call):
    """The tools that a search has found, which the model may call from then on."""

    type: Literal["tool_search_output"]
    execution: Literal["client"] | None = None
    tools: Annotated[list[Tool], BeforeValidator(without_deferring)]

    def text(self) -> str:
        """As the model reads it."""
        return json.dumps([tool.model_dump(include={"name", "type"}, exclude_none=True) for tool in self.tools])
