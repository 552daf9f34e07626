"""The tools that Anthropic's API knows by their types, and that the client runs: what each is for, and its input.

Models of Anthropic know them by heart; others are told. The fields are those of Anthropic's documentation and SDK.
"""

from typing import Any

_TEXT = {"type": "string"}
_LINE = {"type": "integer", "description": "The text goes after this line; 0: before the first one."}
_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "For view: the first and the last line to show, from 1; -1 is the end of the file.",
}


def _commands(commands: list[str], required: list[str], **fields: Any) -> dict[str, Any]:
    properties = {"command": {"type": "string", "enum": commands}} | fields
    return {"type": "object", "properties": properties, "required": required}


_BASH = (
    "Runs a command in a bash shell that stays open, and returns what it prints.",
    {
        "type": "object",
        "properties": {
            "command": _TEXT | {"description": "The command to run. Needed unless restart is true."},
            "restart": {"type": "boolean", "description": "true: start the shell anew."},
        },
    },
)
_EDITING = {
    "path": _TEXT | {"description": "Of the file or folder."},
    "view_range": _RANGE,
    "file_text": _TEXT | {"description": "For create: what the file shall hold."},
    "old_str": _TEXT | {"description": "For str_replace: the text to replace, exactly as it is, which must be unique."},
    "new_str": _TEXT | {"description": "For str_replace: the text to put in its place."},
    "insert_line": _LINE,
}
_INSERTED = _TEXT | {"description": "For insert: the text to insert."}
_ABOUT_EDITING = "Views, creates and edits text files."


def _editor(commands: list[str], **fields: Any) -> tuple[str, dict[str, Any]]:
    return _ABOUT_EDITING, _commands(commands, ["command", "path"], **_EDITING | fields)


_EDITOR = _editor(["view", "create", "str_replace", "insert"], insert_text=_INSERTED)
_EDITOR_WITH_UNDO = _editor(
    ["view", "create", "str_replace", "insert", "undo_edit"],
    new_str=_TEXT | {"description": "For str_replace: the text to put in its place. For insert: the text to insert."},
)
_MEMORY = (
    "Keeps notes in files under /memories, which later conversations can read.",
    _commands(
        ["view", "create", "str_replace", "insert", "delete", "rename"],
        ["command"],
        **_EDITING,
        insert_text=_INSERTED,
        old_path=_TEXT | {"description": "For rename: the path as it is."},
        new_path=_TEXT | {"description": "For rename: the path that it shall have."},
    ),
)
KNOWN_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _EDITOR_WITH_UNDO,
    "text_editor_20250124": _EDITOR_WITH_UNDO,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
"""Each type's description, and the JSON schema of its input."""
