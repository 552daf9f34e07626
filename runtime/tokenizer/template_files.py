"""Reads the chat templates of a model, by their names, from its files.

chat_template.jinja                          the default one
additional_chat_templates/NAME.jinja         others
chat_template.json, tokenizer_config.json    `chat_template`: one, or a list of `{name, template}`, or a dict by name
GGUF                                         tokenizer.chat_template, tokenizer.chat_template.NAME

As in transformers, what stands in .jinja files hides what JSON files say; a default that is missing is still taken from
these.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxr.compiler.artifact import file_keys
from mlxr.compiler.errors import TokenizerError
from mlxr.runtime.json_file import read_json_object, read_small_file

DEFAULT, TOOL_USE = "default", "tool_use"
ADDITIONAL_FOLDER = "additional_chat_templates"
_JINJA_NAME = "chat_template.jinja"
_JSON_NAMES = ("chat_template.json", "tokenizer_config.json")
_MOST_JSON_BYTES = 16 << 20
_MOST_TEMPLATE_BYTES = 1 << 20
_MOST_ADDITIONAL = 64


@dataclass(frozen=True)
class NamedTemplates:
    """The templates of a model, of which there is at least one.

    Attributes:
        by_name: their texts.
        source: the file that has the default one.
    """

    by_name: Mapping[str, str]
    source: str

    @property
    def text(self) -> str:
        """The one for conversations without tools: `default`, else as in llama.cpp that for tools, else the first."""
        for name in (DEFAULT, TOOL_USE):
            if name in self.by_name:
                return self.by_name[name]
        return next(iter(self.by_name.values()))

    @property
    def tool_use(self) -> str | None:
        """The one that is made for conversations with tools; None: `text` serves both."""
        return self.by_name.get(TOOL_USE)


def read_templates(folder: Path) -> NamedTemplates | None:
    """The templates of the model in `folder`; None if there is none.

    Raises:
        TokenizerError: a file is no JSON or no text, or holds something else than templates.
    """
    by_name: dict[str, str] = {}
    sources: dict[str, str] = {}
    for name, path in _jinja_files(folder):
        by_name[name], sources[name] = read_template_file(path), str(path)
    for file_name in _JSON_NAMES:
        if DEFAULT in by_name:
            break
        path = folder / file_name
        if path.is_file():
            said = read_json_object(path, _MOST_JSON_BYTES, TokenizerError).get("chat_template")
            for name, text in _named(said, path).items():
                if name not in by_name:
                    by_name[name], sources[name] = text, str(path)
    return NamedTemplates(by_name, sources.get(DEFAULT) or next(iter(sources.values()))) if by_name else None


def gguf_templates(metadata: Mapping[str, Any], path: Path) -> NamedTemplates | None:
    """The templates in a GGUF file's metadata; None if there is none.

    Raises:
        TokenizerError: one is no text, or far too long.
    """
    prefix = f"{file_keys.CHAT_TEMPLATE}."
    said = {key.removeprefix(prefix): text for key, text in metadata.items() if key.startswith(prefix)}
    if (default := metadata.get(file_keys.CHAT_TEMPLATE)) is not None:
        said[DEFAULT] = default
    for name, text in said.items():
        if not isinstance(text, str) or len(text) > _MOST_TEMPLATE_BYTES:
            key = file_keys.CHAT_TEMPLATE if name == DEFAULT else prefix + name
            raise TokenizerError(
                f"{path}: `{key}` is {text!r:.60}, expected text of at most {_MOST_TEMPLATE_BYTES} characters"
            )
    return NamedTemplates(said, str(path)) if said else None


def read_template_file(path: Path) -> str:
    """A template in a file of its own.

    Raises:
        TokenizerError: it cannot be read.
    """
    try:
        return read_small_file(path, _MOST_TEMPLATE_BYTES, TokenizerError, "a chat template").decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from error


def _jinja_files(folder: Path) -> Iterator[tuple[str, Path]]:
    if (path := folder / _JINJA_NAME).is_file():
        yield DEFAULT, path
    others = sorted(path for path in (folder / ADDITIONAL_FOLDER).glob("*.jinja") if path.is_file())
    yield from ((path.stem, path) for path in others[:_MOST_ADDITIONAL])


def _named(said: Any, path: Path) -> dict[str, str]:
    """What a JSON file says, by name."""
    if isinstance(said, str):
        return {DEFAULT: said}
    if isinstance(said, list):
        said = {entry.get("name"): entry.get("template") for entry in said if isinstance(entry, dict)}
    if said is None:
        return {}
    if not isinstance(said, dict) or not all(isinstance(part, str) for pair in said.items() for part in pair):
        raise TokenizerError(f"{path}: its chat_template is {said!r:.60}, expected text, or texts with names")
    return dict(said)
