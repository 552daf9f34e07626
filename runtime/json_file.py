"""Reads the small files beside a model's weights, up to a largest size; errors name the file."""

import json
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import foreign_file
from mlxr.compiler.errors import MlxrError


def read_small_file(path: Path, most_bytes: int, error: type[MlxrError], what: str = "") -> bytes:
    """A file's content.

    Args:
        path: the file.
        most_bytes: its largest size.
        error: the class of error to raise.
        what: what the file should be, for the message; by default a model's file of that name.

    Raises:
        MlxrError: the file is missing, not readable or too large; of the class `error`.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except OSError as fault:
        raise error(f"{path}: cannot be read: {fault.strerror or fault}") from fault
    if len(content) > most_bytes:
        expected = what or f"a model's {path.name}"
        raise error(f"{path}: larger than {most_bytes} bytes; this is not {expected}")
    return content


def read_json(path: Path, most_bytes: int, error: type[MlxrError], **options: Any) -> Any:
    """The content of a JSON file.

    Args:
        path: the file.
        most_bytes: its largest size.
        error: the class of error to raise.
        options: of `json.loads`.

    Raises:
        MlxrError: as `read_small_file`, or it is not JSON.
    """
    try:
        return json.loads(read_small_file(path, most_bytes, error), **options)
    except (ValueError, RecursionError) as fault:
        if (kind := foreign_file(path)) is not None:
            raise error(f"{path} is {kind}") from fault
        raise error(f"{path}: cannot be read as JSON: {fault}") from fault


def read_json_object(path: Path, most_bytes: int, error: type[MlxrError]) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        MlxrError: as `read_json`, or it has no object.
    """
    content = read_json(path, most_bytes, error)
    if not isinstance(content, dict):
        raise error(f"{path}: holds no JSON object, so it is not a model's {path.name}")
    return content
