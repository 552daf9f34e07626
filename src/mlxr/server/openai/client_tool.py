"""Tools that a client of /v1/responses runs, as functions that a model calls.

Chat templates know functions alone. So each kind of tool has a function, and each call of it becomes an item of the
kind that the client waits for: a custom tool's free text is the one argument `input`, a shell's commands are
`commands`, and so on. Items of earlier calls go the other way.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlxr.server.documents.responses_answers import (
    CallItem,
    LocalShellAction,
    LocalShellCall,
    OutputCall,
    PatchCall,
    PatchOperation,
    SearchCall,
    ShellAction,
    ShellCall,
    ShellEnvironment,
)
from mlxr.server.errors import bad_field

Kind = Literal["function", "custom", "local_shell", "shell", "apply_patch", "tool_search"]

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}


def _function(description: str, required: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {**required, **others}, "required": [*required]}
    return {"description": description, "parameters": parameters | {"additionalProperties": False}, "strict": True}


FUNCTIONS: dict[Kind, dict[str, Any]] = {
    "local_shell": _function(
        "Runs a command on the user's machine. command is the program and its arguments; for a line of shell it is "
        '["bash", "-lc", "the line"].',
        {"command": _TEXTS},
        working_directory=_TEXT,
        timeout_ms=_NUMBER,
    ),
    "shell": _function(
        "Runs lines of shell, one after the other, on the user's machine.",
        {"commands": _TEXTS},
        timeout_ms=_NUMBER,
        max_output_length=_NUMBER,
    ),
    "apply_patch": _function(
        "Creates, changes or deletes a file. Each line of diff begins with + (added), - (removed) or a space (kept); "
        "a line with @@ begins another place in the file. For create_file each line begins with +; for delete_file "
        "diff is empty.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": _TEXT,
        },
    ),
    "tool_search": _function("Searches for further tools, which can then be called.", {"query": _TEXT}),
}
"""What models see of tools whose shape is known."""


@dataclass(frozen=True)
class ClientTool:
    """A tool.

    Attributes:
        kind: what a call of it becomes.
        name: as the client knows it.
        namespace: the group that it belongs to; empty: none.
        function: what the model sees: description, parameters, and whether they are strict.
    """

    kind: Kind
    name: str
    function: Mapping[str, Any]
    namespace: str = ""

    @property
    def called(self) -> str:
        """As the model calls it."""
        return called_name(self.name, self.namespace)


class ToolKit:
    """The tools of one request."""

    def __init__(self, tools: Iterable[ClientTool]) -> None:
        """Collects them.

        Args:
            tools: those of the request. What has the same name and is the same counts once.
        """
        self.tools = list({tool.called + repr(tool.function): tool for tool in tools}.values())
        self._by_name = {tool.called: tool for tool in self.tools}

    @property
    def has_custom(self) -> bool:
        """Whether there are custom tools."""
        return any(tool.kind == "custom" for tool in self.tools)

    def find(self, called: str) -> ClientTool:
        """The tool that a model calls; of a name that none has, a function."""
        return self._by_name.get(called) or ClientTool("function", called, {})

    def functions(self) -> tuple[dict[str, Any], ...]:
        """The tools as `ChatJob` has them."""
        return tuple({"type": "function", "function": {"name": tool.called, **tool.function}} for tool in self.tools)

    def named(self, kind: str, name: str, namespace: str = "") -> ClientTool:
        """The tool that a request names.

        Raises:
            ApiError: it is not among the tools.
        """
        for tool in self.tools:
            if tool.kind == kind and tool.name == name and namespace in ("", tool.namespace):
                return tool
        names = ", ".join(tool.called for tool in self.tools) or "none"
        raise bad_field("tool_choice", f"tool_choice names the {kind} {name!r:.80}; the tools are: {names}")


def called_name(name: str, namespace: str | None) -> str:
    """A tool's name for models, who know no namespaces."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _commands(arguments: Mapping[str, Any], name: str, *shell: str) -> list[str]:
    """The words or lines of a command, also where a model wrote one text."""
    given = arguments.get(name)
    if isinstance(given, list):
        return [str(each) for each in given]
    return [] if given is None else [*shell, str(given)]


def _count(arguments: Mapping[str, Any], name: str) -> int | None:
    given = arguments.get(name)
    return given if isinstance(given, int) else None


def _local_shell(given: OutputCall, arguments: Mapping[str, Any]) -> LocalShellCall:
    folder = arguments.get("working_directory")
    action = LocalShellAction(
        type="exec",
        command=_commands(arguments, "command", "bash", "-lc"),
        env={},
        timeout_ms=_count(arguments, "timeout_ms"),
        user=None,
        working_directory=None if folder is None else str(folder),
    )
    return LocalShellCall(**given.fields(), action=action)


def _shell(given: OutputCall, arguments: Mapping[str, Any]) -> ShellCall:
    action = ShellAction(
        commands=_commands(arguments, "commands"),
        timeout_ms=_count(arguments, "timeout_ms"),
        max_output_length=_count(arguments, "max_output_length"),
    )
    return ShellCall(**given.fields(), action=action, environment=ShellEnvironment(type="local"))


def _apply_patch(given: OutputCall, arguments: Mapping[str, Any]) -> PatchCall:
    kind = str(arguments.get("type", "update_file"))
    operation = PatchOperation(type=kind, path=str(arguments.get("path", "")))
    if kind != "delete_file":
        operation.diff = str(arguments.get("diff", ""))
    return PatchCall(**given.fields(), operation=operation)


def _tool_search(given: OutputCall, arguments: Mapping[str, Any]) -> SearchCall:
    return SearchCall(**given.fields(), execution="client", arguments=dict(arguments))


ITEMS: dict[Kind, tuple[str, Callable[[OutputCall, Mapping[str, Any]], CallItem]]] = {
    "local_shell": ("lsh", _local_shell),
    "shell": ("sh", _shell),
    "apply_patch": ("apc", _apply_patch),
    "tool_search": ("tsc", _tool_search),
}
"""For kinds whose calls have fields of their own: how ids of their items begin, and what makes these."""
